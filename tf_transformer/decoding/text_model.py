"""A model with its tokenizer, as functions of tensors: what `Translator` calls, and what a SavedModel holds."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import keras
import numpy as np
from keras import ops

from tf_transformer.config import BadInput
from tf_transformer.decoding.beams import Hypotheses, Symbols
from tf_transformer.decoding.compiling import compiled, input_signature, width_of
from tf_transformer.decoding.decoder import decoder_after, decoder_of
from tf_transformer.decoding.logits import RULES, begins_with
from tf_transformer.decoding.primitives import ON_TENSORFLOW
from tf_transformer.decoding.sampling import sample
from tf_transformer.decoding.search import OPTIONS, Fixed, SearchProblem, beam_search, detailed_search
from tf_transformer.decoding.search_options import Beams, translator_options
from tf_transformer.decoding.text_decoder import TextDecoder
from tf_transformer.masks import PAD_ID
from tf_transformer.models.transformer import Attention, AttentionScores
from tf_transformer.tokenizers.languages import LANGUAGES
from tf_transformer.tokenizers.strings import beginnings, begun
from tf_transformer.tokenizers.tokenizer import EOS_ID, UNKNOWN_ID, Tokenizer
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import MOST, Count, Natural, checked

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazily("tensorflow", "an export")

FORCED = 256  # target tokens that are scored at once, to bound the memory of their logits


class SetOnce:
    """A base of objects whose attributes are set once: a traced function would go on with their former values."""

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, name):
            kind = type(self).__name__
            raise AttributeError(f"{name}: expected no change of a {kind}; replace({name}=...) gives another {kind}")
        super().__setattr__(name, value)


class TextModel(SetOnce):
    """A model, its tokenizer and the options of its search. Nothing of it changes; its functions can be traced.

    Args:
        model: a built `Transformer` or `Ensemble`; its weights are read at every call, so it may go on training.
        tokenizer: the one it was trained with.
        export_options: what an export of it says beside its options, such as the origin and the licence of a
            pretrained model.
        options: of the search, listed in `decoding.search_options` with their defaults; each is also an attribute.

    Raises:
        BadInput: an option is out of range, or the sizes of tokenizer and vocabulary differ.
    """

    def __init__(
        self,
        model: TextDecoder,
        tokenizer: Tokenizer,
        *,
        export_options: Mapping[str, Any] | None = None,
        **options: float,
    ) -> None:
        config = model.config
        if isinstance(model, keras.Model) and not model.built:  # Keras builds when it is called, not when it searches
            model.build()
        if tokenizer.vocab_size != config.vocab_size:
            raise BadInput(
                f"expected a tokenizer of the model's vocab_size={config.vocab_size}, got {tokenizer.vocab_size}"
            )
        checked = translator_options(options)
        if config.positions == "learned":
            checked["max_source_length"] = min(checked["max_source_length"], config.max_length - 1)
        self.model = model
        self.tokenizer = tokenizer
        own = LANGUAGES if tokenizer.languages else ()  # the tokenizer has them
        self.export_options = {name: value for name, value in (export_options or {}).items() if name not in own}
        self._options = checked
        self._functions: dict[str, tuple[list[int], Callable[..., Any]]] = {}  # with the variables that they read

    def __getattr__(self, name: str) -> Any:
        options = self.__dict__.get("_options", {})
        if name not in options:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return options[name]

    @property
    def options(self) -> dict[str, Any]:
        """The options of the search, by name: a copy, since they do not change."""
        return dict(self._options)

    def _arguments(self) -> dict[str, Any]:
        """Returns the arguments that make an equal one, by name."""
        return {**self.options, **{name: getattr(self, name) for name in ("model", "tokenizer", "export_options")}}

    def replace(self, **changes: Any) -> Self:
        """Another one, with some of this one's arguments changed."""
        return type(self)(**(self._arguments() | changes))

    def traced(self, name: str, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """A function, `compiled` and kept under a name. After a change of the model's variables, as by LoRA, it is
        compiled anew."""
        variables, known = [*map(id, self.model.weights)], self._functions.get(name)
        if known is None or known[0] != variables:
            known = variables, compiled(function, self.model.weights, **options)
            self._functions[name] = known
        return known[1]

    def speaking(self, *languages: Any) -> "TextModel":
        """A text model of this model for other languages, the arguments of `Tokenizer.for_languages`, if any."""
        return TextModel(self.model, self.tokenizer.for_languages(*languages), **self.options) if languages else self

    def source(self, text: Tensor) -> "tuple[tf.Tensor, tf.Tensor, tf.Tensor]":
        """Tokenize texts [B] for the encoder.

        Returns:
            ids int32 [B, S], at most max_source_length and EOS, after the language's if there is one; the number of
            tokens before the cut, of a huge text those in its `beginnings`, int32 [B]; whether the text was not read as
            a whole, bool [B]: it was cut, or a language is unknown, and nothing was read.
        """
        text, cut = beginnings(text, self.max_source_length)
        ids, length, truncated = self.with_end(self.tokenizer.tokenize(text), self.tokenizer.codes)
        return ids, length, truncated | cut

    def read(self, texts: Sequence[str | bytes], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `source`, for a list of texts, by SentencePiece alone. The number of ids S may be `rounded`.

        Args:
            texts: B.
            tokenizer: this one's, for some languages.
        """
        parts = begun(texts, self.max_source_length)
        rows, cut = tokenizer.encode([text for text, _ in parts]), [is_cut for _, is_cut in parts]
        length = np.array([len(row) - tokenizer.codes for row in rows], np.int32)
        most = self.max_source_length + tokenizer.codes
        read = [[*row[:most], EOS_ID] for row in rows]
        return padded(read, width_of(read, most + 1)), length, np.array(cut, bool) | (length > self.max_source_length)

    def reference(self, text: Tensor) -> "tuple[tf.Tensor, tf.Tensor, tf.Tensor]":
        """As `source`, for targets to score: without the language's id, and with EOS."""
        text, cut = beginnings(text, self.max_source_length)
        ids, length, truncated = self.with_end(self.target(text))
        return ids, length, truncated | cut

    def target(self, text: Tensor) -> "tf.RaggedTensor":
        """Tokenize texts [B] as outputs are: ragged ids [B, None], without the language's."""
        return self.tokenizer.tokenize_target(text)[:, self.tokenizer.codes :]

    @checked
    def with_end(self, tokens: Tensor, codes: Natural = 0) -> "tuple[tf.Tensor, tf.Tensor, tf.Tensor]":
        """As `source`, from ragged ids [B, None], of which the first `codes` are languages."""
        length = tf.cast(tokens.row_lengths(), tf.int32) - codes
        end = tf.fill([tokens.nrows(), 1], EOS_ID)
        source = tf.concat([tokens[:, : self.max_source_length + codes], end], axis=1).to_tensor(PAD_ID)
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
        fixed: Fixed | None = None,
        **options: Any,
    ) -> Hypotheses:
        """The n best outputs for source ids [B, S], at most extra_length symbols longer than their source.

        Args:
            source: from `source`.
            source_length: int32 [B]; where it is 0 the output is empty.
            n_best: N.
            exact_n: int32 scalar: the first exact_n are certain, the others may be other than the best; `None` means N.
            prefix: ids [B, P] that the outputs begin with, then zeros; `None` for none.
            start, fixed: as in `problem`.
            options: options of a request, each one number or [B]: beam_size, length_penalty and so on, by default the
                model's own, and max_length, by default no limit.
        """
        problem, options = self._asked(source, source_length, options, start, fixed)
        allowed = None if prefix is None else begins_with(prefix, self.model.config.vocab_size)
        return beam_search(problem, n_best=n_best, exact_n=exact_n, allowed=allowed, **options)

    def detailed_search(
        self, source: Tensor, source_length: Tensor, start: Tensor = None, fixed: Fixed | None = None, **options: Any
    ) -> tuple[Hypotheses, Symbols]:
        """As `search`, without `prefix`; also each symbol's log-probability, and the source token of greatest attention
        in the last layer, a mean over the heads that align."""
        problem, options = self._asked(source, source_length, options, start, fixed)
        return detailed_search(problem, **options)

    def _asked(
        self,
        source: Tensor,
        source_length: Tensor,
        options: dict[str, Any],
        start: Tensor = None,
        fixed: Fixed | None = None,
    ) -> tuple[SearchProblem, dict[str, Any]]:
        """The problem and the options of a search, from those of a request."""
        options = {name: self.options[name] for name in OPTIONS} | options
        return self.problem(source, source_length, options.pop("max_length", MOST), start, fixed), options

    def drawn(
        self,
        source: Tensor,
        source_length: Tensor,
        start: Tensor,
        uniforms: Tensor,
        **options: Any,
    ) -> Hypotheses:
        """A random output for source ids [B, S]; the first arguments are as in `search`, the others as in
        `sampling.sample`."""
        fixed = None if ON_TENSORFLOW else Fixed(1, uniforms.shape[1])
        problem = self.problem(source, source_length, MOST, start, fixed)
        return sample(problem, uniforms, **options, **{name: self.options[name] for name in RULES})

    @checked
    def fixed(self, source: Tensor, beams: Count, longest: Count | None = None) -> Fixed | None:
        """The fixed shapes of a search for source ids [B, S]; `None` on TensorFlow, where shapes change.

        Args:
            source: ids.
            beams: K.
            longest: the longest output; `None` means what extra_length allows.
        """
        if ON_TENSORFLOW:
            return None
        most = source.shape[1] - 1 - self.tokenizer.codes + self.extra_length
        if self.model.config.positions == "learned":
            most = min(most, self.model.config.max_length)
        return Fixed(beams, max(1, min(most, longest or most)))

    def problem(
        self,
        source: Tensor,
        source_length: Tensor,
        max_length: Tensor,
        start: Tensor = None,
        fixed: Fixed | None = None,
    ) -> SearchProblem:
        """The problem of a search.

        Args:
            source, source_length, max_length: as in `search`.
            start: int32 [P], the `start_ids` of all rows; `None` means those of the tokenizer's languages in the graph.
            fixed: of the decoder; `None` means `fixed` of these ids and this beam_size.
        """
        memory, memory_mask, _ = self.model.encode(source)
        decoder = decoder_of(self.model, memory, memory_mask, fixed or self.fixed(source, self.beam_size))
        rows = ops.shape(source)[0]
        start = self.tokenizer.start(rows) if start is None else ops.broadcast_to(start, (rows, start.shape[0]))
        for place in range(start.shape[1] - 1):
            decoder = decoder_after(decoder, start[:, place])
        return SearchProblem(
            decoder,
            start_ids=start[:, -1],
            max_length=self.limit(source_length, max_length),
            end_id=EOS_ID,
        )

    def limit(self, source_length: Tensor, max_length: Tensor) -> Any:
        """The most symbols of an output, its end symbol included: int32 [B]. The arguments are as in `search`."""
        limit = ops.minimum(ops.minimum(source_length, self.max_source_length) + self.extra_length, max_length)
        if self.model.config.positions == "learned":
            limit = ops.minimum(limit, self.model.config.max_length)
        return ops.where(source_length > 0, limit, 0)  # nothing in, nothing out

    def check_prefixes(
        self, texts: Sequence[str | bytes], prefixes: Sequence[str | bytes], languages: Mapping[str, str]
    ) -> None:
        """Check what the outputs of texts are to begin with.

        Raises:
            BadInput: a prefix is longer than its text's output may be, or has symbols that are not in the vocabulary.
        """
        if len(prefixes) != len(texts):
            raise BadInput(f"expected a prefix for each of {len(texts)} texts, got {len(prefixes)}")
        tokenizer = self.tokenizer.for_languages(**languages) if languages else self.tokenizer
        lengths = [len(row) - tokenizer.codes for row in tokenizer.encode(texts)]
        limits = ops.convert_to_numpy(self.limit(np.array(lengths, np.int32), MOST))
        ids = [row[tokenizer.codes :] for row in tokenizer.encode_target(prefixes)]
        for i, (limit, row) in enumerate(zip(limits, ids, strict=True)):
            if limit and len(row) > limit:
                raise BadInput(
                    f"prefixes: expected at most the {limit} tokens of an output, got {len(row)} at place {i}"
                )
            if UNKNOWN_ID in row:
                raise BadInput(f"prefixes: expected symbols of the vocabulary, got {prefixes[i]!r:.99} at place {i}")

    def force(self, source: Tensor, target: Tensor) -> "tf.Tensor":
        """The log-probability of each symbol of given targets. Their logits are made for some rows at a time.

        Args:
            source: ids [B, S].
            target: ids [B, T] that end with EOS, without the language's.

        Returns:
            float32 [B, T].
        """
        rows, T = tf.unstack(tf.shape(target))
        encoded = self.model.encode(source)[:2]
        at_once = tf.maximum(FORCED // tf.maximum(T, 1), 1)
        start = self.tokenizer.start(rows)

        def score(i: Tensor, log_probs: Any) -> tuple[Any, ...]:
            some = slice(i * at_once, (i + 1) * at_once)
            memory, memory_mask = tf.nest.map_structure(lambda part: part[some], encoded)
            shifted = tf.concat([start[some], target[some]], axis=1)[:, :-1]
            scores = self.model.decode(shifted, memory, memory_mask)[0][:, start.shape[1] - 1 :]
            return i + 1, log_probs.write(i, -tf.nn.sparse_softmax_cross_entropy_with_logits(target[some], scores))

        count = tf.maximum(-(-rows // at_once), 1)
        parts = tf.TensorArray(tf.float32, count, infer_shape=False, element_shape=[None, None])
        _, parts = tf.while_loop(lambda i, _: i < count, score, [tf.constant(0), parts], parallel_iterations=1)
        return parts.concat()

    def texts(self, ids: Tensor) -> "tf.Tensor":
        """Output ids [B, N, L] to texts [B, N]."""
        shape = tf.shape(ids)
        flat = self.tokenizer.detokenize(tf.reshape(ids, [shape[0] * shape[1], shape[2]]))
        return tf.ensure_shape(tf.reshape(flat, shape[:2]), ids.shape[:2])

    def attention(self, source: str, target: str | None = None) -> Attention:
        """The attention weights of a sentence and its translation, with their tokens.

        Args:
            source: a sentence.
            target: its translation; `None` for the best one that the search finds.

        Raises:
            BadInput: there are no tokens, or too many.
        """
        ids, length, _ = self.read([source], self.tokenizer)
        check_length("sentence", int(length[0]), self.max_source_length)
        if target is None:
            given = [ids, length], np.array(self.tokenizer.start_ids(), np.int32)

            def search(columns: Sequence[Tensor], start: Tensor) -> Hypotheses:
                return self.search(*columns, start=start)

            found = self.traced("attention", search, **input_signature(*given))(*given)
            (row,) = ops.convert_to_numpy(found.ids)[:, 0].tolist()
            return self.attention_of(ids, row[: int(found.lengths[0, 0])])
        return self.attention_of(ids, self.ended("translation", self._target(target)))

    def attention_scores(self, source: str, target: str) -> AttentionScores:
        """The attention weights of one pair of sentences, each cut to the tokens that the model reads or writes."""
        ids, *_ = self.read([source], self.tokenizer)
        return self.attention_of(ids, [*self._target(target)[: self._most() - 1], EOS_ID]).scores

    def attention_of(self, source: np.ndarray, output: Sequence[int]) -> Attention:
        """The attention weights of source ids [1, S], which zeros may follow, and the ids of an output, with their
        tokens; both include EOS, if they have one."""
        first, *language = self.tokenizer.start_ids()  # a language is a token, too
        source, output = source[:, : np.count_nonzero(source)], [*language, *output]
        shifted = np.array([[first, *output][:-1]], np.int32)
        scores = self.model((source, shifted), return_attention_scores=True)[1]
        tokens = self.tokenizer.source_tokens(source[0].tolist()), self.tokenizer.tokens(output)
        source_tokens, output_tokens = ([token.strip() for token in each] for each in tokens)  # controls have a space
        return Attention(source_tokens, output_tokens, scores)

    def _target(self, text: str) -> list[int]:
        return self.tokenizer.encode_target([text])[0][self.tokenizer.codes :]

    def ended(self, name: str, ids: Sequence[int]) -> list[int]:
        """The ids of a given output, with EOS.

        Raises:
            BadInput: the output, `name` in the message, is empty or too long.
        """
        check_length(name, len(ids), self._most() - 1)
        return [*ids, EOS_ID]

    def _most(self) -> int:
        """The most symbols of an output, its end symbol included."""
        most: int = self.max_source_length + self.extra_length
        return min(most, self.model.config.max_length) if self.model.config.positions == "learned" else most


@checked
def check_length(name: str, tokens: int, most: int) -> None:
    """Check that a text, `name` in the message, has 1 to `most` tokens.

    Raises:
        BadInput: it has not.
    """
    if tokens < 1:
        raise BadInput(f"expected a {name}, got an empty text")
    if tokens > most:
        raise BadInput(f"expected a {name} of at most {most} tokens, got {tokens}")


@checked
def padded(rows: Sequence[Sequence[int]], width: Natural = 0) -> np.ndarray:
    """Lists of ids as int32 [B, N]; zeros follow the shorter ones. N is at least `width`."""
    ids = np.full((len(rows), max(width, 0, *map(len, rows))), PAD_ID, np.int32)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    return ids
