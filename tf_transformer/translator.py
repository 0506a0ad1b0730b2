"""Text in, text out: tokenizer, model and search as one function, in Python and as a SavedModel."""

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from tf_transformer.config import BadInput
from tf_transformer.model import Transformer
from tf_transformer.search import beam_search
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
            self._functions[n] = tf.function(lambda text: self._translate(text, n), input_signature=[text])
        texts = list(texts)
        for i, text in enumerate(texts):
            if not isinstance(text, str | bytes):
                raise TypeError(f"texts: expected strings, got {type(text).__name__} at place {i}")
        found: list[list[Translation]] = [[] for _ in texts]
        by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        for start in range(0, len(texts), self.batch_size):
            places = by_length[start : start + self.batch_size]
            outputs = self._functions[n](tf.constant([texts[i] for i in places], tf.string))
            names = ("translations", "scores", "log_probs", "finished", "lengths")
            columns = zip(*(outputs[name].numpy() for name in names), strict=True)
            for i, (translations, scores, log_probs, finished, lengths) in zip(places, columns, strict=True):
                found[i] = [
                    Translation(translations[k].decode(), float(scores[k]), float(log_probs[k]), bool(finished[k]))
                    for k in range(n)
                    if k == 0 or lengths[k]
                ]
        return found

    def _translate(self, text, n_best: int) -> dict[str, tf.Tensor]:
        """Texts [B] to translations, scores, ... [B, N], N = n_best."""
        text = tf.ensure_shape(text, [None])
        tokens = self.tokenizer.tokenize(text)
        source_length = tf.cast(tokens.row_lengths(), tf.int32)
        tokens = tokens[:, : self.max_source_length]
        end = tf.fill([tokens.nrows(), 1], EOS_ID)
        source = tf.concat([tokens, end], axis=1).to_tensor(0)  # [B, S]

        max_length = tf.minimum(source_length, self.max_source_length) + self.extra_length
        if self.model.config.positions == "learned":
            max_length = tf.minimum(max_length, self.model.config.max_length)
        max_length = tf.where(source_length > 0, max_length, 0)  # nothing in, nothing out
        memory, memory_mask, _ = self.model.encode(source)

        def step(ids, position, slot, ancestry, cache):
            positions = tf.fill([tf.shape(ids)[1]], position)  # the beams' newest tokens all stand at the same place
            return self.model.decode_step(ids, cache, memory_mask, positions, slot, ancestry)

        found = beam_search(
            step,
            lambda slots: self.model.init_cache(memory, slots),
            tf.fill(tf.shape(source_length), BOS_ID),
            max_length,
            EOS_ID,
            self.beam_size,
            self.alpha,
            n_best,
        )
        B = tf.shape(source)[0]
        flat = tf.reshape(found.ids, [B * n_best, tf.shape(found.ids)[2]])
        return {
            "translations": tf.reshape(self.tokenizer.detokenize(flat), [B, n_best]),
            "scores": found.scores,
            "log_probs": found.log_probs,
            "lengths": found.lengths,
            "finished": found.finished,
            "truncated": source_length > self.max_source_length,
        }

    def save(self, path) -> None:
        """Write a SavedModel, whole or not at all, that takes and gives strings.

        Args:
            path: <name>/<integer version>, TensorFlow Serving's layout; must not exist.
        """
        path = Path(path)
        if path.exists():
            raise FileExistsError(f"expected a new folder to save into, but {path} exists")
        path.parent.mkdir(parents=True, exist_ok=True)
        # The server loads a numbered folder as soon as it appears, so it appears complete.
        temporary = path.with_name(f".export-{path.name}-{os.getpid()}")
        try:
            export = _Export(self)
            tf.saved_model.save(export, str(temporary), signatures={"serving_default": export.serving_default})
            os.rename(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


class _Export(tf.Module):
    """The root of the SavedModel.

    It owns raw `tf.Variable`s and reaches Keras objects by closure alone: tracked as attributes, their weights would be
    stored twice, and TensorFlow Serving would not restore those that the functions read.
    """

    def __init__(self, translator: Translator):
        super().__init__()
        self.weights = [variable.value for variable in translator.model.weights]
        self.tokenizer = translator.tokenizer._op

        def serving_default(text):
            outputs = translator._translate(text, 1)
            return {
                "translation": outputs["translations"][:, 0],
                "score": outputs["scores"][:, 0],
                "truncated": outputs["truncated"],
            }

        text = tf.TensorSpec([None], tf.string, name="text")
        self.serving_default = tf.function(serving_default, input_signature=[text], autograph=False)


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
