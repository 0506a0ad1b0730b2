"""A graph of the whole search, ids in and ids of the best outputs out, and what its folder says of it.

Engines that run without TensorFlow take it, LiteRT and ONNX. SentencePiece's own library makes ids of a text and texts
of ids, as `engines.litert_client` does in Python.
"""

import abc
import hashlib
import math
import os
from typing import Any

import tensorflow as tf

from tf_transformer.config import BadInput
from tf_transformer.decoding.decoder import decoder_after, decoder_of
from tf_transformer.decoding.logits import RULES
from tf_transformer.decoding.primitives import require_tensorflow, size
from tf_transformer.decoding.search import OPTIONS, Fixed, SearchProblem, beam_search
from tf_transformer.decoding.search_options import SEARCH_OPTIONS, of_request
from tf_transformer.decoding.text_model import TextModel
from tf_transformer.extensions.interop.formats.parts import check_no_added
from tf_transformer.layers.int8 import is_int8
from tf_transformer.masks import PAD_ID
from tf_transformer.models.ensemble import Ensemble
from tf_transformer.models.transformer import check_finite
from tf_transformer.serving.savedmodel import check_export
from tf_transformer.tokenizers.languages import LANGUAGES
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID, UNKNOWN_ID
from tf_transformer.utils import values
from tf_transformer.utils.extras import import_extra
from tf_transformer.utils.files import new_folder, write_json
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.version import __version__

DTYPES = ("float32", "int8")
# What a request chooses. The beam size is fixed, since it is the number of rows of most products; so are the rules for
# symbols, which would copy the logits at every step.
INPUTS = {
    name: option
    for name, option in SEARCH_OPTIONS.items()
    if option.request and name != "beam_size" and name not in RULES
}


class Portable(abc.ABC):
    """A kind of folder for an engine that runs without TensorFlow: a model's file, the files of its tokenizer
    (`Tokenizer.files` and `Tokenizer.vocabularies`), and model.json with ids, limits, default options and facts.

    Attributes:
        engine: its name in a sentence.
        package: the engine's module, which a check takes; its extra has the engine's name in lower case.
        file: the name of the model's.
    """

    engine: str
    package: str
    file: str

    @values.checked
    def save(
        self,
        translator: TextModel,
        path: str | os.PathLike[str],
        dtype: str | None = None,
        max_length: values.Count = SEARCH_OPTIONS["max_length"].default,
        checked: bool = False,
        **facts: Any,
    ) -> None:
        """Write a folder, whole or not at all.

        Args:
            translator: a `Translator`; its options become the defaults of length_penalty and max_length, the others are
                fixed.
            path: must not exist.
            dtype: of the weights, "float32", or "int8" with a scale by channel; `None` means "float32".
            max_length: the default and the greatest number of symbols in an output, the end symbol included; at most
                max_source_length + extra_length.
            checked: run the checks of `tf_transformer.extensions.conformance.check` on the result.
            facts: further entries of model.json, e.g. source_language, target_language, step, origin, license. Of a
                model of several languages the first two are the defaults of calls, by default those of the translator.

        Raises:
            BadInput: the dtype is unknown, an option is out of range, the weights have 8 bits already, a language of a
                model of several is unknown or missing, the model is none for this engine, a package is not installed,
                or a check failed; nothing is left behind.
            FileExistsError: path exists.
        """
        require_tensorflow(f"an export to {self.engine}")
        dtype = dtype or "float32"
        if dtype not in DTYPES:
            raise BadInput(f"dtype: expected one of {', '.join(DTYPES)} for {self.engine}, got {dtype!r}")
        if is_int8(translator.model):
            raise BadInput("translator: expected weights of 16 or 32 bits, which the converter can round, got int8")
        if isinstance(translator.model, Ensemble):
            count = len(translator.model.models)
            raise BadInput(f"translator: expected one model for {self.engine}, got an ensemble of {count}")
        check_no_added(translator.tokenizer)
        self._check(translator)
        if checked:
            import_extra(self.package, self.engine.lower(), "the check of this format")
        max_length = min(max_length, translator.max_source_length + translator.extra_length)
        options = translator.options | {"max_length": max_length, "n_best": translator.beam_size}
        of_request(options, dict.fromkeys(options, math.inf))
        check_finite(translator.model.weights)
        tokenizer, languages = translator.tokenizer, dict[str, Any]()
        if tokenizer.languages:
            tokenizer = tokenizer.for_languages(*(facts.get(name) for name in LANGUAGES))
            facts = facts | dict(zip(LANGUAGES, tokenizer.spoken(), strict=True))
            languages["language_ids"] = dict(tokenizer.language_ids)
        known = {name: value for name, value in translator.export_options.items() if name != "max_beam_size"}  # fixed
        description = {
            **known,
            **{name: values.convert(name, value, values.Fact) for name, value in facts.items()},
            **{name: "inf" if value == math.inf else value for name, value in options.items()},  # JSON has no infinity
            **languages,
            "ids": {"padding": PAD_ID, "start": BOS_ID, "end": EOS_ID, "unknown": UNKNOWN_ID},
            "vocab_size": tokenizer.vocab_size,
            "tokenizer": tokenizer.fingerprint,
            "parameters": sum(math.prod(weight.shape) for weight in translator.model.weights),
            "dtype": dtype,
            "framework_version": __version__,
            "tf_version": tf.__version__,
        }
        with new_folder(path) as folder:
            contents = self._converted(
                translator.replace(model=translator.model.merged().astype("float32")), dtype, max_length
            )
            (folder / self.file).write_bytes(contents)
            description["sha256"] = hashlib.sha256(contents).hexdigest()
            for name, content in (tokenizer.files | tokenizer.vocabularies).items():
                (folder / name).write_bytes(content)
            write_json(folder / "model.json", description)
            if checked:
                check_export(folder, path)

    def _check(self, translator: TextModel) -> None:  # noqa: B027  (most engines take all models)
        """Raise `BadInput` if a model cannot be in such a file."""

    @abc.abstractmethod
    def _converted(self, translator: TextModel, dtype: str, max_length: int) -> bytes:
        """The file's contents, of a translator whose model may be changed, in float32, with weights of this dtype and
        with outputs of this many symbols at most."""


def graph_of_ids(
    translator: TextModel, max_length: int, tokens: int | None = None, steps: int | None = None, weights: Tensor = None
) -> Any:
    """The graph of the ids of B sources, and of n_best, `INPUTS` and, of a model of several languages, the id of the
    target's, each [1], to the outputs' `Hypotheses`, those of a source after those of the one before it. The id of the
    source's language is the first one of its ids.

    Args:
        translator: its model computes; its options are the defaults.
        max_length: the greatest number of symbols in an output.
        tokens: of a source, without its language and its end symbol; B is 1. `None` leaves both numbers free.
        steps: most steps of the search, for which the cache has room from the start; `None` lets the cache grow.
        weights: as in `decoder_of`.
    """
    model, beams, codes = translator.model, translator.beam_size, translator.tokenizer.codes

    def translate(source: tf.Tensor, n_best: tf.Tensor, *values: tf.Tensor) -> dict[str, tf.Tensor]:
        options: dict[str, Any] = {}
        for (name, option), value in zip(INPUTS.items(), values[: len(INPUTS)], strict=True):
            if option.dtype == "float32":  # clipping keeps a NaN, which would become the score
                value = tf.where(tf.math.is_nan(value), translator.options[name], value)
            options[name] = tf.clip_by_value(value, option.lowest, option.highest)
        length = tf.math.count_nonzero(source, axis=1, dtype=tf.int32) - (1 + codes)  # without the end symbol
        limit = translator.limit(length, tf.minimum(options.pop("max_length"), max_length))
        memory, mask, _ = model.encode(source)
        fixed = Fixed(beams, steps) if steps else Fixed(beams, tf.reduce_max(limit), grows=True)
        decoder, start = decoder_of(model, memory, mask, fixed, weights), tf.fill(tf.shape(length), BOS_ID)
        for language in values[len(INPUTS) :]:
            decoder, start = decoder_after(decoder, start), tf.broadcast_to(language, tf.shape(length))
        found = beam_search(
            SearchProblem(decoder, start, limit, EOS_ID),
            n_best=beams,
            exact_n=n_best[0],
            **{name: translator.options[name] for name in OPTIONS} | options,
        )
        ids = tf.pad(found.ids, [[0, 0], [0, 0], [0, 1]])  # beside a size of 0, ONNX infers no other one
        ids = tf.reshape(ids, [-1, size(ids, 2)])[:, :-1]
        return {name: tf.reshape(part, [-1]) for name, part in found._asdict().items()} | {"ids": ids}

    width = None if tokens is None else codes + tokens + 1
    rows = None if tokens is None else 1
    inputs = [tf.TensorSpec([rows, width], tf.int32, "source"), tf.TensorSpec([1], tf.int32, "n_best")]
    inputs += [tf.TensorSpec([1], option.dtype, name) for name, option in INPUTS.items()]
    inputs += [tf.TensorSpec([1], tf.int32, LANGUAGES[1])] * codes
    return tf.function(translate, input_signature=inputs, autograph=False)
