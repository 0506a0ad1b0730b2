"""Exports of the whole search, from token ids to the ids of the best outputs, for LiteRT and ONNX.

SentencePiece's library converts between texts and ids, like `engines.litert_client`.
"""

import abc
import hashlib
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tf_transformer.config import BadInput
from tf_transformer.decoding.beams import RULES
from tf_transformer.decoding.decoder import decoder_after, decoder_of, problem_after
from tf_transformer.decoding.primitives import require_tensorflow, size
from tf_transformer.decoding.search import OPTIONS, FixedShapes, beam_search
from tf_transformer.decoding.search_options import LANGUAGES, SEARCH_OPTIONS, request_options
from tf_transformer.decoding.tensor_translator import TensorTranslator
from tf_transformer.extensions.interop.formats.checks import check_convertible
from tf_transformer.masks import PAD_ID
from tf_transformer.serving.saving import check_export
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID, UNKNOWN_ID
from tf_transformer.utils import values
from tf_transformer.utils.files import new_folder, write_json
from tf_transformer.utils.lazy import import_extra
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.version import __version__

DTYPES = ("float32", "int8")
# Options of a request. The beam size is fixed, since it is the number of rows of most matmuls. The rules for tokens are
# fixed, since they would copy the logits at every step.
INPUTS = {
    name: option
    for name, option in SEARCH_OPTIONS.items()
    if "request" in option.where and name != "beam_size" and name not in RULES
}


class Portable(abc.ABC):
    """Format of a directory for an engine without TensorFlow.

    It holds the model's file, the files of its tokenizer (`Tokenizer.files` and `Tokenizer.vocabularies`), and
    model.json with ids, limits, default options and metadata.

    Attributes:
        engine: Name of the engine for messages. In lower case it is the extra.
        package: Module of the engine, which a check needs.
        file: Name of the model's file.
    """

    engine: str
    package: str
    file: str
    int8_facts: Mapping[str, Any] = {}  # more entries of model.json in int8

    @values.checked
    def save(
        self,
        translator: TensorTranslator,
        path: str | os.PathLike[str],
        dtype: str | None = None,
        max_length: values.Count = SEARCH_OPTIONS["max_length"].default,
        checked: bool = False,
        **metadata: Any,
    ) -> None:
        """Writes a directory atomically.

        Args:
            translator: A `Translator`. Its options become the defaults of length_penalty and max_length, and the fixed
                values of the others.
            path: New directory.
            dtype: Dtype of the weights: "float32" (the default), or "int8" with a scale per channel.
            max_length: Default and maximum length of outputs in tokens, with EOS. At most max_source_length +
                extra_length.
            checked: Whether to run `tf_transformer.extensions.conformance.check` on the result.
            metadata: More entries of model.json, such as source_language, target_language, step, origin or license. The
                first two of a multilingual model are the defaults of calls. They default to the translator's.

        Raises:
            BadInput: If an argument is out of range, the engine does not support the model, a multilingual model
                has no language, a package is not installed, or a check fails.
            FileExistsError: If `path` exists.
        """
        require_tensorflow(f"an export to {self.engine}")
        dtype = dtype or "float32"
        if dtype not in DTYPES:
            raise BadInput(f"dtype: expected one of {', '.join(DTYPES)} for {self.engine}, got {dtype!r}")
        check_convertible(translator, f" for {self.engine}")
        self._check(translator)
        if checked:
            import_extra(self.package, self.engine.lower(), "the check of this format")
        max_length = min(max_length, translator.max_source_length + translator.extra_length)
        options = translator.options | {"max_length": max_length, "n_best": translator.beam_size}
        request_options(options, dict.fromkeys(options, math.inf))
        tokenizer, languages = translator.tokenizer, dict[str, Any]()
        if tokenizer.languages:
            tokenizer = tokenizer.with_languages(*(metadata.get(name) for name in LANGUAGES))
            metadata = metadata | dict(zip(LANGUAGES, tokenizer.current_languages(), strict=True))
            languages["language_ids"] = dict(tokenizer.language_ids)
        description = {
            # The export fixes the beam size.
            **{name: value for name, value in translator.export_options.items() if name != "max_beam_size"},
            **{name: values.convert(name, value, values.Fact) for name, value in metadata.items()},
            # JSON has no infinity.
            **{name: "inf" if value == math.inf else value for name, value in options.items()},
            **languages,
            "ids": {"padding": PAD_ID, "start": BOS_ID, "end": EOS_ID, "unknown": UNKNOWN_ID},
            "vocab_size": tokenizer.vocab_size,
            "tokenizer": tokenizer.fingerprint,
            "parameters": sum(math.prod(weight.shape) for weight in translator.model.weights),
            "dtype": dtype,
            **({"shortlist": repr(short), "shortlist_bytes": short.nbytes} if (short := translator.shortlist) else {}),
            **(self.int8_facts if dtype == "int8" else {}),
            "framework_version": __version__,
            "tf_version": tf.__version__,
        }
        with new_folder(path) as folder:
            # A copy, which the conversion may change.
            copy = translator.replace(model=translator.model.merged().astype("float32"))
            contents = self._converted(copy, dtype, max_length)
            (folder / self.file).write_bytes(contents)
            description["sha256"] = hashlib.sha256(contents).hexdigest()
            for name, content in (tokenizer.files | tokenizer.vocabularies).items():
                (folder / name).write_bytes(content)
            write_json(folder / "model.json", description)
            if checked:
                check_export(folder, path)

    def _check(self, translator: TensorTranslator) -> None:  # noqa: B027
        """Raises `BadInput` if the engine does not support a model."""

    @abc.abstractmethod
    def _converted(self, translator: TensorTranslator, dtype: str, max_length: int) -> bytes:
        """Returns the file of a model in float32, with weights of `dtype` and outputs of up to `max_length` tokens."""


def graph_of_ids(
    translator: TensorTranslator,
    max_length: int,
    tokens: int | None = None,
    steps: int | None = None,
    weights_of: Callable[[Tensor], Any] = lambda candidates: None,
    most_candidates: int | None = None,
) -> Any:
    """Returns a `tf.function` from ids of B sources to the `Hypotheses` of all, those of a source in a row.

    The other inputs have shape [1]: n_best, `INPUTS` and, for a multilingual model, the id of the target language. The
    id of the source language is the first one of a source. With `tokens`, sources have this length, without language
    and EOS, and B is 1. With `steps`, the cache has room for so many from the start, otherwise it grows. `weights_of`
    returns the softmax's weights for the candidates of a shortlist, or for `None`. By default they are the model's. A
    source with more than `most_candidates`, besides those of every source, has an empty output.
    """
    model, beams, codes = translator.model, translator.beam_size, translator.tokenizer.num_language_tokens
    shortlist = translator.shortlist

    def translate(source: tf.Tensor, n_best: tf.Tensor, *values: tf.Tensor) -> dict[str, tf.Tensor]:
        options: dict[str, Any] = {}
        for (name, option), value in zip(INPUTS.items(), values[: len(INPUTS)], strict=True):
            # Clipping keeps a NaN, which would become the score.
            if option.dtype == "float32":
                value = tf.where(tf.math.is_nan(value), translator.options[name], value)
            options[name] = tf.clip_by_value(value, option.lowest, option.highest)
        length = tf.math.count_nonzero(source, axis=1, dtype=tf.int32) - (1 + codes)  # [B]
        limit = translator.limit(length, tf.minimum(options.pop("max_length"), max_length))
        memory, mask, _ = model.encode(source)
        fixed = FixedShapes(beams, steps) if steps else FixedShapes(beams, tf.reduce_max(limit), grows=True)
        candidates = None
        if shortlist is not None:
            candidates, has_more = shortlist.candidates(source, fixed=not fixed.grows, most=most_candidates)
            limit = tf.where(has_more, 0, limit)
        decoder = decoder_of(model, memory, mask, fixed, weights_of(candidates), candidates)
        start = tf.fill(tf.shape(length), BOS_ID)
        for language in values[len(INPUTS) :]:
            decoder, start = decoder_after(decoder, start), tf.broadcast_to(language, tf.shape(length))
        outputs = beam_search(
            problem_after(decoder, start, limit),
            n_best=beams,
            exact_n=n_best[0],
            **{name: translator.options[name] for name in OPTIONS} | options,
        )
        # ONNX does not infer a size (-1) next to one that may be 0. A slot more, which is cut again, avoids that.
        ids = tf.pad(outputs.ids, [[0, 0], [0, 0], [0, 1]])  # [B, K, L + 1]
        ids = tf.reshape(ids, [-1, size(ids, 2)])[:, :-1]  # [B * K, L]
        return {name: tf.reshape(part, [-1]) for name, part in outputs._asdict().items()} | {"ids": ids}

    shape = [None, None] if tokens is None else [1, codes + tokens + 1]
    inputs = [tf.TensorSpec(shape, tf.int32, "source"), tf.TensorSpec([1], tf.int32, "n_best")]
    inputs += [tf.TensorSpec([1], option.dtype, name) for name, option in INPUTS.items()]
    inputs += [tf.TensorSpec([1], tf.int32, LANGUAGES[1])] * codes
    return tf.function(translate, input_signature=inputs, autograph=False)
