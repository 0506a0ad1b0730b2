"""Which words of an output belong to which words of its source."""

import collections
import functools
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

SPACE = "▁"  # in a token of SentencePiece
Span = tuple[int, int]  # of a text's characters, the second one not included


class Aligned(NamedTuple):
    """A text, its best output, and the source token that each token of the output attended to the most."""

    source: str
    text: str
    source_tokens: Sequence[str] = ()  # without the end symbol; after the language's, if it has one
    tokens: Sequence[str] = ()
    links: Sequence[int] = ()  # of each token, a place in `source_tokens`, or after them: the end symbol
    truncated: bool = False  # the source has more tokens than the model reads
    length: int | None = None  # the source's tokens, before the cut

    @property
    def words(self) -> tuple[list[str], list[str], list[tuple[int, int]]]:
        """The words of the source, those of the output, and pairs of their places: the word of the source that most of
        a word's tokens attended to."""
        source, output = words_of(self.source), words_of(self.text)
        pairs = [(link, place) for place, link in enumerate(self.word_links()) if link is not None]
        return [self.source[a:b] for a, b in source], [self.text[a:b] for a, b in output], pairs

    def word_links(self) -> list[int | None]:
        """Of each word of the output, the place of the word of the source that it belongs to. Without tokens it goes by
        the place alone."""
        source, output = words_of(self.source), words_of(self.text)
        if not self.tokens or not source:
            return [place * len(source) // len(output) if source else None for place in range(len(output))]
        votes = [collections.Counter[int]() for _ in output]
        of_source = _words_of_tokens(self.source_tokens, self.source, source)
        of_output = _words_of_tokens(self.tokens, self.text, output)
        for place, link in zip(of_output, self.links, strict=True):
            word = of_source[link] if link < len(of_source) else None
            if place is not None and word is not None:
                votes[place][word] += 1
        return [vote.most_common(1)[0][0] if vote else None for vote in votes]


@functools.cache
def _word() -> re.Pattern[str]:
    """A word, with apostrophes and hyphens in it, a character of Chinese or Japanese, or a punctuation mark."""
    signs = "".join(re.escape(c) for c in map(chr, range(0x10000)) if unicodedata.category(c)[0] in "PS")
    wide = "\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    letters = rf"[^\s{signs}{wide}]+"
    return re.compile(rf"{letters}(?:['\u2019\-]{letters})*|[{wide}]|\S")


def words_of(text: str) -> list[Span]:
    """The places of a text's words and of its punctuation marks."""
    return [match.span() for match in _word().finditer(text)]


def _words_of_tokens(tokens: Sequence[str], text: str, words: Sequence[Span]) -> list[int | None]:
    """Of each token the place of its word: the one that has the middle of the token's characters.

    Normalization may have changed the number of characters; then places are scaled, between spaces if these are as many
    in both.
    """
    pieces = [token.removeprefix(SPACE) if not token.startswith("<") else "?" for token in tokens]
    groups = list[list[int]]()
    for place, token in enumerate(tokens):
        if token.startswith(SPACE) or not groups:
            groups.append([])
        groups[-1].append(place)
    parts = [match.span() for match in re.finditer(r"\S+", text)]
    if len(groups) != len(parts):
        groups, parts = [list(range(len(tokens)))], [(0, len(text))]
    found: list[int | None] = [None] * len(tokens)
    for group, (start, end) in zip(groups, parts, strict=True):
        characters = [i for i in range(start, end) if not text[i].isspace()]
        total, seen = sum(len(pieces[place]) for place in group), 0
        for place in group:
            if pieces[place] and characters:
                middle = characters[int((seen + len(pieces[place]) / 2) / total * len(characters))]
                found[place] = next((i for i, (first, last) in enumerate(words) if first <= middle < last), None)
            seen += len(pieces[place])
    return found
