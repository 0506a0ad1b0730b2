"""What a folder of a model holds: a SavedModel or a LiteRT export, or versions of one. It loads no TensorFlow."""

import os
from pathlib import Path

from tf_transformer.config import BadInput
from tf_transformer.extras import import_extra
from tf_transformer.files import user_path
from tf_transformer.serving.litert_client import VERSION, LiteRTTranslator, newest

SAVED_MODEL, LITERT = "saved_model.pb", "model.tflite"


def is_version(name: str) -> bool:
    """Whether a folder of this name is a version for a server: an integer of 64 bits."""
    return bool(VERSION.fullmatch(name))


def is_litert(path: str | os.PathLike[str]) -> bool:
    """Whether a folder, or the newest of the versions in it, is a LiteRT export. A folder elsewhere, such as
    gs://bucket/model, never is."""
    found = None if "://" in str(path) else newest(user_path(path), SAVED_MODEL, LITERT)
    return found is not None and (found / LITERT).is_file()


def model_folder(path: str | os.PathLike[str]) -> Path:
    """The folder of a SavedModel or of a LiteRT export: `path` itself, or the newest of the versions in it.

    Raises:
        BadInput: there is neither.
    """
    if found := newest(user_path(path), SAVED_MODEL, LITERT):
        return found
    what = "expected the folder of a SavedModel or a LiteRT export, or of its versions"
    raise BadInput(f"{what}, found no {SAVED_MODEL} or {LITERT} in {path}")


def find_saved_model(path: str | os.PathLike[str]) -> Path | None:
    """The folder of a SavedModel: `path` itself, or the newest of the versions in it; `None` if there is none."""
    return newest(user_path(path), SAVED_MODEL)


def saved_model_of(path: str | os.PathLike[str]) -> Path:
    """As `find_saved_model`.

    Raises:
        BadInput: there is none.
    """
    if found := find_saved_model(path):
        return found
    raise BadInput(f"expected the folder of a SavedModel or of its versions, found no {SAVED_MODEL} in {path}")


def litert_translator(path: str | os.PathLike[str], threads: int = 1) -> LiteRTTranslator:
    """Load a LiteRT export, or the newest of its versions.

    Args:
        path: the folder of the export, or of its versions.
        threads: of the engine.

    Raises:
        BadInput: the engine is not installed, or the folder holds something else.
        FileNotFoundError: the folder lacks a file.
    """
    import_extra("ai_edge_litert", "litert", "a LiteRT export")
    try:
        return LiteRTTranslator(user_path(path), threads)
    except ValueError as error:
        raise BadInput(str(error)) from error
