"""Parallel text files: what a line may be, and whether two files belong together."""

import hashlib
import itertools
import os
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

from tf_transformer.config import BadInput
from tf_transformer.utils.files import lines_of, open_text, user_path
from tf_transformer.utils.values import checked

MAX_BYTES = 16_384  # a longer line is not a sentence
EMPTY = "an empty line"

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]  # of one text file, or of several


@checked
def check_text_pairs(
    source: Paths, target: Paths, skip_bad_lines: bool = False, empty_lines: bool = False, sums: Sequence[Any] = ()
) -> int:
    """Read parallel text once and return its number of lines.

    Args:
        source: path, or list of paths, of plain or .gz files.
        target: likewise.
        skip_bad_lines: accept bad lines; who reads the files leaves them out.
        empty_lines: do not count empty lines as bad.
        sums: two of hashlib, to take checksums of both sides.

    Raises:
        FileNotFoundError: a file is missing.
        BadInput: line counts differ, there are none, or a line is bad: empty, not UTF-8, or over 16,384 bytes.
    """
    total = 0
    for pair in file_pairs(source, target):
        for path in pair:
            if user_path(path).is_fifo():
                raise BadInput(f"{path}: expected a file, which can be read again, got a pipe")
        sides = itertools.zip_longest(pair, sums)
        counts = [sum(1 for _ in _checked_lines(path, skip_bad_lines, empty_lines, one)) for path, one in sides]
        if counts[0] != counts[1]:
            raise BadInput(unequal(*pair, *counts))
        total += counts[0]
    if not total:
        raise BadInput(f"expected sentences, got an empty file: {source}")
    return total


def unequal(source: Any, target: Any, lines: int, others: int) -> str:
    """The error message for two files with these numbers of lines."""
    return f"expected the same number of lines in both files, got {lines:,} in {source} and {others:,} in {target}"


@checked
def read_text_pairs(
    source: str | os.PathLike[str], target: str | os.PathLike[str], empty_lines: bool = False
) -> tuple[list[str], list[str]]:
    """Read two parallel text files once, check them as `check_text_pairs` does, and return the lines of each."""
    source, target = (str(user_path(path)) for path in (source, target))
    sides = [[line.decode() for line in _checked_lines(path, False, empty_lines)] for path in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise BadInput(unequal(source, target, *map(len, sides)))
    if not sides[0]:
        raise BadInput(f"expected sentences, got an empty file: {source}")
    return sides[0], sides[1]


def file_pairs(source: Paths, target: Paths) -> list[tuple[str, str]]:
    """Files that belong together.

    Raises:
        BadInput: one side has more files than the other.
    """
    lists: Any = (side if isinstance(side, list | tuple) else [side] for side in (source, target))
    sides = [[str(user_path(path)) for path in paths] for paths in lists]
    if len(sides[0]) != len(sides[1]):
        raise BadInput(f"expected as many source files as target files, got {len(sides[0])} and {len(sides[1])}")
    return list(zip(*sides, strict=True))


def _checked_lines(path: str, skip_bad_lines: bool, empty_lines: bool, digest: Any = None) -> Iterator[bytes]:
    number = 0
    try:
        for number, line in enumerate(lines_of(path, digest), 1):
            problem = None if skip_bad_lines else line_problem(line)
            if problem and not (empty_lines and problem == EMPTY):
                raise BadInput(f"{path}, line {number:,}: expected a sentence in UTF-8, got {problem}")
            yield line
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadInput(f"{path}: cannot be read after line {number:,}: {error}") from error


def line_problem(line: bytes) -> str | None:
    """Why a line is no sentence: it is empty, not UTF-8, or over 16,384 bytes; None if it is one."""
    if len(line) > MAX_BYTES:
        return f"{len(line):,} bytes (at most {MAX_BYTES:,})"
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"the byte 0x{line[error.start]:02x} at column {error.start + 1}"
    if all(character.isspace() or unicodedata.category(character) in ("Cc", "Cf") for character in text):
        return EMPTY
    return None


def checksum_of_text(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a text file's contents, of a .gz unpacked."""
    with open_text(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
