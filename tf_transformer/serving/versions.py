"""Versions of a model in a directory, as servers find them. It needs neither Keras nor TensorFlow."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from tf_transformer.utils.files import user_path
from tf_transformer.utils.folders import versions
from tf_transformer.utils.values import BadInput, between, checked

Version = Annotated[int, between(1, 2**63 - 1)]  # TensorFlow Serving's are int64


@checked
def publish(save: Callable[[Path], None], root: str | os.PathLike[str], version: Version | None = None) -> Path:
    """Saves a model as a version, <root>/<version>.

    Args:
        save: Writes the directory that it gets, atomically.
        root: The model's directory.
        version: Number of the version. `None` means the next one.

    Returns:
        The version's directory.

    Raises:
        BadInput: If `root` cannot be written, or `save` raises it. Nothing is left behind.
        FileExistsError: If the version exists.
    """
    while True:
        path = next_version(root) if version is None else user_path(root) / str(version)
        try:
            save(path)
            return path
        except FileExistsError:
            # Another process took the number. A SavedModel stores its version, so save it again with the next number
            # instead of renaming it.
            if version is not None or not path.exists():
                raise


def next_version(path: str | os.PathLike[str]) -> Path:
    """Returns the unused directory <path>/<integer> above those in use. Raises `BadInput` if it cannot be written."""
    path = user_path(path)
    parent = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
        raise BadInput(f"{path}: expected a folder to write models to, got {parent}, which is not writable")
    return path / str(max((int(folder.name) for folder in versions(path)), default=0) + 1)


def size_of(path: str | os.PathLike[str]) -> int:
    """Returns the size of all files in a directory, in bytes."""
    return sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())
