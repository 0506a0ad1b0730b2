"""The names of the package: loaded at first use, known to type checkers, and registered with Keras."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import ROOT, run_python

import tf_transformer as tt

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
    program = ["import sys, tf_transformer as tt; folder, lite, saved = sys.argv[1:]", *map(QUIET.get, names)]
    command = [sys.executable, "-c", "; ".join(program), *map(str, (tmp_path, lite, saved))]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == ("checked" in names, b"")


IMPORTS = """
import importlib, sys, tf_transformer as tt
for name in sys.argv[1:]:
    importlib.import_module(name)
for name, module in tt._HOMES.items():
    assert getattr(tt, name) is getattr(importlib.import_module(module), name), name
assert callable(tt.load)
"""


@pytest.mark.program
def test_every_module_can_be_imported_and_names_keep_their_values():
    """Importing a module sets its name in the package, where `load` is a function."""
    paths = sorted(PACKAGE.rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    if not importlib.util.find_spec("apache_beam"):
        names = [name for name in names if not name.startswith("tf_transformer.extensions.beam.")]
    run_python(IMPORTS, *names)
    assert set(tt.__all__) <= set(dir(tt))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = tt.nothing


@pytest.mark.program
def test_keras_loads_a_model(tmp_path):
    """Keras creates only registered classes."""
    classes = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in PACKAGE.rglob("*.py")
        if "@keras.saving.register_keras_serializable" in path.read_text(encoding="utf-8")
    }
    assert len(classes) > 5
    model = tt.Transformer(tt.TransformerConfig(1, 8, 16, 2, vocab_size=11))
    model.build()
    model.compile(optimizer=tt.Adam(tt.WarmupSchedule(8)), loss=tt.SmoothedCrossEntropy())
    model.save(tmp_path / "model.keras")
    program = f"import sys, keras, tf_transformer; assert not {classes} - set(sys.modules)"
    program += "; print(type(keras.models.load_model(sys.argv[1]).loss).__name__)"
    printed = run_python(program, tmp_path / "model.keras")
    assert printed.strip() == "SmoothedCrossEntropy"
