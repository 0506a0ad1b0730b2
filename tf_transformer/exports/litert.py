"""Export to LiteRT (https://ai.google.dev/edge/litert), formerly TensorFlow Lite, an engine for phones.

The file holds the encoder and the search of `text.search` for one sentence: ids in, ids of the best outputs out.
SentencePiece's own library makes ids of a text and texts of ids, as `engines.litert_client` does in Python.

All shapes in the file are fixed: where shapes grew while LiteRT ran, its XNNPACK now and then computed with memory that
had moved. The signature `translate` has the export's limits of lengths. Others, such as `translate_16`, have shorter
ones, since a step costs about as much as the cache is long; they share the weights.
"""

import functools
import hashlib
import math
import os
import tempfile
from typing import Any

import flatbuffers
import numpy as np
import tensorflow as tf

from tf_transformer.base import values
from tf_transformer.base.extras import import_extra
from tf_transformer.base.files import new_folder, write_json
from tf_transformer.base.version import __version__
from tf_transformer.config import BadInput
from tf_transformer.exports.savedmodel import check_export
from tf_transformer.layers import PositionalEmbedding
from tf_transformer.layers.int8 import is_int8
from tf_transformer.masks import PAD_ID
from tf_transformer.model import check_finite
from tf_transformer.text.decoding import decoder_of
from tf_transformer.text.logits import RULES
from tf_transformer.text.primitives import require_tensorflow
from tf_transformer.text.search import OPTIONS, Fixed, SearchProblem, beam_search
from tf_transformer.text.search_options import SEARCH_OPTIONS, of_request
from tf_transformer.text.text_model import TextModel
from tf_transformer.text.tokenizer import BOS_ID, EOS_ID, UNKNOWN_ID

DTYPES = ("float32", "int8")
SIGNATURE = "translate"
LENGTHS = (16, 32, 64, 128)  # tokens of the longest source of the shorter signatures
# What a request chooses. The beam size is fixed, since it is the number of rows of most products; so are the rules for
# symbols, which would copy the logits at every step.
INPUTS = {
    name: option
    for name, option in SEARCH_OPTIONS.items()
    if option.request and name != "beam_size" and name not in RULES
}


@values.checked
def save(
    translator: TextModel,
    path: str | os.PathLike[str],
    dtype: str | None = None,
    max_length: values.Count = SEARCH_OPTIONS["max_length"].default,
    checked: bool = False,
    **facts: Any,
) -> None:
    """Write a folder for LiteRT, whole or not at all:

        model.tflite       the signatures; docs/guides/litert-apps.md has their inputs and outputs
        tokenizer.model    SentencePiece's, or other files of `Tokenizer.files` and `Tokenizer.vocabularies`
        model.json         ids, limits, default options and facts

    Args:
        translator: a `Translator`; its options become the defaults of length_penalty and max_length, the others are
            fixed.
        path: must not exist.
        dtype: of the weights, "float32", or "int8" with a scale by channel; `None` means "float32".
        max_length: the default and the greatest number of symbols in an output, the end symbol included; at most
            max_source_length + extra_length.
        checked: run the checks of `tf_transformer.conformance.check` on the result.
        facts: further entries of model.json, e.g. source_language, target_language, step, origin, license.

    Raises:
        BadInput: the dtype is unknown, an option is out of range, the weights have 8 bits already, the model knows
            several languages, or a check failed; nothing is left behind.
        FileExistsError: path exists.
    """
    require_tensorflow("an export to LiteRT")
    dtype = dtype or "float32"
    if dtype not in DTYPES:
        raise BadInput(f"dtype: expected one of {', '.join(DTYPES)} for LiteRT, got {dtype!r}")
    if languages := translator.tokenizer.languages:
        raise BadInput(f"translator: expected a model of one pair of languages for LiteRT, got one of {len(languages)}")
    if is_int8(translator.model):
        raise BadInput("translator: expected weights of 16 or 32 bits, which the converter can round, got int8")
    if checked:
        import_extra("ai_edge_litert", "litert", "the check of this format")
    max_length = min(max_length, translator.max_source_length + translator.extra_length)
    options = translator.options | {"max_length": max_length, "n_best": translator.beam_size}
    of_request(options, dict.fromkeys(options, math.inf))
    check_finite(translator.model.weights)
    tokenizer = translator.tokenizer
    description = {
        **{
            name: value for name, value in translator.export_options.items() if name != "max_beam_size"
        },  # here the beam size is fixed
        **{name: values.convert(name, value, values.Fact) for name, value in facts.items()},
        **{name: "inf" if value == math.inf else value for name, value in options.items()},  # JSON has no infinity
        "ids": {"padding": PAD_ID, "start": BOS_ID, "end": EOS_ID, "unknown": UNKNOWN_ID},
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": tokenizer.fingerprint,
        "parameters": sum(math.prod(weight.shape) for weight in translator.model.weights),
        "dtype": dtype,
        "framework_version": __version__,
        "tf_version": tf.__version__,
    }
    with new_folder(path) as folder:
        contents = _converted(translator, dtype, max_length)
        (folder / "model.tflite").write_bytes(contents)
        description["sha256"] = hashlib.sha256(contents).hexdigest()
        for name, content in (tokenizer.files | tokenizer.vocabularies).items():
            (folder / name).write_bytes(content)
        write_json(folder / "model.json", description)
        if checked:
            check_export(folder, path)


def _converted(translator: TextModel, dtype: str, max_length: int) -> bytes:
    """The file's contents; the arguments are as in `save`."""
    module = _Module(translator.replace(model=translator.model.merged().astype("float32")), dtype == "int8", max_length)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures=module.functions)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=list(module.functions))
        # A norm's gain would go into the softmax's weights, which then differ from the table of embeddings.
        converter._experimental_disable_fuse_mul_and_fc = True
        if dtype == "int8":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        return _stored_once(converter.convert())


class _Module(tf.Module):
    """The graph to convert.

    Args:
        translator: whose model may be changed.
        rounded: whether embeddings are 8-bit integers; the converter rounds all other matrices.
        max_length: as in `save`.
    """

    def __init__(self, translator: TextModel, rounded: bool, max_length: int) -> None:
        super().__init__()
        model, beams = translator.model, translator.beam_size
        members = getattr(model, "models", None)
        weights = [_rounded(member) for member in members or [model]] if rounded else None
        self.variables_of_model = [variable.value for variable in model.weights]
        self.softmax_weights = weights  # found by `tf.saved_model.save`, as the line above
        if weights and not members:
            (weights,) = weights

        def translate(steps: int, source: tf.Tensor, n_best: tf.Tensor, *values: tf.Tensor) -> dict[str, tf.Tensor]:
            options: dict[str, Any] = {}
            for (name, option), value in zip(INPUTS.items(), values, strict=True):
                if option.dtype == "float32":  # clipping keeps a NaN, which would become the score
                    value = tf.where(tf.math.is_nan(value), translator.options[name], value)
                options[name] = tf.clip_by_value(value, option.lowest, option.highest)
            length = tf.math.count_nonzero(source, axis=1, dtype=tf.int32) - 1  # without the end symbol
            limit = translator.limit(length, tf.minimum(options.pop("max_length"), max_length))
            memory, mask, _ = model.encode(source)
            decoder = decoder_of(model, memory, mask, Fixed(beams, steps), weights)
            found = beam_search(
                SearchProblem(decoder, tf.constant([BOS_ID]), limit, EOS_ID),
                n_best=beams,
                exact_n=n_best[0],
                **{name: translator.options[name] for name in OPTIONS} | options,
            )
            return {name: part[0] for name, part in found._asdict().items()}

        def signature(tokens: int, steps: int) -> Any:
            inputs = [tf.TensorSpec([1, tokens + 1], tf.int32, "source"), tf.TensorSpec([1], tf.int32, "n_best")]
            inputs += [tf.TensorSpec([1], option.dtype, name) for name, option in INPUTS.items()]
            return tf.function(functools.partial(translate, steps), input_signature=inputs, autograph=False)

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
