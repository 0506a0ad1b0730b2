"""Files and folders that appear whole or not at all, and that are on disk when they appear."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def open_text(path: str | os.PathLike[str]) -> gzip.GzipFile | io.BufferedReader:
    """Open a plain or .gz file for reading bytes."""
    return gzip.open(path, "rb") if str(path).endswith(".gz") else open(path, "rb")


@contextlib.contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file <path>.tmp to write. It becomes `path` at the end of the block, and stays as it is if the block raises."""
    temporary = Path(f"{path}.tmp")
    yield temporary
    flush(temporary)
    os.replace(temporary, path)


def write_text(path: str | os.PathLike[str], text: str | Iterable[str]) -> None:
    """Write a text file in UTF-8. On failure the written part stays in <path>.tmp."""
    with new_file(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.writelines([text] if isinstance(text, str) else text)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write a JSON file."""
    write_text(path, json.dumps(value, indent=2) + "\n")


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to fill. It becomes `path` at the end of the block; if the block raises, nothing is left.

    A model server loads a numbered folder as soon as it appears, and misses files that come later. So the folder is
    filled under its own name inside a hidden folder next to `path`, and appears complete.

    Raises:
        FileExistsError: `path` exists, at the start of the block or at its end.
    """
    path = Path(path)
    if path.exists():
        raise FileExistsError(f"expected a new folder to save into, but {path} exists")
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = Path(tempfile.mkdtemp(prefix=f".export-{path.name}-", dir=path.parent))
    folder = hidden / path.name
    try:
        folder.mkdir()
        yield folder
        flush(folder)
        try:
            if path.exists():  # perhaps empty: a rename would replace it
                raise FileExistsError
            os.rename(folder, path)
        except OSError as error:
            if path.exists():
                raise FileExistsError(f"expected a new folder to save into, but {path} exists by now") from error
            raise
        _flush_one(path.parent)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def flush(path: Path) -> None:
    """Make sure that a file, or a folder with its contents, is on disk."""
    for written in [*path.rglob("*"), path]:
        _flush_one(written)


def _flush_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
