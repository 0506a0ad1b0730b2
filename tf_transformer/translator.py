"""Text in, text out: tokenizer, model and search as one function, in Python and as a SavedModel."""

from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from tf_transformer.config import BadInput
from tf_transformer.export import Export, save_export
from tf_transformer.masks import PAD_ID
from tf_transformer.model import Transformer
from tf_transformer.search import Hypotheses, beam_search
from tf_transformer.tokenizer import BOS_ID, EOS_ID, Tokenizer


class Translation(NamedTuple):
    """One of the n best translations of a sentence."""

    text: str
    score: float  # log-probability / length penalty
    log_prob: float
    finished: bool  # the end symbol was reached


class Translator:
    """translator(["Hello world."]) -> ["Hallo Welt."], the very function that `save` puts into a SavedModel.

    Args:
        model: a built `Transformer`; its weights are read at every call, so it may go on training.
        tokenizer: the one it was trained with.
        beam_size: K of section 6.1.
        alpha: exponent of the length penalty (section 6.1).
        extra_length: an output has at most so many tokens more than its source (section 6.1), end symbol included.
        max_source_length: longer sources are cut to so many tokens.
        batch_size: sentences a batch when called from Python.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        beam_size: int = 4,
        alpha: float = 0.6,
        extra_length: int = 50,
        max_source_length: int = 256,
        batch_size: int = 64,
    ):
        if tokenizer.vocab_size != model.config.vocab_size:
            raise BadInput(
                f"expected a tokenizer of the model's vocab_size={model.config.vocab_size}, got {tokenizer.vocab_size}"
            )
        if beam_size < 1 or alpha < 0 or extra_length < 1 or max_source_length < 1:
            raise BadInput(
                "expected beam_size, extra_length and max_source_length of at least 1 and alpha of at least 0, "
                f"got {beam_size}, {extra_length}, {max_source_length} and {alpha}"
            )
        if model.config.positions == "learned":
            max_source_length = min(max_source_length, model.config.max_length - 1)
        self.model = model
        self.tokenizer = tokenizer
        self.beam_size = beam_size
        self.alpha = alpha
        self.extra_length = extra_length
        self.max_source_length = max_source_length
        self.batch_size = batch_size
        self._functions: dict[int, tf.types.experimental.PolymorphicFunction] = {}

    def __call__(self, texts):
        """The best translation of each text. A string gives a string, a list a list."""
        if isinstance(texts, str):
            return self([texts])[0]
        return [best[0].text if best else "" for best in self.n_best(texts, 1)]

    def n_best(self, texts: list[str], n: int) -> list[list[Translation]]:
        """The n best translations of each text, best first; of n > beam_size, beam_size."""
        if n not in self._functions:
            text = tf.TensorSpec([None], tf.string)
            self._functions[n] = tf.function(lambda text: self._n_best(text, n), input_signature=[text])
        texts = list(texts)
        for i, text in enumerate(texts):
            if not isinstance(text, str | bytes):
                raise TypeError(f"texts: expected strings, got {type(text).__name__} at place {i}")
        found: list[list[Translation]] = [[] for _ in texts]
        by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        for start in range(0, len(texts), self.batch_size):
            places = by_length[start : start + self.batch_size]
            translations, hypotheses = self._functions[n](tf.constant([texts[i] for i in places], tf.string))
            columns = zip(translations.numpy(), *(part.numpy() for part in hypotheses[1:]), strict=True)
            for i, (text, scores, log_probs, lengths, finished) in zip(places, columns, strict=True):
                found[i] = [
                    Translation(text[k].decode(), float(scores[k]), float(log_probs[k]), bool(finished[k]))
                    for k in range(n)
                    if k == 0 or lengths[k]
                ]
        return found

    def _n_best(self, text, n: int):
        source, source_length, _ = self.source(text)
        found = self.search(source, source_length, self.beam_size, self.alpha, tf.int32.max, n)
        return self.texts(found.ids), found

    def source(self, text):
        """Texts [B] as the encoder reads them.

        Returns:
            ids int32 [B, S] that end with EOS, cut to max_source_length tokens; the number of tokens before that, int32
            [B]; whether it was more, bool [B].
        """
        tokens = self.tokenizer.tokenize(text)
        length = tf.cast(tokens.row_lengths(), tf.int32)
        end = tf.fill([tokens.nrows(), 1], EOS_ID)
        source = tf.concat([tokens[:, : self.max_source_length], end], axis=1).to_tensor(PAD_ID)
        return source, length, length > self.max_source_length

    def search(self, source, source_length, beam_size, alpha, max_length, n_best: int) -> Hypotheses:
        """The n best outputs for source ids [B, S], at most extra_length symbols longer than their source.

        Args:
            source: from `source`.
            source_length: int32 [B]; where it is 0 the output is empty.
            beam_size: int32, one or [B].
            alpha: float32, one or [B].
            max_length: int32, one or [B], the end symbol included.
            n_best: N.
        """
        limit = tf.minimum(tf.minimum(source_length, self.max_source_length) + self.extra_length, max_length)
        if self.model.config.positions == "learned":
            limit = tf.minimum(limit, self.model.config.max_length)
        limit = tf.where(source_length > 0, limit, 0)  # nothing in, nothing out
        memory, memory_mask, _ = self.model.encode(source)

        def step(ids, position, slot, ancestry, cache):
            positions = tf.fill([tf.shape(ids)[1]], position)  # the beams' newest tokens all stand at the same place
            return self.model.decode_step(ids, cache, memory_mask, positions, slot, ancestry)

        start_ids = tf.fill(tf.shape(source_length), BOS_ID)
        return beam_search(
            step,
            lambda slots: self.model.init_cache(memory, slots),
            start_ids,
            limit,
            EOS_ID,
            beam_size,
            alpha,
            n_best,
        )

    def force(self, source, target):
        """Decode a given target: what the model thinks of each of its symbols.

        Args:
            source: ids [B, S].
            target: ids [B, T] that end with EOS.

        Returns:
            log-probabilities float32 [B, T]; the last layer's attention over the source, a mean over heads [B, T, S].
        """
        memory, memory_mask, _ = self.model.encode(source)
        shifted = tf.pad(target, [[0, 0], [1, 0]], constant_values=BOS_ID)[:, :-1]
        logits, _, cross_scores = self.model.decode(shifted, memory, memory_mask)
        log_probs = -tf.nn.sparse_softmax_cross_entropy_with_logits(target, logits)
        return log_probs, tf.reduce_mean(cross_scores[-1], axis=1)

    def texts(self, ids) -> tf.Tensor:
        """Output ids [B, N, L] to texts [B, N]."""
        shape = tf.shape(ids)
        flat = self.tokenizer.detokenize(tf.reshape(ids, [shape[0] * shape[1], shape[2]]))
        return tf.ensure_shape(tf.reshape(flat, shape[:2]), ids.shape[:2])

    def save(self, path, **options) -> None:
        """Write a SavedModel of the serving contract (savedmodels/README.md), whole or not at all.

        Args:
            path: <name>/<integer version>, TensorFlow Serving's layout; must not exist.
            options: of `export.Export`.
        """
        save_export(Export(self, **options), path)


class SavedTranslator:
    """A SavedModel called from Python: SavedTranslator("savedmodels/demo/1")(["Hello world."]) -> ["Hallo Welt."].

    Args:
        path: the folder that holds saved_model.pb.
        batch_size: sentences a batch; they are sorted by length first.
    """

    def __init__(self, path, batch_size: int = 32):
        import tensorflow_text  # noqa: F401  (its ops are in the SavedModel)

        if not (Path(path) / "saved_model.pb").is_file():
            raise BadInput(f"expected the folder of a SavedModel, found no saved_model.pb in {path}")
        self._model = tf.saved_model.load(str(path))
        self.batch_size = batch_size

    def __call__(self, texts: list[str]) -> list[str]:
        translations = [""] * len(texts)
        by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        for start in range(0, len(texts), self.batch_size):
            places = by_length[start : start + self.batch_size]
            answer = self._model.signatures["serving_default"](text=tf.constant([texts[i] for i in places]))
            for i, translation in zip(places, answer["translation"].numpy(), strict=True):
                translations[i] = translation.decode()
        return translations


def next_version(path) -> Path:
    """The first unused folder <path>/<integer> above those in use."""
    path = Path(path)
    used = [int(folder.name) for folder in path.iterdir() if folder.name.isdigit()] if path.is_dir() else []
    return path / str(max(used, default=0) + 1)
