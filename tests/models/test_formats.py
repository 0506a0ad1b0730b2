"""Keras's exports, run by other engines."""

import importlib.util

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_transformer as tt

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")
pytestmark = pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")  # TensorFlow has no other


def ids(*shape):
    """Returns random ids, with padding at the end of the rows."""
    random = np.random.default_rng(shape)
    drawn = random.integers(1, 53, shape).astype("int32")
    return np.where(np.arange(shape[-1]) < random.integers(1, shape[-1] + 1, (shape[0], 1)), drawn, 0)


def run(path, *inputs):
    """Runs a file in the engine of its format."""
    if path.suffix == ".tflite":
        runner = tf.lite.Interpreter(str(path)).get_signature_runner()
        outputs = runner(**dict(zip(runner.get_input_details(), inputs, strict=True)))
        return [outputs[name] for name in sorted(outputs)]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip([x.name for x in session.get_inputs()], inputs, strict=True)))


def export(model, folder, format):
    path = folder / {"onnx": "model.onnx", "litert": "model.tflite"}[format]
    model.export(path, format=format, verbose=False)
    return path


no_litert = not importlib.util.find_spec("keras.src.export.litert")
every_format = pytest.mark.parametrize(
    "format", ["onnx", pytest.param("litert", marks=pytest.mark.skipif(no_litert, reason="new in Keras 3.13"))]
)


@every_format
def test_a_model_of_our_layers(format, tmp_path):
    """It has the outputs of a classifier and of a tagger."""
    inputs = keras.Input((None,), dtype="int32")
    x = tt.layers.PositionalEmbedding(53, 32)(inputs)
    x = tt.layers.EncoderLayer(num_heads=4, d_ff=23)(x)
    model = keras.Model(
        inputs, [keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(x)), keras.layers.Dense(5)(x)]
    )
    model(ids(2, 3))  # Keras exports what was called
    path = export(model, tmp_path, format)
    for shape in ((2, 7), (5, 3), (1, 11)):
        for output, expected in zip(run(path, ids(*shape)), model(ids(*shape)), strict=True):
            np.testing.assert_allclose(output, expected, atol=1e-5)


def test_a_savedmodel_of_only_the_model(tmp_path):
    """Keras's export has no tokenizer, search or signature. The model was never called."""
    model = tt.Transformer(tt.TransformerConfig(1, 32, 23, 4, vocab_size=53))
    model.export(str(tmp_path / "model"), verbose=False)
    served = tf.saved_model.load(str(tmp_path / "model"))
    for B, S, T in ((2, 7, 5), (1, 11, 13)):
        np.testing.assert_allclose(served.serve((ids(B, S), ids(B, T))), model((ids(B, S), ids(B, T))), atol=1e-5)


@pytest.mark.program
@every_format
def test_a_transformer(format, tmp_path):
    model = tt.Transformer(tt.TransformerConfig(1, 32, 23, 4, vocab_size=53))
    path = export(model, tmp_path, format)
    for B, S, T in ((2, 7, 5), (5, 3, 4), (1, 11, 13)):
        source, target = ids(B, S), ids(B, T)
        np.testing.assert_allclose(run(path, source, target)[0], model((source, target)), atol=1e-5)
