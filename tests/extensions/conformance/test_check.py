"""Tests that the checks pass models that can be served, and find the faults of others."""

import shutil
import subprocess
import sys

import keras
import pytest
import tensorflow as tf
from programs import without_the_package

import tf_transformer as tt
from tf_transformer.extensions.conformance import check as module
from tf_transformer.extensions.conformance.check import Finding, check, failures, graph_of, nodes_of
from tf_transformer.extensions.conformance.probe import python
from tf_transformer.serving.graphs import compact

TEXT = tf.TensorSpec([None], tf.string, "text")


@pytest.mark.program
def test_an_export_passes(saved, tmp_path):
    """The program runs as a file where this package is not installed."""
    command = [sys.executable, module.__file__, str(saved)]
    done = subprocess.run(command, capture_output=True, text=True, env=without_the_package(tmp_path))
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and all(line.startswith("ok   ") for line in lines), done.stdout
    assert {
        "8 warm-up records run",
        "translate: 11 requests merged to a batch of 16 return what each returns separately",
        "score: 6 threads get the outputs that one thread gets",
        "serving_default runs in Python",
        f"TensorFlow {tf.__version__}'s C++ loader loads it",
    } <= {line.removeprefix("ok   ") for line in lines}


class Plain(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(tf.range(30.0), name="weight")
        self.serving_default = tf.function(self.length, input_signature=[TEXT], autograph=False)

    def length(self, text):
        text = tf.ensure_shape(text, [None])
        return {"length": tf.strings.length(text), "sum": tf.fill(tf.shape(text), tf.reduce_sum(self.weight))}


def messages_of(root, signatures, tmp_path, name="1", level="FAIL"):
    path = tmp_path / "model" / name
    tf.saved_model.save(root, str(path), signatures=signatures)
    return "\n".join(finding.message for finding in check(path) if finding.level == level)


def test_a_module_of_a_few_lines_passes(tmp_path):
    root = Plain()
    assert messages_of(root, {"serving_default": root.serving_default}, tmp_path) == ""


def test_faults_of_the_graph(tmp_path):
    """One module has all of them."""
    root = Plain()
    root.copy = tf.Variable(tf.range(30.0), name="copy")
    default = tf.constant(3)

    def function(f, *specs, **options):
        return tf.function(f, input_signature=[TEXT, *specs], autograph=False, **options)

    root.functions = {
        "jit": function(lambda text: {"n": tf.shape(text)[:1] * 2}, jit_compile=True),
        "ragged": function(lambda text: {"parts": tf.strings.split(text)}),
        "python": function(lambda text: {"n": tf.numpy_function(lambda x: x, [text], tf.string)}),
        "scalar": function(
            lambda text, option=default: {"n": tf.fill(tf.shape(text), option)}, tf.TensorSpec([], tf.int32, "option")
        ),
        "half": function(lambda text: {"n": tf.cast(tf.strings.length(text), tf.bfloat16)}),
    }
    messages = messages_of(root, dict(root.functions), tmp_path, "v1")
    for expected in (
        "the directory's name is an integer, but: v1",
        "there is a signature serving_default, but: serving_default",
        "no op calls Python, but: PyFunc",
        "nothing needs XLA, which the server has switched off, but: ",
        "weights are stored once, but: copy/.ATTRIBUTES/VARIABLE_VALUE = weight/.ATTRIBUTES/VARIABLE_VALUE",
        "ragged: inputs, outputs and defaults can cross REST and be merged, but: output parts is not a dense tensor",
        "default of option has the shape [], expected [1]",
        "input option has no batch axis",
        "output n is bfloat16, which cannot cross REST",
    ):
        assert expected in messages, (expected, messages)


def raises(text):
    with tf.control_dependencies([tf.debugging.assert_greater(tf.strings.length(text), 0)]):
        return {"n": tf.strings.length(text)}


WRONG = {
    "raises": (raises, "FAIL", "raises: rows in one batch: code 3: assertion failed"),
    "neighbors": (lambda text: {"n": tf.cumsum(tf.strings.length(text))}, "FAIL", "but: row 1's n, row 2's n"),
    "bytes": (lambda text: {"first": tf.strings.substr(text, 0, 1)}, "FAIL", "bytes.first: invalid UTF-8"),
    "nan": (lambda text: {"n": tf.math.log(tf.cast(tf.strings.length(text), tf.float32))}, "FAIL", "nan.n: NaN or inf"),
    "shape": (lambda text: {"n": tf.strings.length(text)}, "WARN", "shape: an input [1, 2] is accepted"),
}


def test_faults_of_the_outputs(tmp_path, capsys):
    root, path = tf.Module(), tmp_path / "model" / "1"
    root.functions = {
        name: tf.function(function, input_signature=[TEXT], autograph=False) for name, (function, *_) in WRONG.items()
    }
    tf.saved_model.save(root, str(path), signatures=dict(root.functions))
    with pytest.raises(SystemExit) as ended:
        module.main([str(path)])
    lines = capsys.readouterr().out.splitlines()
    assert ended.value.code == 1 and "FAIL there is a signature serving_default, but: serving_default" in lines
    for _, level, expected in WRONG.values():
        assert any(line.startswith(level) and expected in line for line in lines), expected


def test_a_keras_layer_that_is_tracked_directly(tmp_path):
    """TensorFlow 2 restores it, but the server does not."""
    root = tf.Module()
    root.layer = keras.layers.Embedding(7, 3, name="embedding")
    root.layer.build()

    def embed(text):
        return {"x": root.layer(tf.strings.length(tf.ensure_shape(text, [None])) % 7)}

    root.f = tf.function(embed, input_signature=[TEXT], autograph=False)
    messages = messages_of(root, {"serving_default": root.f}, tmp_path)
    assert "Could not find variable" in messages
    loaded = tf.saved_model.load(str(tmp_path / "model" / "1"))
    assert loaded.f(tf.constant(["a"]))["x"].shape == (1, 3)


def test_a_model_that_only_the_server_opens(tmp_path):
    """Nodes of custom gradients, such as swish's, refer to names that `compact` changes."""
    root = Plain()
    root.swish = tf.function(lambda text: {"x": tf.nn.silu(root.length(text)["sum"])}, [TEXT], autograph=False)
    without = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    for name, options in (("1", None), ("2", without)):
        tf.saved_model.save(root, str(tmp_path / name), {"serving_default": root.swish}, options)
        compact(tmp_path / name)
        assert not any("_gradient_op_type" in node.attr for node in nodes_of(graph_of(tmp_path / name)))
    ((level, message),) = python(tmp_path / "1")
    assert level == "FAIL" and message.startswith("tf.saved_model.load cannot open it: KeyError: ")
    assert [level for level, _ in python(tmp_path / "2")] == ["ok", "ok"]


@pytest.fixture(scope="module")
def with_an_asset(tmp_path_factory):
    """A SavedModel with all kinds of files, and the signature of an engine."""
    folder = tmp_path_factory.mktemp("asset")
    (folder / "words").write_text("one\ntwo\n")
    root = Plain()
    line, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
    words = tf.lookup.TextFileInitializer(str(folder / "words"), tf.string, line, tf.int64, number)
    root.table = tf.lookup.StaticHashTable(words, -1)
    root.f = tf.function(lambda text: {"same": text, "id": root.table[text], **root.length(text)}, [TEXT])
    tf.saved_model.save(root, str(folder / "1"), {"serving_default": root.f})
    return folder / "1"


NEEDED = ("saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001", "assets/words")


@pytest.mark.parametrize("name", NEEDED)
def test_a_damaged_savedmodel_fails_with_one_line(name, with_an_asset, tmp_path):
    """Each file is removed, or cut at several positions, except for the list of words."""
    shutil.copytree(with_an_asset, tmp_path / "1")
    content = (tmp_path / "1" / name).read_bytes()
    assert tt.load(tmp_path / "1")(["two"]) == ["two"]
    lengths = [*range(0, len(content), 1 + len(content) // 5), len(content) - 1]
    for length in [None] if name.startswith("assets") else [None, *lengths]:
        (tmp_path / "1" / name).unlink()
        if length is not None:
            (tmp_path / "1" / name).write_bytes(content[:length])
        with pytest.raises(tt.BadInput, match="expected a (run, a )?SavedModel") as error:
            tt.load(tmp_path / "1")
        assert "\n" not in str(error.value)
        if name != "saved_model.pb" or length is not None:
            assert failures(check(tmp_path / "1")), (name, length)
        (tmp_path / "1" / name).touch()


def test_other_exports_have_no_check(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        module.main([str(tmp_path)])
    line = f"{tmp_path}. Exports for CTranslate2 and transformers have no check\n"
    assert ended.value.code == 2 and capsys.readouterr().err.endswith(line)


def test_a_name_stands_for_its_newest_version(tmp_path, monkeypatch):
    for file in ("1/model.tflite", "10/model.onnx", "9/saved_model.pb"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).touch()
    monkeypatch.setattr(module, "_run", lambda kind, path: [(kind, path)])
    assert check(tmp_path) == [("client", tmp_path / "10")]


def test_a_process_that_dies_is_a_failure(with_an_asset, monkeypatch):
    monkeypatch.setattr(module.sys, "executable", "false")
    assert Finding("FAIL", "the process that called it ended with 1: no message") in check(with_an_asset)
    monkeypatch.undo()
    monkeypatch.setattr(module, "PROBE_SECONDS", 0.01)
    assert check(with_an_asset)[-1] == Finding("FAIL", "the process that called it did not end within 0.01 seconds")
