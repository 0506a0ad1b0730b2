"""The names of the package: loaded at first use, known to type checkers, and registered with Keras."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import tf_transformer as tt

PACKAGE = Path(tt.__file__).parent


def run(program, *arguments):
    """Run a program in a fresh process, and return what it prints."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    process = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_importing_loads_neither_keras_nor_tensorflow():
    light = [
        "tf_transformer",
        "tf_transformer.config",
        "tf_transformer.runs.recipe",
        "tf_transformer.text.search_options",
    ]
    heavy = ["keras", "tensorflow", "tensorflow_text", "numpy", "sentencepiece", "apache_beam"]
    program = f"import sys, {', '.join(light)}; print([name for name in {heavy} if name in sys.modules])"
    assert run(program).strip() == "[]"


def test_type_checkers_see_every_name_at_its_home():
    tree = ast.parse(Path(tt.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {}
    for node in block.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                seen[alias.asname] = f"{node.module}.{alias.name}"
        else:  # grammar = toy_corpus
            seen[node.targets[0].id] = seen[node.value.id]
    homes = {name: ".".join(filter(None, ("tf_transformer", *home))) for name, home in tt._LAZY.items()}
    assert seen == homes


def test_every_name_stays_what_it_is():
    """Importing a module sets its name in the package, where `load` is a function."""
    for module in pkgutil.walk_packages([str(PACKAGE)], "tf_transformer."):
        if not module.name.startswith("tf_transformer.beam."):
            importlib.import_module(module.name)
    for name, (module, attribute) in tt._LAZY.items():
        home = importlib.import_module(f"tf_transformer.{module}")
        assert getattr(tt, name) is (getattr(home, attribute) if attribute else home), name
    assert callable(tt.load)
    assert set(tt.__all__) <= set(dir(tt))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = tt.nothing


@pytest.mark.parametrize(
    "first",
    [
        "import keras; import tf_transformer",
        "import tf_transformer as tt; tt.layers; import keras",
        "import tf_transformer as tt; import keras; tt.files",
    ],
)
def test_keras_loads_a_model(first, tmp_path):
    model = tt.Transformer(tt.TransformerConfig(1, 8, 16, 2, vocab_size=11))
    model.build()
    model.compile(optimizer=tt.Adam(tt.WarmupSchedule(8)), loss=tt.SmoothedCrossEntropy())
    model.save(tmp_path / "model.keras")
    program = f"import sys; {first}; print(type(keras.models.load_model(sys.argv[1]).loss).__name__)"
    assert run(program, tmp_path / "model.keras").strip() == "SmoothedCrossEntropy"


def test_every_class_for_files_is_registered_at_once():
    made = {
        "tf_transformer." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for path in PACKAGE.rglob("*.py")
        if "@keras.saving.register_keras_serializable" in path.read_text(encoding="utf-8")
    }
    assert len(made) > 5
    assert run(f"import sys, keras, tf_transformer; print({made} - set(sys.modules))").strip() == "set()"
