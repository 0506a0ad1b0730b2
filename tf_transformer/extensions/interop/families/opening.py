"""Opens pretrained checkpoints, from a folder or from the Hugging Face hub."""

import os
from pathlib import Path
from typing import Any

from tf_transformer.extensions.interop.families import hub
from tf_transformer.inference.engine import Engine
from tf_transformer.inference.openers import Opener
from tf_transformer.inference.rebuild import Rebuilt
from tf_transformer.inference.translator import Translator
from tf_transformer.models.families import Family, families, family_named, family_of_folder
from tf_transformer.utils.files import user_path
from tf_transformer.utils.folders import CTRANSLATE2, LITERT, ONNX, found_in, is_hub_name, newest
from tf_transformer.utils.values import BadInput


def is_checkpoint(path: str) -> bool:
    """Returns whether a path is a checkpoint's folder, that of its versions, or a model's name on the hub."""
    folder = user_path(path)
    if not folder.is_dir():
        return is_hub_name(path)
    return family_of_folder(newest(folder, *hub.WEIGHTS) or folder) is not None


def from_checkpoint(name: Any, family: str | None = None, revision: str | None = None) -> Rebuilt:
    """A pretrained model.

    Raises:
        BadInput: there is no such checkpoint, or its kind is not supported.
    """
    folder, kind = checkpoint_of(name, family, revision)
    model, tokenizer, options, max_length = kind.load(folder)  # type: ignore[misc]  # `checkpoint_of` found one that loads
    return Rebuilt(model, tokenizer, options, hub.origin_of(name, folder), max_length)


def checkpoint_of(
    name: str | os.PathLike[str], family: str | None = None, revision: str | None = None
) -> tuple[Path, Family]:
    """The folder of a pretrained checkpoint, and its family, which has `load`; the arguments are as in
    `Translator.from_pretrained`."""
    kinds, name = [family_named(family)] if family else families(), os.fspath(name)
    owner = next((one.owner for one in kinds if one.owner), "")
    folder = hub.folder_of(name, owner, revision)
    if newest(folder, LITERT, ONNX, CTRANSLATE2) and not any((folder / file).is_file() for file in hub.WEIGHTS):
        raise BadInput(f"expected a checkpoint, {found_in(folder)}")
    kind = kinds[0] if family else family_of_folder(folder)
    if kind is None or kind.load is None:
        raise BadInput(f"{name}: expected a checkpoint of a family that loads here, got other files")
    return folder, kind


def open_checkpoint(path: str, **options: Any) -> Engine:
    """Returns the translator of a checkpoint."""
    return Translator.from_pretrained(path, **options)


CHECKPOINT = Opener(
    "a checkpoint",
    is_checkpoint,
    open_checkpoint,
    from_checkpoint,
    frozenset({"family", "revision"}),
    trains=True,
)
