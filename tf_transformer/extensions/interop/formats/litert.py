"""Export to LiteRT (https://ai.google.dev/edge/litert), formerly TensorFlow Lite, an engine for phones.

The file holds `portable.graph_of_ids`, the encoder and the search of `decoding.search` for one sentence.

All shapes in the file are fixed: where shapes grew while LiteRT ran, its XNNPACK now and then computed with memory that
had moved. The signature `translate` has the export's limits of lengths. Others, such as `translate_16`, have shorter
ones, since a step costs about as much as the cache is long; they share the weights.
"""

import hashlib
import tempfile
from typing import Any

import flatbuffers
import numpy as np
import tensorflow as tf

from tf_transformer.decoding.text_model import TextModel
from tf_transformer.extensions.interop.formats.portable import Portable, graph_of_ids
from tf_transformer.layers import PositionalEmbedding

SIGNATURE = "translate"
LENGTHS = (16, 32, 64, 128)  # tokens of the longest source of the shorter signatures


class LiteRTFolder(Portable):
    """The signatures of model.tflite have the inputs and outputs of docs/guides/litert-apps.md."""

    engine, package, file = "LiteRT", "ai_edge_litert", "model.tflite"

    def _converted(self, translator: TextModel, dtype: str, max_length: int) -> bytes:
        module = _Module(translator, dtype == "int8", max_length)
        with tempfile.TemporaryDirectory() as folder:
            tf.saved_model.save(module, folder, signatures=module.functions)
            converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=list(module.functions))
            # A norm's gain would go into the softmax's weights, which then differ from the table of embeddings.
            converter._experimental_disable_fuse_mul_and_fc = True
            if dtype == "int8":
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
            return _stored_once(converter.convert())


save = LiteRTFolder().save


class _Module(tf.Module):
    """The graph to convert.

    Args:
        translator: whose model may be changed.
        rounded: whether embeddings are 8-bit integers; the converter rounds all other matrices.
        max_length: as in `save`.
    """

    def __init__(self, translator: TextModel, rounded: bool, max_length: int) -> None:
        super().__init__()
        model = translator.model
        members = getattr(model, "models", None)
        weights = [_rounded(member) for member in members or [model]] if rounded else None
        self.variables_of_model = [variable.value for variable in model.weights]
        self.softmax_weights = weights  # found by `tf.saved_model.save`, as the line above
        if weights and not members:
            (weights,) = weights

        def signature(tokens: int, steps: int) -> Any:
            return graph_of_ids(translator, max_length, tokens, steps, weights)

        longest = translator.max_source_length
        self.functions = {SIGNATURE: signature(longest, max_length)} | {
            f"{SIGNATURE}_{tokens}": signature(tokens, min(3 * tokens // 2, max_length))
            for tokens in LENGTHS
            if tokens < longest
        }


def _rounded(model: Any) -> tf.Variable:
    """Round a model's embeddings to integers with a scale by row, as the converter rounds the softmax's weights.

    The file can then hold one table for both.

    Returns:
        the softmax's weights [d, V], which the converter rounds to the same integers.
    """
    for layer in model.layers:
        if isinstance(layer, PositionalEmbedding):
            layer.quantize("int8")
    rows = model.embedding.rows(np.arange(model.config.vocab_size))
    return tf.Variable(tf.transpose(rows), trainable=False)


def _stored_once(model: bytes) -> bytes:
    """The same file, in which equal vectors, such as the weights of several signatures, share their bytes."""
    from tensorflow.lite.tools import flatbuffer_utils

    builder = _Builder()
    builder.Finish(flatbuffer_utils.read_model_from_bytearray(bytearray(model)).Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


class _Builder(flatbuffers.Builder):
    """Writes a vector of numbers only if no equal one is written."""

    def __init__(self) -> None:
        super().__init__()
        self._written: dict[tuple[str, bytes], int] = {}

    def CreateNumpyVector(self, x: np.ndarray) -> int:
        key = x.dtype.str, hashlib.sha256(x.tobytes()).digest()
        if key not in self._written:
            self._written[key] = super().CreateNumpyVector(x)
        return self._written[key]
