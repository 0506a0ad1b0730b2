"""The registry of engines, formats, families, tasks and commands, which other distributions can extend.

Each is an object with a name. This package's are listed below as "module:attribute" and imported at first use. Another
distribution adds objects by entry points, for example in its setup.cfg:

    [options.entry_points]
    tf_transformer.formats =
        mine = my_package.formats:MINE
"""

import functools
import importlib
from importlib import metadata
from typing import Any, Literal

from tf_transformer.utils.terminal import quiet_import
from tf_transformer.utils.values import BadInput

Kind = Literal["engines", "formats", "families", "tasks", "commands", "services"]

# Dotted paths and not objects, so that a module is imported only when its name is used.
BUILT_IN: dict[Kind, dict[str, str]] = {
    "engines": {
        "savedmodel": "inference.loading:SAVED_MODEL",
        "litert": "extensions.interop.engines.portable:OPENS_LITERT",
        "onnx": "extensions.interop.engines.portable:OPENS_ONNX",
        "run": "training.tasks:RUN",
        "checkpoint": "extensions.interop.families.hub:CHECKPOINT",
    },
    "formats": {
        "savedmodel": "serving.formats:SAVED_MODEL",
        "litert": "extensions.interop.formats:LITERT",
        "onnx": "extensions.interop.formats:ONNX",
        "ctranslate2": "extensions.interop.formats:CTRANSLATE2",
        "argos": "extensions.interop.formats:ARGOS",
        "transformers": "extensions.interop.formats:TRANSFORMERS",
    },
    # A directory belongs to the first family that recognizes it. MarianMT accepts any archive as a tokenizer, and the
    # paper's models accept any file, so these two come last.
    "families": {
        "m2m100": "extensions.interop.families.m2m100.family:FAMILY",
        "marian": "extensions.interop.families.marian.family:FAMILY",
        "transformer": "models.families:PAPER",
    },
    "tasks": {
        "translation": "training.tasks:TRANSLATION",
        "parsing": "extensions.parsing.parser:PARSING",
    },
    # Other commands are the modules of trainers/.
    "commands": {"check": "extensions.conformance.check:main"},
    # Functions that the core calls by name, since it imports no extension.
    "services": {
        "board": "extensions.tensorboard:board",
        "documents": "extensions.documents.document:translated",
        "trimmed": "extensions.interop.vocabularies:trimmed",
        "with_language": "extensions.interop.vocabularies:with_language",
        "with_tokens": "extensions.interop.vocabularies:with_tokens",
        "check": "extensions.conformance.check:check",
        "compact": "extensions.compression.graphs:compact",
        "ensemble": "extensions.ensemble:Ensemble",
        "int8": "extensions.compression.int8:Int8",
        "rematerialized": "extensions.rematerialization:rematerialized",
        "sample": "extensions.text_models.sampling:translations",
        "words": "extensions.words:words",
    },
}


# Reading the metadata of all installed packages takes longer than a lookup should.
@functools.cache
def _entry_points(kind: Kind) -> dict[str, metadata.EntryPoint]:
    return {entry.name: entry for entry in metadata.entry_points(group=f"tf_transformer.{kind}")}


def names(kind: Kind) -> list[str]:
    """Returns the names of one kind, those of other distributions first."""
    return [*dict.fromkeys([*_entry_points(kind), *BUILT_IN[kind]])]


def find(kind: Kind, name: str) -> Any:
    """Imports the object with this name, or raises BadInput if it does not exist or cannot be imported."""
    # Entry points come first, so that another distribution can replace what is built in.
    option = {"families": "family"}.get(kind, kind.removesuffix("s"))
    if entry := _entry_points(kind).get(name):
        try:
            return entry.load()
        except (ImportError, AttributeError) as error:
            raise BadInput(f"{option}: cannot load {name!r} from {entry.value}: {error}. Reinstall it.") from error
    if name not in BUILT_IN[kind]:
        raise BadInput(f"{option}: expected one of {', '.join(names(kind))}, got {name!r}")
    module, _, attribute = BUILT_IN[kind][name].partition(":")
    with quiet_import():
        return getattr(importlib.import_module(f"tf_transformer.{module}"), attribute)


def everything(kind: Kind) -> dict[str, Any]:
    """Returns all objects of one kind by name, in the order of `names`."""
    return {name: find(kind, name) for name in names(kind)}
