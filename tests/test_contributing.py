"""CONTRIBUTING.md lists all private hooks that the package uses."""

import ast
import re

import keras
import pages

PACKAGE = pages.ROOT / "tf_transformer"
BASES = (keras.Model, keras.optimizers.Adam, keras.metrics.Mean, keras.losses.Loss)
NAMED_TUPLES = {"_replace", "_fields", "_asdict", "_make"}
PUBLIC = {"_exit"}  # in `os`


def private_hooks():
    """Names with an underscore that the package uses or overrides and did not make, raw operations, private modules."""
    used, defined = set(), NAMED_TUPLES | PUBLIC
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                if isinstance(node.value, ast.Attribute) and node.value.attr == "raw_ops":
                    used.add(f"raw_ops.{node.attr}")
                if node.attr.startswith("_") and not node.attr.startswith("__"):
                    used.add(node.attr)
                    if isinstance(node.ctx, ast.Store) and getattr(node.value, "id", "") == "self":
                        defined.add(node.attr)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                overrides = node.name.startswith("_") and not node.name.startswith("__")
                overrides &= any(hasattr(base, node.name) for base in BASES)
                (used if overrides else defined).add(node.name)
            elif isinstance(node, ast.AnnAssign):
                defined.add(getattr(node.target, "id", ""))
            elif isinstance(node, ast.Assign):
                defined |= {getattr(target, "id", "") for target in node.targets}
            elif isinstance(node, ast.Import | ast.ImportFrom):
                modules = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
                used |= {name for name in modules if re.match(r"keras\.src|tensorflow\.python|tensorflow_text\.", name)}
    return used - defined


def test_the_private_hooks_are_listed():
    table = pages.read("CONTRIBUTING.md").split("Private hooks, and")[1]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert listed == private_hooks()


def test_the_citation_is_of_this_version():
    from tf_transformer.utils.version import __version__

    assert f"\nversion: {__version__}\n" in pages.read("CITATION.cff")
