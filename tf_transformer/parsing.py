"""English constituency parsing (section 6.3): words in, a tree over these words out.

The target is the tree as a line of symbols (`treebank.linearised`); these are the tokenizer's `symbols`, which no text
is made of. Words are what white space separates in the text; "(" and "-LRB-" are the same word there.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tf_transformer.config import BadInput
from tf_transformer.masks import PAD_ID
from tf_transformer.search import Hypotheses, beam_search
from tf_transformer.serving.export import ParserExport
from tf_transformer.serving.publish import save_export
from tf_transformer.tokenizer import EOS_ID, FIRST_ID, Tokenizer, valid_text
from tf_transformer.translator import Translator, by_batch
from tf_transformer.treebank import BRACKETS, NO_TAG, ROOT

MOST_OPEN = 16  # opening brackets in a row; treebanks have 8
OTHER, LEAF, OPEN, CLOSE, END = range(5)  # kinds of symbols


def target_ids(tokenizer: Tokenizer) -> Callable:
    """For `data.token_batches`: linearised trees, symbols with spaces between them, [B] to ragged ids [B, None]."""
    return lambda lines: tokenizer.ids(tf.strings.join([" ", tf.strings.split(lines)]))


class Grammar:
    """Which lines of symbols are trees over n words: it knows what may follow the beginning of one.

    A closing bracket closes the innermost open constituent, which is not empty and has its label; as many leaves as
    words; nothing is open at the end, and there is always room to reach it.

    Args:
        symbols: of the tokenizer.
        vocab_size: V.
    """

    def __init__(self, symbols: list[str], vocab_size: int):
        ids = {symbol: FIRST_ID + i for i, symbol in enumerate(symbols)}
        kinds = [OTHER] * vocab_size
        closing = [-1] * vocab_size  # by opening bracket
        kinds[EOS_ID] = END
        for symbol, id in ids.items():
            kinds[id] = {"(": OPEN, ")": CLOSE}.get(symbol[0], LEAF)
            if kinds[id] == OPEN:
                closing[id] = ids.get(f"){symbol[1:]}", -1)
        if LEAF not in kinds or any(kind == OPEN and other < 0 for kind, other in zip(kinds, closing, strict=True)):
            raise BadInput(f"expected the symbols of trees, each opening bracket with its closing one, got {symbols}")
        self.kinds, self.closing = tf.constant(kinds), tf.constant(closing)

    def allowed(self, words, max_length) -> Callable:
        """For `search.beam_search(allowed=...)`.

        Args:
            words: int32 [B], how many there are in each row.
            max_length: int32 [B], more than `words` where there are words.
        """

        def allowed(ids, position, row):
            kinds = tf.gather(self.kinds, ids)  # [B, K, L]; after `position` all is OTHER
            opens = kinds == OPEN
            depths = tf.cumsum(_count(opens) - _count(kinds == CLOSE), axis=2)
            depth = depths[:, :, -1]  # [B, K]
            leaves = tf.reduce_sum(_count(kinds == LEAF), axis=2)
            innermost = _last(opens & (depths == depth[:, :, tf.newaxis]))  # place of the innermost open bracket
            closing = tf.gather(self.closing, tf.gather(ids, tf.maximum(innermost, 0), batch_dims=2))
            newest = position - 1 - _last((kinds != OTHER) & ~opens)  # opening brackets at the end
            left = tf.gather(words, row)[:, tf.newaxis] - leaves
            room = tf.gather(max_length, row)[:, tf.newaxis] - position - 1  # after the symbol that comes now
            may = {
                OTHER: tf.zeros_like(left, tf.bool),
                LEAF: left > 0,
                OPEN: (left > 0) & (newest < MOST_OPEN) & (left + depth + 2 <= room),
                CLOSE: tf.zeros_like(left, tf.bool),  # but one
                END: (left == 0) & (depth == 0),
            }
            may_follow = tf.gather(tf.stack([may[kind] for kind in sorted(may)], axis=2), self.kinds, axis=2)
            may_close = ((depth > 0) & (newest == 0))[:, :, tf.newaxis]
            this = tf.range(tf.size(self.kinds)) == closing[:, :, tf.newaxis]  # [B, K, V]
            return may_follow | (may_close & this)

        return allowed


def _count(condition):
    return tf.cast(condition, tf.int32)


def _last(condition):
    """The last place where condition [B, K, L] holds, or -1: int32 [B, K]."""
    places = tf.range(tf.shape(condition)[2])
    return tf.reduce_max(tf.where(condition, places, -1), axis=2)


EXTRA_LENGTH = 300  # section 6.3: so many symbols more than the source at most


class Source(NamedTuple):
    """Texts as words, and as the encoder reads them."""

    words: tf.RaggedTensor  # string [B, None], all of them
    count: tf.Tensor  # int32 [B], the words that are parsed, the first ones
    ids: tf.Tensor  # int32 [B, S], of these words, EOS at the end
    length: tf.Tensor  # int32 [B], how many ids, without EOS; at least one a word
    truncated: tf.Tensor  # bool [B], there are more words


class Parsed(NamedTuple):
    """The parse of a text."""

    tree: str  # in one line of brackets
    score: float  # log-probability / length penalty
    truncated: bool  # only the first words were parsed; the others stand under the root, tagged XX


class Parser:
    """parser(["The cat slept ."]) -> ["(TOP (S (NP (DT The) (NN cat)) (VP (VBD slept)) (. .)))"].

    Args:
        translator: of texts to linearised trees; its beam size, α, extra_length, max_source_length and batch_size hold.
    """

    def __init__(self, translator: Translator):
        self.translator = translator
        self.tokenizer = translator.tokenizer
        self.grammar = Grammar(self.tokenizer.symbols, self.tokenizer.vocab_size)
        names = self.tokenizer.symbols
        written = [")" if name[0] == ")" else f" {name}" if name[0] == "(" else f" ({name} " for name in names]
        after = self.tokenizer.vocab_size - FIRST_ID - len(names)
        self._written = tf.constant([""] * FIRST_ID + written + [""] * after)
        texts = tf.TensorSpec([None], tf.string)
        self._parse = tf.function(self.parse, input_signature=[texts])
        self._free = tf.function(self._search_freely, input_signature=[texts])

    @classmethod
    def from_run(cls, path, average_last: int = 5, **options) -> "Parser":
        """Of what a run of trainers.parsing has learned, with α and extra_length of section 6.3 if not given; see
        `Translator.from_run`."""
        return cls(Translator.from_run(path, average_last, **({"alpha": 0.3, "extra_length": EXTRA_LENGTH} | options)))

    def __call__(self, texts):
        """The tree of each text. A string gives a string, a list a list."""
        if isinstance(texts, str):
            return self([texts])[0]
        return [parsed.tree for parsed in self.parses(texts)]

    def parses(self, texts: list[str]) -> list[Parsed]:
        """The tree of each text, with its score."""
        rows = by_batch(self._parse, [texts], self.translator.batch_size)
        return [Parsed(tree.decode(), score, truncated) for tree, score, truncated in rows]

    def symbols(self, texts: list[str]) -> list[list[str]]:
        """What is found for each text without the grammar: a line of symbols that may be no tree."""
        names = dict(enumerate(self.tokenizer.symbols, FIRST_ID))
        # A piece of text closes nothing: that is ill-formed, and is left out by the repair.
        return [
            [names.get(id, ")") for id in ids[: length - finished]]
            for ids, length, finished in by_batch(self._free, [texts], self.translator.batch_size)
        ]

    def _search_freely(self, text):
        _, start = self._start(text)
        found = self._search(start)
        return found.ids[:, 0], found.lengths[:, 0], found.finished[:, 0]

    def source(self, text) -> Source:
        """Texts [B] as words and as the encoder reads them. Words whose pieces are too many in all are left out."""
        # White space and control characters of all kinds separate words, as they do where trees are read.
        words = tf.strings.split(tf.strings.regex_replace(valid_text(text), r"[\p{Z}\p{Cc}]+", " "))
        plain = words.flat_values
        for name, bracket in BRACKETS.items():
            plain = tf.strings.regex_replace(plain, f"^{name}$", bracket)
        pieces = words.with_flat_values(self.tokenizer.tokenize(plain))  # [B, None, None]
        sizes = tf.maximum(tf.cast(pieces.values.row_lengths(), tf.int32), 1)
        before = tf.gather(tf.concat([[0], tf.cumsum(sizes)], axis=0), words.row_splits)[:-1]
        ends = words.with_flat_values(tf.cumsum(sizes)) - before[:, tf.newaxis]
        fits = ends <= self.translator.max_source_length
        count = tf.reduce_sum(tf.cast(fits, tf.int32), axis=1)
        ids = tf.ragged.boolean_mask(pieces, fits).merge_dims(1, 2)
        return Source(
            words=words,
            count=count,
            ids=tf.concat([ids, tf.fill([ids.nrows(), 1], EOS_ID)], axis=1).to_tensor(PAD_ID),
            length=tf.reduce_sum(tf.ragged.boolean_mask(words.with_flat_values(sizes), fits), axis=1),
            truncated=count < tf.cast(words.row_lengths(), tf.int32),
        )

    def parse(self, text):
        """Texts [B] to trees string [B], scores float32 [B] and truncated bool [B]; of no words, "" and 0."""
        source, start = self._start(text)
        allowed = self.grammar.allowed(source.count, start["max_length"])
        found = self._search(start, allowed)
        return self.trees(found.ids[:, 0], source), found.scores[:, 0], source.truncated

    def _start(self, text):
        source = self.source(text)
        return source, self.translator.start(source.ids, source.length, tf.int32.max)

    def _search(self, start, allowed=None) -> Hypotheses:
        return beam_search(**start, beam_size=self.translator.beam_size, alpha=self.translator.alpha, allowed=allowed)

    def trees(self, ids, source: Source) -> tf.Tensor:
        """Ids of well-formed lines of symbols [B, L] as trees [B]."""
        words = tf.strings.regex_replace(tf.strings.regex_replace(source.words, r"\(", "-LRB-"), r"\)", "-RRB-")
        is_leaf = tf.gather(self.grammar.kinds, ids) == LEAF
        place = tf.maximum(tf.cumsum(_count(is_leaf), axis=1) - 1, 0)
        dense = tf.pad(words.to_tensor(""), [[0, 0], [0, 1]])
        word = tf.gather(dense, place, batch_dims=1)  # [B, L]
        names = tf.gather(self._written, ids)
        inner = tf.strings.reduce_join(tf.where(is_leaf, tf.strings.join([names, word, ")"]), names), axis=1)
        is_left = tf.ragged.range(tf.cast(words.row_lengths(), tf.int32)) >= source.count[:, tf.newaxis]
        left = tf.strings.join([f" ({NO_TAG} ", tf.ragged.boolean_mask(words, is_left), ")"])
        tree = tf.strings.join([f"({ROOT}", inner, tf.strings.reduce_join(left, axis=1), ")"])
        return tf.where(source.count > 0, tree, "")

    def save(self, path, checked: bool = False, **facts) -> None:
        """Write a SavedModel of the serving contract (savedmodels/README.md), as `serving.publish.save_export` does."""
        save_export(ParserExport(self, **facts), path, checked)
