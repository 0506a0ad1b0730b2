"""What a parser learns from, as ids: the words of a text, and a tree's line of symbols with each word's first piece."""

import itertools
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

from tf_transformer.data.pairs import Encode
from tf_transformer.extensions.parsing.treebank import with_brackets
from tf_transformer.tokenizers.strings import utf8
from tf_transformer.tokenizers.tokenizer import FIRST_ID, UNKNOWN_ID, Tokenizer

MAX_LENGTH = 512  # tokens a side to train on, EOS included
SEPARATORS = ("Zs", "Zl", "Zp", "Cc")  # white space and control characters, as where trees are read


class Source(NamedTuple):
    """Texts as words and as ids for the encoder; zeros follow shorter rows."""

    words: Any  # string [B, None], all of them as they stand in the text
    count: Any  # int32 [B], the words that are parsed, the first ones
    firsts: Any  # int32 [B, N], the first piece of each word
    ids: Any  # int32 [B, S], of these words, EOS at the end
    length: Any  # int32 [B], how many ids, without EOS; at least one a word
    truncated: Any  # bool [B], the text has more words


def encoder_of(tokenizer: Tokenizer) -> Encode:
    """A function from texts, and linearised trees with spaces between their symbols, to the ids of each.

    Each word's first piece comes before its brackets and its symbol.
    """
    symbols = {symbol: FIRST_ID + place for place, symbol in enumerate(tokenizer.controls)}

    def ids(texts: Sequence[bytes], lines: Sequence[bytes]) -> tuple[list[list[int]], list[list[int]]]:
        words = [words_of(text) for text in texts]
        pieces = iter(tokenizer.encode([word for of_text in words for word in of_text]))
        by_word = [[next(pieces) for _ in of_text] for of_text in words]
        targets = []
        for of_words, line in zip(by_word, lines, strict=True):
            firsts = [word[0] if word else UNKNOWN_ID for word in of_words]
            target, following = firsts[:1], iter(firsts[1:])
            for symbol in line.decode().split():
                target.append(symbols.get(symbol, UNKNOWN_ID))
                if symbol[0] not in "()":  # of a word; the next word's first piece, if there is one
                    target += itertools.islice(following, 1)
            targets.append(target)
        return [[id for word in of_words for id in word] for of_words in by_word], targets

    return ids


def words_of(text: bytes) -> list[str]:
    """The words of a text; a bracket and its name in a treebank are the same word."""
    return [with_brackets(word) for word in written_words(text)]


def written_words(text: bytes) -> list[str]:
    """The words of a text, as they stand in it."""
    plain = "".join(" " if unicodedata.category(one) in SEPARATORS else one for one in utf8(text))
    return [word for word in plain.split(" ") if word]
