"""CONTRIBUTING.md lists all private hooks that the package uses."""

import ast
import collections
import re

import keras
import pages

PACKAGE = pages.ROOT / "tf_transformer"
BASES = (keras.Model, keras.optimizers.Adam, keras.metrics.Mean, keras.losses.Loss)
NAMED_TUPLES = {"_replace", "_fields", "_asdict", "_make"}
PUBLIC = {"_exit"}  # in `os`


def private_hooks():
    """Returns names with an underscore that the package uses or overrides and did not make, raw operations, and private
    modules, with the files that use them."""
    users, defined = collections.defaultdict(set), NAMED_TUPLES | PUBLIC
    for path in PACKAGE.rglob("*.py"):
        used = set()
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
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr", "setattr"):
                names = [argument.value for argument in node.args[1:2] if isinstance(argument, ast.Constant)]
                used |= {name for name in names if name.startswith("_") and not name.startswith("__")}
            elif isinstance(node, ast.AnnAssign):
                defined.add(getattr(node.target, "id", ""))
            elif isinstance(node, ast.Assign):
                defined |= {getattr(target, "id", "") for target in node.targets}
            elif isinstance(node, ast.Import | ast.ImportFrom):
                modules = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
                used |= {name for name in modules if re.match(r"keras\.src|tensorflow\.python|tensorflow_text\.", name)}
        for name in used:
            users[name].add(path.relative_to(PACKAGE).as_posix())
    return {name: files for name, files in users.items() if name not in defined}


def test_the_private_hooks_are_listed():
    table = pages.read("CONTRIBUTING.md").split("Private hooks, and")[1]
    hooks, listed = private_hooks(), collections.defaultdict(tuple)
    for line in table.splitlines():
        if line.startswith("| `"):
            names, files = (re.findall(r"`([^`]+)`", line.split("|")[column]) for column in (1, 3))
            for name in names:
                listed[name] += tuple(files)
    assert listed.keys() == hooks.keys()
    for name, files in hooks.items():
        assert all(file.endswith(listed[name]) for file in files), f"{name}: {files}"


def test_the_citation_is_of_this_version():
    from tf_transformer.utils.version import __version__

    assert f"\nversion: {__version__}\n" in pages.read("CITATION.cff")


def test_the_tests_that_ci_names_exist():
    for script in (path for path in (pages.ROOT / ".ci").iterdir() if path.is_file()):
        for path in re.findall(r"(?<![\w/.])tests/[\w/]+(?:\.py)?", script.read_text(encoding="utf-8")):
            assert (pages.ROOT / path).exists(), f"{script.name}: {path}"
