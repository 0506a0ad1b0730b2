"""English constituency parsing (section 6.3): words in, a tree over these words out.

The target is the linearized tree (`treebank.linearised`), whose tokens are control tokens of the tokenizer, with each
word's first subword before its brackets and its tag (`corpus.encoder_of`). Whitespace separates the words of a text.
"(" and "-LRB-" are the same word.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from keras import ops

from tf_transformer.config import BadInput
from tf_transformer.decoding.beams import Hypotheses
from tf_transformer.decoding.primitives import ON_TENSORFLOW, input_signature, width_of, with_rows
from tf_transformer.decoding.search import OPTIONS, FixedShapes, beam_search
from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.decoding.tensor_translator import Immutable, check_length, padded
from tf_transformer.evaluation.bleu import Metric
from tf_transformer.extensions.parsing import evalb, treebank
from tf_transformer.extensions.parsing.constraint import LEAF, Grammar
from tf_transformer.extensions.parsing.corpus import ParserInput, encoder_of, read_texts, subwords_of
from tf_transformer.inference.engine import Engine, Hypothesis, Request, TranslationResult, in_batches
from tf_transformer.inference.translator import Translator
from tf_transformer.masks import PAD_ID
from tf_transformer.models.transformer import Attention
from tf_transformer.tokenizers.strings import split_words, split_words_in_graph
from tf_transformer.tokenizers.tokenizer import EOS_ID, FIRST_ID, UNKNOWN_ID
from tf_transformer.training.tasks import Task
from tf_transformer.utils.files import encoded
from tf_transformer.utils.folders import find_saved_model
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.type_names import Dtype, Folders, Tensor
from tf_transformer.utils.values import MOST, Natural, checked

if TYPE_CHECKING:
    from tf_transformer.serving.contract import Root

tf = lazily("tensorflow", "a SavedModel")

# Options of a search that a parser refuses, since the words determine the tree's length.
UNREAD = ("min_length", "no_repeat_ngram_size")
EXTRA_LENGTH = 300  # maximum number of tokens beyond the source's length (section 6.3)
RUN_OPTIONS = {"length_penalty": 0.3, "extra_length": EXTRA_LENGTH, "patience": math.inf}  # infinite: exact search


class Parser(Immutable, Engine):
    """Parses English sentences. Immutable; call `replace` for a modified copy.

    `parser(["The cat slept ."])` returns `["(TOP (S (NP (DT The) (NN cat)) (VP (VBD slept)) (. .)))"]`. A call returns
    one tree per text and takes no options. If a text has more words than the model reads, the first ones are parsed and
    the others are put under the root, tagged XX.

    Args:
        translator: Translator of texts to linearized trees. Its batch_size and search options apply.
    """

    call_options, translates = (), False
    max_values: Mapping[str, float] = {"n_best": 1}

    @checked
    def __init__(self, translator: Translator) -> None:
        for name, option in SEARCH_OPTIONS.items():
            if name in UNREAD and translator.options.get(name, option.default) != option.default:
                value = translator.options[name]
                raise BadInput(f"{name}: expected {option.default}, since a grammar makes the tree, got {value}")
        if translator.shortlist is not None:
            raise BadInput("shortlist: expected None, since a grammar makes the tree, got a Shortlist")
        self.translator, self.tokenizer = translator, translator.tokenizer
        self.batch_size = translator.batch_size
        self.max_length: int = translator.model.max_length or MOST
        # A word takes at least its first subword and its tag.
        self.max_subwords = min(translator.max_source_length, (self.max_length - 1) // 2)
        tokens = self.tokenizer.control_tokens
        self.grammar = Grammar(tokens, self.tokenizer.vocab_size)
        written = [")" if name[0] == ")" else f" {name}" if name[0] == "(" else f" ({name} " for name in tokens]
        others = self.tokenizer.vocab_size - FIRST_ID - len(tokens)
        self.written = [""] * FIRST_ID + written + [""] * others  # each id's part of a tree

    @classmethod
    def from_pretrained(cls, path: Folders, **options: Any) -> Self:
        """Loads a parser with its Keras model, like `Translator.from_pretrained`. Runs default to `RUN_OPTIONS`."""
        runs = not isinstance(path, str | os.PathLike) or find_saved_model(path) is None
        return cls(Translator.from_pretrained(path, **((RUN_OPTIONS if runs else {}) | options)))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata of an export of this parser."""
        return self.translator.metadata

    @property
    def options(self) -> Mapping[str, Any]:
        """Search options by name."""
        return self.translator.options

    def _described(self) -> str:
        return self.translator._described()

    def replace(self, **changes: Any) -> "Parser":
        """Returns a parser with some of the translator's arguments changed: `parser.replace(beam_size=1)`."""
        return Parser(self.translator.replace(**changes))

    @checked
    def astype(self, dtype: Dtype) -> "Parser":
        """Returns a parser with weights of another dtype, like `Translator.astype`."""
        return Parser(self.translator.astype(dtype))

    def _replies(self, texts: list[str | bytes], request: Request) -> Iterator[TranslationResult]:
        source, outputs = self._search(texts)
        ids, *parts = (part[:, 0].tolist() for part in outputs)
        for i, (score, log_prob, length, finished) in enumerate(zip(*parts, strict=True)):
            tree = self.tree(ids[i][:length], source.words[i], int(source.count[i]))
            best = Hypothesis(tree, score, log_prob, finished, length - finished)
            yield TranslationResult(texts[i], (best,), None, bool(source.truncated[i]))

    def symbols(self, texts: list[str]) -> list[list[str]]:
        """Returns the best line of tokens for each text without the grammar. It may not be a tree."""

        def lines(rows: list[int]) -> Iterator[list[str]]:
            source, outputs = self._search([texts[i] for i in rows], free=True)
            lengths = outputs.lengths[:, 0] - outputs.finished[:, 0]
            for i, length in enumerate(lengths):
                yield self._line(outputs.ids[i, 0, :length].tolist(), source.firsts[i, : source.count[i]].tolist())

        return in_batches(lines, texts, self.batch_size)

    def _line(self, ids: list[int], firsts: list[int]) -> list[str]:
        """Returns the tokens of ids. A missing, wrong or extra word becomes a bracket that closes nothing."""
        names = dict(enumerate(self.tokenizer.control_tokens, FIRST_ID))
        # A word comes first, and after each tag but the last, as in `encoder_of`.
        line, words, word_is_next = [], 0, len(firsts) > 0
        for id in ids:
            if word_is_next and id == firsts[words]:
                words, word_is_next = words + 1, False
                continue
            if word_is_next or id not in names:
                line.append(")")
            if id in names:
                line.append(names[id])
                word_is_next = names[id][0] not in "()" and words < len(firsts)
        return line

    def _search(self, texts: Sequence[str | bytes], free: bool = False) -> tuple[ParserInput, Hypotheses]:
        """Reads texts and returns the best line of tokens for each, as NumPy arrays."""

        def search(columns: Sequence[Tensor]) -> Hypotheses:
            count, firsts, ids, length = columns
            return self._best(ParserInput(None, count, firsts, ids, length, None), free)

        source = self.read(with_rows(texts, self.batch_size))
        columns = [source.count, source.firsts, source.ids, source.length]
        name = "parsed freely" if free else "parsed"
        outputs = self.translator.traced(name, search, **input_signature(columns))(columns)
        return source, Hypotheses(*(ops.convert_to_numpy(part)[: len(texts)] for part in outputs))

    def attention(self, source: str, target: str | None = None) -> Attention:
        """Returns the attention weights of a text and its tree, with their tokens.

        Args:
            source: Words.
            target: A tree in brackets. Defaults to the tree that the search finds.

        Raises:
            BadInput: If there are no words or too many, or if the tree has other words or unknown tokens.
        """
        read = self.read([source])
        if read.truncated[0]:
            raise BadInput(f"expected a sentence of at most {self.translator.max_source_length} tokens, got more")
        check_length("sentence", int(read.length[0]), self.translator.max_source_length)
        if target is None:
            _, outputs = self._search([source])
            return self.translator.attention_of(read.ids, outputs.ids[0, 0, : outputs.lengths[0, 0]].tolist())
        tags = {token for token in self.tokenizer.control_tokens if token[0] not in "()"}
        try:
            tree = treebank.read_tree(target)
        except ValueError as error:
            raise BadInput(f"expected a tree in brackets, got {target!r}") from error
        if len(tree.leaves()) != read.count[0]:
            raise BadInput(f"expected a tree over {int(read.count[0])} words, got one over {len(tree.leaves())}")
        tokens = treebank.linearised(tree, tags != {treebank.NO_TAG})
        if unknown := set(tokens) - set(self.tokenizer.control_tokens):
            raise BadInput(f"expected labels and tags of the parser's trees, got {', '.join(sorted(unknown))}")
        _, (ids,) = encoder_of(self.tokenizer)([encoded(source)], [" ".join(tokens).encode()])
        return self.translator.attention_of(read.ids, self.translator.ended("tree", ids))

    def read(self, texts: Sequence[str | bytes]) -> ParserInput:
        """Reads texts into NumPy arrays, without words beyond max_source_length subwords."""
        words = list(map(split_words, texts))
        rows, firsts, lengths, counts = [], [], [], []
        # A word counts as at least one subword, so longer rows need not be encoded.
        for ids_by_word in subwords_of(self.tokenizer, [row[: self.max_subwords] for row in words]):
            ends = np.cumsum([max(len(ids), 1) for ids in ids_by_word], dtype=np.int32)
            count = int(np.searchsorted(ends, self.max_subwords, side="right"))
            rows.append([*(id for ids in ids_by_word[:count] for id in ids), EOS_ID])
            firsts.append([ids[0] if ids else UNKNOWN_ID for ids in ids_by_word[:count]])
            lengths.append(ends[count - 1] if count else 0)
            counts.append(count)
        width = width_of(rows, self.max_subwords + 1)
        return ParserInput(
            words=words,
            count=np.array(counts, np.int32),
            firsts=padded(firsts, width),
            ids=padded(rows, width),
            length=np.array(lengths, np.int32),
            truncated=np.array(counts, np.int32) < [len(row) for row in words],
        )

    def _best(self, source: ParserInput, free: bool = False) -> Hypotheses:
        """Returns the best line of tokens for each row: a tree, unless the search is `free` from the grammar."""
        fixed = self.translator.fixed_shapes(source.ids, self.translator.beam_size)
        if fixed:
            fixed = FixedShapes(fixed.beams, min(fixed.steps + source.firsts.shape[1], self.max_length))
        start = None if ON_TENSORFLOW else ops.convert_to_tensor(self.tokenizer.start_ids(), "int32")
        problem = self.translator.problem(source.ids, source.length, MOST, start, fixed)
        # The words' own subwords do not count against the extra length.
        max_length = ops.minimum(problem.max_length + source.count, self.max_length)
        allowed = None if free else self.grammar.allowed(source.firsts, source.count, max_length)
        options = {name: self.translator.options[name] for name in OPTIONS}
        return beam_search(problem._replace(max_length=max_length), allowed=allowed, **options)

    def parse(self, text: Tensor) -> tuple[Any, Any, Any]:
        """Parses texts [B] inside a TensorFlow graph.

        Returns:
            Trees, string [B]; scores, float32 [B]; truncated, bool [B]. A text without words has "" and 0.
        """
        source = self.read_in_graph(text)
        outputs = self._best(source)
        return self.trees_in_graph(outputs.ids[:, 0], source), outputs.scores[:, 0], source.truncated

    def read_in_graph(self, text: Tensor) -> ParserInput:
        """Reads texts [B] into tensors, like `read`."""
        words = split_words_in_graph(text)  # [B, None]
        plain = words.flat_values  # [W], the words of all texts
        for name, bracket in treebank.BRACKETS.items():
            plain = tf.strings.regex_replace(plain, name, bracket)
        pieces = words.with_flat_values(self.tokenizer.tokenize(plain))  # [B, None, None]
        by_word = pieces.values  # [W, None]
        # A word of which the normalization leaves nothing still needs a first subword, for its place in the tree.
        unknown = tf.fill([by_word.nrows(), 1], UNKNOWN_ID)
        firsts = pieces.with_values(tf.concat([by_word, unknown], axis=1)[:, :1].flat_values)  # [B, None]
        sizes = tf.maximum(tf.cast(by_word.row_lengths(), tf.int32), 1)  # [W]
        before = tf.gather(tf.concat([[0], tf.cumsum(sizes)], axis=0), words.row_splits)[:-1]  # [B]
        fits = words.with_flat_values(tf.cumsum(sizes)) - before[:, tf.newaxis] <= self.max_subwords
        count = tf.reduce_sum(tf.cast(fits, tf.int32), axis=1)
        ids = tf.ragged.boolean_mask(pieces, fits).merge_dims(1, 2)
        return ParserInput(
            words=words,
            count=count,
            firsts=firsts.to_tensor(),
            ids=tf.concat([ids, tf.fill([ids.nrows(), 1], EOS_ID)], axis=1).to_tensor(PAD_ID),
            length=tf.reduce_sum(tf.ragged.boolean_mask(words.with_flat_values(sizes), fits), axis=1),
            truncated=count < tf.cast(words.row_lengths(), tf.int32),
        )

    def trees_in_graph(self, ids: Tensor, source: ParserInput) -> Any:
        """Converts ids [B, L] of well-formed lines to trees [B], like `tree`."""
        words = source.words
        for pattern, replacement in treebank.ESCAPES:
            words = tf.strings.regex_replace(words, pattern, replacement)
        is_leaf = tf.gather(self.grammar.kinds, ids) == LEAF
        # A tag's word is the one that has as many tags before it.
        index = tf.maximum(tf.cumsum(tf.cast(is_leaf, tf.int32), axis=1) - 1, 0)  # [B, L]
        dense = tf.pad(words.to_tensor(""), [[0, 0], [0, 1]])
        word = tf.gather(dense, index, batch_dims=1)  # [B, L]
        names = tf.gather(self.written, ids)
        inner = tf.strings.reduce_join(tf.where(is_leaf, tf.strings.join([names, word, ")"]), names), axis=1)
        is_omitted = tf.ragged.range(tf.cast(words.row_lengths(), tf.int32)) >= source.count[:, tf.newaxis]
        omitted = tf.strings.join([f" ({treebank.NO_TAG} ", tf.ragged.boolean_mask(words, is_omitted), ")"])
        tree = tf.strings.join([f"({treebank.ROOT}", inner, tf.strings.reduce_join(omitted, axis=1), ")"])
        return tf.where(source.count > 0, tree, "")

    @checked
    def tree(self, ids: Sequence[int], words: Sequence[str], count: Natural) -> str:
        """Converts ids of a well-formed line over the first `count` words to a tree. Others are put under the root."""
        if not count:
            return ""
        spelled = [treebank.escaped(word) for word in words]
        leaves = iter(spelled)
        parts = [self.written[id] + (f"{next(leaves)})" if self.grammar.kinds[id] == LEAF else "") for id in ids]
        omitted = [f" ({treebank.NO_TAG} {word})" for word in spelled[count:]]
        return "".join([f"({treebank.ROOT}", *parts, *omitted, ")"])

    @checked
    def save(self, path: str | os.PathLike[str], checked: bool = False, **metadata: Any) -> None:
        """Writes a SavedModel of the serving contract (savedmodels/README.md), like `serving.saving`."""
        from tf_transformer.serving import saving

        saving.save_export(self.export(**metadata), path, checked)

    def export(self, **metadata: Any) -> "Root":
        """Returns the export that `save` writes, with `metadata` as additional values of its `model_info`."""
        from tf_transformer.serving.contract import Root, Signature

        model, metadata = self.translator.model.merged(), self.translator.export_options | metadata
        parser = self if model is self.translator.model else self.replace(model=model)

        def parse(text: Tensor) -> Any:
            tree, score, truncated = parser.parse(tf.ensure_shape(text, [None]))
            return {"tree": tree, "score": score, "truncated": truncated}

        signatures = [Signature(name, parse) for name in ("serving_default", "parse")]
        # The graph fixes the options of its search.
        fixed = {name: value for name, value in self.options.items() if name not in UNREAD}
        return Root(model, self.tokenizer, signatures, {"serving_default": {}, "parse": {}}, **metadata, **fixed)


def _f1(outputs: Sequence[str], references: Sequence[str]) -> evalb.Score:
    return evalb.total(map(treebank.read_tree, references), map(treebank.read_tree, outputs))


GREEDY: dict[str, Any] = {"beam_size": 1, "length_penalty": 0.0, "extra_length": EXTRA_LENGTH}
PARSING = Task(
    Metric("F1", lambda outputs, _, references: _f1(outputs, references)),
    read_texts,
    lambda outputs, references: {"F1": _f1(outputs, references)},
    lambda model, tokenizer: Parser(Translator(model, tokenizer, **GREEDY)),
    Parser,
    lambda tokenizer: bool(tokenizer.control_tokens),
    RUN_OPTIONS,
)
