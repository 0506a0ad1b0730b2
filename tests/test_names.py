"""The names of the package: loaded at first use, known to type checkers, and registered with Keras."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from programs import ROOT, run_python

import tf_transformer as tt
from tf_transformer import registry

PACKAGE = Path(tt.__file__).parent


def test_importing_loads_neither_keras_nor_tensorflow():
    light = ["tf_transformer", *(f"tf_transformer.{name}" for name in ("config", "training.recipe"))]
    light.append("tf_transformer.decoding.search_options")
    heavy = ["keras", "tensorflow", "tensorflow_text", "numpy", "sentencepiece", "apache_beam"]
    heavy += ["tensorflow_datasets", "sacrebleu", "nltk"]
    program = f"import sys, {', '.join(light)}; print([name for name in {heavy} if name in sys.modules])"
    assert run_python(program).strip() == "[]"


QUIET = {
    "used": "tt.load(lite)('Two doors.'); tt.load(saved)",
    "saved": "tt.Translator.from_pretrained(saved).save(f'{folder}/m/1', check=False)",
    "converted": "tt.load('tests/marian/trained', max_source_length=7).save(f'{folder}/m/1', format='litert')",
    "checked": "from tf_transformer.extensions.conformance import check; check.main([f'{folder}/none'])",
}


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("used", "saved"), marks=pytest.mark.program),
        pytest.param(("converted",), marks=pytest.mark.slow),
        pytest.param(("checked",), marks=pytest.mark.slow),
    ],
)
def test_loading_tensorflow_prints_nothing(names, lite, saved, tmp_path):
    """The user has not set TensorFlow's log level. The process exits as usual."""
    (tmp_path / "none").mkdir()
    (tmp_path / "none/saved_model.pb").touch()
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    program = ["import os, sys, tf_transformer as tt; folder, lite, saved = sys.argv[1:]", *map(QUIET.get, names)]
    program.append("print(os.environ.get('TF_CPP_MIN_LOG_LEVEL'))")  # No level is left behind.
    command = [sys.executable, "-c", "; ".join(program), *map(str, (tmp_path, lite, saved))]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == ("checked" in names, b"")
    assert "checked" in names or done.stdout.endswith(b"None\n")


FRESH = """
import importlib, json, sys
import keras, tf_transformer as tt
modules = list(sys.modules)
loss = type(keras.models.load_model(sys.argv[1]).loss).__name__
for name in sys.argv[2:]:
    importlib.import_module(name)
changed = [name for name, home in tt._HOMES.items() if getattr(tt, name) is not getattr(sys.modules[home], name)]
print(json.dumps({"modules": modules, "loss": loss, "changed": changed, "load": type(tt.load).__name__}))
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Returns what a fresh process found, which loaded a model with Keras and then imported every module."""
    model = tt.Transformer(tt.TransformerConfig(1, 8, 16, 2, vocab_size=11))
    model.build()
    model.compile(optimizer=tt.Adam(tt.WarmupSchedule(8)), loss=tt.SmoothedCrossEntropy())
    model.save(path := tmp_path_factory.mktemp("model") / "model.keras")
    names = [name for name, _ in modules()]
    if not importlib.util.find_spec("apache_beam"):
        names = [name for name in names if not name.startswith("tf_transformer.extensions.beam.")]
    return json.loads(run_python(FRESH, path, *names))


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        yield ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path


@pytest.mark.program
def test_every_module_can_be_imported_and_names_keep_their_values(fresh):
    """Importing a module sets its name in the package, where `load` is a function."""
    assert (fresh["changed"], fresh["load"]) == ([], "function")
    assert set(tt.__all__) <= set(dir(tt))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = tt.nothing


@pytest.mark.program
def test_keras_loads_a_model(fresh):
    """Keras creates only registered classes."""
    registers = "@keras.saving.register_keras_serializable"
    classes = {name for name, path in modules() if registers in path.read_text(encoding="utf-8")}
    assert len(classes) > 5
    core = {name for name in classes if ".extensions." not in name}
    assert core <= set(fresh["modules"]) and fresh["loss"] == "SmoothedCrossEntropy"
    # Those of extensions are loaded when a file names them.
    listed = registry.EXTENSIONS.read_text(encoding="utf-8").split("[tf_transformer.keras_classes]")[1]
    assert classes - core <= set(re.findall(r"= ([\w.]+):", listed))
