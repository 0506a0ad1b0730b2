"""Which room may look into which: imports inside the package form no circle, and the model half knows no TensorFlow."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "tf_transformer"
FLOORS = [  # a file imports from lower floors only
    {"version", "config", "masks", "files", "evaluation.bleu", "serving.options", "serving.wire"},
    {"corpora", "evaluation", "interop", "parsing", "runs", "serving", "beam"},  # rooms: a sentence each
    {"corpora.filters"},
    {"toy_corpus", "ranges", "parsing.treebank", "evaluation.costs", "evaluation.table3", "runs.recipe"},
    {"choices", "interop.hub", "interop.marian_native"},
    {"parsing.evalb", "distribution", "serving.loader", "serving.probe", "serving.check"},
    {"layers.dropout", "layers.normalization", "layers.products", "layers.quantization", "layers.int8"},
    {"layers.attention", "layers.embedding", "layers.sublayers"},
    {"layers.encoder", "layers.decoder"},
    {"layers"},
    {"training", "model", "decoding", "search", "tokenizer", "batching", "runs.run"},
    {"ensemble", "data", "sampling", "runs.callbacks", "serving.export", "interop.marian", "evaluation.visualize"},
    {"interop.marian_files", "serving.publish", "corpora.records", "corpora.sources", "parsing.constraint"},
    {"interop.marian_tokenizer", "interop.ctranslate2", "saved_translator", "corpora.preparation"},
    {"kinds", "beam.translation", "beam.preparation"},
    {"translator", "beam.shards"},
    {"parsing.parser", "corpora.corpus"},
    {"parsing.corpus", "runs.trainer"},
    {""},
]
BACKEND_NEUTRAL = ["config", "masks", "files", "layers", "model", "ensemble", "training", "runs.run"]
BACKEND_NEUTRAL += ["runs.recipe", "runs.callbacks", "evaluation", "toy_corpus", "parsing.treebank", "parsing.evalb"]


def modules():
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__"), ast.parse(path.read_text(encoding="utf-8"))


def imports(tree, inside_functions=True):
    nodes = ast.walk(tree) if inside_functions else tree.body
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (
                [node.module] if node.module != "tf_transformer" else [f"{node.module}.{a.name}" for a in node.names]
            )
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_every_file_has_a_floor_and_looks_down():
    floor_of = {name: number for number, floor in enumerate(FLOORS) for name in floor}
    for name, tree in modules():
        assert name in floor_of, f"{name} has no floor"
        for imported in imports(tree):
            if imported.startswith("tf_transformer."):
                room = imported.removeprefix("tf_transformer.")
                assert floor_of[room] < floor_of[name], f"{name} imports {room}"


def test_the_model_half_imports_no_tensorflow():
    for name, tree in modules():
        if {name, name.split(".")[0]} & set(BACKEND_NEUTRAL):
            found = [module for module in imports(tree, inside_functions=False) if module.startswith("tensorflow")]
            assert not found, f"{name} imports {found}"


def test_importing_the_package_loads_little():
    heavy = ["tensorflow_text", "tensorflow_datasets", "sacrebleu", "sentencepiece", "nltk", "apache_beam"]
    program = f"import sys, tf_transformer; sys.exit(str([name for name in {heavy} if name in sys.modules] or ''))"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ)
    assert process.stderr.splitlines()[-1:] in ([], [""]), process.stderr


def test_a_missing_apache_beam_is_one_line(monkeypatch):
    import tf_transformer as tt

    monkeypatch.setitem(sys.modules, "apache_beam", None)
    assert "Translate" in tt.beam.__all__
    with pytest.raises(tt.BadInput, match=re.escape('apache_beam: pip install -e ".[beam]"')):
        _ = tt.beam.Translate
    with pytest.raises(AttributeError):
        _ = tt.beam.nothing


def test_nothing_imports_the_programs():
    for name, tree in modules():
        assert not [module for module in imports(tree) if module.startswith("trainers")], name
