"""A dev text from the training text itself, for who has one pair of files."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from tf_transformer.config import BadInput
from tf_transformer.data.pairs import Encode, Pair, Row, Source, Text, Texts, lists_of
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.utils.files import encoded
from tf_transformer.utils.values import Kind, check_fields

Share = Annotated[
    float,
    Kind("a share of the pairs below 0.5, or a number of them", lambda x: 0 < x < 0.5 or (x >= 1 and x.is_integer())),
]


@dataclass(frozen=True)
class HeldOut(Source):
    """The pairs of a source, but for those of a dev text.

    Which they are depends on their source texts alone, by a hash: not on their order, since neighbours in a corpus are
    alike; and pairs with the same source text are on the same side.

    Attributes:
        source: all pairs.
        share: below 0.5 the share of the dev text, from 1 its number of pairs; pairs with the same source text come
            together, so it may have some more.

    Raises:
        BadInput: the share is something else, the dev text would have no pairs, or half of all or more.
    """

    source: Source
    share: Share

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("kind", "max_length", "skip_bad_lines", "symbols"):
            object.__setattr__(self, name, getattr(self.source, name))
        count, held = len(self._hashes), sum(each < self._limit for each in self._hashes)
        if not 0 < 2 * held < count:
            raise BadInput(f"dev: expected 1 to {(count - 1) // 2:,} of {count:,} pairs, got {held or self.share:,.6g}")

    @cached_property
    def _hashes(self) -> list[int]:
        return sorted(_hash(source) for _, source, target in self.source.rows() if source and target)

    @cached_property
    def _limit(self) -> int:
        """Hashes below it are those of the dev text."""
        if self.share < 1:
            return int(self.share * 2**64)
        return self._hashes[min(int(self.share), len(self._hashes)) - 1] + 1 if self._hashes else 0

    def dev(self) -> Texts:
        """The dev text."""
        return lists_of(pair for _, *pair in self.source.rows() if all(pair) and self._is_held(pair[0]))

    def _is_held(self, source: Text) -> bool:
        return _hash(source) < self._limit

    def describe(self) -> dict[str, Any]:
        return {**self.source.describe(), "held_out": self.share}

    def pairs(self) -> Iterator[Pair]:
        return (pair for pair in self.source.pairs() if not self._is_held(pair[0]))

    def rows(self) -> Iterator[Row]:
        """As of the source, with its numbers."""
        return (row for row in self.source.rows() if not self._is_held(row[1]))

    def encoder(self, tokenizer: Tokenizer) -> Encode:
        return self.source.encoder(tokenizer)


def _hash(source: Text) -> int:
    return int.from_bytes(hashlib.blake2b(encoded(source).strip(), digest_size=8).digest())
