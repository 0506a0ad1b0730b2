"""Paths as users give them; the lines of texts; files and folders that appear whole or not at all, and that are on disk
when they appear."""

import codecs
import contextlib
import glob
import gzip
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tf_transformer.utils.values import BadInput, shown

_unfinished = set[Path]()  # what this process is writing


def user_path(path: str | os.PathLike[str], option: str = "") -> Path:
    """A path as a user gives it: a first `~` is the home folder, as in a shell.

    Args:
        path: the path.
        option: its name, for the message.

    Raises:
        BadInput: it is empty, as that of a shell's variable without a value; or not UTF-8, which TensorFlow wants; or
            something else.
    """
    name = f"{option}: " if option else ""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):  # bytes, too: messages and other libraries want text
        raise BadInput(f"{name}expected a path, got {shown(path)}")
    if not text:
        raise BadInput(f"{name}expected a path, got an empty one")
    if re.search("[\ud800-\udfff]", text):  # bytes that Python could not decode
        raise BadInput(f"{name}expected a path in UTF-8, got {text!a}")
    return Path(os.path.expanduser(text))


def matching(pattern: str | os.PathLike[str]) -> list[str]:
    """The files of a pattern such as "text/*.en", by name. An existing path wins over the pattern."""
    path = user_path(pattern)
    literal = next((part for part in (path, *path.parents) if part.exists()), path)
    rest = path.relative_to(literal)
    if rest == Path():
        return [str(path)] if path.exists() else []
    found = glob.glob(os.path.join(glob.escape(str(literal)), rest), recursive=True)
    return sorted(str(Path(name)) for name in found)


@contextlib.contextmanager
def open_text(path: str | os.PathLike[str]) -> Iterator[gzip.GzipFile | io.BufferedReader]:
    """Open a plain or .gz file for reading bytes.

    Raises:
        BadInput: in the block, the .gz is damaged.
        FileNotFoundError: there is no file.
        OSError: it cannot be read.
    """
    path = user_path(path)
    if path.is_dir() or not path.exists():
        raise FileNotFoundError(f"expected a text file, found none at {path}")
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadInput(f"{path}: expected a whole gzip file, got a damaged one: {error}") from error


def lines_of(path: str | os.PathLike[str], digest: Any = None) -> Iterator[bytes]:
    """The lines of a plain or .gz file, as `lines_in` has them; `digest`, of hashlib, takes a checksum of the text."""
    with open_text(path) as file:
        yield from lines_in(file if digest is None else _digested(file, digest))


def _digested(file: Iterable[bytes], digest: Any) -> Iterator[bytes]:
    for line in file:
        digest.update(line)
        yield line


def lines_in(file: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of an open text. A line ends with a newline, perhaps after a carriage return, or with the file; other
    characters, such as a carriage return inside, belong to it. A byte order mark at the start does not."""
    for number, line in enumerate(file):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        yield line if number else line.removeprefix(codecs.BOM_UTF8)


def encoded(text: str | bytes) -> bytes:
    """A string in UTF-8. A surrogate without its other half, which UTF-8 lacks, becomes invalid bytes: white space."""
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


def one_line(text: str) -> str:
    """A text that a model made as one line of a file: its byte pieces can spell a newline."""
    return re.sub(r"[\r\n]+", " ", text)


@contextlib.contextmanager
def new_file(path: str | os.PathLike[str], rescue: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """A new file to write. It becomes `path` at the end of the block, with the mode of the file that it replaces. If
    the block raises, `rescue` gets it first, if given, and nothing is left of it.

    It is a hidden file beside `path`, .NAME-*.tmp, of the writer's own: two workers may write one shard, if one of
    them is thought dead. Only a process that is killed at once, as by SIGKILL, leaves it; it may then be removed.

    Where `path` is a symbolic link, this holds for what it points to. A pipe or a device is written to directly.
    """
    path = user_path(path)
    if path.exists() and not path.is_file():
        yield path
        return
    path = Path(os.path.realpath(path))
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    temporary = path.with_name(f".{path.name[:40]}-{secrets.token_hex(4)}.tmp")  # a name has at most 255 bytes
    try:
        temporary.touch(0o666 if mode is None else 0o600, exist_ok=False)
    except OSError as error:  # which names the file that was asked for
        raise OSError(error.errno, error.strerror, str(path)) from error
    _unfinished.add(temporary)
    try:
        yield temporary
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
    """Remove what `new_file` has begun, in all threads, before the process ends without their end of the block."""
    for temporary in list(_unfinished):
        temporary.unlink(missing_ok=True)


def write_text(
    path: str | os.PathLike[str], text: str | Iterable[str], rescue: Callable[[Path], None] | None = None
) -> None:
    """Write a text file in UTF-8, whole or not at all; `rescue` is as in `new_file`."""
    texts = [text] if isinstance(text, str) else text
    if _is_standard_output(user_path(path)):  # perhaps a file that has text already: `--output /dev/stdout >> log`
        sys.stdout.flush()
        with open(1, "w", encoding="utf-8", newline="\n", closefd=False) as file:
            file.writelines(texts)
        return
    with new_file(path, rescue) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(texts)


def _is_standard_output(path: Path) -> bool:
    try:
        return sys.stdout is not None and os.path.samestat(path.stat(), os.fstat(1))
    except OSError:  # one of them does not exist
        return False


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
    path = user_path(path)
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


@contextlib.contextmanager
def locked(path: Path, message: str) -> Iterator[None]:
    """While no other process holds the lock on this file, which names the process that does.

    The lock is advisory; on a network file system it works only if that supports such locks.

    Args:
        path: the file; it stays.
        message: of the error; {owner} in it is the other process.

    Raises:
        BadInput: another process holds it.
    """
    # The import finds a temporary directory, which a read-only container lacks.
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
    """Make sure that a file, or a folder with its contents, is on disk."""
    for written in [*path.rglob("*"), path]:
        _flush_one(written)


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
    """SHA-256 of a file."""
    with open(user_path(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def plainly_named(folder: Path) -> Iterator[Path]:
    """A folder under a name without brackets, stars and question marks, by a link if need be: TensorFlow takes names of
    variables' files for patterns."""
    if glob.escape(str(folder)) == str(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory() as above:
        link = Path(above) / "1"
        link.symlink_to(folder.absolute(), target_is_directory=True)
        yield link
