"""Paths of users, and files and directories that are written atomically and flushed to disk."""

import contextlib
import errno
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tf_transformer.utils.values import BadInput, shown

FULL = errno.ENOSPC, errno.EFBIG, errno.EDQUOT  # errors of a disk, a file size and a quota
_unfinished = set[Path]()  # temporary files of this process


def user_path(path: str | os.PathLike[str], option: str = "") -> Path:
    """Returns a path as users give it: a leading `~` is the home directory, as in a shell.

    It raises `BadInput` with the option's name for bytes and paths that are not UTF-8, which TensorFlow rejects, and
    for an empty path, as from an unset shell variable.
    """
    name = f"{option}: " if option else ""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise BadInput(f"{name}expected a path, got {'an empty one' if text == '' else shown(path)}")
    if re.search("[\ud800-\udfff]", text):  # bytes that Python could not decode
        raise BadInput(f"{name}expected a path in UTF-8, got {text!a}")
    return Path(os.path.expanduser(text))


def matching(pattern: str | os.PathLike[str]) -> list[str]:
    """Returns the files of a pattern such as "text/*.en", sorted by name. An existing path wins over the pattern."""
    path = user_path(pattern)
    literal = next((parent for parent in (path, *path.parents) if parent.exists()), path)
    relative = path.relative_to(literal)
    if relative == Path():
        return [str(path)] if path.exists() else []
    names = glob.glob(os.path.join(glob.escape(str(literal)), relative), recursive=True)
    return sorted(str(Path(name)) for name in names)


def encoded(text: str | bytes) -> bytes:
    """Encodes a string in UTF-8. Lone surrogates become invalid bytes, which tokenizers read as whitespace."""
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


def one_line(text: str) -> str:
    """Replaces newlines, which byte pieces of a model's output can produce, by spaces."""
    return re.sub(r"[\r\n]+", " ", text)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Adds the path to an error of a full disk, which names no file."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL and error.filename is None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def new_file(path: str | os.PathLike[str], rescue: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """Yields a temporary file to write, and moves it to `path` at the end of the block, with the mode of what it
    replaces.

    If `path` is a symbolic link, its target is replaced. A pipe or a device is written to directly. If the block
    raises, `rescue` is called with the temporary file before it is removed. Only SIGKILL leaves it behind, as
    .NAME-*.tmp, which you can delete.
    """
    path = user_path(path)
    if path.exists() and not path.is_file():
        yield path
        return
    path = Path(os.path.realpath(path))
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    # The random suffix keeps two workers apart that write the same shard, if one of them was thought dead. The name is
    # cut, since names have at most 255 bytes.
    temporary = path.with_name(f".{path.name[:40]}-{secrets.token_hex(4)}.tmp")
    try:
        temporary.touch(0o666 if mode is None else 0o600, exist_ok=False)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # names the requested file
    _unfinished.add(temporary)
    try:
        with _naming(path):
            yield temporary
        # To the disk before the rename: after a power failure, the name could belong to an empty file.
        flush(temporary)
        if mode is not None:
            temporary.chmod(mode)
        os.replace(temporary, path)
    except BaseException:
        if rescue:
            rescue(temporary)
        raise
    finally:
        temporary.unlink(missing_ok=True)
        _unfinished.discard(temporary)


def remove_unfinished() -> None:
    """Removes the temporary files of `new_file` in all threads, for a process that exits without unwinding them."""
    for temporary in list(_unfinished):
        temporary.unlink(missing_ok=True)


def write_text(
    path: str | os.PathLike[str],
    text: str | Iterable[str],
    rescue: Callable[[Path], None] | None = None,
    encoding: str = "utf-8",
) -> None:
    """Writes a text file atomically. `rescue` is that of `new_file`.

    In encodings other than UTF-8, character references such as &#8364; replace characters that do not exist there.
    """
    texts = [text] if isinstance(text, str) else text
    errors = "strict" if encoding == "utf-8" else "xmlcharrefreplace"
    try:
        is_stdout = sys.stdout is not None and os.path.samestat(user_path(path).stat(), os.fstat(1))
    except OSError:  # one of them does not exist
        is_stdout = False
    if is_stdout:
        # `--output /dev/stdout >> log` must append to the log, not replace it.
        sys.stdout.flush()
        with open(1, "w", encoding=encoding, errors=errors, newline="\n", closefd=False) as file:
            file.writelines(texts)
        return
    with (
        new_file(path, rescue) as temporary,
        open(temporary, "w", encoding=encoding, errors=errors, newline="\n") as file,
    ):
        file.writelines(texts)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes a JSON file atomically."""
    write_text(path, json.dumps(value, indent=2) + "\n")


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a directory to fill, and moves it to `path` at the end of the block. If the block raises, nothing is left.

    A model server loads a numbered directory as soon as it appears and misses files that are added later. So it is
    filled under its name inside a hidden directory next to `path`. If `path` exists, `FileExistsError` is raised.
    """
    path = user_path(path)
    if path.exists():
        raise FileExistsError(f"expected a new directory to save into, but {path} exists")
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = Path(tempfile.mkdtemp(prefix=f".export-{path.name}-", dir=path.parent))
    folder = hidden / path.name
    try:
        folder.mkdir()
        with _naming(path):
            yield folder
        flush(folder)
        try:
            if path.exists():  # a rename would replace an empty directory
                raise FileExistsError
            os.rename(folder, path)
        except OSError as error:
            if path.exists():
                raise FileExistsError(f"expected a new directory to save into, but {path} exists by now") from error
            raise
        _flush_one(path.parent)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


@contextlib.contextmanager
def locked(path: Path, message: str) -> Iterator[None]:
    """Locks a file, and writes this process's name into it, or raises `BadInput` if another process holds the lock.

    In `message`, {owner} is replaced by the other process. The lock is advisory. On a network file system it works only
    if that supports such locks.
    """
    # The import looks for a temporary directory, which a read-only container does not have.
    import portalocker

    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="utf-8", errors="replace") as file:
        try:
            portalocker.lock(file, portalocker.LOCK_EX | portalocker.LOCK_NB)
        except portalocker.LockException as error:
            file.seek(0)
            raise BadInput(message.replace("{owner}", file.read(99) or "another process")) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def flush(path: Path) -> None:
    """Flushes a file, or a directory with its contents, to disk."""
    for inner in [*path.rglob("*"), path]:
        _flush_one(inner)


def _flush_one(path: Path) -> None:
    # Windows opens no directory, and flushes no file that is open for reading only.
    is_windows = os.name == "nt"
    if is_windows and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if is_windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: str | os.PathLike[str]) -> str:
    """Returns the SHA-256 of a file."""
    with open(user_path(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def plainly_named(folder: Path) -> Iterator[Path]:
    """Yields `folder`, through a link if its name has brackets, stars or question marks, which TensorFlow expands."""
    if glob.escape(str(folder)) == str(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory() as above:
        link = Path(above) / "1"
        link.symlink_to(folder.absolute(), target_is_directory=True)
        yield link
