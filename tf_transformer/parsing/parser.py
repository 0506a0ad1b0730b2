"""English constituency parsing (section 6.3): words in, a tree over these words out.

The target is the tree as a line of symbols (`treebank.linearised`), the control symbols of the tokenizer. Each word's
first piece comes before its brackets and its symbol. It tells the decoder which word comes next, so the decoder need
not count words. White space separates the words of a text; "(" and "-LRB-" are the same word.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from tf_transformer.base.files import encoded
from tf_transformer.base.folders import find_saved_model
from tf_transformer.base.lazy import lazily
from tf_transformer.base.type_names import Dtype, Folders, Tensor
from tf_transformer.base.values import MOST, checked
from tf_transformer.config import BadInput
from tf_transformer.engines.engine import Answer, Engine, Reply, Request, in_batches
from tf_transformer.engines.translator import Translator
from tf_transformer.masks import PAD_ID
from tf_transformer.model import Attention
from tf_transformer.parsing.constraint import LEAF, Grammar
from tf_transformer.parsing.treebank import BRACKETS, ESCAPES, NO_TAG, ROOT, linearised, read_tree
from tf_transformer.parsing.words import encoder_of
from tf_transformer.text.search_options import SEARCH_OPTIONS
from tf_transformer.text.text_model import SetOnce, check_length
from tf_transformer.text.tokenizer import EOS_ID, FIRST_ID, UNKNOWN_ID, Tokenizer, text_tensor, valid_text

if TYPE_CHECKING:
    import tensorflow as tf

    from tf_transformer.exports import contract, savedmodel
    from tf_transformer.text import beams, search
else:
    tf, search = (lazily(name, "parsing") for name in ("tensorflow", "tf_transformer.text.search"))
    contract, savedmodel = (
        lazily(f"tf_transformer.exports.{name}", "a SavedModel") for name in ("contract", "savedmodel")
    )


def word_pieces(tokenizer: Tokenizer, texts: Tensor) -> "tuple[tf.RaggedTensor, tf.RaggedTensor]":
    """The words of texts [B], string [B, None], and the ids of their pieces [B, None, None]."""
    # White space and control characters of all kinds separate words, as they do where trees are read.
    words = tf.strings.split(tf.strings.regex_replace(valid_text(texts), r"[\p{Z}\p{Cc}]+", " "))
    plain = words.flat_values
    for name, bracket in BRACKETS.items():
        plain = tf.strings.regex_replace(plain, name, bracket)
    return words, words.with_flat_values(tokenizer.tokenize(plain))


def first_pieces(pieces: Tensor) -> "tf.RaggedTensor":
    """The first piece of each word, or the unknown id: ids [B, None, None] to [B, None]."""
    by_word = pieces.values
    unknown = tf.fill([by_word.nrows(), 1], UNKNOWN_ID)
    return pieces.with_values(tf.concat([by_word, unknown], axis=1)[:, :1].flat_values)


EXTRA_LENGTH = 300  # section 6.3: the most symbols beyond the source's length


class Source(NamedTuple):
    """Texts as words and as ids for the encoder."""

    words: Any  # string [B, None], all of them
    count: Any  # int32 [B], the words that are parsed, the first ones
    firsts: Any  # int32 [B, N], the first piece of each word
    ids: Any  # int32 [B, S], of these words, EOS at the end
    length: Any  # int32 [B], how many ids, without EOS; at least one a word
    truncated: Any  # bool [B], the text has more words


class Parser(SetOnce, Engine):
    """Parses English sentences. A parser does not change: `replace` gives another one.

    parser(["The cat slept ."]) gives ["(TOP (S (NP (DT The) (NN cat)) (VP (VBD slept)) (. .)))"]. A call gives one tree
    of a text, and takes no options. Of a text with more words than the model reads the first ones are parsed; the
    others stand under the root, tagged XX.

    Args:
        translator: of texts to linearised trees; its batch_size and its options of the search apply.
    """

    changeable = ()
    highest: Mapping[str, float] = {"n_best": 1}

    @checked
    def __init__(self, translator: Translator) -> None:
        for name, option in SEARCH_OPTIONS.items():
            if not option.parser and translator.options.get(name, option.default) != option.default:
                value = translator.options[name]
                raise BadInput(f"{name}: expected {option.default}, since a grammar makes the tree, got {value}")
        self.translator = translator
        self.tokenizer = translator.tokenizer
        config = translator.model.config
        self.max_length: int = config.max_length if config.positions == "learned" else MOST
        self.grammar = Grammar(self.tokenizer.controls, self.tokenizer.vocab_size)
        names = self.tokenizer.controls
        written = [")" if name[0] == ")" else f" {name}" if name[0] == "(" else f" ({name} " for name in names]
        after = self.tokenizer.vocab_size - FIRST_ID - len(names)
        self._written = [""] * FIRST_ID + written + [""] * after

    @classmethod
    def from_pretrained(cls, path: Folders, **options: Any) -> Self:
        """A parser with its Keras model; see `Translator.from_pretrained`. The defaults of a run are section 6.3's
        length_penalty (α) and extra_length, and an exact search."""
        own = {"length_penalty": 0.3, "extra_length": EXTRA_LENGTH, "patience": math.inf}
        runs = not isinstance(path, str | os.PathLike) or find_saved_model(path) is None
        return cls(Translator.from_pretrained(path, **((own if runs else {}) | options)))

    @property
    def facts(self) -> Mapping[str, Any]:
        """What an export would say of it."""
        return self.translator.facts

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the search, by name."""
        return self.translator.options

    @property
    def batch_size(self) -> int:  # type: ignore[override]
        """Texts a batch."""
        return self.translator.batch_size

    def replace(self, **changes: Any) -> "Parser":
        """Another parser, with some arguments of this one's translator changed: `parser.replace(beam_size=1)`."""
        return Parser(self.translator.replace(**changes))

    @checked
    def astype(self, dtype: Dtype) -> "Parser":
        """As `Translator.astype`."""
        return Parser(self.translator.astype(dtype))

    def _replies(self, texts: list[str | bytes], request: Request) -> Iterator[Reply]:
        rows = self._rows(self._parsed, texts)
        for source, (tree, score, log_prob, finished, symbols, truncated) in zip(texts, rows, strict=True):
            answer = Answer(tree.decode(), score, log_prob, finished, symbols - finished)
            yield Reply(source, (answer,), None, truncated)

    def _parsed(self, text: Tensor) -> Any:
        source, problem = self._problem(text)
        found = self._search(problem, source)
        best = (part[:, 0] for part in (found.scores, found.log_probs, found.finished, found.lengths))
        return self.trees(found.ids[:, 0], source), *best, source.truncated

    def symbols(self, texts: list[str]) -> list[list[str]]:
        """The best line of symbols for each text without the grammar; it may be no tree."""
        rows = in_batches(
            lambda places: self._rows(self._search_freely, [texts[i] for i in places]), texts, self.batch_size
        )
        return [self._line(ids[: length - finished], firsts[:count]) for ids, length, finished, firsts, count in rows]

    def _rows(self, function: Callable[..., Any], texts: Sequence[str | bytes]) -> Iterator[Any]:
        """The rows of what a function of texts [B] returns."""
        name, signature = f"parser {function.__name__}", [tf.TensorSpec([None], tf.string)]
        parts = self.translator.traced(name, function, input_signature=signature)(text_tensor(list(texts)))
        return zip(*(part.numpy().tolist() for part in parts), strict=True)

    def _line(self, ids: Tensor, firsts: Tensor) -> list[str]:
        """The symbols of ids. A missing, wrong or extra word adds a bracket that closes nothing."""
        names = dict(enumerate(self.tokenizer.controls, FIRST_ID))
        line, words, now = [], 0, len(firsts) > 0
        for id in ids:
            if now and id == firsts[words]:
                words, now = words + 1, False
                continue
            if now or id not in names:
                line.append(")")
            if id in names:
                line.append(names[id])
                now = names[id][0] not in "()" and words < len(firsts)
        return line

    def _search_freely(self, text: Tensor) -> Any:
        source, problem = self._problem(text)
        found = self._search(problem)
        return found.ids[:, 0], found.lengths[:, 0], found.finished[:, 0], source.firsts, source.count

    def attention(self, source: str, target: str | None = None) -> Attention:
        """The attention weights of a text and its tree, with their tokens.

        Args:
            source: words.
            target: a tree in brackets; `None` means the tree that the search finds.

        Raises:
            BadInput: there are no words, or too many; or the tree has symbols that the tokenizer lacks.
        """
        read, problem = self._problem(text_tensor([source]))
        if read.truncated[0]:
            raise BadInput(f"expected a sentence of at most {self.translator.max_source_length} tokens, got more")
        check_length("sentence", int(read.length[0]), self.translator.max_source_length)
        if target is None:
            found = self._search(problem, read)
            return self.translator.attention_of(read.ids, found.ids[:, 0, : int(found.lengths[0, 0])])
        tags = {symbol for symbol in self.tokenizer.controls if symbol[0] not in "()"}
        try:
            tree = read_tree(target)
        except ValueError as error:
            raise BadInput(f"expected a tree in brackets, got {target!r}") from error
        if len(tree.leaves()) != read.count[0]:
            raise BadInput(f"expected a tree over {int(read.count[0])} words, got one over {len(tree.leaves())}")
        symbols = linearised(tree, tags != {NO_TAG})
        unknown = set(symbols) - set(self.tokenizer.controls)
        if unknown:
            raise BadInput(f"expected a tree of symbols that the parser knows, got {', '.join(sorted(unknown))}")
        _, ids = encoder_of(self.tokenizer)([encoded(source)], [" ".join(symbols).encode()])
        return self.translator.attention_of(read.ids, self.translator.ended("tree", tf.ragged.constant(ids, tf.int32)))

    def source(self, text: Tensor) -> Source:
        """Texts [B] as words and ids. Words beyond max_source_length pieces are left out."""
        words, pieces = word_pieces(self.tokenizer, text)
        sizes = tf.maximum(tf.cast(pieces.values.row_lengths(), tf.int32), 1)
        before = tf.gather(tf.concat([[0], tf.cumsum(sizes)], axis=0), words.row_splits)[:-1]
        ends = words.with_flat_values(tf.cumsum(sizes)) - before[:, tf.newaxis]
        fits = ends <= min(self.translator.max_source_length, (self.max_length - 1) // 2)
        count = tf.reduce_sum(tf.cast(fits, tf.int32), axis=1)
        ids = tf.ragged.boolean_mask(pieces, fits).merge_dims(1, 2)
        return Source(
            words=words,
            count=count,
            firsts=first_pieces(pieces).to_tensor(),
            ids=tf.concat([ids, tf.fill([ids.nrows(), 1], EOS_ID)], axis=1).to_tensor(PAD_ID),
            length=tf.reduce_sum(tf.ragged.boolean_mask(words.with_flat_values(sizes), fits), axis=1),
            truncated=count < tf.cast(words.row_lengths(), tf.int32),
        )

    def parse(self, text: Tensor) -> "tuple[tf.Tensor, tf.Tensor, tf.Tensor]":
        """Texts [B] to trees, string [B], scores, float32 [B], and truncated, bool [B]. A text without words gives ""
        and 0."""
        source, problem = self._problem(text)
        found = self._search(problem, source)
        return self.trees(found.ids[:, 0], source), found.scores[:, 0], source.truncated

    def _problem(self, text: Tensor) -> "tuple[Source, search.SearchProblem]":
        source = self.source(text)
        problem = self.translator.problem(source.ids, source.length, MOST)
        most = tf.minimum(problem.max_length + source.count, self.max_length)  # the words themselves do not count
        return source, problem._replace(max_length=most)

    def _search(self, problem: "search.SearchProblem", source: Source | None = None) -> "beams.Hypotheses":
        """Search; with a source, under the grammar."""
        allowed = source and self.grammar.allowed(source.firsts, source.count, problem.max_length)
        options = {name: self.translator.options[name] for name in search.OPTIONS}
        return search.beam_search(problem, allowed=allowed, **options)

    def trees(self, ids: Tensor, source: Source) -> "tf.Tensor":
        """Ids [B, L] of well-formed lines of symbols, as trees [B]."""
        words = source.words
        for pattern, replacement in ESCAPES:
            words = tf.strings.regex_replace(words, pattern, replacement)
        is_leaf = tf.gather(self.grammar.kinds, ids) == LEAF
        place = tf.maximum(tf.cumsum(tf.cast(is_leaf, tf.int32), axis=1) - 1, 0)
        dense = tf.pad(words.to_tensor(""), [[0, 0], [0, 1]])
        word = tf.gather(dense, place, batch_dims=1)  # [B, L]
        names = tf.gather(self._written, ids)
        inner = tf.strings.reduce_join(tf.where(is_leaf, tf.strings.join([names, word, ")"]), names), axis=1)
        is_left = tf.ragged.range(tf.cast(words.row_lengths(), tf.int32)) >= source.count[:, tf.newaxis]
        left = tf.strings.join([f" ({NO_TAG} ", tf.ragged.boolean_mask(words, is_left), ")"])
        tree = tf.strings.join([f"({ROOT}", inner, tf.strings.reduce_join(left, axis=1), ")"])
        return tf.where(source.count > 0, tree, "")

    @checked
    def save(self, path: str | os.PathLike[str], checked: bool = False, **facts: Any) -> None:
        """Write a SavedModel of the serving contract (savedmodels/README.md), as `exports.savedmodel` does."""
        savedmodel.save_export(self.export(**facts), path, checked)

    def export(self, **facts: Any) -> "contract.ParserExport":
        """The export that `save` writes; `facts` are further answers of its `model_info`, e.g. step, f1."""
        model, facts = self.translator.model.merged(), self.translator.export_options | facts
        return contract.ParserExport(self if model is self.translator.model else self.replace(model=model), **facts)
