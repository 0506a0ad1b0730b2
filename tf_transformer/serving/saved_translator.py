"""A SavedModel called from Python."""

import os
from collections.abc import Iterable
from typing import overload

import tensorflow as tf

from tf_transformer.serving.check import plainly_named
from tf_transformer.serving.folders import saved_model_of
from tf_transformer.text.batching import by_batch, warn_of_truncated
from tf_transformer.values import Count, checked


class SavedTranslator:
    """Calls a translator's SavedModel, or a parser's, from Python.

    SavedTranslator("savedmodels/demo/1")(["Hello world."]) gives ["Hallo Welt."]; a parser's SavedModel gives trees.

    Args:
        path: the folder that holds saved_model.pb, or that of its versions, which means the newest.
        batch_size: sentences a batch; they are sorted by length first.
    """

    @checked
    def __init__(self, path: str | os.PathLike[str], batch_size: Count = 32) -> None:
        import tf_transformer.text.tokenizer  # noqa: F401  (tensorflow-text's operations are in the SavedModel)

        with plainly_named(saved_model_of(path)) as plain:
            self._model = tf.saved_model.load(str(plain))
        self.batch_size = batch_size

    @overload  # a string is an iterable of strings, too
    def __call__(self, texts: str) -> str: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, texts: Iterable[str | bytes]) -> list[str]: ...

    def __call__(self, texts: str | Iterable[str | bytes]) -> str | list[str]:
        """The answer to each text. A string gives a string, a list a list."""
        if isinstance(texts, str):
            return self([texts])[0]
        texts = list(texts)

        def answer(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            outputs = self._model.signatures["serving_default"](text=batch)
            (answers,) = (output for output in outputs.values() if output.dtype == tf.string)
            return answers, outputs.get("truncated", tf.zeros([len(batch)], tf.bool))

        rows = by_batch(answer, [texts], self.batch_size)
        warn_of_truncated(texts, [truncated for _, truncated in rows])
        return [text.decode() for text, _ in rows]
