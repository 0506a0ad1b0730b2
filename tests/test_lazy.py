"""Processes that cannot import TensorFlow, or only tensorflow-text."""

import importlib.util
import json
import sys
from types import ModuleType

import pytest
from checkpoints import M2M100, MARIAN
from programs import run_python

import tf_transformer as tt
from tf_transformer.utils.lazy import MadeOnce, lazily

BACKEND = next((name for name in ("jax", "torch") if importlib.util.find_spec(name)), "")
MISSING = """
import sys

class Hiding:  # a finder that does not find some packages
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        hidden = name.partition(".")[0] in sys.argv[1].split()
        return None if hidden else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Hiding, sys.meta_path)

def line_of(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except tt.BadInput as error:
        return str(error)

import tf_transformer as tt
"""
TOKENIZER = r"""
from tf_transformer.models.families import load_tokenizer

texts, file = ["The old woman opens the red door.", b"two\xffdoors", ""], sys.argv[2] + "/tokenizer.model"
tt.Tokenizer.train_from_iterator([texts[0], "two doors"] * 9, 287).save(file)
tokenizer = load_tokenizer(file)
assert tokenizer.decode(tokenizer.encode(texts)) == [texts[0], "two doors", ""]
assert line_of(tokenizer.tokenize, texts).startswith("a tokenizer of tensors needs tensorflow: ")
assert not {"tensorflow", "tensorflow_text"} & set(sys.modules)
"""
MODELS = """
import json, pathlib
from tf_transformer.utils.files import checksum
from tf_transformer.models.families import build_model

folder, *checkpoints = map(pathlib.Path, sys.argv[2:])
config = tt.TransformerConfig(1, 8, 11, 2, vocab_size=287)
step = folder / "checkpoints/step-00000003"
step.mkdir(parents=True)
build_model(config).save_weights(step / "model.weights.h5")
(step / "state.json").write_text(json.dumps({"step": 3, "sha256": checksum(step / "model.weights.h5")}))
settings = {"version": 1, "kind": "translation", "model": config.to_dict(), "recipe": {}, "corpus": {}}
(folder / "config.json").write_text(json.dumps(settings))
for path in (folder, *checkpoints):
    translator = tt.load(path)
    assert type(translator) is tt.Translator and len(translator.model.weights) > 9, path
    assert (translator.export_options == {}) == (path == folder), translator.export_options
    languages = dict(source_language="en", target_language="de") if translator.languages else {}
    assert any(translator.tokenizer.with_languages(**languages).encode(texts))
    line = line_of(translator, texts, **languages)
    assert line == "translating needs tensorflow: pip install tensorflow (No module named 'tensorflow')", line
assert line_of(translator.save, folder / "saved/1").startswith("a SavedModel needs tensorflow: ")
assert line_of(translator.tokenizer.with_languages, "xx").startswith("source_language: expected one of ")
assert not {"tensorflow", "tensorflow_text"} & set(sys.modules)
"""
OUTPUTS = r"""
import json
texts = ["The old woman opens the red door.", b"two\xffdoors", "", "The dog sleeps. " * 99]

def outputs_of(path, **languages):
    translator = tt.load(path, beam_size=2, extra_length=3, max_source_length=11)
    completed = translator.n_best(texts[:2], 2, prefixes=["", "a"], **languages)
    replies = translator.replies(texts, 2, length_penalty=0.9, **languages)
    samples = translator.sample(texts, 1.3, k=7, seed=5, **languages)
    return translator, json.loads(json.dumps([completed, [reply[1:] for reply in replies], samples]))
"""
WITHOUT_TEXT = """
import warnings
warnings.simplefilter("ignore")
translator, outputs = outputs_of(sys.argv[2])
print(json.dumps([outputs, outputs_of(sys.argv[3], source_language="en", target_language="de")[1]]))
line = line_of(translator.save, sys.argv[4] + "/saved/1")
assert line.startswith("text: expected tensorflow-text 2.") and line.endswith("No module named 'tensorflow_text'"), line
translator.replace(max_source_length=7).save(sys.argv[4] + "/litert", format="litert", max_length=9)
"""
BACKENDS = """
import pathlib
from trainers.command import load_backend, load_tensorflow

folder, name = pathlib.Path(sys.argv[2]), sys.argv[3]
(folder / "saved_model.pb").touch()
takers = [lambda: tt.Transformer, load_backend, lambda: tt.Transformer]
takers += [lambda: tt.load(folder), load_tensorflow] * (name == "nonsense")
for take in takers:
    line = line_of(take)
    assert line.startswith(f"KERAS_BACKEND: expected an installed backend, got {name} ("), line
    assert "\\n" not in line
"""
needs_backend = pytest.mark.skipif(not BACKEND, reason="neither jax nor torch is installed")


def run_without(packages, program, *arguments, **environment):
    return run_python(MISSING + program, packages, *arguments, **environment)


@pytest.mark.parametrize(("value", "name"), [("", "tensorflow"), ("nonsense", "nonsense")])
def test_a_missing_backend_raises_bad_input(value, name, tmp_path):
    """This holds in Python and in the programs, also if the variable is not set."""
    run_without(name, BACKENDS, tmp_path, name, KERAS_BACKEND=value)


@needs_backend
def test_a_tokenizer_needs_no_tensorflow(tmp_path):
    run_without("tensorflow tensorflow_text", TOKENIZER, tmp_path, KERAS_BACKEND=BACKEND)


@needs_backend
@pytest.mark.program
def test_models_load_without_tensorflow(tmp_path):
    packages, programs = "tensorflow tensorflow_text tensorflow_datasets", TOKENIZER + MODELS
    run_without(packages, programs, tmp_path, MARIAN, M2M100, KERAS_BACKEND=BACKEND)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:more tokens than the model reads")
def test_texts_are_translated_without_tensorflow_text(tmp_path):
    printed = run_without("tensorflow_text", OUTPUTS + WITHOUT_TEXT, MARIAN, M2M100, tmp_path)
    names = {"tt": tt}
    exec(OUTPUTS, names)
    expected = [names["outputs_of"](MARIAN), names["outputs_of"](M2M100, source_language="en", target_language="de")]
    assert json.loads(printed) == [outputs for _, outputs in expected]
    assert {path.name for path in tmp_path.iterdir()} == {"litert"}
    if importlib.util.find_spec("ai_edge_litert"):
        assert tt.load(tmp_path / "litert")("Two doors.")


def test_a_module_loads_when_it_is_used(tmp_path, monkeypatch):
    (tmp_path / "some_package.py").write_text("values = []\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = lazily("some_package", "a test")
    assert isinstance(module, ModuleType) and "some_package" not in sys.modules
    assert module.values is sys.modules["some_package"].values
    with pytest.raises(AttributeError, match="some_package"):
        _ = module.nothing
    del sys.modules["some_package"]


def test_a_missing_package_raises_bad_input(tmp_path, monkeypatch):
    """The module may import the missing package."""
    (tmp_path / "needs_another.py").write_text("import an_other.part\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("an_other", "an_other.part", "needs_another"):
        with pytest.raises(tt.BadInput, match=r"^a test needs an_other: pip install an-other \(No module named .*\)$"):
            _ = lazily(name, "a test").something


def test_a_value_is_made_once():
    calls = []
    value = MadeOnce(lambda: calls.append(7) or list(calls))
    assert not calls and value() is value() and calls == [7]
