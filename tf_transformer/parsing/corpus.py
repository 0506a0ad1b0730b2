"""Treebanks as a corpus to train a parser on (section 6.3)."""

import os
from typing import Annotated, Any

import tensorflow as tf

from tf_transformer.base.files import user_path
from tf_transformer.base.type_names import VocabularyKind
from tf_transformer.base.values import Count, Kind, checked
from tf_transformer.config import BadInput
from tf_transformer.corpora import data
from tf_transformer.corpora.corpus import Batching, Files, PairCorpus, Texts
from tf_transformer.corpora.sources import MemorySource
from tf_transformer.engines.translator import Translator
from tf_transformer.parsing import evalb, treebank
from tf_transformer.parsing.parser import EXTRA_LENGTH, MAX_LENGTH, Parser, pair_ids
from tf_transformer.text.text_decoder import TextDecoder
from tf_transformer.text.tokenizer import Tokenizer

# A list of gold trees is as many times as long as the ratio is small.
Ratio = Annotated[float, Kind("a number from 0.001 to 1,000", lambda number: 0.001 <= number <= 1_000)]
WSJ = {"train": range(2, 22), "dev": [22], "test": [23]}  # sections


class TreebankCorpus(PairCorpus):
    """A corpus of bracketed trees, read when it is made; sources are their words.

    Args:
        train: files of trees.
        dev: files of trees to watch the training with.
        test: files of trees to score the result with; `None` means the dev files.
        tags: learn each word's tag; otherwise XX for every word.

    Raises:
        BadInput: a file is missing, or is not trees; the message says where.
    """

    kind = "parsing"
    metric = "F1"
    max_length = MAX_LENGTH
    source: MemorySource

    @checked
    def __init__(self, train: Files, dev: Files, test: Files | None = None, tags: bool = True):
        self.tags = tags
        self._settings: dict[str, Any] = {"train": [str(user_path(file)) for file in train], "tags": tags}
        self.gold = self.trees = _trees("train", train)
        self.dev_trees = _trees("dev", dev)
        self.test_trees = _trees("test", test) if test else self.dev_trees
        super().__init__(_linearised(self.trees, tags), _texts(self.dev_trees), _texts(self.test_trees))

    @classmethod
    @checked
    def wsj(cls, folder: str | os.PathLike[str], tags: bool = True) -> "TreebankCorpus":
        """The Wall Street Journal's wsj_NNNN.mrg in a folder: sections 2 to 21 to train, 22 as dev, 23 as test."""
        train, dev, test = (treebank.wsj_files(folder, sections) for sections in WSJ.values())
        corpus = cls(train, dev, test, tags)
        corpus._settings["train"] = str(user_path(folder))
        return corpus

    @checked
    def add(self, extra: Files, ratio: Ratio = 1.0) -> None:
        """Also train on trees that another parser made, `ratio` of them for each gold tree."""
        self._settings |= {"extra": [str(user_path(file)) for file in extra], "extra_ratio": ratio}
        self.trees = mixed(self.gold, _trees("extra", extra), ratio)
        self.source = _linearised(self.trees, self.tags)

    def describe(self) -> dict[str, Any]:
        return self._settings | super().describe()

    @checked
    def learn_tokenizer(self, vocab_size: Count, kind: VocabularyKind) -> Tokenizer:
        controls = sorted({symbol for line in self.source.target for symbol in line.split()})
        return Tokenizer.learn_from(self.source.source, vocab_size, kind, controls=controls)

    def pair_ids(self, tokenizer: Tokenizer) -> data.PairIds:
        if not tokenizer.controls:
            raise BadInput("tokenizer: expected one with the symbols of trees as controls, got one without")
        return pair_ids(tokenizer)

    def dev_batches(self, batching: Batching) -> tf.data.Dataset:
        return self.in_order(_linearised(self.dev_trees, self.tags).pairs(), batching)

    def decoder(self, model: TextDecoder, tokenizer: Tokenizer) -> Parser:
        return Parser(Translator(model, tokenizer, beam_size=1, length_penalty=0.0, extra_length=EXTRA_LENGTH))

    @classmethod
    def read(cls, files: Files) -> Texts:
        return _texts(_trees("given", files))

    @classmethod
    def scores(cls, outputs: list[str], references: list[str]) -> dict[str, Any]:
        return {"F1": evalb.total(map(treebank.read_tree, references), map(treebank.read_tree, outputs))}


def _linearised(trees: list[Any], tags: bool) -> MemorySource:
    """Their words, and what is learned of them."""
    lines = [" ".join(treebank.linearised(tree, tags)) for tree in trees]
    return MemorySource([words_of(tree) for tree in trees], lines)


def _texts(trees: list[Any]) -> Texts:
    return [words_of(tree) for tree in trees], [treebank.as_line(tree) for tree in trees]


def words_of(tree: Any) -> str:
    """A tree's words with spaces between them."""
    return " ".join(treebank.words_of(tree))


@checked
def mixed(gold: list[Any], extra: list[Any], ratio: Ratio) -> list[Any]:
    """Gold trees, repeated as needed, and `ratio` times as many other trees."""
    times = max(1, round(len(extra) / (ratio * len(gold))))
    return gold * times + extra[: round(ratio * len(gold) * times)]


def _trees(name: str, files: Files) -> list[Any]:
    trees = treebank.read_trees(files)
    if not trees:
        raise BadInput(f"expected trees with words in the {name} files, got none")
    return trees
