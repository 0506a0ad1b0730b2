"""A SavedModel called from Python."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, overload

import tensorflow as tf

from tf_transformer.base.folders import saved_model_of
from tf_transformer.base.values import BadInput, Count, checked
from tf_transformer.conformance.check import plainly_named
from tf_transformer.text.batching import by_batch, warn_of_truncated
from tf_transformer.text.search_options import check_languages


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
    def __call__(self, texts: str, **languages: str) -> str: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, texts: Iterable[str | bytes], **languages: str) -> list[str]: ...

    def __call__(self, texts: str | Iterable[str | bytes], **languages: str) -> str | list[str]:
        """The answer to each text. A string gives a string, a list a list.

        Args:
            texts: sentences.
            languages: source_language, target_language or both, for a model of several languages; by default those
                that the export has fixed.

        Raises:
            BadInput: the model does not know such a language.
        """
        if isinstance(texts, str):
            return self([texts], **languages)[0]
        texts, given = list(texts), spoken(self._model, languages)

        def answer(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            if given:
                outputs = self._model.translate(batch, **given)
                return outputs["translations"][:, 0], outputs["truncated"]
            outputs = self._model.signatures["serving_default"](text=batch)
            (answers,) = (output for output in outputs.values() if output.dtype == tf.string)
            return answers, outputs.get("truncated", tf.zeros([len(batch)], tf.bool))

        rows = by_batch(answer, [texts], self.batch_size)
        warn_of_truncated(texts, [truncated for _, truncated in rows])
        return [text.decode() for text, _ in rows]


def spoken(model: Any, languages: Mapping[str, str]) -> dict[str, tf.Tensor]:
    """Languages as inputs of the signature `translate` of a loaded SavedModel.

    Raises:
        BadInput: the model does not know one, or has one pair of languages.
        TypeError: one is another option.
    """
    from tf_transformer.text.tokenizer import check_language

    if not languages:
        return {}
    signature = model.signatures.get("translate")
    inputs = signature.structured_input_signature[1] if signature else {}
    check_languages(languages, "tt.load(path, {0}=...) sets it")
    for name, language in languages.items():
        if name not in inputs:
            raise BadInput(f"{name}: expected none, since this model has one pair of languages, got {language!r}")
    known = model.model_info(tf.constant(["languages"]))["value"].numpy()[0].decode().split(", ")
    for name, language in languages.items():
        check_language(name, language, known)
    return {name: tf.constant([language]) for name, language in languages.items()}
