"""English constituency parsing (section 6.3): words in, a tree over these words out.

The target is the tree as a line of symbols (`treebank.linearised`), the control symbols of the tokenizer. Each word's
first piece comes before its brackets and its symbol. It tells the decoder which word comes next, so the decoder need
not count words. White space separates the words of a text; "(" and "-LRB-" are the same word.
"""

import itertools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from keras import ops

from tf_transformer.config import BadInput
from tf_transformer.decoding.beams import Hypotheses
from tf_transformer.decoding.compiling import input_signature, width_of, with_rows
from tf_transformer.decoding.primitives import ON_TENSORFLOW
from tf_transformer.decoding.search import OPTIONS, Fixed, beam_search
from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.decoding.text_model import SetOnce, check_length, padded
from tf_transformer.extensions.parsing.constraint import LEAF, Grammar
from tf_transformer.extensions.parsing.treebank import ESCAPES, NO_TAG, ROOT, linearised, read_tree, with_brackets
from tf_transformer.extensions.parsing.words import Source, encoder_of, written_words
from tf_transformer.inference.engine import Answer, Engine, Reply, Request, in_batches
from tf_transformer.inference.translator import Translator
from tf_transformer.models.transformer import Attention
from tf_transformer.tokenizers.tokenizer import EOS_ID, FIRST_ID, UNKNOWN_ID
from tf_transformer.utils.files import encoded
from tf_transformer.utils.folders import find_saved_model
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.type_names import Dtype, Folders, Tensor
from tf_transformer.utils.values import MOST, Natural, checked

if TYPE_CHECKING:
    from tf_transformer.extensions.parsing import in_graph
    from tf_transformer.serving import savedmodel
else:
    savedmodel = lazily("tf_transformer.serving.savedmodel", "a SavedModel")
    in_graph = lazily("tf_transformer.extensions.parsing.in_graph", "a SavedModel")

EXTRA_LENGTH = 300  # section 6.3: the most symbols beyond the source's length
RUN_OPTIONS = {"length_penalty": 0.3, "extra_length": EXTRA_LENGTH, "patience": math.inf}  # section 6.3, exact search


class Parser(SetOnce, Engine):
    """Parses English sentences. A parser does not change: `replace` gives another one.

    parser(["The cat slept ."]) gives ["(TOP (S (NP (DT The) (NN cat)) (VP (VBD slept)) (. .)))"]. A call gives one tree
    of a text, and takes no options. Of a text with more words than the model reads the first ones are parsed; the
    others stand under the root, tagged XX.

    Args:
        translator: of texts to linearised trees; its batch_size and its options of the search apply.
    """

    changeable, translates = (), False
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
        self.most_pieces = min(translator.max_source_length, (self.max_length - 1) // 2)  # of the words that are parsed
        self.grammar = Grammar(self.tokenizer.controls, self.tokenizer.vocab_size)
        names = self.tokenizer.controls
        written = [")" if name[0] == ")" else f" {name}" if name[0] == "(" else f" ({name} " for name in names]
        after = self.tokenizer.vocab_size - FIRST_ID - len(names)
        self.written = [""] * FIRST_ID + written + [""] * after

    @classmethod
    def from_pretrained(cls, path: Folders, **options: Any) -> Self:
        """A parser with its Keras model; see `Translator.from_pretrained`. The defaults of a run are `RUN_OPTIONS`."""
        runs = not isinstance(path, str | os.PathLike) or find_saved_model(path) is None
        return cls(Translator.from_pretrained(path, **((RUN_OPTIONS if runs else {}) | options)))

    def _described(self) -> str:
        return self.translator._described()

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
        source, found = self._found("parsed", self._search, texts)
        ids, *parts = (part[:, 0].tolist() for part in found)
        for i, (score, log_prob, symbols, finished) in enumerate(zip(*parts, strict=True)):
            tree = self.tree(ids[i][:symbols], source.words[i], int(source.count[i]))
            answer = Answer(tree, score, log_prob, finished, symbols - finished)
            yield Reply(texts[i], (answer,), None, bool(source.truncated[i]))

    def symbols(self, texts: list[str]) -> list[list[str]]:
        """The best line of symbols for each text without the grammar; it may be no tree."""

        def lines(places: list[int]) -> Iterator[list[str]]:
            source, found = self._found("parsed freely", self._search_freely, [texts[i] for i in places])
            for i in range(len(places)):
                length = int(found.lengths[i, 0]) - bool(found.finished[i, 0])
                yield self._line(found.ids[i, 0, :length].tolist(), source.firsts[i, : source.count[i]].tolist())

        return in_batches(lines, texts, self.batch_size)

    def _found(
        self, name: str, function: Callable[..., Hypotheses], texts: Sequence[str | bytes]
    ) -> tuple[Source, Hypotheses]:
        """Texts, read, and what a function of `Source.count`, `firsts`, `ids` and `length` makes of them."""
        source = self.read(with_rows(texts, self.batch_size))
        columns = [source.count, source.firsts, source.ids, source.length]
        found = self.translator.traced(name, function, **input_signature(columns))(columns)
        return source, Hypotheses(*(ops.convert_to_numpy(part)[: len(texts)] for part in found))

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

    def _search(self, columns: Sequence[Tensor], free: bool = False) -> Hypotheses:
        count, firsts, ids, length = columns
        return self._best(Source(None, count, firsts, ids, length, None), free)

    def _search_freely(self, columns: Sequence[Tensor]) -> Hypotheses:
        return self._search(columns, free=True)

    def attention(self, source: str, target: str | None = None) -> Attention:
        """The attention weights of a text and its tree, with their tokens.

        Args:
            source: words.
            target: a tree in brackets; `None` means the tree that the search finds.

        Raises:
            BadInput: there are no words, or too many; or the tree has symbols that the tokenizer lacks.
        """
        read = self.read([source])
        if read.truncated[0]:
            raise BadInput(f"expected a sentence of at most {self.translator.max_source_length} tokens, got more")
        check_length("sentence", int(read.length[0]), self.translator.max_source_length)
        if target is None:
            _, found = self._found("parsed", self._search, [source])
            return self.translator.attention_of(read.ids, found.ids[0, 0, : found.lengths[0, 0]].tolist())
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
        _, (ids,) = encoder_of(self.tokenizer)([encoded(source)], [" ".join(symbols).encode()])
        return self.translator.attention_of(read.ids, self.translator.ended("tree", ids))

    def read(self, texts: Sequence[str | bytes]) -> Source:
        """Texts as words and ids, in NumPy. Words beyond max_source_length pieces are left out. The numbers of ids and
        of words may be `rounded`."""
        words = [written_words(encoded(text)) for text in texts]
        heads = [of_text[: self.most_pieces] for of_text in words]  # a word has at least one piece
        pieces = iter(self.tokenizer.encode([with_brackets(word) for head in heads for word in head]))
        rows, firsts, lengths, counts = [], [], [], []
        for head in heads:
            by_word = [next(pieces) for _ in head]
            ends = np.cumsum([max(len(ids), 1) for ids in by_word], dtype=np.int32)
            count = int(np.searchsorted(ends, self.most_pieces, side="right"))
            rows.append([*itertools.chain.from_iterable(by_word[:count]), EOS_ID])
            firsts.append([ids[0] if ids else UNKNOWN_ID for ids in by_word[:count]])
            lengths.append(ends[count - 1] if count else 0)
            counts.append(count)
        width = width_of(rows, self.most_pieces + 1)
        return Source(
            words=words,
            count=np.array(counts, np.int32),
            firsts=padded(firsts, width),
            ids=padded(rows, width),
            length=np.array(lengths, np.int32),
            truncated=np.array(counts, np.int32) < [len(of_text) for of_text in words],
        )

    def _best(self, source: Source, free: bool = False) -> Hypotheses:
        """The best line of symbols for texts that are read: a tree, or if it is `free` from the grammar, any line."""
        fixed = self.translator.fixed(source.ids, self.translator.beam_size)
        if fixed:
            fixed = Fixed(fixed.beams, min(fixed.steps + source.firsts.shape[1], self.max_length))
        start = None if ON_TENSORFLOW else ops.convert_to_tensor(self.tokenizer.start_ids(), "int32")
        problem = self.translator.problem(source.ids, source.length, MOST, start, fixed)
        most = ops.minimum(problem.max_length + source.count, self.max_length)  # the words themselves do not count
        allowed = None if free else self.grammar.allowed(source.firsts, source.count, most)
        options = {name: self.translator.options[name] for name in OPTIONS}
        return beam_search(problem._replace(max_length=most), allowed=allowed, **options)

    def parse(self, text: Tensor) -> tuple[Any, Any, Any]:
        """Texts [B] to trees, string [B], scores, float32 [B], and truncated, bool [B], inside a graph of TensorFlow. A
        text without words gives "" and 0."""
        source = in_graph.read(text, self.tokenizer, self.most_pieces)
        found = self._best(source)
        trees = in_graph.trees(found.ids[:, 0], source, self.grammar, self.written)
        return trees, found.scores[:, 0], source.truncated

    @checked
    def tree(self, ids: Sequence[int], words: Sequence[str], count: Natural) -> str:
        """A well-formed line of symbols as a tree.

        Args:
            ids: of the symbols and of the first pieces of words.
            words: as they stand in the text.
            count: how many of them the line has; the others stand under the root.
        """
        if not count:
            return ""
        written = []
        for word in words:
            for pattern, replacement in ESCAPES:
                word = re.sub(pattern, replacement, word)
            written.append(word)
        of_line = iter(written)
        parts = [self.written[id] + (f"{next(of_line)})" if self.grammar.kinds[id] == LEAF else "") for id in ids]
        left = [f" ({NO_TAG} {word})" for word in written[count:]]
        return "".join([f"({ROOT}", *parts, *left, ")"])

    @checked
    def save(self, path: str | os.PathLike[str], checked: bool = False, **facts: Any) -> None:
        """Write a SavedModel of the serving contract (savedmodels/README.md), as `serving.savedmodel` does."""
        savedmodel.save_export(self.export(**facts), path, checked)

    def export(self, **facts: Any) -> "in_graph.ParserExport":
        """The export that `save` writes; `facts` are further answers of its `model_info`, e.g. step, f1."""
        model, facts = self.translator.model.merged(), self.translator.export_options | facts
        return in_graph.ParserExport(self if model is self.translator.model else self.replace(model=model), **facts)
