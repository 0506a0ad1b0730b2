"""The serving contract: inputs and outputs of a SavedModel (savedmodels/README.md has the tables).

Every input is [batch], or [1] for an option. The first axis of every output is the batch and its other axes are fixed,
so TensorFlow Serving can merge requests. No row ever raises, whatever it contains: that would fail its neighbors.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_transformer.decoding.beams import penalty
from tf_transformer.decoding.primitives import require_tensorflow
from tf_transformer.decoding.search_options import (
    LANGUAGES,
    LONGEST,
    SEARCH_OPTIONS,
    Beams,
    Length,
    options_of,
    request_options,
)
from tf_transformer.decoding.shortlist import Shortlist
from tf_transformer.decoding.tensor_translator import TensorTranslator
from tf_transformer.masks import PAD_ID
from tf_transformer.models.families import stored_family
from tf_transformer.models.transformer import Transformer
from tf_transformer.models.weights import check_finite
from tf_transformer.tokenizers.strings import BYTES_OF_A_TOKEN, truncate_in_graph
from tf_transformer.tokenizers.tokenizer import EOS_ID, Tokenizer
from tf_transformer.utils.processor import MAX_INT8_PAIR, pair_sums
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import Fact, checked, convert, number
from tf_transformer.utils.version import __version__

CONTRACT = "1"


class Signature(NamedTuple):
    """Function of a SavedModel with its inputs."""

    name: str
    function: Callable[..., Any]  # takes texts [batch] and options [1] or [batch], returns outputs, all by name
    texts: tuple[str, ...] = ("text",)
    options: Mapping[str, tf.Tensor] = {}  # defaults [1] by name

    def traced(self) -> Any:
        """Returns a `tf.function` with these inputs and defaults."""
        defaults = dict.fromkeys(self.texts, inspect.Parameter.empty) | dict(self.options)
        names, kind = [*defaults], inspect.Parameter.POSITIONAL_OR_KEYWORD
        inputs = [inspect.Parameter(name, kind, default=default) for name, default in defaults.items()]

        def call(*values: Tensor) -> Any:
            return self.function(**dict(zip(names, values, strict=True)))

        # TensorFlow reads names and defaults of inputs from the Python signature.
        call.__name__, call.__signature__ = self.name, inspect.Signature(inputs)  # type: ignore[attr-defined]
        # [None], not [1], also for options: a server that merges requests concatenates all of their inputs.
        dtypes = [tf.string for _ in self.texts] + [default.dtype for default in self.options.values()]
        specs = [tf.TensorSpec([None], dtype, name) for dtype, name in zip(dtypes, names, strict=True)]
        return tf.function(call, input_signature=specs, autograph=False)


class Root(tf.Module):
    """Root object of a SavedModel, with `model_info` among its signatures.

    `warm` has the options of the signatures to warm up before the server is ready. `metadata` is added to `model_info`.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        signatures: Iterable[Signature],
        warm: dict[str, dict[str, Any]],
        **metadata: Any,
    ) -> None:
        super().__init__()
        require_tensorflow("a SavedModel")
        check_finite(model.weights)  # a model that diverged would answer every request with nonsense
        config = getattr(model, "config", None)
        self.config: dict[str, Any] | None = config and config.to_dict()
        self.family = stored_family(config) if config else {}
        # Raw variables, while Keras objects only live in closures. As attributes their weights would be stored twice,
        # and TensorFlow Serving would not restore the copies that the functions read.
        self.weights = [variable.value for variable in model.weights]
        self.tokenizer = tokenizer.op
        self.decode = tokenizer.decode
        self.tokenizer_model: bytes = tokenizer.model
        self.first_piece, self.vocab_size = tokenizer.first_piece, tokenizer.vocab_size
        self.warm = warm
        self.metadata: dict[str, object] = {}
        # The largest magnitudes of an int8 matrix don't count.
        parameters = sum(math.prod(weight.shape) for weight in model.weights if not weight.name.endswith("_max"))
        facts = {"contract": CONTRACT, "vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.fingerprint}
        facts |= {"parameters": parameters, "dtype": model.dtype_policy.name}
        if facts["dtype"] == "int8":
            # Those of a model from a file of an earlier version may saturate.
            integers = [weight for weight in model.weights if weight.dtype == "int8"]
            pairs = (pair_sums(np.asarray(one), axis=int(one.name == "embeddings")) for one in integers)
            facts[MAX_INT8_PAIR] = max((int(each.max()) for each in pairs), default=0)
        self.describe(**metadata, **facts, framework_version=__version__, tf_version=tf.__version__)

        self.names = ["model_info"]
        for signature in signatures:
            # An attribute too, so that tf.saved_model.load(path).translate(text) has the defaults.
            setattr(self, signature.name, signature.traced())
            self.names.append(signature.name)

    @property
    def signatures(self) -> dict[str, Any]:
        """Signatures by name, for `tf.saved_model.save`."""
        return {name: getattr(self, name) for name in self.names}

    def describe(self, **metadata: Any) -> None:
        """Adds values to `model_info`. Raises `BadInput` if one is neither text nor a number."""
        metadata = {
            name: "inf" if number(value) == math.inf else convert(name, value, Fact)  # JSON has no infinity
            for name, value in metadata.items()
        }
        self.metadata = {**self.metadata, **metadata}
        values = tf.lookup.KeyValueTensorInitializer(
            list(self.metadata), [str(value) for value in self.metadata.values()]
        )
        self.table = table = tf.lookup.StaticHashTable(values, "", name="model_info")

        def model_info(key: Tensor) -> Any:
            return {"value": table.lookup(tf.ensure_shape(key, [None]))}

        # A new function, since the former one keeps its table after a save or a call.
        self.model_info = Signature("model_info", model_info, ("key",)).traced()


# What `Translator.save` writes: the functions of `_Graph` as signatures of a `Root`, which owns the weights. Python's
# `Translator` derives from the same `TensorTranslator`, so the two search alike.
class Export(Root):
    """SavedModel of a translator.

    Args:
        translator: `Translator`, whose options become the defaults.
        n_best: Number of translations per text, fixed by the export.
        max_beam_size: Maximum beam size of a request.
        max_length: Default and maximum number of tokens in a translation, including EOS.
        completions: Whether to add a signature "complete", whose outputs begin with a prefix, in a larger graph.
        metadata: More values of `model_info`, such as source_language, target_language, step, bleu. In a multilingual
            model the first two are the defaults of inputs, and default to those of the translator.

    Raises:
        BadInput: If an option is out of range, a weight is not finite, or a language of a multilingual model has no
            default.
    """

    @checked
    def __init__(
        self,
        translator: TensorTranslator,
        n_best: Beams = SEARCH_OPTIONS["n_best"].default,
        max_beam_size: Beams = SEARCH_OPTIONS["beam_size"].highest,
        max_length: Length = SEARCH_OPTIONS["max_length"].default,
        completions: bool = False,
        **metadata: Any,
    ) -> None:
        # Defaults must be in the ranges of a request, or a client that sends them back would be clipped.
        values = translator.options | {"n_best": n_best, "max_length": max_length}
        highest = {"beam_size": max_beam_size, "n_best": max_beam_size, "max_length": max_length}
        request_options(values, highest | {"max_length": math.inf})
        if translator.tokenizer.languages:
            translator = translator.with_languages(*(metadata.get(name) for name in LANGUAGES))
            metadata |= dict(zip(LANGUAGES, translator.tokenizer.current_languages(), strict=True))
            metadata["languages"] = ", ".join(translator.tokenizer.languages)
        shortlist = translator.shortlist
        if shortlist is not None:
            # A variable, since a server copies constants whenever it optimizes a graph.
            parts = [tf.Variable(part, trainable=False) for part in (shortlist.always, shortlist.lists)]
            translator = translator.replace(shortlist=Shortlist(shortlist.always, parts[1]))
            metadata["shortlist"] = repr(shortlist)
        graph = _Graph(translator, values, highest, {name: metadata[name] for name in LANGUAGES if name in metadata})
        options = graph.defaults | graph.languages
        signatures = [
            Signature("serving_default", graph.serving_default),
            Signature("translate", graph.translate, options=options),
            Signature("translate_details", graph.details, options=options),
            Signature("score", graph.score, ("source", "target"), graph.languages),
            Signature("tokenize", graph.tokenize),
            Signature("detokenize", graph.detokenize, ("tokens",)),
        ]
        if completions:
            signatures.append(Signature("complete", graph.translate, ("text", "prefix"), options))
        warm = {"serving_default": {}, "translate": {name: (values | metadata)[name] for name in options}}
        limits = values | {"max_beam_size": max_beam_size}
        super().__init__(translator.model, translator.tokenizer, signatures, warm, **metadata, **limits)
        self.shortlist = [] if shortlist is None else parts


class _Graph:
    """Functions of a translator's signatures, with defaults and highest values of options, and default languages.

    No `tf.Module` may hold this object, or weights would be stored twice.
    """

    def __init__(
        self,
        translator: TensorTranslator,
        values: Mapping[str, Any],
        highest: Mapping[str, float],
        languages: Mapping[str, str],
    ) -> None:
        self.translator, self.tokenizer = translator, translator.tokenizer
        # FixedShapes by the export, since outputs of one server's batch must have one shape.
        self.n_best, self.max_length = values["n_best"], values["max_length"]
        self.highest = highest
        self.options = options_of("request")
        self.defaults = {name: tf.constant([values[name]], option.dtype) for name, option in self.options.items()}
        several = translator.tokenizer.languages
        self.languages = {name: tf.constant([code]) for name, code in languages.items() if several}
        # The signatures share one trace of the search, which is most of the graph.
        self._searched = tf.function(self._search_rows, autograph=False)

    def _languages_of(self, text: Tensor, inputs: Mapping[str, Any]) -> list[Any]:
        return [_per_row(name, inputs.get(name, default), text) for name, default in self.languages.items()]

    def _search(self, text: Tensor, exact_n: int, inputs: Mapping[str, Any], prefix: Tensor = None) -> Any:
        """Searches with the options among `inputs`, each [1] or [batch]."""
        # In a graph no value raises, so what Python's `request` rejects is replaced here.
        text, rows = tf.ensure_shape(text, [None]), {}
        for name, option in self.options.items():
            rows[name] = _per_row(name, inputs.get(name, self.defaults[name]), text)
            # Options out of range are clipped. An error would fail all requests that the server merged into this batch.
            # Clipping keeps NaN, which would become the score.
            if option.dtype == "float32":
                rows[name] = tf.where(tf.math.is_nan(rows[name]), self.defaults[name], rows[name])
            rows[name] = tf.clip_by_value(rows[name], option.lowest, self.highest.get(name, option.highest))
        prefix = () if prefix is None else (_per_row("prefix", prefix, text),)
        return self._searched(text, tf.constant(exact_n), rows, self._languages_of(text, inputs), *prefix)

    def _search_rows(
        self, text: Tensor, exact_n: Tensor, rows: Tensor, languages: Sequence[Tensor], prefix: Tensor = None
    ) -> Any:
        model = self.translator.with_languages(*languages)
        source, source_length, truncated = model.source(text)
        options = {"n_best": self.n_best, "exact_n": exact_n, **rows}
        if prefix is None:
            # `serving_default` needs no details. A search without them would be up to 5 % faster, with a graph
            # up to 19 % larger.
            outputs, tokens = model.detailed_search(source, source_length, **options)
            return source, source_length, truncated, outputs, tokens
        ids = model.target(truncate_in_graph(prefix, self.max_length)[0]).to_tensor(PAD_ID)
        return source, source_length, truncated, model.search(source, source_length, prefix=ids, **options), ()

    def serving_default(self, text: Tensor) -> Any:
        *_, truncated, outputs, _ = self._search(text, 1, {})
        translation = self.translator.texts(outputs.ids)[:, 0]
        return {"translation": translation, "score": outputs.scores[:, 0], "truncated": truncated}

    def translate(self, text: Tensor, prefix: Tensor = None, **inputs: Any) -> Any:
        _, source_length, truncated, outputs, _ = self._search(text, self.n_best, inputs, prefix)
        return {
            "translations": self.translator.texts(outputs.ids),
            "scores": outputs.scores,
            "log_probs": outputs.log_probs,
            "lengths": outputs.lengths - tf.cast(outputs.finished, tf.int32),
            "finished": outputs.finished,
            "source_length": source_length,
            "truncated": truncated,
        }

    def details(self, text: Tensor, **inputs: Any) -> Any:
        source, *_, outputs, values = self._search(text, self.n_best, inputs)
        B, N, L = tf.shape(outputs.ids)[0], self.n_best, tf.shape(outputs.ids)[2]
        # EOS is no token of the text, and an unfinished output has none.
        is_token = tf.range(L) < (outputs.lengths - tf.cast(outputs.finished, tf.int32))[:, :, tf.newaxis]  # [B, N, L]
        # L differs from batch to batch, and a server merges outputs only of fixed shapes.
        token_scores = tf.where(is_token, values.log_probs, 0.0)
        token_scores = tf.pad(token_scores, [[0, 0], [0, 0], [0, self.max_length - L]])

        def tokens(part: Tensor) -> tf.RaggedTensor:
            return tf.ragged.boolean_mask(tf.reshape(part, [B * N, L]), tf.reshape(is_token, [B * N, L]))

        def joined(strings: Tensor) -> Any:
            return tf.ensure_shape(tf.reshape(_joined(strings), [B, N]), [None, N])

        # Joined with spaces, since a ragged output has no fixed shape.
        pieces, attended = self.tokenizer.pieces(tokens(outputs.ids)), tokens(values.attended)
        index = tf.ragged.range(attended.row_lengths())
        links = tf.strings.join([tf.strings.as_string(part.flat_values) for part in (attended, index)], "-")
        return {
            "tokens": joined(pieces),
            "alignments": joined(attended.with_flat_values(links)),  # Pharaoh form "s-t s-t ..."
            "token_scores": tf.ensure_shape(token_scores, [None, N, self.max_length]),
            "source_tokens": _joined(self.tokenizer.source_pieces(tf.ragged.boolean_mask(source, source > EOS_ID))),
        }

    def score(self, source: Tensor, target: Tensor, **inputs: Any) -> Any:
        source, target = (tf.ensure_shape(text, [None]) for text in (source, target))
        model = self.translator.with_languages(*self._languages_of(source, inputs))
        # The score that a search would give this output, so that translations of others can be ranked by it.
        log_prob, length, cut = model.score_texts(source, target)
        scores = log_prob / penalty(length, self.defaults["length_penalty"])
        return {"log_prob": log_prob, "score": scores, "length": length - 1, "truncated": cut}

    def tokenize(self, text: Tensor) -> Any:
        # All tokens of 4 MB would take a gigabyte.
        text, _ = truncate_in_graph(tf.ensure_shape(text, [None]), LONGEST)
        ids = self.tokenizer.tokenize(text)[:, self.tokenizer.num_language_tokens :]
        length = tf.cast(ids.row_lengths(), tf.int32)
        return {"tokens": _joined(self.tokenizer.source_pieces(ids)), "length": length}

    def detokenize(self, tokens: Tensor) -> Any:
        tokens, most = tf.ensure_shape(tokens, [None]), BYTES_OF_A_TOKEN * (LONGEST + 1)
        # A token at the end that is cut is dropped.
        begin = tf.strings.regex_replace(tf.strings.substr(tokens, 0, most), r"\s\S*$", "")
        pieces = tf.strings.split(tf.where(tf.strings.length(tokens) > most, begin, tokens))
        return {"text": self.tokenizer.detokenize(self.tokenizer.ids(pieces))}


def _per_row(name: str, option: Tensor, text: Tensor) -> Any:
    """Broadcasts an option [1] or [batch] to [batch]."""
    option = tf.ensure_shape(option, [None])
    B, count = tf.shape(text)[0], tf.shape(option)[0]
    # Two options for four texts could belong to any of them.
    message = f"{name}: expected a vector of length 1 or of the batch size"
    with tf.control_dependencies([tf.debugging.Assert((count == 1) | (count == B), [message, count, B])]):
        return tf.broadcast_to(tf.cond(count == B, lambda: option, lambda: option[:1]), [B])


def _joined(pieces: Tensor) -> tf.Tensor:
    return tf.strings.reduce_join(pieces, axis=-1, separator=" ")
