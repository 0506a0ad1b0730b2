"""Text in, text out: tokenizer, model and search as one function, in Python and as a SavedModel."""

import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from tf_transformer.config import BadInput
from tf_transformer.ensemble import Ensemble
from tf_transformer.evaluation.visualize import Attention
from tf_transformer.interop import hub
from tf_transformer.interop.families import build_model, config_of, load_tokenizer, tokenizer_of
from tf_transformer.interop.marian.files import load_marian, search_options
from tf_transformer.interop.marian.tokenizer import MarianTokenizer
from tf_transformer.layers.int8 import check_kernel
from tf_transformer.masks import PAD_ID
from tf_transformer.model import AttentionScores, Transformer
from tf_transformer.runs.run import Run
from tf_transformer.serving.export import Export
from tf_transformer.serving.publish import read_export, save_export
from tf_transformer.text.batching import by_batch, check_length, warn_of_truncated
from tf_transformer.text.decoding import decoding
from tf_transformer.text.sampling import sample
from tf_transformer.text.search import OPTIONS, Hypotheses, Start, beam_search, begins_with
from tf_transformer.text.search_options import SEARCH_OPTIONS, problem
from tf_transformer.text.tokenizer import BOS_ID, EOS_ID, Tokenizer
from tf_transformer.training import average_weights

DTYPES = ("float32", "bfloat16", "float16", "int8")  # of a `Translator`


class Translation(NamedTuple):
    """One of the n best translations of a sentence."""

    text: str
    score: float  # log-probability / length penalty
    log_prob: float
    finished: bool  # the end symbol was reached


class Translator:
    """Translates texts: translator(["Hello world."]) gives ["Hallo Welt."]. `save` exports the same function.

    Args:
        model: a built `Transformer`; its weights are read at every call, so it may go on training. Or an `Ensemble`.
        tokenizer: the one it was trained with.
        batch_size: sentences a batch when called from Python.
        options: of the search, listed in `serving.options` with their defaults; each is also an attribute. Among them:

            - beam_size: K of section 6.1 (4).
            - length_penalty: its exponent, the paper's α (0.6).
            - min_length: the least number of tokens of an output, its end symbol included (0).
            - patience: a search ends when patience * beam_size outputs have finished (2); `math.inf` makes it exact.
            - extra_length: an output has at most this many tokens more than its source, its end symbol included (50).
            - max_source_length: the most tokens of a source; the rest is cut, with a warning in Python (256).

    Attributes:
        export_options: default arguments of `export`, such as the origin and the licence of a pretrained model.

    Raises:
        BadInput: an option is out of range, or the sizes of tokenizer and vocabulary differ.
    """

    beam_size: int
    length_penalty: float
    min_length: int
    patience: float
    extra_length: int
    max_source_length: int

    def __init__(
        self, model: Transformer | Ensemble, tokenizer: Tokenizer, *, batch_size: int = 64, **options: Any
    ) -> None:
        if tokenizer.vocab_size != model.config.vocab_size:
            raise BadInput(
                f"expected a tokenizer of the model's vocab_size={model.config.vocab_size}, got {tokenizer.vocab_size}"
            )
        own = {name: option.default for name, option in SEARCH_OPTIONS.items() if option.translator}
        if unknown := options.keys() - own.keys():
            raise TypeError(f"options of a Translator: expected {', '.join(own)}; got {', '.join(unknown)}")
        options = own | options
        if wrong := problem(options, dict.fromkeys(options, math.inf)):
            raise BadInput(wrong)
        for name, value in options.items():
            setattr(self, name, SEARCH_OPTIONS[name].cast(value))
        if model.config.positions == "learned":
            self.max_source_length = min(self.max_source_length, model.config.max_length - 1)
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.export_options: dict[str, Any] = {}
        self._functions: dict[tuple[Any, ...], tf.types.experimental.PolymorphicFunction] = {}
        self._search = tf.function(self.search, reduce_retracing=True, autograph=False)

    @property
    def options(self) -> dict[str, int | float]:
        """The options of the search, by name."""
        return {name: getattr(self, name) for name, option in SEARCH_OPTIONS.items() if option.translator}

    @classmethod
    def from_run(cls, path: Any, average_last: int = 5, **options: Any) -> "Translator":
        """Load a run of trainers.translation, in float32.

        Args:
            path: the run's folder; or a list of several, for an `Ensemble`.
            average_last: how many of a run's last checkpoints to average (section 6.1).
            options: of `Translator`.

        Raises:
            BadInput: a folder holds something else or no checkpoint, or runs differ in configuration or tokenizer.
        """
        runs = [Run(each) for each in (path if isinstance(path, list | tuple) else [path])]
        models, tokenizers = [], {}
        for run in runs:
            weights = run.weights(average_last)
            settings = run.settings()
            if not weights:
                raise BadInput(f"{run.path}: expected checkpoints, found none in {run.path / 'checkpoints'}")
            models.append(build_model(config_of(settings["model"]), "float32"))
            average_weights(models[-1], weights)
            tokenizer = load_tokenizer(run.path / "tokenizer.model")
            tokenizers[tokenizer.fingerprint] = tokenizer
        if len(tokenizers) > 1:
            raise BadInput(
                f"expected runs with one tokenizer, got {' '.join(str(run.path) for run in runs)} with several"
            )
        translator = cls(_together(models), tokenizer, **options)
        translator.export_options = settings.get("start", {})
        return translator

    @classmethod
    def from_saved_model(cls, path: str | os.PathLike[str], **options: Any) -> "Translator":
        """Load what `save` wrote: weights in their stored dtype, tokenizer and defaults.

        A `Parser`'s SavedModel loads as well; its tokenizer has symbols.

        Args:
            path: <name>/<integer version>.
            options: of `Translator`.

        Raises:
            BadInput: the folder holds something else.
        """
        facts, tokenizer, weights = read_export(path)
        try:
            stored = {n: facts[n] for n, option in SEARCH_OPTIONS.items() if option.translator and n in facts}
            if stored.get("patience", "inf") == "inf":  # earlier versions had none, and an exact search
                stored["patience"] = math.inf
            config, models = config_of(facts["config"]), list[Transformer]()
            while weights or not models:
                models.append(build_model(config, facts["dtype"]))
                size = len(models[-1].weights)
                models[-1].set_weights(weights[:size])
                weights = weights[size:]
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"{path}: expected an export that this version can read, got another: {error}") from error
        translator = cls(_together(models), tokenizer_of(tokenizer), **(stored | options))
        translator.export_options = {name: facts[name] for name in hub.FACTS if name in facts}
        return translator

    @classmethod
    def from_marian(cls, name: str | Path, **options: Any) -> "Translator":
        """Load a MarianMT checkpoint, for example one of OPUS-MT.

        Args:
            name: its folder, as Hugging Face's `transformers` or Marian itself writes it, with source.spm, target.spm
                and the files that `load_marian` reads; or its name on the Hugging Face hub (`hub.folder_of`).
            options: of `Translator`; the default beam size is the checkpoint's.

        Raises:
            BadInput: there is no such checkpoint, or its kind is not supported.
        """
        folder = hub.folder_of(name)
        tokenizer = MarianTokenizer.from_checkpoint(folder)
        said = search_options(folder)
        most = said.pop("max_length", None)
        translator = cls(load_marian(folder), tokenizer, **(said | options))
        translator.export_options = hub.origin_of(name, folder)
        if most:
            longest = translator.max_source_length + translator.extra_length
            translator.export_options["max_length"] = min(most, longest)
        return translator

    def astype(self, dtype: str) -> "Translator":
        """This translator with weights stored and multiplied in float32, bfloat16, float16 or int8.

        Attention weights, logits after their product, search and scores stay float32. int8 (`layers.int8`) is only
        for products with weights. A change of int8 weights after the first product has no effect.

        Raises:
            BadInput: the dtype is unknown, or TensorFlow cannot multiply 8-bit integers here.
        """
        if dtype not in DTYPES:
            raise BadInput(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
        if dtype == "int8":
            check_kernel()
        other = Translator(self.model.astype(dtype), self.tokenizer, batch_size=self.batch_size, **self.options)
        other.export_options = self.export_options
        return other

    def __call__(self, texts: str | list[str]) -> Any:
        """The best translation of each text. A string gives a string, a list a list."""
        if isinstance(texts, str):
            return self([texts])[0]
        return [best[0].text if best else "" for best in self.n_best(texts, 1)]

    def n_best(self, texts: list[str], n: int, prefixes: list[str] | None = None) -> list[list[Translation]]:
        """The n best translations of each text, best first; at most beam_size.

        Args:
            texts: sentences.
            n: how many.
            prefixes: whole words that the translations of each text begin with; "" means anything.
        """

        def search(text: Any, prefix_text: Any = None) -> Any:
            source, source_length, truncated = self.source(text)
            prefix = None if prefix_text is None else self.tokenizer.tokenize_target(prefix_text).to_tensor(PAD_ID)
            return truncated, self.search(source, source_length, n_best=n, prefix=prefix)

        columns = [texts] if prefixes is None else [texts, prefixes]
        return [
            [Translation(*values) for k, (length, *values) in enumerate(rows) if k == 0 or length]
            for rows in self._by_batch((n, len(columns)), search, columns)
        ]

    def sample(self, texts: list[str], temperature: float = 1.0, k: int | None = None, seed: int = 0) -> list[str]:
        """A random translation of each text; see `sampling.sample`."""
        if temperature <= 0 or (k or 1) < 1:
            raise BadInput(f"expected a temperature above 0 and k of at least 1, got {temperature} and {k}")

        def draw(text: Any, temperature: Any, seed: Any) -> Any:
            source, source_length, truncated = self.source(text)
            start = self.start(source, source_length, tf.int32.max)
            return truncated, sample(start, seed, temperature, k, self.min_length)

        options = tf.constant(temperature, tf.float32), tf.constant(seed)
        return [rows[0][1] for rows in self._by_batch(("sample", k), draw, [texts], *options)]

    def _by_batch(self, key: Any, function: Any, columns: Any, *options: Any) -> Any:
        """Call a function on batches of texts of similar length.

        It takes columns of texts [B] and options, and returns which texts are truncated, bool [B], and `Hypotheses`.

        Returns:
            for each row N tuples (length, text, score, log_prob, finished).
        """
        if key not in self._functions:

            def texts_and_more(*arguments: Any) -> Any:
                truncated, found = function(*arguments)
                return truncated, found.lengths, self.texts(found.ids), found.scores, found.log_probs, found.finished

            specs = [tf.TensorSpec([None], tf.string)] * len(columns) + [tf.TensorSpec([], o.dtype) for o in options]
            self._functions[key] = tf.function(texts_and_more, input_signature=specs, autograph=False)
        columns = [list(column) for column in columns]
        rows = by_batch(lambda *batch: self._functions[key](*batch, *options), columns, self.batch_size)
        warn_of_truncated(columns[0], [truncated for truncated, *_ in rows])
        return [
            list(zip(lengths, (text.decode() for text in texts), *others, strict=True))
            for _, lengths, texts, *others in rows
        ]

    def source(self, text: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Tokenize texts [B] for the encoder.

        Returns:
            ids int32 [B, S], at most max_source_length and EOS; the number of tokens before the cut, int32 [B]; whether
            the text was cut, bool [B].
        """
        return self.with_end(self.tokenizer.tokenize(text))

    def with_end(self, tokens: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """As `source`, from ragged ids [B, None]."""
        length = tf.cast(tokens.row_lengths(), tf.int32)
        end = tf.fill([tokens.nrows(), 1], EOS_ID)
        source = tf.concat([tokens[:, : self.max_source_length], end], axis=1).to_tensor(PAD_ID)
        return source, length, length > self.max_source_length

    def search(
        self,
        source: Any,
        source_length: Any,
        *,
        n_best: int = 1,
        wanted: Any = None,
        prefix: Any = None,
        **options: Any,
    ) -> Hypotheses:
        """The n best outputs for source ids [B, S], at most extra_length symbols longer than their source.

        Args:
            source: from `source`.
            source_length: int32 [B]; where it is 0 the output is empty.
            n_best: N.
            wanted: int32 scalar, how many of the N must be the best; `None` means all.
            prefix: ids [B, P] that the outputs begin with, then zeros; `None` for none.
            options: options of a request, each one number or [B]: beam_size, length_penalty and so on, by default the
                translator's own, and max_length, by default no limit.
        """
        options = {name: getattr(self, name) for name in OPTIONS} | options
        start = self.start(source, source_length, options.pop("max_length", tf.int32.max))
        allowed = None if prefix is None else begins_with(prefix, self.model.config.vocab_size)
        return beam_search(start, n_best=n_best, wanted=wanted, allowed=allowed, **options)

    def start(self, source: Any, source_length: Any, max_length: Any) -> Start:
        """The `Start` of a search; the arguments are as in `search`."""
        limit = tf.minimum(tf.minimum(source_length, self.max_source_length) + self.extra_length, max_length)
        if self.model.config.positions == "learned":
            limit = tf.minimum(limit, self.model.config.max_length)
        limit = tf.where(source_length > 0, limit, 0)  # nothing in, nothing out
        memory, memory_mask, _ = self.model.encode(source)
        return Start(
            *decoding(self.model, memory, memory_mask),
            start_ids=tf.fill(tf.shape(source_length), BOS_ID),
            max_length=limit,
            end_id=EOS_ID,
        )

    def force(self, source: Any, target: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Score each symbol of a given target.

        Args:
            source: ids [B, S].
            target: ids [B, T] that end with EOS.

        Returns:
            log-probabilities float32 [B, T]; the last layer's attention over the source, a mean over heads [B, T, S].
        """
        memory, memory_mask, _ = self.model.encode(source)
        shifted = tf.pad(target, [[0, 0], [1, 0]], constant_values=BOS_ID)[:, :-1]
        logits, _, cross_scores = self.model.decode(shifted, memory, memory_mask, return_attention_scores=True)
        log_probs = -tf.nn.sparse_softmax_cross_entropy_with_logits(target, logits)
        return log_probs, tf.reduce_mean(cross_scores[-1], axis=1)

    def attention(self, source: str, target: str | None = None) -> Attention:
        """The attention weights of a sentence and its translation, with their tokens.

        Args:
            source: a sentence.
            target: its translation; `None` for the best one that the search finds.

        Raises:
            BadInput: there are no tokens, or too many.
        """
        ids, length, _ = self.source(tf.constant([source]))
        check_length("sentence", int(length[0]), self.max_source_length)
        if target is None:
            found = self._search(ids, length)
            return self.attention_of(ids, found.ids[:, 0, : int(found.lengths[0, 0])])
        return self.attention_of(ids, self.ended("translation", self.tokenizer.tokenize_target([target])))

    def attention_scores(self, source: str, target: str) -> AttentionScores:
        """The attention weights of one pair of sentences; the source is cut to max_source_length tokens."""
        ids, *_ = self.source(tf.constant([source]))
        return self.attention_of(ids, _ended(self.tokenizer.tokenize_target([target]))).scores

    def attention_of(self, source: Any, output: Any) -> Attention:
        """The attention weights of ids [1, S] and [1, T], with their tokens; both include EOS, if they have one."""
        shifted = tf.pad(output, [[0, 0], [1, 0]], constant_values=BOS_ID)[:, :-1]
        scores = self.model((source, shifted), return_attention_scores=True)[1]
        tokens = _tokens(self.tokenizer.source_pieces(source))
        return Attention(tokens, _tokens(self.tokenizer.pieces(output)), scores)

    def ended(self, name: str, ids: Any) -> tf.Tensor:
        """A given output, ragged ids [1, None], as ids [1, T] that end with EOS.

        Raises:
            BadInput: the output, `name` in the message, is empty or too long.
        """
        most = self.max_source_length + self.extra_length
        if self.model.config.positions == "learned":
            most = min(most, self.model.config.max_length)
        check_length(name, ids.flat_values.shape[0], most - 1)
        return _ended(ids)

    def texts(self, ids: Any) -> tf.Tensor:
        """Output ids [B, N, L] to texts [B, N]."""
        shape = tf.shape(ids)
        flat = self.tokenizer.detokenize(tf.reshape(ids, [shape[0] * shape[1], shape[2]]))
        return tf.ensure_shape(tf.reshape(flat, shape[:2]), ids.shape[:2])

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write a SavedModel of the serving contract (savedmodels/README.md), whole or not at all.

        Args:
            path: <name>/<integer version>, TensorFlow Serving's layout; must not exist.
            options: arguments of `export`.
        """
        save_export(self.export(**options), path)

    def export(self, **options: Any) -> Export:
        """The export that `save` writes; `serving.export.Export` has the options."""
        return Export(self, **(self.export_options | options))


def _together(models: list[Transformer]) -> Transformer | Ensemble:
    return Ensemble(models) if len(models) > 1 else models[0]


def _tokens(pieces: Any) -> list[str]:
    """Pieces [1, N] as tokens; the names of symbols without their space."""
    return [piece.decode().strip() for piece in pieces.numpy()[0]]


def _ended(ids: Any) -> tf.Tensor:
    return tf.pad(ids.to_tensor(), [[0, 0], [0, 1]], constant_values=EOS_ID)
