"""Treebanks as training data for a parser (section 6.3)."""

import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from tf_transformer.config import BadInput
from tf_transformer.data.corpus import Corpus, Files
from tf_transformer.data.sources import Encode, Source, Texts
from tf_transformer.extensions.parsing import treebank
from tf_transformer.tokenizers.strings import split_words
from tf_transformer.tokenizers.tokenizer import FIRST_ID, UNKNOWN_ID, Tokenizer
from tf_transformer.utils.files import user_path
from tf_transformer.utils.type_names import VocabularyKind
from tf_transformer.utils.values import Count, Kind, check_fields, checked

# A small ratio repeats the gold trees many times in memory, hence the lower limit.
Ratio = Annotated[float, Kind("a number from 0.001 to 1,000", lambda number: 0.001 <= number <= 1_000)]
MAX_LENGTH = 512  # training pairs have at most so many tokens per side, EOS included


@dataclass(frozen=True)
class TreebankSource(Source):
    """Bracketed trees, with the options of a `TreebankCorpus`. Sources are words, targets linearized trees."""

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
        extra = {"extra": self.extra, "extra_ratio": self.ratio} if self.extra else {}
        return {"train": self.files, "tags": self.tags, **extra, "sha256": self.__dict__["sha256"]}

    def pairs(self) -> Any:
        return iter(self.__dict__["lines"])

    @checked
    def train_tokenizer(self, vocab_size: Count, kind: VocabularyKind) -> Tokenizer:
        sources, targets = zip(*self.pairs(), strict=True)
        controls = sorted({token for line in targets for token in line.split()})
        return Tokenizer.train_from_iterator(sources, vocab_size, kind, control_tokens=controls)

    def encoder(self, tokenizer: Tokenizer) -> Encode:
        if not tokenizer.control_tokens:
            raise BadInput("tokenizer: expected one with the tokens of trees as control tokens, got one without")
        return encoder_of(tokenizer)

    def learned(self, references: Sequence[str]) -> list[str]:
        return [" ".join(treebank.linearised(treebank.read_tree(line), self.tags)) for line in references]


@checked
def TreebankCorpus(
    train: Files, dev: Files, test: Files | None = None, tags: bool = True, extra: Files = (), ratio: Ratio = 1.0
) -> Corpus:
    """Returns a corpus of bracketed trees, which it reads at once.

        corpus = tt.TreebankCorpus(train=["train.trees"], dev=["dev.trees"])

    Args:
        train: Files of trees.
        dev: Files of trees to validate on.
        test: Files of trees to score the result with. Defaults to the dev files.
        tags: Whether to learn each word's tag. If not, every word gets XX.
        extra: Files of trees that another parser made, as additional training data.
        ratio: Number of extra trees per gold tree.

    Raises:
        BadInput: If a file is missing or contains something else than trees.
    """
    source = TreebankSource(train, tags, extra, ratio)
    return Corpus(source, read_texts(dev, "dev"), read_texts(test, "test") if test else None)


def wsj(folder: str | os.PathLike[str]) -> tuple[Files, Files, Files]:
    """Returns the Wall Street Journal's files for training (sections 2 to 21), dev (22) and test (23)."""
    train, dev, test = (treebank.wsj_files(folder, sections) for sections in (range(2, 22), [22], [23]))
    return train, dev, test


def read_texts(files: Files, name: str = "given") -> Texts:
    """Returns the words of trees in files, and the trees as lines. Messages call the files `name`."""
    trees = _trees(name, files)
    return [words_of(tree) for tree in trees], [treebank.as_line(tree) for tree in trees]


def words_of(tree: Any) -> str:
    """Returns a tree's words, separated by spaces."""
    return " ".join(treebank.words_of(tree))


@checked
def mixed(gold: list[Any], extra: list[Any], ratio: Ratio) -> list[Any]:
    """Returns gold trees, repeated as needed, and `ratio` times as many extra trees."""
    times = max(1, round(len(extra) / (ratio * len(gold))))
    return gold * times + extra[: round(ratio * len(gold) * times)]


def _trees(name: str, files: Files) -> list[Any]:
    trees = treebank.read_trees(files)
    if not trees:
        raise BadInput(f"expected trees with words in the {name} files, got none")
    return trees


class ParserInput(NamedTuple):
    """Texts as words and as ids for the encoder, padded with zeros."""

    words: Any  # string [B, None], all words as the text spells them
    count: Any  # int32 [B], number of words that are parsed, from the first on
    firsts: Any  # int32 [B, N], first subword of each of these
    ids: Any  # int32 [B, S], subwords of these, and EOS
    length: Any  # int32 [B], number of ids without EOS, at least one per word
    truncated: Any  # bool [B], whether the text has more words


def subwords_of(tokenizer: Tokenizer, rows: Sequence[Sequence[str]]) -> list[list[list[int]]]:
    """Returns the ids of each word in each row of words. A word has none if normalization leaves nothing of it."""
    ids = iter(tokenizer.encode([treebank.with_brackets(word) for row in rows for word in row]))
    return [[next(ids) for _ in row] for row in rows]


def encoder_of(tokenizer: Tokenizer) -> Encode:
    """Returns a function from texts, and linearized trees with spaces between their tokens, to the ids of each.

    In a target each word's first subword precedes its brackets and its tag. It tells the decoder which word comes
    next, so the decoder does not have to count.
    """
    tokens = {token: id for id, token in enumerate(tokenizer.control_tokens, FIRST_ID)}

    def encode(texts: Sequence[bytes], lines: Sequence[bytes]) -> tuple[list[list[int]], list[list[int]]]:
        sources, targets = [], []
        for ids_by_word, line in zip(subwords_of(tokenizer, list(map(split_words, texts))), lines, strict=True):
            sources.append([id for ids in ids_by_word for id in ids])
            firsts = iter([ids[0] if ids else UNKNOWN_ID for ids in ids_by_word])
            target = list(itertools.islice(firsts, 1))
            for token in line.decode().split():
                target.append(tokens.get(token, UNKNOWN_ID))
                if token[0] not in "()":  # a tag, which the next word follows
                    target += itertools.islice(firsts, 1)
            targets.append(target)
        return sources, targets

    return encode
