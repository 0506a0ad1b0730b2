"""Sources that rewrite the pairs of another source: capitals, title case, lower case and typos."""

import abc
import bisect
import functools
import hashlib
import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from tf_transformer.config import BadInput
from tf_transformer.data.sources import Languages, Part, Row, Source, Wrapper
from tf_transformer.data.text_files import line_problem
from tf_transformer.extensions.documents.marked import PLACEHOLDER
from tf_transformer.utils.files import encoded
from tf_transformer.utils.values import Kind, Seed

PairShare = Annotated[float, Kind("a share from 0 to 1", lambda share: 0 <= share <= 1)]
_WORD_START = re.compile(r"(?<!\S)(?:[^\w\s]|_)*+\w")
_TWO_LETTERS = re.compile(r"[^\W\d_](?=[^\W\d_])")


@dataclass(frozen=True)
class RewrittenSource(Wrapper):
    """A source whose pairs are rewritten. The new texts depend only on the old ones, so shards and workers agree."""

    source: Source

    encoder = Source.encoder  # It needs the symbols of the new texts.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind != "translation":
            raise BadInput(f"source: expected a source of translation, got one of {self.kind}")

    @abc.abstractmethod
    def rewrite(self, source: str, target: str) -> tuple[str, str]:
        """Returns the new texts of a good pair."""

    def segments(self, part: Part | None = None) -> Iterator[tuple[Languages, Iterator[Row]]]:
        for languages, rows in self.source.segments(part):
            yield languages, itertools.starmap(self._rewritten, rows)

    def _rewritten(self, number: int, *pair: bytes) -> Row:
        source, target = pair
        if source and target:
            new = tuple(map(encoded, self.rewrite(source.decode(), target.decode())))
            # A longer text may exceed the bytes of a line.
            source, target = pair if any(map(line_problem, new)) else new
        return number, source, target


def drawn(seed: int, *texts: str) -> int:
    """Returns a number of 53 bits that depends only on a seed and texts, in every process."""
    text = "".join(f"{text}\n" for text in texts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, key=seed.to_bytes(4)).digest()) >> 11


def untouched(symbols: Sequence[str]) -> str:
    """Returns a regular expression for symbols, tags, character references and placeholders in a text."""
    return "|".join([*map(re.escape, symbols), r"<[^<>\s][^<>]*+>", r"&#?\w++;", PLACEHOLDER.pattern])


@dataclass(frozen=True)
class NoisySource(RewrittenSource):
    """A source with shares of its pairs in capitals, title case or lower case, or with typos.

        noisy = tt.recipes.NoisySource(text, upper=0.5, title=0.1, lower=0.1, typos=0.1)
        corpus = tt.Corpus(tt.sources.JoinedSource([text, noisy]), dev)  # the text and a noisy copy

    A pair has at most one change, which depends on the seed and its texts. As in OpusTrainer, capitals and title case
    change both sides, and typos the source. Lower case also changes the source, so the model restores the case. Casing
    is Unicode's for any language: "ß" becomes "SS", and "i" becomes "I", even in Turkish. Symbols of the source, tags,
    character references and placeholders do not change.

    Attributes:
        source: All pairs.
        upper: Share of pairs in capitals.
        title: Share of pairs with a capital at the start of each word.
        lower: Share of pairs with a source in lower case.
        typos: Share of pairs with typos in the source, one per ten words between tags, rounded up. A typo swaps two
            letters of a word, or drops, doubles or replaces one.
        seed: Random seed, any integer.
    """

    upper: PairShare = 0.05
    title: PairShare = 0.05
    lower: PairShare = 0.05
    typos: PairShare = 0.05
    seed: Seed = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if (total := self.upper + self.title + self.lower + self.typos) > 1 + 1e-9:
            raise BadInput(f"upper, title, lower, typos: expected at most 1 in all, got {total:.6g}")

    def describe(self) -> dict[str, Any]:
        return {**self.source.describe(), "noise": [self.upper, self.title, self.lower, self.typos, self.seed]}

    def rewrite(self, source: str, target: str) -> tuple[str, str]:
        code = drawn(self.seed, source, target)
        limits = list(itertools.accumulate((self.upper, self.title, self.lower, self.typos)))
        if (kind := bisect.bisect(limits, code / 2**53)) == len(limits):
            return source, target
        # `str.title` would also change other letters, as in "USA".
        title_case = functools.partial(_WORD_START.sub, lambda match: match[0].title())
        with_typos = functools.partial(_with_typos, generator=random.Random(code))
        change = (str.upper, title_case, str.lower, with_typos)[kind]
        return self._changed(source, change), self._changed(target, change) if kind < 2 else target

    def _changed(self, text: str, change: Callable[[str], str]) -> str:
        spans = self._untouched.split(text)
        spans[::2] = map(change, spans[::2])  # Odd indices have the tags and placeholders.
        return "".join(spans)

    @functools.cached_property
    def _untouched(self) -> re.Pattern[str]:
        return re.compile(f"({untouched(self.symbols)})")


def _with_typos(text: str, generator: random.Random) -> str:
    for _ in range(-(-len(text.split()) // 10)):
        if starts := [match.start() for match in _TWO_LETTERS.finditer(text)]:
            start, other = generator.choice(starts), generator.choice(starts)
            one, two = text[start], text[start + 1]
            typo = generator.choice((two + one, two, one + one + two, text[other] + two))
            text = text[:start] + typo + text[start + 2 :]
    return text
