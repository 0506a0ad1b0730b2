"""A LiteRT export, as the package opens it."""

import os

from tf_transformer.base.extras import import_extra
from tf_transformer.base.files import user_path
from tf_transformer.config import BadInput
from tf_transformer.engines.litert_client import LiteRTTranslator


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
