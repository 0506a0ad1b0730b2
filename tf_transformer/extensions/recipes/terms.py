"""Terms of a glossary, written into source texts, so that a model learns to use them."""

import functools
import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf_transformer.config import BadInput
from tf_transformer.data.text_files import line_problem
from tf_transformer.extensions.documents.marked import DENSE
from tf_transformer.extensions.recipes.noise import PairShare, RewrittenSource, drawn, untouched
from tf_transformer.utils.files import encoded, lines_of
from tf_transformer.utils.values import Seed, check_fields, checked, shown

# Vowel signs and joiners, which \w lacks, are inside words.
_MARKS = "".join(c for c in map(chr, range(0x300, 0x1F000)) if unicodedata.category(c)[0] == "M") + "\u200c\u200d"


@functools.cache
def _words(symbols: tuple[str, ...] = ()) -> re.Pattern[str]:
    """Returns a regular expression for words, and for what is never part of a term: written terms, symbols, tags."""
    unread, words = ["<term>.*?</term>", untouched(symbols)], rf"[{DENSE}]|(?:[^\W{DENSE}]|[{_MARKS}])++|\S"
    return re.compile("|".join([*unread, words]), re.DOTALL)


@dataclass(frozen=True)
class Glossary:
    """Target terms by source terms.

        glossary = tt.recipes.Glossary({"cable": "Kabel", "power cable": "Netzkabel"})

    The longest source term wins. It matches whole words in any case, or any characters in scripts without spaces and in
    Hangul. Target terms keep their case.

    Raises:
        BadInput: If there are no terms, a term is empty or contains `<term>` or `</term>`, or a source term has two
            target terms.
    """

    terms: Mapping[str, str]

    def __post_init__(self) -> None:
        check_fields(self)
        _ = self.by_words  # It checks the terms.

    @classmethod
    @checked
    def load(cls, path: str | os.PathLike[str]) -> "Glossary":
        """Reads a file in UTF-8, plain or .gz, with a source term, a tab and its target term on each line."""
        terms = dict[str, str]()
        for number, line in enumerate(lines_of(path), 1):
            problem, (source, *targets) = line_problem(line), line.decode(errors="replace").split("\t")
            if problem or len(targets) != 1 or terms.setdefault(source, targets[0]) != targets[0]:
                expected = "expected a new source term, a tab and its target term"
                raise BadInput(f"{path}, line {number:,}: {expected}, got {problem or shown([source, *targets])}")
        return cls(terms)

    @functools.cached_property
    def by_words(self) -> dict[tuple[str, ...], str]:
        """Target terms by the words of source terms, in lower case."""
        by_words = dict[tuple[str, ...], str]()
        for source, target in self.terms.items():
            for term in (source, target):
                is_text = isinstance(term, str) and term.isprintable() and not line_problem(encoded(term))
                if not is_text or "<term>" in term or "</term>" in term:
                    raise BadInput(f"terms: expected printable text without <term> or </term>, got {shown(term)}")
            if (other := by_words.setdefault(tuple(_words().findall(source.casefold())), target)) != target:
                raise BadInput(f"terms: expected one target term of {source!r}, got {other!r} and {target!r}")
        if not by_words:
            raise BadInput("terms: expected source terms and their target terms, got none")
        return by_words

    @functools.cached_property
    def longest(self) -> int:
        """Number of words of the longest source term."""
        return max(map(len, self.by_words))


@checked
def annotate(text: str, glossary: Glossary, symbols: Sequence[str] = (), target: str | None = None) -> str:
    """Replaces the source terms in a text by `<term> TARGET </term>`, as in the sources of `TermSource`.

    Args:
        text: Text to translate.
        glossary: Terms.
        symbols: Strings of a text that are never part of a term, such as the tags of `TaggedSource`.
        target: Translation. If it is set, only terms whose target term it contains are replaced.
    """
    words, in_target = list(_words(tuple(symbols)).finditer(text)), target and _spaced(target)
    keys = [word[0].casefold() for word in words]
    written, end, index = "", 0, 0
    while index < len(words):
        lengths = range(min(glossary.longest, len(words) - index), 0, -1)
        length = next((n for n in lengths if tuple(keys[index : index + n]) in glossary.by_words), 0)
        term = glossary.by_words.get(tuple(keys[index : index + length]))
        if term and (in_target is None or _spaced(term) in in_target):
            written += f"{text[end : words[index].start()]}<term> {term} </term>"
            end = words[index + length - 1].end()
        index += length or 1
    return written + text[end:]


def _spaced(text: str) -> str:
    return f" {' '.join(_words().findall(text))} "


@dataclass(frozen=True)
class TermSource(RewrittenSource):
    """A source with target terms of a glossary in a share of its source texts, to train a model that uses them.

        train = tt.recipes.TermSource(tt.sources.TextSource("train.en", "train.de"), glossary)
        ...  # Train on it.
        translator([tt.recipes.annotate("Connect the cable.", glossary)])  # "Connect the <term> Kabel </term>."

    Target terms replace source terms between two symbols, instead of the source factors of Dinu et al. (2019,
    "train-by-replace"). A target text must contain its term as it is in the glossary.

    Attributes:
        source: All pairs.
        glossary: Terms.
        share: Share of the pairs with terms on both sides in which all of them are replaced.
        seed: Random seed, any integer.
    """

    glossary: Glossary
    share: PairShare = 0.5
    seed: Seed = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "symbols", list(dict.fromkeys([*self.source.symbols, "<term>", "</term>"])))

    def describe(self) -> dict[str, Any]:
        checksum = hashlib.sha256(json.dumps(sorted(self.glossary.terms.items())).encode()).hexdigest()
        return {**self.source.describe(), "terms": [checksum, self.share, self.seed]}

    def rewrite(self, source: str, target: str) -> tuple[str, str]:
        if drawn(self.seed, "terms", source, target) >= self.share * 2**53:
            return source, target
        return annotate(source, self.glossary, self.symbols, target), target
