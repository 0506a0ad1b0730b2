"""Treebanks as a corpus to train a parser on (section 6.3)."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from tf_transformer.config import BadInput
from tf_transformer.data.corpus import Corpus, Files
from tf_transformer.data.pairs import Encode, Source, Texts
from tf_transformer.extensions.parsing import treebank
from tf_transformer.extensions.parsing.words import MAX_LENGTH, encoder_of
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.utils.files import user_path
from tf_transformer.utils.type_names import VocabularyKind
from tf_transformer.utils.values import Count, Kind, check_fields, checked

# A list of gold trees is as many times as long as the ratio is small.
Ratio = Annotated[float, Kind("a number from 0.001 to 1,000", lambda number: 0.001 <= number <= 1_000)]
WSJ = {"train": range(2, 22), "dev": [22], "test": [23]}  # sections


@dataclass(frozen=True)
class TreebankSource(Source):
    """Bracketed trees; sources are their words, targets their symbols.

    Attributes:
        files: of trees, read when the source is made.
        tags: learn each word's tag; otherwise XX for every word.
        extra: files of trees that another parser made.
        ratio: how many of them for each gold tree.

    Raises:
        BadInput: a file is missing, or is not trees; the message says where.
    """

    files: Files
    tags: bool = True
    extra: Files = ()
    ratio: Ratio = 1.0
    kind = "parsing"
    max_length = MAX_LENGTH

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("files", "extra"):
            object.__setattr__(self, name, [str(user_path(file, name)) for file in getattr(self, name)])
        trees = _trees("train", self.files)
        if self.extra:
            trees = mixed(trees, _trees("extra", self.extra), self.ratio)
        lines = [(words_of(tree), " ".join(treebank.linearised(tree, self.tags))) for tree in trees]
        self.__dict__["lines"] = lines
        self.__dict__["sha256"] = hashlib.sha256(json.dumps(lines).encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"train": self.files, "tags": self.tags}
        if self.extra:
            settings |= {"extra": self.extra, "extra_ratio": self.ratio}
        return settings | {"sha256": self.__dict__["sha256"]}

    def pairs(self) -> Any:
        return iter(self.__dict__["lines"])

    @checked
    def learn_tokenizer(self, vocab_size: Count, kind: VocabularyKind) -> Tokenizer:
        sources, targets = zip(*self.pairs(), strict=True)
        controls = sorted({symbol for line in targets for symbol in line.split()})
        return Tokenizer.learn_from(sources, vocab_size, kind, controls=controls)

    def encoder(self, tokenizer: Tokenizer) -> Encode:
        if not tokenizer.controls:
            raise BadInput("tokenizer: expected one with the symbols of trees as controls, got one without")
        return encoder_of(tokenizer)

    def learned(self, references: Sequence[str]) -> list[str]:
        return [" ".join(treebank.linearised(treebank.read_tree(line), self.tags)) for line in references]


@checked
def TreebankCorpus(
    train: Files,
    dev: Files,
    test: Files | None = None,
    tags: bool = True,
    extra: Files = (),
    ratio: Ratio = 1.0,
) -> Corpus:
    """A corpus of bracketed trees, read when it is made.

    Args:
        train: files of trees.
        dev: files of trees to watch the training with.
        test: files of trees to score the result with; `None` means the dev files.
        tags: learn each word's tag; otherwise XX for every word.
        extra: files of trees that another parser made, to train on, too.
        ratio: how many of them for each gold tree.

    Raises:
        BadInput: a file is missing, or is not trees; the message says where.
    """
    source = TreebankSource(train, tags, extra, ratio)
    return Corpus(source, read_texts(dev, "dev"), read_texts(test, "test") if test else None)


def wsj(folder: str | os.PathLike[str]) -> tuple[Files, Files, Files]:
    """The Wall Street Journal's wsj_NNNN.mrg in a folder: sections 2 to 21 to train, 22 as dev, 23 as test."""
    train, dev, test = (treebank.wsj_files(folder, sections) for sections in WSJ.values())
    return train, dev, test


def read_texts(files: Files, name: str = "given") -> Texts:
    """The words of trees in files, and the trees as lines; `name` is what messages call the files."""
    trees = _trees(name, files)
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
