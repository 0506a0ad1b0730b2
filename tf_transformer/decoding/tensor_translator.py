"""A model, its tokenizer and its search options, as functions of tensors.

`Translator` derives from it and adds strings. A SavedModel has these functions in its graph.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import keras
import numpy as np
from keras import ops

from tf_transformer.config import BadInput
from tf_transformer.decoding.beams import Hypotheses, Tokens, begins_with
from tf_transformer.decoding.decoder import decoder_after, decoder_of, problem_after
from tf_transformer.decoding.primitives import ON_TENSORFLOW, compiled
from tf_transformer.decoding.search import OPTIONS, FixedShapes, SearchProblem, beam_search, detailed_search
from tf_transformer.decoding.search_options import LANGUAGES, Beams, translator_options
from tf_transformer.decoding.shortlist import Shortlist
from tf_transformer.layers import PositionalEmbedding
from tf_transformer.masks import PAD_ID
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers.strings import truncate_in_graph
from tf_transformer.tokenizers.tokenizer import EOS_ID, Tokenizer
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import MOST, checked, shown

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazily("tensorflow", "an export")

MAX_SCORED_TOKENS = 256  # target tokens that are scored at once, to bound the memory of their logits


class Immutable:
    """Base class of immutable objects. A traced function would keep using the former value of an attribute."""

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, name):
            kind = type(self).__name__
            raise AttributeError(f"{name}: a {kind} is immutable. Call replace({name}=...) for a modified copy")
        super().__setattr__(name, value)


class TensorTranslator(Immutable):
    """Immutable model with its tokenizer and search options, whose functions can be traced. See `Translator`."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        *,
        export_options: Mapping[str, Any] | None = None,
        shortlist: Shortlist | None = None,
        **options: float,
    ) -> None:
        config = getattr(model, "config", None)
        if not config:
            got = f"got {type(model).__name__}. Put a tokenizer in front of other models by tt.TextModel."
            raise BadInput(f"model: expected a tt.Transformer, {got}")
        if isinstance(model, keras.Model) and not model.built:  # Keras builds when it is called, not when it searches
            model.build()
        if tokenizer.vocab_size != config.vocab_size:
            raise BadInput(
                f"expected a tokenizer of the model's vocab_size={config.vocab_size}, got {tokenizer.vocab_size}"
            )
        if shortlist is not None:
            ids = getattr(config, "source_vocab_size", None) or config.vocab_size
            if not isinstance(shortlist, Shortlist) or shortlist.lists.shape[0] != ids:
                raise BadInput(f"shortlist: expected a Shortlist of {ids} source tokens, got {shown(shortlist)}")
            if (largest := max(int(np.max(part)) for part in (shortlist.always, shortlist.lists))) >= config.vocab_size:
                raise BadInput(f"shortlist: expected ids below {config.vocab_size}, got {largest}")
            for each in getattr(model, "models", [model]):
                check_candidates(each)
        values = translator_options(options)
        if model.max_length is not None:  # a source needs one position for EOS
            values["max_source_length"] = min(values["max_source_length"], model.max_length - 1)
        self.model = model
        self.tokenizer = tokenizer
        self.export_options = dict(export_options or {})
        for name in LANGUAGES if tokenizer.languages else ():
            self.export_options.pop(name, None)
        self.shortlist = shortlist
        self._options = values
        # By name, the ids of the variables and the compiled function. A trace keeps the variables that it read.
        self._functions: dict[str, tuple[list[int], Callable[..., Any]]] = {}

    def __getattr__(self, name: str) -> Any:
        options = self.__dict__.get("_options", {})
        if name not in options:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return options[name]

    @property
    def options(self) -> dict[str, Any]:
        return dict(self._options)

    def _arguments(self) -> dict[str, Any]:
        """Returns the arguments that construct an equal object, by name."""
        names = ("model", "tokenizer", "export_options", "shortlist")
        return {**self.options, **{name: getattr(self, name) for name in names}}

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some arguments changed: `translator.replace(beam_size=1)`."""
        return type(self)(**(self._arguments() | changes))

    def traced(self, name: str, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """Returns a compiled function, cached by name until the model's set of variables changes, as with LoRA."""
        variables, cached = [*map(id, self.model.weights)], self._functions.get(name)
        if cached is None or cached[0] != variables:
            cached = variables, compiled(function, self.model.weights, **options)
            self._functions[name] = cached
        return cached[1]

    def with_languages(self, *languages: Any) -> "TensorTranslator":
        """Returns a copy for other languages, the arguments of `Tokenizer.with_languages`. Without any, itself."""
        if not languages:
            return self
        tokenizer = self.tokenizer.with_languages(*languages)
        return TensorTranslator(self.model, tokenizer, shortlist=self.shortlist, **self.options)

    def source(self, text: Tensor) -> "tuple[tf.Tensor, tf.Tensor, tf.Tensor]":
        """Tokenizes texts [B] for the encoder, and returns three tensors.

        ids, int32 [B, S]: the language's if the model has several, at most max_source_length tokens, and EOS.
        length, int32 [B]: tokens before truncation. In a huge text, only tokens that `truncate_in_graph` keeps count.
        truncated, bool [B]: whether the text was cut, or dropped since a language is unknown.
        """
        # Cut twice: a huge text before it is tokenized, which would take seconds, and then the exact number of tokens.
        text, cut = truncate_in_graph(text, self.max_source_length)
        ids, length, truncated = self.append_eos(self.tokenizer.tokenize(text), self.tokenizer.num_language_tokens)
        return ids, length, truncated | cut

    def reference(self, text: Tensor) -> "tuple[tf.Tensor, tf.Tensor, tf.Tensor]":
        """Tokenizes targets to score, like `source` but without the language's id."""
        text, cut = truncate_in_graph(text, self.max_source_length)
        ids, length, truncated = self.append_eos(self.target(text))
        return ids, length, truncated | cut

    def target(self, text: Tensor) -> "tf.RaggedTensor":
        """Tokenizes texts [B] as outputs are: ragged ids [B, None], without the language's."""
        return self.tokenizer.tokenize_target(text)[:, self.tokenizer.num_language_tokens :]

    def append_eos(self, tokens: Tensor, num_language_tokens: int = 0) -> "tuple[tf.Tensor, tf.Tensor, tf.Tensor]":
        """Truncates ragged ids [B, None], which begin with `num_language_tokens`, and appends EOS. See `source`."""
        # A row without its languages has no ids at all, so its length is negative.
        length = tf.cast(tokens.row_lengths(), tf.int32) - num_language_tokens
        end = tf.fill([tokens.nrows(), 1], EOS_ID)
        source = tf.concat([tokens[:, : self.max_source_length + num_language_tokens], end], axis=1).to_tensor(PAD_ID)
        return source, tf.maximum(length, 0), (length > self.max_source_length) | (length < 0)

    @checked
    def search(
        self,
        source: Tensor,
        source_length: Tensor,
        *,
        n_best: Beams = 1,
        exact_n: Tensor = None,
        prefix: Tensor = None,
        start: Tensor = None,
        fixed: FixedShapes | None = None,
        **options: Any,
    ) -> Hypotheses:
        """Searches for the n_best outputs of ids and lengths from `source`, at most extra_length tokens longer.

        Outputs begin with `prefix`, padded ids [B, P]. See `problem` for `start` and `fixed`, and `beam_search` for
        `exact_n`. `options` are those of a request, each a number or [B], and replace the model's.
        """
        problem, options = self._request(source, source_length, options, start, fixed, prefix)
        candidates = problem.decoder.candidates
        allowed = None if prefix is None else begins_with(prefix, self.model.config.vocab_size, candidates)
        return beam_search(problem, n_best=n_best, exact_n=exact_n, allowed=allowed, **options)

    def detailed_search(
        self,
        source: Tensor,
        source_length: Tensor,
        start: Tensor = None,
        fixed: FixedShapes | None = None,
        **options: Any,
    ) -> tuple[Hypotheses, Tokens]:
        """Like `search` without `prefix`, but also returns each token's log-probability and attended source token.

        That is the source token of highest attention in the last layer, averaged over the heads that align.
        """
        problem, options = self._request(source, source_length, options, start, fixed)
        return detailed_search(problem, **options)

    def _request(
        self,
        source: Tensor,
        source_length: Tensor,
        options: Mapping[str, Any],
        start: Tensor,
        fixed: FixedShapes | None,
        prefix: Tensor = None,
    ) -> tuple[SearchProblem, dict[str, Any]]:
        """Returns problem and options of a search from those of a request."""
        values = {name: self.options[name] for name in OPTIONS} | dict(options)
        if fixed is None and not ON_TENSORFLOW:
            widest = int(ops.convert_to_numpy(ops.max(values["beam_size"])))
            fixed = self.fixed_shapes(source, widest)
        return self.problem(source, source_length, values.pop("max_length", MOST), start, fixed, prefix), values

    def fixed_shapes(self, source: Tensor, beams: int, longest: int | None = None) -> FixedShapes | None:
        """Returns the fixed shapes of a search for ids [B, S], or `None` on TensorFlow, where shapes change.

        The longest output is that which extra_length allows, or `longest` if that is shorter.
        """
        if ON_TENSORFLOW:
            return None
        # The widest row without EOS and languages sets the length for all. JAX compiles once per such length.
        most = source.shape[1] - 1 - self.tokenizer.num_language_tokens + self.extra_length
        if self.model.max_length is not None:
            most = min(most, self.model.max_length)
        return FixedShapes(beams, max(1, min(most, longest or most)))

    def problem(
        self,
        source: Tensor,
        source_length: Tensor,
        max_length: Tensor,
        start: Tensor = None,
        fixed: FixedShapes | None = None,
        prefix: Tensor = None,
    ) -> SearchProblem:
        """Encodes source ids, and returns the problem of a search. A `shortlist` also has the ids of `prefix`.

        `start` are the `start_ids` of all rows, int32 [P], by default those of the tokenizer's languages, which may
        differ from row to row in a graph. `fixed` defaults to the shapes for these ids and this beam_size.
        """
        memory, memory_mask, _ = self.model.encode(source)  # [B, S, d], [B, S]
        fixed = fixed or self.fixed_shapes(source, self.beam_size)
        candidates = None
        if self.shortlist is not None:
            candidates, _ = self.shortlist.candidates(source, prefix, fixed=bool(fixed and not fixed.grows))
        decoder = decoder_of(self.model, memory, memory_mask, fixed, candidates=candidates)
        # The search begins after the last start token. Those before it, in multilingual models, are decoded here.
        rows = ops.shape(source)[0]
        if start is None:
            start = ops.convert_to_tensor(self.tokenizer.start(rows))  # TensorFlow's, with every backend
        else:
            start = ops.broadcast_to(start, (rows, start.shape[0]))
        for index in range(start.shape[1] - 1):
            decoder = decoder_after(decoder, start[:, index])
        return problem_after(decoder, start[:, -1], self.limit(source_length, max_length))

    def limit(self, source_length: Tensor, max_length: Tensor) -> Any:
        """Returns the maximum number of tokens of each output, including EOS: int32 [B]. Empty sources get 0."""
        # "We set the maximum output length during inference to input length + 50, but terminate early when possible."
        limit = ops.minimum(ops.minimum(source_length, self.max_source_length) + self.extra_length, max_length)
        if self.model.max_length is not None:
            limit = ops.minimum(limit, self.model.max_length)
        return ops.where(source_length > 0, limit, 0)

    def score_targets(self, source: Tensor, target: Tensor) -> "tf.Tensor":
        """Returns the log-probabilities of target ids [B, T], with EOS but without the language's: float32 [B, T]."""
        rows, T = tf.unstack(tf.shape(target))
        encoded = self.model.encode(source)[:2]
        at_once = tf.maximum(MAX_SCORED_TOKENS // tf.maximum(T, 1), 1)
        start = self.tokenizer.start(rows)

        # Logits [B, T, V] of all rows would take gigabytes for a large vocabulary, so a few rows are scored at a time.
        def score(i: Tensor, log_probs: Any) -> tuple[Any, ...]:
            batch = slice(i * at_once, (i + 1) * at_once)
            memory, memory_mask = tf.nest.map_structure(lambda part: part[batch], encoded)
            shifted = tf.concat([start[batch], target[batch]], axis=1)[:, :-1]
            scores = self.model.decode(shifted, memory, memory_mask)[0][:, start.shape[1] - 1 :]
            return i + 1, log_probs.write(i, -tf.nn.sparse_softmax_cross_entropy_with_logits(target[batch], scores))

        count = tf.maximum(-(-rows // at_once), 1)
        parts = tf.TensorArray(tf.float32, count, infer_shape=False, element_shape=[None, None])
        _, parts = tf.while_loop(lambda i, _: i < count, score, [tf.constant(0), parts], parallel_iterations=1)
        return parts.concat()

    def score_texts(self, source: Tensor, target: Tensor) -> tuple[Any, Any, Any]:
        """Returns the log-probabilities [B] of target texts [B], their lengths with EOS, and whether a text was cut."""
        source_ids, _, cut = self.source(source)
        target_ids, _, target_cut = self.reference(target)
        log_probs = self.score_targets(source_ids, target_ids)
        real = target_ids > 0
        length = tf.reduce_sum(tf.cast(real, tf.int32), axis=1)
        return tf.reduce_sum(tf.where(real, log_probs, 0.0), axis=1), length, cut | target_cut

    def texts(self, ids: Tensor) -> "tf.Tensor":
        """Detokenizes output ids [B, N, L] to texts [B, N]."""
        shape = tf.shape(ids)
        flat = self.tokenizer.detokenize(tf.reshape(ids, [shape[0] * shape[1], shape[2]]))
        return tf.ensure_shape(tf.reshape(flat, shape[:2]), ids.shape[:2])


def check_candidates(model: Transformer) -> None:
    """Raises `BadInput` if a model's logits are not those of its `pre_softmax`, which are computed for candidates."""
    for kind, known in ((type(model), Transformer), (type(model.pre_softmax), PositionalEmbedding)):
        for name in ("logits", "softmax_weights"):
            if getattr(kind, name) is not getattr(known, name):
                raise BadInput(f"shortlist: expected a model with the logits of {known.__name__}, got {kind.__name__}")


def check_length(name: str, tokens: int, most: int) -> None:
    """Raises `BadInput` if a text, `name` in the message, has no tokens or more than `most`."""
    if tokens < 1:
        raise BadInput(f"expected a {name}, got an empty text")
    if tokens > most:
        raise BadInput(f"expected a {name} of at most {most} tokens, got {tokens}")


def padded(rows: Sequence[Sequence[int]], width: int = 0) -> np.ndarray:
    """Pads lists of ids with zeros to int32 [B, N], where N is at least `width`."""
    ids = np.full((len(rows), max(width, 0, *map(len, rows))), PAD_ID, np.int32)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    return ids
