"""Sources of pairs: text files, lists, and a source without the dev set that is held out of it.

`tt.sources` has more: Parquet, TensorFlow Datasets, several sources together.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.data.pairs import Encode, Languages, Pair, PairsOfPart, Part, Row, Source, once, texts_of, untagged
from tf_transformer.data.text_files import check_text_pairs, line_ranges, read_range, unequal, unpacked
from tf_transformer.tokenizers.tokenizer import Tokenizer, sentences
from tf_transformer.utils.files import lines_of, open_text, user_path
from tf_transformer.utils.values import Kind, check_fields, checked

Share = Annotated[
    float,
    Kind("a share of the pairs below 0.5, or a number of them", lambda x: 0 < x < 0.5 or (x >= 1 and x.is_integer())),
]


@dataclass(frozen=True)
class MemorySource(Source):
    """Two lists of texts, copied when the source is made and identified by their contents."""

    source: Sequence[str]
    target: Sequence[str]

    def __post_init__(self) -> None:
        check_fields(self)
        for side in ("source", "target"):
            object.__setattr__(self, side, tuple(texts_of(side, getattr(self, side))))
        if len(self.target) != (wanted := len(self.source)):
            raise BadInput(f"target: expected {wanted:,} texts, as many as of source, got {len(self.target):,}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.source):,} pairs)"

    def describe(self) -> dict[str, Any]:
        return {"sha256": self._checksum}

    @functools.cached_property
    def _checksum(self) -> str:
        return hashlib.sha256(json.dumps(list(self.pairs())).encode()).hexdigest()

    def pairs(self) -> Iterator[tuple[str, str]]:
        return zip(self.source, self.target, strict=True)

    def sentences(self) -> Iterator[str]:
        return itertools.chain(self.source, self.target)


@dataclass(frozen=True)
class TextSource(Source):
    """Two text files, line by line parallel, plain or .gz.

    A .gz cannot be read from the middle. So `prepare` unpacks it next to the records until they are finished.
    """

    source: str | os.PathLike[str]
    target: str | os.PathLike[str]
    skip_bad_lines: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        for side in ("source", "target"):
            object.__setattr__(self, side, str(user_path(getattr(self, side), side)))

    def describe(self) -> dict[str, Any]:
        files = [str(self.source), str(self.target)]
        return {"train": files, "sha256": self._checksums, "skip_bad_lines": self.skip_bad_lines}

    @functools.cached_property
    def _checksums(self) -> list[str]:
        sums = []
        for path in (self.source, self.target):
            with open_text(path) as file:  # a .gz has the checksum of its contents
                sums.append(hashlib.file_digest(file, "sha256").hexdigest())
        return sums

    def check(self) -> int:
        """Reads both files once, checks every line like `check_text_pairs`, and returns the number of pairs."""
        sums = [hashlib.sha256(), hashlib.sha256()]
        count = check_text_pairs(self.source, self.target, self.skip_bad_lines, sums=sums)
        self.__dict__["_checksums"] = [one.hexdigest() for one in sums]
        return count

    def pairs(self) -> Iterator[Pair]:
        sides = lines_of(self.source), lines_of(self.target)
        for number, (source, target) in enumerate(itertools.zip_longest(*sides)):
            if source is None or target is None:
                longer = number + 1 + sum(1 for _ in itertools.chain(*sides))
                counts = (number, longer) if source is None else (longer, number)
                raise unequal(self.source, self.target, *counts)
            yield source, target

    def sentences(self) -> Iterator[str]:
        return sentences([self.source, self.target])

    @checked
    def parts(self, pairs: PairsOfPart, folder: str | os.PathLike[str]) -> list[Part]:
        for file in (self.source, self.target):
            if not Path(file).is_file():
                raise FileNotFoundError(f"expected a text file, found none at {file}")
        folder = user_path(folder) / "unpacked"
        sums = [hashlib.sha256(), hashlib.sha256()]
        files = [unpacked(file, folder) for file in (self.source, self.target)]
        sides = [line_ranges([file], pairs, one) for file, one in zip(files, sums, strict=True)]
        self.__dict__["_checksums"] = [one.hexdigest() for one in sums]
        counts = [sum(lines.count for lines in ranges) for ranges in sides]
        if counts[0] != counts[1]:
            raise unequal(self.source, self.target, *counts)
        if not counts[0]:
            raise BadInput(f"expected sentences, got an empty file: {self.source}")
        both = enumerate(zip(*sides, strict=True))
        return [Part(number, lines[0].first, lines[0].count, lines) for number, lines in both]

    def read(self, part: Part) -> Iterator[Pair]:
        source, target = (read_range(dataclasses.replace(lines, count=part.count)) for lines in part.where)
        yield from zip(source, target, strict=True)

    def place(self, side: int, number: int) -> str:
        return f"{(self.source, self.target)[side]}, line {number + 1:,}"


class Composite(Source):
    """A source that is made of others. Its pairs are its rows, in which bad pairs are empty."""

    def pairs(self) -> Iterator[Pair]:
        return ((source, target) for _, source, target in self.rows())

    def read(self, part: Part) -> Iterator[Pair]:
        return ((source, target) for _, source, target in self.rows(part))


class Wrapper(Composite):
    """A source with the rows and shards of another one, `source`."""

    source: Source

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("kind", "max_length", "skip_bad_lines", "symbols", "place"):
            object.__setattr__(self, name, getattr(self.source, name))

    @checked
    def parts(self, pairs: PairsOfPart, folder: str | os.PathLike[str]) -> list[Part]:
        return self.source.parts(pairs, user_path(folder))

    def encoder(self, tokenizer: Tokenizer) -> Encode:
        return self.source.encoder(tokenizer)


@dataclass(frozen=True)
class HeldOut(Wrapper):
    """A source without the pairs of a dev set, which a hash of their source texts selects, or this dev set.

    The selection does not depend on the order, since neighbors in a corpus are alike. Pairs with the same source text
    are on the same side, whatever their tags and languages. The reverse of a dev pair is on neither side.

    Attributes:
        source: All pairs.
        share: Share of the dev set, below 0.5, or its number of pairs. Equal source texts may add some pairs.
        dev: Whether this is the dev set, in which each pair counts once.

    Raises:
        BadInput: If `share` is something else, or the dev set would have no pairs, or at least half of them.
    """

    source: Source
    share: Share
    dev: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._split

    @functools.cached_property
    def _split(self) -> tuple[int, frozenset[tuple[int, int]]]:
        """Returns a limit, below which are the hashes of the dev set's source texts, and the hashes of its pairs."""
        rows = (row for row in once(self.source.rows()) if all(row[1:]))
        hashes = np.fromiter((self._hashes(*row[1:]) for row in rows), np.dtype("u8,u8"))
        limit, count = int(min(self.share, 0.5) * 2**64), len(hashes)
        if self.share >= 1 and count:
            limit = int(np.sort(hashes["f0"])[min(int(self.share), count) - 1]) + 1
        dev = hashes[hashes["f0"] < limit].tolist()
        if not 0 < 2 * len(dev) < count:
            size = len(dev) or self.share
            raise BadInput(f"dev: expected 1 to {(count - 1) // 2:,} of {count:,} pairs, got {size:,.6g}")
        return limit, frozenset(dev)

    def describe(self) -> dict[str, Any]:
        return {**self.source.describe(), "held_out": self.share} | ({"dev": True} if self.dev else {})

    def segments(self, part: Part | None = None) -> Iterator[tuple[Languages, Iterator[Row]]]:
        for languages, rows in self.source.segments(part):
            rows = (row for row in once(rows) if all(row[1:])) if self.dev else rows
            yield languages, (row for row in rows if self._has(*row[1:]))

    def _has(self, source: bytes, target: bytes) -> bool:
        (limit, dev), (of_source, of_target) = self._split, self._hashes(source, target)
        if self.dev or of_source < limit:
            return self.dev and of_source < limit
        return (of_target, of_source) not in dev

    def _hashes(self, source: bytes, target: bytes) -> tuple[int, int]:
        return _hash(untagged(source, self.symbols)), _hash(target)


def _hash(text: bytes) -> int:
    # `hash` is salted in each process, but a run that resumes needs the same split. Texts that differ only in outer
    # white space are the same.
    return int.from_bytes(hashlib.blake2b(text.strip(), digest_size=8).digest())
