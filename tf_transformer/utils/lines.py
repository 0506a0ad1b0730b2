"""Lines of text files: how they are opened, what a bad one is, parallel files, and ranges for several workers."""

import codecs
import contextlib
import gzip
import hashlib
import io
import itertools
import os
import re
import shutil
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tf_transformer.utils.files import new_file, user_path
from tf_transformer.utils.values import BadInput, checked

MAX_BYTES = 16_384  # a longer line is not a sentence
EMPTY = "an empty line"
_BLOCK = 1 << 22  # bytes that are read at a time
_START = 512  # bytes that show whether a file is text
# Beginnings of files that are no text, by what they are and how they are read.
NO_TEXT = {
    "gzip": (rb"\x1f\x8b", "Rename it to end in .gz"),
    "bzip2": (rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)", "Decompress it with bunzip2"),
    "xz": (rb"\xfd7zXZ\0", "Decompress it with unxz"),
    "Zstandard": (rb"[\x28\x22-\x27]\xb5\x2f\xfd", "Decompress it with unzstd"),
    "LZ4": (rb"\x04\x22\x4d\x18", "Decompress it with unlz4"),
    "a zip archive": (rb"PK(?:\x03\x04|\x05\x06)", "Unpack it with unzip"),
    "a 7z archive": (rb"7z\xbc\xaf\x27\x1c", "Unpack it with 7z"),
    "compress": (rb"\x1f\x9d", "Decompress it with uncompress"),
    "a tar archive": (rb"[^\0]{1,100}[\0-9A-Za-z ./_-]{156,256}ustar", "Unpack it with tar"),
    "a PDF": (rb"%PDF-\d", "Convert it with pdftotext"),
    "Parquet": (rb"PAR1[\0-\x1f]", "Pass it as --parquet or a tt.sources.ParquetSource"),
}
# Bytes of control characters that no text has. Texts can have others, such as a form feed.
_CONTROL = re.compile(rb"[\0-\x06\x0e-\x19\x7f]")

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]  # one text file or several


@contextlib.contextmanager
def open_text(path: str | os.PathLike[str], utf_8: bool = True) -> Iterator[gzip.GzipFile | io.BufferedReader]:
    """Opens a plain or .gz file for reading bytes. A damaged .gz raises `BadInput` inside the block.

    Other compressed files raise it at once, and binary files unless they may be texts of another encoding than UTF-8,
    since they would be read as lines of nonsense.
    """
    path = user_path(path)
    if path.is_dir() or not path.exists():
        raise FileNotFoundError(f"expected a text file, found none at {path}")
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            check_plain(file.peek(_START), str(path), utf_8)
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadInput(f"{path}: expected a whole gzip file, got a damaged one: {error}") from error


def check_plain(content: bytes, name: str, utf_8: bool = True) -> None:
    """Raises `BadInput` if a file's content, or its first bytes, begin like a compressed or another binary file.

    `name` is the file's. Documents, for example in UTF-16, may be in other encodings than `utf_8`.
    """
    start = content[:_START]
    for kind, (pattern, action) in NO_TEXT.items():
        if re.match(pattern, start, re.DOTALL):
            raise BadInput(f"{name}: expected text, plain or .gz, got {kind}. {action}")
    if utf_8 and _is_binary(start):
        raise BadInput(f"{name}: expected text, plain or .gz, got binary data. Convert it to plain text in UTF-8")


def _is_binary(start: bytes) -> bool:
    """Returns whether an eighth of a file's first bytes, some of them control characters, are not UTF-8."""
    # A text in another encoding has no control characters. Its first bad line is reported with its number.
    controls, wrong = len(_CONTROL.findall(start)), len(start) - len(start.decode(errors="ignore").encode())
    return controls > 2 and 8 * (controls + wrong) > len(start)


def lines_of(path: str | os.PathLike[str], digest: Any = None) -> Iterator[bytes]:
    """Yields the lines of a plain or .gz file, like `lines_in`."""
    with open_text(path) as file:
        yield from lines_in(file, digest, name=os.fspath(path))


def lines_in(file: Iterable[bytes], digest: Any = None, is_start: bool = True, name: str = "text") -> Iterator[bytes]:
    """Yields the lines of an open text, without their ends and without a byte order mark at the start of the file.

    Only a newline ends a line, perhaps after a carriage return. Other separators belong to it, so line N of a source
    file matches line N of its target file, whatever characters they contain. `digest`, of hashlib, is updated with all
    bytes. `is_start` is whether `file` begins with the first line. `name` is the file's, for messages.
    """
    start, is_known = b"", not is_start
    for line in file:
        if not is_known:
            start = (start + line)[:_START]
            check_plain(start, name)
            is_known = len(start) == _START
        if digest is not None:
            digest.update(line)
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        yield line.removeprefix(codecs.BOM_UTF8) if is_start else line
        is_start = False


@checked
def check_text_pairs(source: Paths, target: Paths, skip_bad_lines: bool = False, empty_lines: bool = False) -> int:
    """Reads parallel text once and returns its number of lines.

    Args:
        source: Path, or list of paths, of plain or .gz files.
        target: Path, or list of paths, line by line parallel to `source`.
        skip_bad_lines: Whether to accept bad lines, which readers of the files then skip.
        empty_lines: Whether to accept empty lines.

    Raises:
        FileNotFoundError: If a file is missing.
        BadInput: If line counts differ or are 0, or a line is bad: empty, not UTF-8, or over 16,384 bytes.
    """
    pairs = file_pairs(source, target)
    lines = sum(1 for files in pairs for _ in lines_of_both(*files, skip_bad_lines, empty_lines))
    if not lines:
        raise empty_file(source)
    return lines // 2


@checked
def read_text_pairs(
    source: str | os.PathLike[str], target: str | os.PathLike[str], empty_lines: bool = False
) -> tuple[list[str], list[str]]:
    """Reads two parallel text files once, checks them like `check_text_pairs`, and returns the lines of each."""
    source, target = (str(user_path(path)) for path in (source, target))
    sides = [[line.decode() for line in _checked_lines(path, False, empty_lines)] for path in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise unequal(source, target, *map(len, sides))
    if not sides[0]:
        raise empty_file(source)
    return sides[0], sides[1]


def lines_of_both(
    source: str, target: str, skip_bad_lines: bool, empty_lines: bool = False, sums: Sequence[Any] = ()
) -> Iterator[bytes]:
    """Yields the lines of one file, then of its parallel file, checked like those of `check_text_pairs`.

    `sums`, two objects of hashlib, are updated with the bytes of both files.
    """
    for path in (source, target):
        check_is_no_pipe(path)
    counts = [0, 0]
    for side, (path, digest) in enumerate(itertools.zip_longest((source, target), sums)):
        for line in _checked_lines(path, skip_bad_lines, empty_lines, digest):
            counts[side] += 1
            yield line
    if counts[0] != counts[1]:
        raise unequal(source, target, *counts)


def lines_of_pairs(source: str, target: str, sums: Sequence[Any] = ()) -> Iterator[tuple[bytes, bytes]]:
    """Yields the lines of two parallel files side by side, unchecked, and raises if one file has more."""
    sides = [lines_of(path, digest) for path, digest in itertools.zip_longest((source, target), sums)]
    for number, (one, other) in enumerate(itertools.zip_longest(*sides)):
        if one is None or other is None:
            longer = number + 1 + sum(1 for _ in itertools.chain(*sides))
            raise unequal(source, target, *((number, longer) if one is None else (longer, number)))
        yield one, other


def check_openable(source: str, target: str) -> None:
    """Raises at once what needs no reading: a missing file, a pipe, another kind of file, or two empty files."""
    are_empty = []
    for path in (source, target):
        check_is_no_pipe(path)
        with open_text(path) as file:
            are_empty.append(not file.peek(1))
    if all(are_empty):
        raise empty_file(source)


def check_is_no_pipe(path: str) -> None:
    if user_path(path).is_fifo():
        raise BadInput(f"{path}: expected a file, which can be read again, got a pipe")


def empty_file(path: Any) -> BadInput:
    return BadInput(f"expected sentences, got an empty file: {path}")


def bad_line(place: str, problem: str) -> BadInput:
    return BadInput(f"{place}: expected a sentence in UTF-8, got {problem}")


def unequal(source: Any, target: Any, lines: int, others: int) -> BadInput:
    counts = f"{lines:,} in {source} and {others:,} in {target}"
    return BadInput(f"expected the same number of lines in both files, got {counts}")


def file_pairs(source: Paths, target: Paths) -> list[tuple[str, str]]:
    """Returns source files with their target files, or raises `BadInput` if one side has more."""
    lists: Any = (side if isinstance(side, list | tuple) else [side] for side in (source, target))
    sides = [[str(user_path(path)) for path in paths] for paths in lists]
    if len(sides[0]) != len(sides[1]):
        raise BadInput(f"expected as many source files as target files, got {len(sides[0])} and {len(sides[1])}")
    return list(zip(*sides, strict=True))


def _checked_lines(path: str, skip_bad_lines: bool, empty_lines: bool, digest: Any = None) -> Iterator[bytes]:
    number = 0
    try:
        for number, line in enumerate(lines_of(path, digest), 1):
            # Bad lines are counted too: line N of one file belongs to line N of the other.
            problem = None if skip_bad_lines else line_problem(line)
            if problem and not (empty_lines and problem == EMPTY):
                raise bad_line(f"{path}, line {number:,}", problem)
            yield line
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadInput(f"{path}: cannot be read after line {number:,}: {error}") from error


def line_problem(line: bytes) -> str | None:
    """Returns why a line is bad: it is empty, not UTF-8, or over 16,384 bytes. Returns `None` for a good one."""
    if len(line) > MAX_BYTES:
        return f"{len(line):,} bytes (at most {MAX_BYTES:,})"
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"the byte 0x{line[error.start]:02x} at column {error.start + 1}"
    # A line of control and format characters, such as a zero width space, looks empty and counts as such.
    if all(character.isspace() or unicodedata.category(character) in ("Cc", "Cf") for character in text):
        return EMPTY
    return None


@dataclass(frozen=True)
class LineRange:
    """Lines of a plain text file for one worker."""

    path: str
    offset: int  # byte at which the first line begins
    first: int  # index of the first line in the file
    count: int  # number of lines, at least 1


def line_ranges(paths: Iterable[str | os.PathLike[str]], lines: int, digest: Any = None) -> list[LineRange]:
    """Splits plain files into ranges of at most `lines` lines, each of one file, and updates `digest`, of hashlib."""
    return [line_range for path in paths for line_range in _ranges_of(str(path), lines, digest)]


def _ranges_of(path: str, lines: int, digest: Any) -> Iterator[LineRange]:
    import numpy as np  # here, since programs read lines before they need it

    # The open range begins at `offset` and has `count` lines so far. `end` bytes are read.
    offset, first, count, end, last = 0, 0, 0, 0, b"\n"
    with open(path, "rb") as file:
        # Counting newlines in large blocks is several times faster than reading lines.
        while block := file.read(_BLOCK):
            if digest:
                digest.update(block)
            ends = block.count(b"\n")
            if count + ends >= lines:
                # The positions of newlines are needed only if a range ends in this block.
                newlines = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
                for position in newlines[lines - count - 1 :: lines].tolist():
                    yield LineRange(path, offset, first, lines)
                    offset, first = end + position + 1, first + lines
                count = (count + ends) % lines
            else:
                count += ends
            end, last = end + len(block), block[-1:]
    count += last != b"\n"
    if count:
        yield LineRange(path, offset, first, count)


def read_range(lines: LineRange) -> list[bytes]:
    """Reads the lines of a range, like `lines_in`, or raises `BadInput` if the file has become shorter."""
    with open(lines.path, "rb") as file:
        file.seek(lines.offset)
        rows = itertools.islice(file, lines.count)
        texts = list(lines_in(rows, is_start=not lines.offset, name=lines.path))
    if len(texts) < lines.count:
        raise BadInput(f"{lines.path}: expected {lines.first + lines.count:,} lines, got {lines.first + len(texts):,}")
    return texts


def unpacked(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Path:
    """Returns a plain file as it is, and unpacks a .gz into `folder` atomically, unless that is done."""
    path = user_path(path)
    if path.suffix != ".gz":
        return path
    # The copy has the .gz's modification time, so that a newer or older .gz of this name is unpacked again. The hash
    # keeps files of one name from several directories apart.
    modified = path.stat().st_mtime_ns
    suffix = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    plain = Path(folder) / f"{path.stem}-{suffix}"
    if plain.exists() and plain.stat().st_mtime_ns == modified:
        return plain
    plain.parent.mkdir(parents=True, exist_ok=True)
    with new_file(plain) as temporary:
        try:
            with open_text(path) as packed, open(temporary, "wb") as file:
                shutil.copyfileobj(packed, file, _BLOCK)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(plain)) from error  # names the file
        os.utime(temporary, ns=(modified, modified))
    return plain
