"""Which room may look into which: neither rooms nor files form a circle, and much of it knows no TensorFlow."""

import ast
import re
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "tf_transformer"
ROOMS = {  # a folder or a file, and the rooms that it may import; every room may import the paper's files and base
    "base": (),
    "text": (),
    "evaluation": (),
    "conformance": (),
    "runs": (),
    "documents": (),
    "families": ("text",),
    "exports": ("conformance", "families", "text"),
    "engines": ("conformance", "documents", "exports", "families", "runs", "text"),
    "corpora": ("families", "text"),
    "parsing": ("corpora", "engines", "exports", "text"),
    "loading": ("engines", "parsing", "runs"),
    "fitting": ("corpora", "engines", "evaluation", "families", "loading", "parsing", "runs", "text"),
    "beam": ("corpora", "documents", "engines", "loading", "text"),
}
PAPER = ("config", "masks", "layers", "keras_model", "model", "ensemble", "training", "training_step", "distribution")
BACKEND_NEUTRAL = ["base", "config", "masks", "layers", "keras_model", "model", "ensemble", "training", "runs"]
BACKEND_NEUTRAL += [
    "distribution",
    "evaluation",
    "corpora",
    "fitting",
    "parsing",
    "conformance",
    "documents",
    "exports.formats",
    "exports.hugging_face",
    "exports.model_card",
    "exports.parts",
    "exports.versions",
]
BACKEND_NEUTRAL += ["families", "engines", "loading", "text"]
ON_TENSORFLOW = ["text.growing", "parsing.in_graph"]  # of the neutral rooms, what is loaded there alone


FILES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
}


def modules():
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__"), ast.parse(path.read_text(encoding="utf-8"))


def package_imports(tree, inside_functions=True):
    """The package's modules that a module imports, without the package's name."""
    names = imports(tree, inside_functions)
    return {name.removeprefix("tf_transformer.") for name in names if name.startswith("tf_transformer")}


def imports(tree, inside_functions=True):
    """What a module imports. Names for type checkers alone count as inside a function."""
    for node in ast.walk(tree) if inside_functions else tree.body:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (module if module in FILES else node.module for module in of_names(node))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def of_names(node):
    """What `from module import names` imports, if the names are modules."""
    return [f"{node.module}.{alias.name}" for alias in node.names]


def room_of(module):
    name = module.split(".")[0]
    return None if name in PAPER else name


def test_a_room_imports_the_rooms_of_its_row():
    used = {room: set() for room in ROOMS}
    for name, tree in modules():
        if not name:  # the package itself, which knows all names
            continue
        room = room_of(name)
        assert room is None or room in ROOMS, f"{name} is in no room"
        for imported in package_imports(tree):
            other = room_of(imported)
            assert other in (None, room, "base", *ROOMS.get(room, ())), f"{name} imports {imported}"
            used.get(room, set()).add(other)
    for room, others in ROOMS.items():
        assert set(others) <= used[room], f"{room} does not import {set(others) - used[room]}"


def left_of(imported):
    """What is left when all that imports only what has gone goes, again and again: circles, and what imports them."""
    left = dict(imported)
    while free := [name for name, others in left.items() if not set(others) & set(left)]:
        for name in free:
            del left[name]
    return left


def test_neither_rooms_nor_files_form_a_circle():
    files = {name: package_imports(tree) - {name} for name, tree in modules() if name}
    assert not left_of(ROOMS) and not left_of(files)


def is_neutral(module):
    return module not in ON_TENSORFLOW and bool({module, module.split(".")[0]} & set(BACKEND_NEUTRAL))


def test_what_needs_no_tensorflow_imports_none():
    """Nor what imports it."""
    for name, tree in modules():
        if is_neutral(name):
            found = [module for module in imports(tree, inside_functions=False) if module.startswith("tensorflow")]
            ours = package_imports(tree, inside_functions=False) - {""}
            found += [module for module in ours if not is_neutral(module)]
            assert not found, f"{name} imports {found}"


def test_a_missing_apache_beam_is_one_line(monkeypatch):
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
