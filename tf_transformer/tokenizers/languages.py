"""Languages of multilingual models. It loads neither Keras nor TensorFlow."""

from collections.abc import Sequence
from typing import Any

from tf_transformer.utils.values import BadInput

LANGUAGES = ("source_language", "target_language")  # options of a call


def check_language(name: str, language: Any, known: Sequence[str]) -> None:
    """Raises `BadInput` with the option's name if `language` is not one of the languages `known`."""
    if not isinstance(language, str) or language not in known:
        examples, got = ", ".join(known[:5]), repr(language) if language else "none"
        raise BadInput(f"{name}: expected one of {len(known)} languages, such as {examples}; got {got}")
