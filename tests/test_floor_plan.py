"""Imports between subpackages: there are no cycles, and most modules need no TensorFlow."""

import ast
import configparser
import importlib
import re
import sys
from pathlib import Path
from typing import get_args

import pytest

from tf_transformer import registry

PACKAGE = Path(__file__).parents[1] / "tf_transformer"
CORE = ("config", "masks", "distribution", "registry")  # files that every subpackage may import, as well as utils
SUBPACKAGES = {  # {subpackage: others that it may import}
    "utils": (),
    "layers": (),
    "tokenizers": (),
    "models": ("layers", "tokenizers"),
    "data": ("tokenizers",),
    "decoding": ("layers", "models", "tokenizers"),
    "evaluation": ("models",),
    "serving": ("decoding", "layers", "models", "tokenizers"),
    "inference": ("decoding", "models", "serving", "tokenizers"),
    "training": ("data", "decoding", "evaluation", "inference", "layers", "models", "tokenizers"),
    "extensions.adapters": ("models",),
    "extensions.beam": ("data", "decoding", "extensions.documents", "extensions.records", "inference", "tokenizers"),
    "extensions.conformance": (),
    "extensions.documents": ("inference",),
    "extensions.interop": ("decoding", "inference", "layers", "models", "serving", "tokenizers"),
    "extensions.parsing": (
        "data",
        "decoding",
        "evaluation",
        "inference",
        "models",
        "serving",
        "tokenizers",
        "training",
    ),
    "extensions.records": ("data", "models", "tokenizers", "training"),
    "extensions.recipes": ("data", "decoding", "extensions.documents", "inference"),
    "extensions.server": ("decoding", "extensions.documents", "inference"),
    "extensions.sources": ("data", "tokenizers"),
    "extensions.text_models": ("decoding", "inference", "layers", "serving", "tokenizers"),
}
# Modules that import TensorFlow at once. They are loaded only on it.
ON_TENSORFLOW = ["decoding.growing", "inference.savedmodel"]
ON_TENSORFLOW += [f"extensions.server.{name}" for name in ("app", "libretranslate", "model", "predict")]
ON_TENSORFLOW += [f"serving.{name}" for name in ("contract", "graphs", "saving")]
ON_TENSORFLOW += [f"extensions.beam.{name}" for name in ("preparation", "shards", "translation")]
ON_TENSORFLOW += [
    f"extensions.interop.formats.{name}" for name in ("argos", "ctranslate2", "litert", "onnx", "portable")
]
FILES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
}


def modules():
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__"), ast.parse(path.read_text(encoding="utf-8"))


def package_imports(tree, inside_functions=True):
    """Returns the package's modules that a module imports, without the package's name."""
    names = imports(tree, inside_functions)
    return {name.removeprefix("tf_transformer.") for name in names if name.startswith("tf_transformer")}


def imports(tree, inside_functions=True):
    """Yields the imports of a module. Imports only for type checkers count as inside a function, as do strings that
    name a module of the package, as `registry` and `lazily` take them."""
    for node in ast.walk(tree) if inside_functions else tree.body:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (module if module in FILES else node.module for module in modules)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif inside_functions and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from named_in(node.value)


def named_in(string):
    """Yields the module that a string is the dotted path of, perhaps with an attribute: "layers.int8:Int8"."""
    path = string.partition(":")[0].removeprefix("tf_transformer.")
    if "." in path and f"tf_transformer.{path}" in FILES:
        yield f"tf_transformer.{path}"


def subpackage_of(module):
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "extensions" and len(parts) > 1 else parts[0]


def test_a_subpackage_imports_those_of_its_row():
    """No core subpackage imports an extension. Few extensions import another one."""
    used = {subpackage: set() for subpackage in SUBPACKAGES}
    for name, tree in modules():
        subpackage = subpackage_of(name)
        if not name or name == "extensions":  # they import all names
            continue
        assert subpackage in SUBPACKAGES or name in CORE, f"{name} is in no subpackage"
        for imported in package_imports(tree):
            other = subpackage_of(imported)
            if name in CORE:
                assert other in ("utils", *CORE), f"{name} imports {imported}"
            elif other not in (subpackage, "utils", *CORE):
                assert other in SUBPACKAGES[subpackage], f"{name} imports {imported}"
                used[subpackage].add(other)
    for subpackage, others in SUBPACKAGES.items():
        assert set(others) <= used[subpackage], f"{subpackage} does not import {set(others) - used[subpackage]}"


def cycles_in(imported):
    """Removes modules without imports until none is left but cycles, and modules that import them."""
    remaining = dict(imported)
    while removable := [name for name, others in remaining.items() if not set(others) & set(remaining)]:
        for name in removable:
            del remaining[name]
    return remaining


def test_imports_have_no_cycles():
    files = {name: package_imports(tree) - {name} for name, tree in modules() if name}
    assert not cycles_in(SUBPACKAGES) and not cycles_in(files)


def test_strings_that_name_modules_are_imports():
    source = (
        """registry.find("services", "extensions.parsing.parser:PARSING")\nlazily("tf_transformer.layers.int8", "x")"""
    )
    assert package_imports(ast.parse(source)) == {"extensions.parsing.parser", "layers.int8"}
    # The package itself names what the registry finds, from above. Below it, the registry names nothing.
    trees = dict(modules())
    assert package_imports(trees["registry"]) == {"utils.terminal", "utils.values"}
    assert "training.tasks" in package_imports(trees[""])


def test_extensions_list_what_exists():
    listed = configparser.ConfigParser()
    listed.read(PACKAGE / "extensions/entry_points.txt")
    assert all(section.removeprefix("tf_transformer.") in get_args(registry.Kind) for section in listed.sections())
    for section in listed.sections():
        for entry in listed[section].values():
            module, _, attribute = entry.partition(":")
            assert hasattr(importlib.import_module(module), attribute), entry


def test_most_modules_import_no_tensorflow():
    """Nor do they import modules that do."""
    for name, tree in modules():
        if name not in ON_TENSORFLOW:
            forbidden = [module for module in imports(tree, inside_functions=False) if module.startswith("tensorflow")]
            modules_of_package = package_imports(tree, inside_functions=False) - {""}
            forbidden += [module for module in modules_of_package if module in ON_TENSORFLOW]
            assert not forbidden, f"{name} imports {forbidden}"


def test_a_missing_apache_beam_raises_bad_input(monkeypatch):
    import tf_transformer as tt

    monkeypatch.setitem(sys.modules, "apache_beam", None)
    assert "Translate" in tt.beam.__all__
    with pytest.raises(tt.BadInput, match=re.escape('apache_beam: pip install "tf-transformer[beam]"')):
        _ = tt.beam.Translate
    with pytest.raises(AttributeError):
        _ = tt.beam.nothing


def test_nothing_imports_the_programs():
    for name, tree in modules():
        assert not [module for module in imports(tree) if module.startswith("trainers")], name


def test_no_pattern_repeats_a_group_possessively():
    """Before 3.11.5, Python keeps what an alternative of such a group read before it failed. `(?>...)` is right."""
    for path in PACKAGE.rglob("*.py"):
        assert not re.search(r"\)[*+?]\+", path.read_text(encoding="utf-8")), path
