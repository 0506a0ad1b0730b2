"""Text files in ranges of lines, for several workers. Only b"\\n" ends a line, as in a binary file."""

import hashlib
import itertools
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.utils.files import new_file, open_text, user_path
from tf_transformer.utils.values import between, checked

Lines = Annotated[int, between(1, 2**63 - 1)]
_BLOCK = 1 << 22  # bytes read at a time


@dataclass(frozen=True)
class LineRange:
    """Lines of a plain text file that one worker reads.

    Attributes:
        path: the file.
        offset: the byte at which they begin.
        first: the number of the first one in its file, from 0.
        count: how many there are, at least 1.
    """

    path: str
    offset: int
    first: int
    count: int


@checked
def line_ranges(paths: Iterable[str | os.PathLike[str]], lines: Lines, digest: Any = None) -> list[LineRange]:
    """The lines of plain files as ranges, in order. A range is of one file; an empty file has none.

    Args:
        paths: the files. The last line of one may lack its newline.
        lines: the most lines of a range.
        digest: of hashlib, to take a checksum of the files.

    Raises:
        BadInput: `lines` is not positive.
        OSError: a file cannot be read.
    """
    return [each for path in paths for each in _ranges_of(str(path), lines, digest)]


def _ranges_of(path: str, lines: int, digest: Any) -> Iterator[LineRange]:
    offset, first, count, end, last = 0, 0, 0, 0, b"\n"  # the range that is open, and all that was read
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            if digest:
                digest.update(block)
            ends = block.count(b"\n")
            if count + ends >= lines:  # some ranges end in this block
                places = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
                for place in places[lines - count - 1 :: lines].tolist():
                    yield LineRange(path, offset, first, lines)
                    offset, first = end + place + 1, first + lines
                count = (count + ends) % lines
            else:
                count += ends
            end, last = end + len(block), block[-1:]
    count += last != b"\n"
    if count:
        yield LineRange(path, offset, first, count)


def read_range(lines: LineRange) -> list[bytes]:
    """The lines of a range, without their newlines.

    Raises:
        BadInput: the file has become shorter.
    """
    with open(lines.path, "rb") as file:
        file.seek(lines.offset)
        found = [line.removesuffix(b"\n") for line in itertools.islice(file, lines.count)]
    if len(found) < lines.count:
        raise BadInput(f"{lines.path}: expected {lines.first + lines.count:,} lines, got {lines.first + len(found):,}")
    return found


def unpacked(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Path:
    """A plain file as it is; a .gz unpacked into `folder`, whole or not at all.

    What was unpacked before is kept, unless the .gz has another time by now. Files of one name from several folders
    do not meet.

    Raises:
        BadInput: the .gz is damaged.
        OSError: there is no room for it.
    """
    path = user_path(path)
    if path.suffix != ".gz":
        return path
    modified = path.stat().st_mtime_ns
    place = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    plain = Path(folder) / f"{path.stem}-{place}"
    if plain.exists() and plain.stat().st_mtime_ns == modified:
        return plain
    plain.parent.mkdir(parents=True, exist_ok=True)
    with new_file(plain) as temporary:
        try:
            with open_text(path) as packed, open(temporary, "wb") as file:
                shutil.copyfileobj(packed, file, _BLOCK)
        except OSError as error:  # a full disk, which names no file
            raise OSError(error.errno, error.strerror, str(plain)) from error
        os.utime(temporary, ns=(modified, modified))
    return plain
