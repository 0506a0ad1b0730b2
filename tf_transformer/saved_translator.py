"""A SavedModel called from Python."""

import tensorflow as tf

from tf_transformer.batching import by_batch, warn_of_truncated
from tf_transformer.serving.publish import check_saved_model


class SavedTranslator:
    """Calls a translator's SavedModel, or a parser's, from Python.

    SavedTranslator("savedmodels/demo/1")(["Hello world."]) gives ["Hallo Welt."]; a parser's SavedModel gives trees.

    Args:
        path: the folder that holds saved_model.pb.
        batch_size: sentences a batch; they are sorted by length first.
    """

    def __init__(self, path, batch_size: int = 32):
        import tf_transformer.tokenizer  # noqa: F401  (tensorflow-text's operations are in the SavedModel)

        check_saved_model(path)
        self._model = tf.saved_model.load(str(path))
        self.batch_size = batch_size

    def __call__(self, texts):
        """The answer to each text. A string gives a string, a list a list."""
        if isinstance(texts, str):
            return self([texts])[0]
        texts = list(texts)

        def answer(batch):
            outputs = self._model.signatures["serving_default"](text=batch)
            (answers,) = (output for output in outputs.values() if output.dtype == tf.string)
            return answers, outputs.get("truncated", tf.zeros([len(batch)], tf.bool))

        rows = by_batch(answer, [texts], self.batch_size)
        warn_of_truncated(texts, [truncated for _, truncated in rows])
        return [text.decode() for text, _ in rows]
