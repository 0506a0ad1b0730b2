"""Export to LiteRT (https://ai.google.dev/edge/litert), formerly TensorFlow Lite, a runtime for phones.

The file holds `portable.graph_of_ids`: the encoder and the search of `decoding.search`, for one sentence.

All shapes in the file are fixed: with shapes that grow, LiteRT's XNNPACK sometimes computes with memory that has moved.
The signature `translate` has the export's maximum lengths. Others, such as `translate_16`, have shorter ones, since the
cost of a step is proportional to the length of the cache. They share the weights.
"""

import functools
import hashlib
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import flatbuffers
import numpy as np
import tensorflow as tf
from keras import ops

from tf_transformer.decoding.tensor_translator import TensorTranslator
from tf_transformer.extensions.interop.formats.portable import Portable, graph_of_ids
from tf_transformer.layers import PositionalEmbedding

SIGNATURE = "translate"
LENGTHS = (16, 32, 64, 128)  # source lengths of the shorter signatures, in tokens
CANDIDATES = 16  # of a shortlist, for each token of these lengths


class LiteRTFolder(Portable):
    """Format of LiteRT. docs/guides/litert-apps.md describes the signatures of model.tflite."""

    engine, package, file = "LiteRT", "ai_edge_litert", "model.tflite"

    def _converted(self, translator: TensorTranslator, dtype: str, max_length: int) -> bytes:
        from tensorflow.lite.tools import flatbuffer_utils

        module = _Module(translator, dtype == "int8", max_length)
        with tempfile.TemporaryDirectory() as folder:
            tf.saved_model.save(module, folder, signatures=module.functions)
            converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=list(module.functions))
            # A norm's gain would be multiplied into the softmax weights, which then differ from the embedding table.
            converter._experimental_disable_fuse_mul_and_fc = True
            if dtype == "int8":
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
            model = flatbuffer_utils.read_model_from_bytearray(bytearray(converter.convert()))
        if dtype == "int8" and translator.shortlist:
            multiply_integers(model)
        builder = _Builder()
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
        return bytes(builder.Output())


save = LiteRTFolder().save


class _Module(tf.Module):
    """Functions to convert, of a model that they may change. `rounded` makes their embeddings 8-bit integers."""

    def __init__(self, translator: TensorTranslator, rounded: bool, max_length: int) -> None:
        super().__init__()
        model: Any = translator.model
        weights = None
        weights_of: Callable[[Any], Any] = lambda candidates: weights  # noqa: E731
        if rounded:
            for layer in model.layers:
                if isinstance(layer, PositionalEmbedding):
                    layer.quantize("int8")
                    # A row of zeros, such as Marian's BOS, has a scale of 1e9. The converter rounds scales to 8 bits of
                    # the largest, so all others would become 0. Zeros may have any scale.
                    scales = layer.embeddings_scale
                    scales.assign(np.minimum(scales, np.max(scales, where=np.asarray(scales) < 1e8, initial=1.0)))
            # The converter rounds the softmax weights [d, V] to the same integers, so the file can hold one table.
            if translator.shortlist is None:
                rows = model.pre_softmax.rows(np.arange(model.config.vocab_size))
                weights = tf.Variable(tf.transpose(rows), trainable=False)
            else:
                weights_of = functools.partial(_Integers.of, model.pre_softmax)
        # `tf.saved_model.save` finds variables in attributes.
        self.softmax_weights, self.variables_of_model = weights, [variable.value for variable in model.weights]
        longest = translator.max_source_length
        shorter = [tokens for tokens in LENGTHS if tokens < longest]
        sizes = {SIGNATURE: (longest, max_length)}
        sizes |= {f"{SIGNATURE}_{tokens}": (tokens, min(3 * tokens // 2, max_length)) for tokens in shorter}
        most = {name: None if name == SIGNATURE else CANDIDATES * tokens for name, (tokens, _) in sizes.items()}
        self.functions = {
            name: graph_of_ids(translator, max_length, *size, weights_of, most[name]) for name, size in sizes.items()
        }


class _Integers(NamedTuple):
    """`CandidateWeights` of a table of 8-bit integers, for one sentence."""

    rows: Any  # int8 [M, d]
    scales: Any  # [1, M], by which logits are divided
    bias: Any  # [1, M]

    @classmethod
    def of(cls, embedding: PositionalEmbedding, candidates: tf.Tensor) -> "_Integers":
        table, scales = (ops.convert_to_tensor(part) for part in (embedding.embeddings, embedding.embeddings_scale))
        bias = embedding.candidate_weights(candidates).bias
        return cls(tf.gather(table, candidates[0]), tf.gather(scales, candidates), bias)

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        # TensorFlow has no kernel for these dtypes. `multiply_integers` replaces the operation in the file.
        product = tf.raw_ops.BatchMatMulV3(x=x[0], y=self.rows, adj_y=True, Tout=tf.float32)
        return (product / self.scales + self.bias)[tf.newaxis]


def multiply_integers(model: Any) -> None:
    """Replaces products of floats and 8-bit integers by LiteRT's fully connected layer, which rounds the floats.

    Its batched product returns zeros for integers with one scale.
    """
    from tensorflow.lite.python import schema_py_generated as schema

    kinds = [max(code.builtinCode, code.deprecatedBuiltinCode) for code in model.operatorCodes]
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.FULLY_CONNECTED
    code.version = 5  # the first that keeps the number of axes
    model.operatorCodes.append(code)
    for graph in model.subgraphs:
        for node in graph.operators:
            if kinds[node.opcodeIndex] != schema.BuiltinOperator.BATCH_MATMUL:
                continue
            integers = graph.tensors[node.inputs[1]]
            if integers.type == schema.TensorType.INT8:
                integers.quantization = schema.QuantizationParametersT()
                integers.quantization.scale, integers.quantization.zeroPoint = [1.0], [0]
                node.opcodeIndex, node.inputs = len(kinds), [*node.inputs, -1]  # without a bias
                node.builtinOptions = schema.FullyConnectedOptionsT()
                node.builtinOptions.keepNumDims = True
                node.builtinOptionsType = schema.BuiltinOptions.FullyConnectedOptions


class _Builder(flatbuffers.Builder):
    """Writes equal vectors of numbers, such as the weights of several signatures, once."""

    def __init__(self) -> None:
        super().__init__()
        self._written: dict[tuple[str, bytes], int] = {}

    def CreateNumpyVector(self, x: np.ndarray) -> int:
        key = x.dtype.str, hashlib.sha256(x.tobytes()).digest()
        if key not in self._written:
            self._written[key] = super().CreateNumpyVector(x)
        return self._written[key]
