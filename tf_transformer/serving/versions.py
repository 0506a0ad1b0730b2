"""The versions of a model in a folder, as servers find them. It needs neither Keras nor TensorFlow."""

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
    """Save a model as a version of it.

    The next version is the first free number when the folder gets its name. A SavedModel contains its version, so if
    another process takes the number meanwhile, the model is saved again with the next number.

    Args:
        save: writes the folder that it gets, whole or not at all.
        root: the model's folder.
        version: the version's number; `None` means the next one.

    Returns:
        the version's folder, <root>/<version>.

    Raises:
        BadInput: `root` cannot be written, or what `save` raises; then nothing is left behind.
        FileExistsError: the version exists.
    """
    while True:
        path = next_version(root) if version is None else user_path(root) / str(version)
        try:
            save(path)
            return path
        except FileExistsError:
            if version is not None or not path.exists():
                raise


def next_version(path: str | os.PathLike[str]) -> Path:
    """The first unused folder <path>/<integer> above those in use.

    Raises:
        BadInput: the folder could not be written.
    """
    path = user_path(path)
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        raise BadInput(f"{path}: expected a folder to write models to; {there} is none that can be written to")
    return path / str(max((int(folder.name) for folder in versions(path)), default=0) + 1)


def size_of(path: str | os.PathLike[str]) -> int:
    """The size of all files in a folder, in bytes."""
    return sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())
