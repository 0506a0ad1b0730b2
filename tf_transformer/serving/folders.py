"""What a folder of an exported model holds: a SavedModel, versions of one, or a LiteRT export. It loads no TensorFlow
unless it looks for a SavedModel."""

import os
from pathlib import Path

from tf_transformer.config import BadInput
from tf_transformer.extras import import_extra
from tf_transformer.files import user_path
from tf_transformer.serving.litert_client import LiteRTTranslator


def is_litert(path: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a LiteRT export. A folder elsewhere, such as gs://bucket/model, never does."""
    return "://" not in str(path) and (user_path(path) / "model.tflite").is_file()


def model_folder(path: str | os.PathLike[str]) -> Path:
    """The folder of a SavedModel, of its newest version if there are several; or of a LiteRT export.

    Raises:
        BadInput: there is neither.
    """
    if is_litert(path):
        return user_path(path)
    from tf_transformer.serving.publish import saved_model_of

    return saved_model_of(path)


def litert_translator(path: str | os.PathLike[str], threads: int = 1) -> LiteRTTranslator:
    """Load a LiteRT export, with so many threads of its engine.

    Raises:
        BadInput: the engine is not installed, or the folder holds something else.
        FileNotFoundError: the folder lacks a file.
    """
    import_extra("ai_edge_litert", "litert", "a LiteRT export")
    try:
        return LiteRTTranslator(user_path(path), threads)
    except ValueError as error:
        raise BadInput(str(error)) from error
