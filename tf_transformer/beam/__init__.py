"""Bulk work on Apache Beam. Loaded at first use, so that `import tf_transformer.beam` works without apache_beam."""

import importlib
from typing import Any

from tf_transformer.config import BadInput

_HOME = {
    "Prepare": "preparation",
    "Hypothesis": "translation",
    "Method": "translation",
    "Translate": "translation",
    "Translated": "translation",
    "Shard": "shards",
    "TranslateShards": "shards",
    "Work": "shards",
}

__all__ = [*_HOME]  # noqa: PLE0604  (loaded by __getattr__)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "apache_beam":
            raise
        raise BadInput('expected the package apache_beam: pip install -e ".[beam]"') from error
