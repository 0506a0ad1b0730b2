"""Sources that rewrite the pairs of another source: with other casing and typos, or with terms of a glossary."""

import abc
import bisect
import functools
import hashlib
import itertools
import json
import os
import random
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from tf_transformer.config import BadInput
from tf_transformer.data.held_out import Wrapper
from tf_transformer.data.sources import Languages, Part, Row, Source
from tf_transformer.extensions.documents.marked import DENSE, PLACEHOLDER
from tf_transformer.utils.files import encoded
from tf_transformer.utils.lines import line_problem, lines_of
from tf_transformer.utils.values import Kind, Seed, checked, shown

PairShare = Annotated[float, Kind("a share from 0 to 1", lambda share: 0 <= share <= 1)]
_WORD_START = re.compile(r"(?<!\S)(?>(?:[^\w\s]|_)*)\w")
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
        spans = re.split(f"({untouched(self.symbols)})", text)
        spans[::2] = map(change, spans[::2])  # Odd indices have the tags and placeholders.
        return "".join(spans)


def _with_typos(text: str, generator: random.Random) -> str:
    for _ in range(-(-len(text.split()) // 10)):
        if starts := [match.start() for match in _TWO_LETTERS.finditer(text)]:
            start, other = generator.choice(starts), generator.choice(starts)
            one, two = text[start], text[start + 1]
            typo = generator.choice((two + one, two, one + one + two, text[other] + two))
            text = text[:start] + typo + text[start + 2 :]
    return text


# Vowel signs and joiners, which \w lacks, are inside words.
_MARKS = "".join(c for c in map(chr, range(0x300, 0x1F000)) if unicodedata.category(c)[0] == "M") + "\u200c\u200d"


@functools.cache
def _words(symbols: tuple[str, ...] = ()) -> re.Pattern[str]:
    """Returns a regular expression for words, and for what is never part of a term: written terms, symbols, tags."""
    unread = ["<term>(?:(?!<term>).)*?</term>", untouched(symbols)]
    return re.compile("|".join([*unread, rf"[{DENSE}]|(?>(?:[^\W{DENSE}]|[{_MARKS}])+)|\S"]), re.DOTALL)


@checked
def read_glossary(path: str | os.PathLike[str]) -> dict[str, str]:
    """Reads a glossary in UTF-8, plain or .gz: a source term, a tab and its target term on each line."""
    glossary = dict[str, str]()
    for number, line in enumerate(lines_of(path), 1):
        problem, (source, *targets) = line_problem(line), line.decode(errors="replace").split("\t")
        if problem or len(targets) != 1 or glossary.setdefault(source, targets[0]) != targets[0]:
            expected = "expected a new source term, a tab and its target term"
            raise BadInput(f"{path}, line {number:,}: {expected}, got {problem or shown([source, *targets])}")
    return glossary


@checked
def annotate(text: str, glossary: Mapping[str, str]) -> str:
    """Replaces the terms in a text to translate by `<term> TARGET </term>`, as in the sources of `TermSource`.

    The longest source term wins. It matches whole words in any case, or any characters in scripts without spaces and in
    Hangul. Target terms keep their case. Tags and placeholders do not change.

    Args:
        text: Text to translate.
        glossary: Target terms by source terms.

    Raises:
        BadInput: If a term is empty or contains `<term>` or `</term>`, or a source term has two target terms.
    """
    return _annotated(text, _index(glossary))


_Index = tuple[dict[tuple[str, ...], str], int]


def _index(glossary: Mapping[str, str]) -> _Index:
    if wrong := [term for pair in glossary.items() for term in pair if not isinstance(term, str)]:
        raise BadInput(f"glossary: expected texts, got {shown(wrong[0])}")
    return _index_of(tuple(glossary.items()))


@functools.lru_cache(maxsize=8)
def _index_of(pairs: tuple[tuple[str, str], ...]) -> _Index:
    """Returns target terms by the words of source terms in lower case, and the largest number of words."""
    terms = dict[tuple[str, ...], str]()
    for source, target in pairs:
        for term in (source, target):
            if not term.isprintable() or line_problem(encoded(term)) or "<term>" in term or "</term>" in term:
                raise BadInput(f"glossary: expected printable text without <term> or </term>, got {shown(term)}")
        if (other := terms.setdefault(tuple(_words().findall(source.casefold())), target)) != target:
            raise BadInput(f"glossary: expected one target term of {source!r}, got {other!r} and {target!r}")
    if not terms:
        raise BadInput("glossary: expected source terms and their target terms, got none")
    return terms, max(map(len, terms))


def _annotated(text: str, index: _Index, symbols: tuple[str, ...] = (), target_text: str | None = None) -> str:
    """Replaces terms. With a target text, only those whose target term it contains."""
    words, (terms, longest) = list(_words(symbols).finditer(text)), index
    keys = [word[0].casefold() for word in words]
    written, end, start = "", 0, 0
    while start < len(words):
        stops = range(min(start + longest, len(words)), start, -1)
        stop = next((stop for stop in stops if tuple(keys[start:stop]) in terms), start)
        term = terms.get(tuple(keys[start:stop]))
        if term and (target_text is None or _spaced(term) in _spaced(target_text)):
            written += f"{text[end : words[start].start()]}<term> {term} </term>"
            end = words[stop - 1].end()
        start = max(stop, start + 1)
    return written + text[end:]


def _spaced(text: str) -> str:
    return f" {' '.join(_words().findall(text))} "


@dataclass(frozen=True)
class TermSource(RewrittenSource):
    """A source with target terms of a glossary in a share of its source texts, to train a model that uses them.

        glossary = {"cable": "Kabel", "power cable": "Netzkabel"}  # or tt.recipes.read_glossary("terms.tsv")
        train = tt.recipes.TermSource(tt.sources.TextSource("train.en", "train.de"), glossary)
        ...  # Train on it.
        translator([tt.recipes.annotate("Connect the cable.", glossary)])  # "Connect the <term> Kabel </term>."

    Target terms replace source terms between two symbols, instead of the source factors of Dinu et al. (2019,
    "train-by-replace"). A target text must contain its term as it is in the glossary.

    Attributes:
        source: All pairs.
        glossary: Target terms by source terms.
        share: Share of the pairs with terms on both sides in which all of them are replaced.
        seed: Random seed, any integer.
    """

    glossary: Mapping[str, str]
    share: PairShare = 0.5
    seed: Seed = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._terms  # It checks the glossary.
        object.__setattr__(self, "symbols", list(dict.fromkeys([*self.source.symbols, "<term>", "</term>"])))

    def describe(self) -> dict[str, Any]:
        checksum = hashlib.sha256(json.dumps(sorted(self.glossary.items())).encode()).hexdigest()
        return {**self.source.describe(), "terms": [checksum, self.share, self.seed]}

    def rewrite(self, source: str, target: str) -> tuple[str, str]:
        if drawn(self.seed, "terms", source, target) >= self.share * 2**53:
            return source, target
        return _annotated(source, self._terms, tuple(self.symbols), target), target

    @functools.cached_property
    def _terms(self) -> _Index:
        return _index(self.glossary)
