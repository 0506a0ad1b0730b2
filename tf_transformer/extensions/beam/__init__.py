"""Bulk work on Apache Beam. Names load at first use, so that the import works without apache_beam."""

import importlib
from typing import Any

from tf_transformer.utils.lazy import import_extra

_HOME = {"Prepare": "preparation"} | dict.fromkeys(("TranslationSettings", "Translate"), "translation")
_HOME |= dict.fromkeys(("Shard", "TranslateShards", "BulkJob", "ShardResult"), "shards")

__all__ = [*_HOME]


def check_installed() -> None:
    """Raises `BadInput` if Apache Beam is not installed."""
    import_extra("apache_beam", "beam", "bulk work")


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_installed()
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
