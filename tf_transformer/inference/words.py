"""Words of a text, and their alignment with those of its translation."""

import collections
import functools
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

SPACE = "▁"  # SentencePiece's word boundary
Span = tuple[int, int]  # first character and the one after the last


class Aligned(NamedTuple):
    """A text, its best output, and the source token of highest attention for each token of the output."""

    source: str
    text: str
    source_tokens: Sequence[str] = ()  # the language's, if there is one, and the text's without EOS
    tokens: Sequence[str] = ()
    links: Sequence[int] = ()  # for each token an index into `source_tokens`, or one past them for EOS
    truncated: bool = False  # whether the source has more tokens than the model reads
    length: int | None = None  # source tokens before truncation

    @property
    def words(self) -> tuple[list[str], list[str], list[tuple[int, int]]]:
        """Words of the source, words of the output, and pairs of their indices, by most of a word's tokens."""
        source, output = words_of(self.source), words_of(self.text)
        pairs = [(link, index) for index, link in enumerate(word_links(self)) if link is not None]
        return [self.source[a:b] for a, b in source], [self.text[a:b] for a, b in output], pairs


def word_links(aligned: Aligned) -> list[int | None]:
    """Returns for each output word the index of its source word. Without tokens, words align by position."""
    source, output = words_of(aligned.source), words_of(aligned.text)
    if not aligned.tokens or not source:
        return [index * len(source) // len(output) if source else None for index in range(len(output))]
    votes = [collections.Counter[int]() for _ in output]
    of_source = _words_of_tokens(aligned.source_tokens, aligned.source, source)
    of_output = _words_of_tokens(aligned.tokens, aligned.text, output)
    for index, link in zip(of_output, aligned.links, strict=True):
        word = of_source[link] if link < len(of_source) else None
        if index is not None and word is not None:
            votes[index][word] += 1
    return [vote.most_common(1)[0][0] if vote else None for vote in votes]


@functools.cache
def _word() -> re.Pattern[str]:
    """Matches a word with its apostrophes and hyphens, a Chinese or Japanese character, or a punctuation mark."""
    signs = "".join(re.escape(c) for c in map(chr, range(0x10000)) if unicodedata.category(c)[0] in "PS")
    wide = "\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    letters = rf"[^\s{signs}{wide}]+"
    return re.compile(rf"{letters}(?:['\u2019\-]{letters})*|[{wide}]|\S")


def words_of(text: str) -> list[Span]:
    """Returns the spans of a text's words and punctuation marks."""
    return [match.span() for match in _word().finditer(text)]


def _words_of_tokens(tokens: Sequence[str], text: str, words: Sequence[Span]) -> list[int | None]:
    """Returns for each token the index of the word that holds the middle of its characters."""
    pieces = [token.removeprefix(SPACE) if not token.startswith("<") else "?" for token in tokens]
    # Normalization may change the number of characters, so positions are scaled between two spaces, or over the whole
    # text if it changed the number of spaces.
    groups = list[list[int]]()
    for index, token in enumerate(tokens):
        if token.startswith(SPACE) or not groups:
            groups.append([])
        groups[-1].append(index)
    parts = [match.span() for match in re.finditer(r"\S+", text)]
    if len(groups) != len(parts):
        groups, parts = [list(range(len(tokens)))], [(0, len(text))]
    indices: list[int | None] = [None] * len(tokens)
    for group, (start, end) in zip(groups, parts, strict=True):
        characters = [i for i in range(start, end) if not text[i].isspace()]
        total, seen = sum(len(pieces[index]) for index in group), 0
        for index in group:
            if pieces[index] and characters:
                middle = characters[int((seen + len(pieces[index]) / 2) / total * len(characters))]
                indices[index] = next((i for i, (first, last) in enumerate(words) if first <= middle < last), None)
            seen += len(pieces[index])
    return indices
