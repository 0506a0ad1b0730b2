"""Sources that are made of others, and one without the dev set that is held out of it."""

import abc
import copy
import functools
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from tf_transformer.config import BadInput
from tf_transformer.data.sources import Encode, Languages, Pair, PairsOfPart, Part, Row, Source, once
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.utils.files import user_path
from tf_transformer.utils.values import MOST, Kind, check_fields, checked, plain


class Filter(abc.ABC):
    """Drops pairs of a training set, like `tt.Filters`."""

    @abc.abstractmethod
    def __call__(self, source: Any) -> Any:
        """Returns a source of the pairs that remain."""


def untagged(source: bytes, tags: Sequence[str]) -> bytes:
    """Returns a source text without the tags before it."""
    while tags and (parts := source.partition(b" "))[0] in map(str.encode, tags):
        source = parts[2]
    return source


def _is_share(value: Any) -> bool:
    # By the type, since 1.0 would be all pairs, or one.
    value = plain(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return 1 <= value <= MOST if is_number else isinstance(value, float) and 0 < value < 0.5


Share = Annotated[Any, Kind("a share of the pairs below 0.5, or a number of them", _is_share, plain)]


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


class _Marked(NamedTuple):
    """A pair that may be in the dev set."""

    hashes: tuple[int, int]  # of its texts
    segment: int  # index of its language pair
    row: Row


class _Split(NamedTuple):
    """What one reading of all pairs finds."""

    limit: int  # The hashes of the dev set's source texts are below it.
    hashes: frozenset[tuple[int, int]]  # those of the dev set's pairs
    segments: list[tuple[Languages, list[Row]]]  # the dev set


def _smallest(pairs: list[_Marked], size: int) -> tuple[int, list[_Marked]]:
    """Returns the pairs with the `size` smallest hashes of source texts, and a limit of these hashes."""
    limit = sorted(one.hashes[0] for one in pairs)[:size][-1] + 1
    return limit, [one for one in pairs if one.hashes[0] < limit]


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

    def dev_set(self) -> "HeldOut":
        """Returns the dev set, by the reading that this source has made."""
        dev = copy.copy(self)
        object.__setattr__(dev, "dev", True)
        return dev

    @functools.cached_property
    def _split(self) -> _Split:
        # A share is a share of the range of hashes. A number is the number of the smallest hashes, and the limit falls
        # while the pairs are read.
        size = int(self.share) if self.share >= 1 else 0
        limit, count, room = 2**64 if size else int(self.share * 2**64), 0, 2 * size
        languages, dev = list[Languages](), list[_Marked]()
        for pair, rows in self.source.segments():
            languages.append(pair)
            for row in once(rows):
                if not all(row[1:]):
                    continue
                count += 1
                if (hashes := self._hashes(*row[1:]))[0] < limit:
                    dev.append(_Marked(hashes, len(languages) - 1, row))
                    if size and len(dev) > room:
                        limit, dev = _smallest(dev, size)
                        room = len(dev) + size
        if size and dev:
            limit, dev = _smallest(dev, size)
        if not 0 < 2 * len(dev) < count:
            held_out = f", which would hold out {len(dev):,}" if len(dev) not in (0, count, self.share) else ""
            got = f"got {self.share:,.6g}{held_out}"
            raise BadInput(f"dev: expected 1 to {(count - 1) // 2:,} of {count:,} pairs, {got}")
        rows_by_segment = [[one.row for one in dev if one.segment == number] for number in range(len(languages))]
        return _Split(limit, frozenset(one.hashes for one in dev), list(zip(languages, rows_by_segment, strict=True)))

    def describe(self) -> dict[str, Any]:
        return {**self.source.describe(), "held_out": self.share} | ({"dev": True} if self.dev else {})

    def segments(self, part: Part | None = None) -> Iterator[tuple[Languages, Iterator[Row]]]:
        if self.dev and not part:
            yield from ((languages, iter(rows)) for languages, rows in self._split.segments)
            return
        for languages, rows in self.source.segments(part):
            yield languages, self._kept((row for row in once(rows) if all(row[1:])) if self.dev else rows)

    def _kept(self, rows: Iterable[Row]) -> Iterator[Row]:
        limit, dev, _ = self._split
        for row in rows:
            of_source, of_target = self._hashes(*row[1:])
            # A corpus may have pairs in both directions. The reverse of a dev pair would show its reference.
            if (of_source < limit) if self.dev else (of_source >= limit and (of_target, of_source) not in dev):
                yield row

    def _hashes(self, source: bytes, target: bytes) -> tuple[int, int]:
        # `hash` is salted in each process, but a run that resumes needs the same split. Texts that differ only in outer
        # whitespace are the same.
        texts = untagged(source, self.symbols).strip(), target.strip()
        of_source, of_target = (int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) for text in texts)
        return of_source, of_target
