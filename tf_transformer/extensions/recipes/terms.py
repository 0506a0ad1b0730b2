"""Terms of a glossary, written into source texts, so that a model learns to use them."""

import functools
import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tf_transformer.config import BadInput
from tf_transformer.data.text_files import line_problem
from tf_transformer.extensions.documents.marked import DENSE
from tf_transformer.extensions.recipes.noise import PairShare, RewrittenSource, drawn, untouched
from tf_transformer.utils.files import encoded, lines_of
from tf_transformer.utils.values import Seed, checked, shown

# Vowel signs and joiners, which \w lacks, are inside words.
_MARKS = "".join(c for c in map(chr, range(0x300, 0x1F000)) if unicodedata.category(c)[0] == "M") + "\u200c\u200d"


@functools.cache
def _words(symbols: tuple[str, ...] = ()) -> re.Pattern[str]:
    """Returns a regular expression for words, and for what is never part of a term: written terms, symbols, tags."""
    unread = ["<term>(?:(?!<term>).)*?</term>", untouched(symbols)]
    return re.compile("|".join([*unread, rf"[{DENSE}]|(?:[^\W{DENSE}]|[{_MARKS}])++|\S"]), re.DOTALL)


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
