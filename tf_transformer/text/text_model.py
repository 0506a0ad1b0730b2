"""A model with its tokenizer, as functions of tensors: what `Translator` calls, and what a SavedModel holds."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import keras
import numpy as np

from tf_transformer.base.lazy import lazily
from tf_transformer.base.type_names import Tensor
from tf_transformer.base.values import MOST, Natural, checked
from tf_transformer.config import BadInput
from tf_transformer.masks import PAD_ID
from tf_transformer.model import Attention, AttentionScores
from tf_transformer.text.languages import LANGUAGES
from tf_transformer.text.search_options import Beams, translator_options
from tf_transformer.text.text_decoder import TextDecoder
from tf_transformer.text.tokenizer import EOS_ID, UNKNOWN_ID, Tokenizer, beginnings, begun, text_tensor

if TYPE_CHECKING:
    import tensorflow as tf

    from tf_transformer.text import beams, decoding, logits, sampling
    from tf_transformer.text import search as searching
else:
    tf = lazily("tensorflow", "translating")
    decoding, logits, sampling, searching = (
        lazily(f"tf_transformer.text.{name}", "translating") for name in ("decoding", "logits", "sampling", "search")
    )

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
        options: of the search, listed in `text.search_options` with their defaults; each is also an attribute.

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

    def replace(self, **changes: Any) -> Self:
        """Another one, with some of this one's arguments changed."""
        arguments: dict[str, Any] = {
            "model": self.model,
            "tokenizer": self.tokenizer,
            "export_options": self.export_options,
        }
        return type(self)(**(arguments | self.options | changes))

    def traced(self, name: str, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """The `tf.function` of a function, kept under a name. After a change of the model's variables, as by LoRA, it
        is traced anew."""
        variables, known = [*map(id, self.model.weights)], self._functions.get(name)
        if known is None or known[0] != variables:
            # A `partial` is a function of its own. TensorFlow takes all that share their code for one, traced again.
            known = variables, tf.function(functools.partial(function), autograph=False, **options)
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
        """As `source`, for a list of texts, by SentencePiece alone.

        Args:
            texts: B.
            tokenizer: this one's, for some languages.
        """
        _check_backend()
        parts = begun(texts, self.max_source_length)
        rows, cut = tokenizer.encode([text for text, _ in parts]), [is_cut for _, is_cut in parts]
        length = np.array([len(row) - tokenizer.codes for row in rows], np.int32)
        read = [[*row[: self.max_source_length + tokenizer.codes], EOS_ID] for row in rows]
        return padded(read), length, np.array(cut, bool) | (length > self.max_source_length)

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
        _check_backend()
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
        **options: Any,
    ) -> "beams.Hypotheses":
        """The n best outputs for source ids [B, S], at most extra_length symbols longer than their source.

        Args:
            source: from `source`.
            source_length: int32 [B]; where it is 0 the output is empty.
            n_best: N.
            exact_n: int32 scalar: the first exact_n are certain, the others may be other than the best; `None` means N.
            prefix: ids [B, P] that the outputs begin with, then zeros; `None` for none.
            start: as in `problem`.
            options: options of a request, each one number or [B]: beam_size, length_penalty and so on, by default the
                model's own, and max_length, by default no limit.
        """
        problem, options = self._asked(source, source_length, options, start)
        allowed = None if prefix is None else logits.begins_with(prefix, self.model.config.vocab_size)
        return searching.beam_search(problem, n_best=n_best, exact_n=exact_n, allowed=allowed, **options)

    def detailed_search(
        self, source: Tensor, source_length: Tensor, **options: Any
    ) -> "tuple[beams.Hypotheses, beams.Symbols]":
        """As `search`, without `prefix`; also each symbol's log-probability, and the source token of greatest attention
        in the last layer, a mean over heads."""
        problem, options = self._asked(source, source_length, options)
        return searching.detailed_search(problem, **options)

    def _asked(
        self, source: Tensor, source_length: Tensor, options: dict[str, Any], start: Tensor = None
    ) -> "tuple[searching.SearchProblem, dict[str, Any]]":
        """The problem and the options of a search, from those of a request."""
        options = {name: self.options[name] for name in searching.OPTIONS} | options
        return self.problem(source, source_length, options.pop("max_length", MOST), start), options

    def drawn(
        self,
        source: Tensor,
        source_length: Tensor,
        seeds: Tensor,
        temperature: Tensor,
        k: Tensor = None,
        start: Tensor = None,
    ) -> "beams.Hypotheses":
        """A random output for source ids [B, S]; the first two arguments are as in `search`, the next ones as in
        `sampling.sample`, and the last as in `problem`."""
        problem = self.problem(source, source_length, MOST, start)
        return sampling.sample(problem, seeds, temperature, k, **{name: self.options[name] for name in logits.RULES})

    def problem(
        self, source: Tensor, source_length: Tensor, max_length: Tensor, start: Tensor = None
    ) -> "searching.SearchProblem":
        """The problem of a search.

        Args:
            source, source_length, max_length: as in `search`.
            start: int32 [P], the `start_ids` of all rows; `None` means those of the tokenizer's languages in the graph.
        """
        memory, memory_mask, _ = self.model.encode(source)
        decoder, rows = decoding.decoder_of(self.model, memory, memory_mask), tf.shape(source)[0]
        start = self.tokenizer.start(rows) if start is None else tf.tile([start], [rows, 1])
        for place in range(start.shape[1] - 1):
            decoder = decoding.decoder_after(decoder, start[:, place])
        return searching.SearchProblem(
            decoder,
            start_ids=start[:, -1],
            max_length=self.limit(source_length, max_length),
            end_id=EOS_ID,
        )

    def limit(self, source_length: Tensor, max_length: Tensor) -> "tf.Tensor":
        """The most symbols of an output, its end symbol included: int32 [B]. The arguments are as in `search`."""
        limit = tf.minimum(tf.minimum(source_length, self.max_source_length) + self.extra_length, max_length)
        if self.model.config.positions == "learned":
            limit = tf.minimum(limit, self.model.config.max_length)
        return tf.where(source_length > 0, limit, 0)  # nothing in, nothing out

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
        limits = self.limit(np.array(lengths, np.int32), MOST).numpy()
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
        ids, length, _ = self.source(text_tensor([source]))
        check_length("sentence", int(length[0]), self.max_source_length)
        if target is None:
            found = self.traced("attention", self.search, reduce_retracing=True)(ids, length)
            return self.attention_of(ids, found.ids[:, 0, : int(found.lengths[0, 0])])
        return self.attention_of(ids, self.ended("translation", self.target([target])))

    def attention_scores(self, source: str, target: str) -> AttentionScores:
        """The attention weights of one pair of sentences, each cut to the tokens that the model reads or writes."""
        ids, *_ = self.source(text_tensor([source]))
        return self.attention_of(ids, append_end(self.target([target])[:, : self._most() - 1])).scores

    def attention_of(self, source: Tensor, output: Tensor) -> Attention:
        """The attention weights of ids [1, S] and [1, T], with their tokens; both include EOS, if they have one."""
        start = self.tokenizer.start(1)
        output = tf.concat([start[:, 1:], output], axis=1)  # a language is a token, too
        shifted = tf.concat([start[:, :1], output], axis=1)[:, :-1]
        scores = self.model((source, shifted), return_attention_scores=True)[1]
        tokens = _tokens(self.tokenizer.source_pieces(source))
        return Attention(tokens, _tokens(self.tokenizer.pieces(output)), scores)

    def ended(self, name: str, ids: Tensor) -> "tf.Tensor":
        """A given output, ragged ids [1, None], as ids [1, T] that end with EOS.

        Raises:
            BadInput: the output, `name` in the message, is empty or too long.
        """
        check_length(name, ids.flat_values.shape[0], self._most() - 1)
        return append_end(ids)

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


def padded(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Lists of ids as int32 [B, N]; zeros follow the shorter ones."""
    ids = np.full((len(rows), max(map(len, rows), default=0)), PAD_ID, np.int32)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    return ids


def _check_backend() -> None:
    if (backend := keras.backend.backend()) != "tensorflow":
        raise BadInput(f"expected KERAS_BACKEND=tensorflow, since the search needs it, got {backend}")


def append_end(ids: Tensor) -> "tf.Tensor":
    """Ragged ids [1, None] as ids [1, T] that end with EOS."""
    return tf.pad(ids.to_tensor(), [[0, 0], [0, 1]], constant_values=EOS_ID)


def _tokens(pieces: Tensor) -> list[str]:
    """Pieces [1, N] as tokens; the names of symbols without their space."""
    return [piece.decode().strip() for piece in pieces.numpy()[0]]
