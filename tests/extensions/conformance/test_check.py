"""The checks pass what can be served, and find what cannot."""

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
from tf_transformer.serving.compact import compact

TEXT = tf.TensorSpec([None], tf.string, "text")


@pytest.mark.program
def test_an_export_passes(saved, whole_checks):
    findings = check(saved)
    assert {finding.level for finding in findings} == {"ok"}, [f for f in findings if f.level != "ok"]
    said = "\n".join(finding.message for finding in findings)
    assert "8 warm-up records run" in said
    assert "translate: 11 requests merged to a batch of 16 return what each returns separately" in said
    assert "score: 6 threads get the outputs that one thread gets" in said
    assert "serving_default runs in Python" in said


class Plain(tf.Module):
    """Nothing is wrong with it."""

    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(tf.range(30.0), name="weight")
        self.serving_default = tf.function(self.length, input_signature=[TEXT], autograph=False)

    def length(self, text):
        text = tf.ensure_shape(text, [None])
        return {"length": tf.strings.length(text), "sum": tf.fill(tf.shape(text), tf.reduce_sum(self.weight))}


def found(root, signatures, tmp_path, name="1", level="FAIL"):
    path = tmp_path / "model" / name
    tf.saved_model.save(root, str(path), signatures=signatures)
    return "\n".join(finding.message for finding in check(path) if finding.level == level)


def test_a_module_of_a_few_lines_passes(tmp_path):
    root = Plain()
    assert found(root, {"serving_default": root.serving_default}, tmp_path) == ""


def test_what_the_graph_shows(tmp_path):
    """One module with everything wrong that can be read."""
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
    said = found(root, dict(root.functions), tmp_path, "v1")
    for expected in (
        "the folder's name is an integer, but: v1",
        "there is a signature serving_default, but: serving_default",
        "no op calls Python, but: PyFunc",
        "nothing needs XLA, which the server has switched off, but: ",
        "weights are stored once, but: copy/.ATTRIBUTES/VARIABLE_VALUE = weight/.ATTRIBUTES/VARIABLE_VALUE",
        "ragged: inputs, outputs and defaults can cross REST and be merged, but: output parts is not a dense tensor",
        "default of option has the shape [], expected [1]",
        "input option has no batch axis",
        "output n is bfloat16, which cannot cross REST",
    ):
        assert expected in said, (expected, said)


def raises(text):
    with tf.control_dependencies([tf.debugging.assert_greater(tf.strings.length(text), 0)]):
        return {"n": tf.strings.length(text)}


WRONG = {
    "a row that raises": (raises, "FAIL", "serving_default: code 3: assertion failed"),
    "its neighbours": (lambda text: {"n": tf.cumsum(tf.strings.length(text))}, "FAIL", "but: row 1's n, row 2's n"),
    "bytes": (lambda text: {"first": tf.strings.substr(text, 0, 1)}, "FAIL", "serving_default.first: invalid UTF-8"),
    "no number": (lambda text: {"n": tf.math.log(tf.cast(tf.strings.length(text), tf.float32))}, "FAIL", "NaN or inf"),
    "any shape": (lambda text: {"n": tf.strings.length(text)}, "WARN", "an input [1, 2] is accepted"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_the_answers_show(tmp_path, name):
    function, level, expected = WRONG[name]
    root = tf.Module()
    root.f = tf.function(function, input_signature=[TEXT], autograph=False)
    assert expected in found(root, {"serving_default": root.f}, tmp_path, level=level)


def test_a_keras_layer_that_is_tracked_directly(tmp_path):
    """TensorFlow 2 restores it; the server does not."""
    root = tf.Module()
    root.layer = keras.layers.Embedding(7, 3, name="embedding")
    root.layer.build()

    def embed(text):
        return {"x": root.layer(tf.strings.length(tf.ensure_shape(text, [None])) % 7)}

    root.f = tf.function(embed, input_signature=[TEXT], autograph=False)
    said = found(root, {"serving_default": root.f}, tmp_path)
    assert "Could not find variable" in said
    loaded = tf.saved_model.load(str(tmp_path / "model" / "1"))
    assert loaded.f(tf.constant(["a"]))["x"].shape == (1, 3)


def test_what_the_server_opens_and_python_does_not(tmp_path):
    """Nodes of a custom gradient, as swish has one, name tensors by names that `compact` changes."""
    root = Plain()
    root.swish = tf.function(lambda text: {"x": tf.nn.silu(root.length(text)["sum"])}, [TEXT], autograph=False)
    without = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    for name, options in (("1", None), ("2", without)):
        tf.saved_model.save(root, str(tmp_path / name), {"serving_default": root.swish}, options)
        compact(tmp_path / name)
        assert not any("_gradient_op_type" in node.attr for node in nodes_of(graph_of(tmp_path / name)))
    ((level, said),) = python(tmp_path / "1")
    assert level == "FAIL" and said.startswith("tf.saved_model.load cannot open it: KeyError: ")
    assert [level for level, _ in python(tmp_path / "2")] == ["ok", "ok"]


@pytest.fixture(scope="module")
def with_an_asset(tmp_path_factory):
    """A SavedModel with a file of every kind that TensorFlow writes, and an engine's signature."""
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
def test_a_damaged_savedmodel_is_a_failure_and_one_line(name, with_an_asset, tmp_path):
    """Each file that the model needs is removed, or cut anywhere. A shorter list of words is a list."""
    shutil.copytree(with_an_asset, tmp_path / "1")
    content = (tmp_path / "1" / name).read_bytes()
    assert tt.load(tmp_path / "1")(["two"]) == ["two"]
    lengths = [*range(0, len(content), 1 + len(content) // 13), len(content) - 1]
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


def test_a_process_that_dies_is_a_failure(saved, monkeypatch):
    monkeypatch.setattr(module.sys, "executable", "false")
    assert Finding("FAIL", "the process that called it ended with 1: no message") in check(saved)
    monkeypatch.undo()
    monkeypatch.setattr(module, "PROBE_SECONDS", 0.01)
    assert check(saved)[-1] == Finding("FAIL", "the process that called it did not end within 0.01 seconds")


@pytest.mark.program
def test_the_program(tmp_path):
    root = tf.Module()
    root.f = tf.function(lambda text: {"n": tf.zeros([])}, input_signature=[TEXT], autograph=False)
    tf.saved_model.save(root, str(tmp_path / "1"), signatures={"other": root.f})

    command = [sys.executable, module.__file__, str(tmp_path / "1")]
    failed = subprocess.run(command, capture_output=True, text=True, env=without_the_package(tmp_path))
    assert failed.returncode == 1
    assert "FAIL there is a signature serving_default, but: serving_default" in failed.stdout
    assert f"ok   TensorFlow {tf.__version__}'s C++ loader loads it" in failed.stdout
