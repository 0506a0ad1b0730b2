"""Sources of pairs: the interface, text files and lists.

`ids.tokenized` turns rows into ids. `tt.sources` has more: Parquet, TensorFlow Datasets, several sources together.
"""

import abc
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tf_transformer.config import BadInput
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.utils.files import encoded, user_path
from tf_transformer.utils.lines import (
    bad_line,
    empty_file,
    line_problem,
    line_ranges,
    lines_of_both,
    lines_of_pairs,
    read_range,
    unequal,
    unpacked,
)
from tf_transformer.utils.type_names import VocabularyKind
from tf_transformer.utils.values import Count, Natural, between, check_fields, checked, shown

MAX_LENGTH = 256  # tokens per side, EOS included
Pairs = Annotated[int, between(0, 2**63 - 1)]  # a number of pairs
PairsOfPart = Annotated[int, between(1, 2**63 - 1)]
Text = str | bytes
Pair = tuple[Text, Text]  # source and target, as UTF-8 if they are bytes and not bad
Row = tuple[int, bytes, bytes]  # a pair's number, source and target
Languages = tuple[str, ...]  # codes of a source's and a target's language for a multilingual tokenizer, or ()
Texts = tuple[list[str], list[str]]  # sources and their references
# From sources and targets to the ids of each, without BOS and EOS.
Encode = Callable[[Sequence[bytes], Sequence[bytes]], tuple[list[list[int]], list[list[int]]]]
Segments = Iterable[tuple[Languages, Iterable[Row]]]  # rows by language pair


@dataclass(frozen=True)
class Part:
    """One shard of a corpus: consecutive pairs.

    Attributes:
        number: Index of the shard.
        first: Index of its first pair in the corpus.
        count: Number of pairs. With a smaller number, the first ones.
        where: Information with which the source finds them.
    """

    number: Natural
    first: Pairs
    count: Pairs
    where: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)


class Source(abc.ABC):
    """Pairs of texts, always in the same order. You only need to override `describe` and `pairs`.

        class Dictionary(tt.sources.Source):
            def describe(self):
                return {"train": "dictionary.json"}

            def pairs(self):
                yield from json.loads(Path("dictionary.json").read_text()).items()

        corpus = tt.Corpus(Dictionary(), dev=(sources, references))

    It must pickle, and every worker must be able to read its files.

    Attributes:
        kind: Name of the task that it trains, such as "translation".
        max_length: Maximum tokens per side, EOS included. Longer pairs are skipped, unless the corpus has a length.
        skip_bad_lines: Whether to skip pairs with a side that is empty, not UTF-8, or longer than 16,384 bytes.
            Otherwise such a pair is an error.
        symbols: Strings in the texts that become one token each of a new vocabulary, its `user_defined_symbols`.
    """

    kind: str = "translation"
    max_length: int = MAX_LENGTH
    skip_bad_lines: bool = True
    symbols: Sequence[str] = ()

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Returns plain values that identify these texts, for records.json and a run's config.json.

        With "sha256", a checksum of the contents, "train" is only a name, which may change.
        """

    def contents(self) -> dict[str, Any]:
        """Returns the part of `describe` that depends only on the contents, without "train" if there is a checksum."""
        description = self.describe()
        return {name: value for name, value in description.items() if name != "train" or "sha256" not in description}

    @abc.abstractmethod
    def pairs(self) -> Iterator[Pair]:
        """Yields all pairs."""

    @checked
    def parts(self, pairs: PairsOfPart, folder: str | Path) -> list[Part]:
        """Splits the corpus into shards of `pairs` pairs. The last one may have fewer.

        A source may write files to `folder`, which all workers can read.
        """
        return even_parts(sum(1 for _ in self.pairs()), pairs)

    def read(self, part: Part) -> Iterator[Pair]:
        """Yields the pairs of a shard. Override it if a source can begin in the middle."""
        return itertools.islice(self.pairs(), part.first, part.first + part.count)

    def place(self, side: int, number: int) -> str:
        """Describes, for errors, where a text is: source (0) or target (1) of the pair with this index."""
        return f"{('source', 'target')[side]}, pair {number + 1:,}"

    def sentences(self) -> Iterator[str]:
        """Yields every text of both sides, to learn a vocabulary from."""
        for pair in pairs_of_texts(self.pairs()):
            yield from map(decoded, pair)

    @checked
    def sample(self, parts: list[Part], pairs: Pairs) -> Iterator[str]:
        """Yields texts of both sides to learn a vocabulary from: the first of every shard, about `pairs` in all."""
        count = -(-pairs // len(parts))
        for part in parts:
            first = dataclasses.replace(part, count=min(count, part.count))
            for pair in pairs_of_texts(self.read(first), part.first):
                yield from map(decoded, pair)

    @checked
    def train_tokenizer(self, vocab_size: Count, kind: VocabularyKind) -> Tokenizer:
        """Learns the vocabulary of a new run from these texts."""
        return Tokenizer.train_from_iterator(self.sentences(), vocab_size, kind, user_defined_symbols=self.symbols)

    def encoder(self, tokenizer: Tokenizer) -> Encode:
        """Returns a function from sources and targets to the ids to learn. The tokenizer must have all `symbols`."""
        # A tokenizer that splits a tag, such as "<2de>", would still train, with the tag as several tokens.
        rows = [row[tokenizer.num_language_tokens :] for row in tokenizer.encode(self.symbols)]
        tokens = [[token.strip("▁") for token in tokenizer.source_tokens(row)] for row in rows]
        if unknown := [symbol for symbol, row in zip(self.symbols, tokens, strict=True) if symbol not in row]:
            got = f"expected one with a token for each tag of the sources, got none for {', '.join(unknown)}"
            raise BadInput(f"tokenizer: {got}. Train one on the sources, or use tags that it has.")
        return encoder_of(tokenizer)

    def encoded(self, tokenizer: Tokenizer, segments: Segments) -> Iterator[tuple[Encode, Iterable[Row]]]:
        """Yields rows like those of `segments`, with `encoder` for their language pair."""
        for languages, rows in segments:
            yield self.encoder(tokenizer.with_languages(*languages)), rows

    def learned(self, references: Sequence[str]) -> list[str]:
        """Converts references of the dev set to training targets. Identity by default."""
        return list(references)

    def texts(self) -> Texts:
        """Returns all sources and all targets, for a dev or test set: `Corpus(train, dev=dev.texts())`."""
        return lists_of(pair for _, *pair in self.rows() if all(pair))

    def rows(self, part: Part | None = None) -> Iterator[Row]:
        """Yields all pairs, or those of a shard, with their numbers in the corpus, from 1.

        Both texts of a bad pair are empty, or it raises `BadInput`. Copies of a pair share its number.
        """
        for _, rows in self.segments(part):
            yield from rows

    def segments(self, part: Part | None = None) -> Iterator[tuple[Languages, Iterator[Row]]]:
        """Yields `rows` by language pair, in order. A source without languages is one segment.

        Each segment is read to its end before the next one.
        """
        yield (), self._rows(part)

    def _rows(self, part: Part | None) -> Iterator[Row]:
        pairs, first = (self.read(part), part.first) if part else (self.pairs(), 0)
        for index, pair in enumerate(pairs_of_texts(pairs, first), first):
            source, target = map(encoded, pair)
            for side, text in enumerate((source, target)):
                if problem := line_problem(text):
                    if not self.skip_bad_lines:
                        raise bad_line(self.place(side, index), problem)
                    # Empty and not dropped, so that the numbers of the pairs after it stay the line numbers.
                    source = target = b""
                    break
            yield index + 1, source, target


def encoder_of(tokenizer: Tokenizer) -> Encode:
    return lambda sources, targets: (tokenizer.encode(sources), tokenizer.encode_target(targets))


def rows_of(pairs: Iterable[tuple[Text, Text]]) -> Iterator[Row]:
    """Yields pairs with their numbers, from 1."""
    for number, (source, target) in enumerate(pairs_of_texts(pairs), 1):
        yield number, encoded(source), encoded(target)


def once(rows: Iterable[Row]) -> Iterator[Row]:
    """Yields one row of each pair, whose copies have the same number."""
    return (next(copies) for _, copies in itertools.groupby(rows, key=operator.itemgetter(0)))


def pairs_of_texts(pairs: Iterable[Any], first: int = 0) -> Iterator[Pair]:
    """Yields pairs, from index `first`, or raises `BadInput` for anything else, such as `None` or three texts."""
    for number, pair in enumerate(pairs, first + 1):
        is_list = isinstance(pair, Iterable) and not isinstance(pair, str | bytes | Mapping | Set)
        texts = tuple(pair) if is_list else ()
        if len(texts) != 2 or not all(isinstance(text, str | bytes) for text in texts):
            raise BadInput(f"pair {number:,}: expected two texts, as str or bytes, got {shown(pair)}. Skip such pairs.")
        yield texts


def lists_of(pairs: Iterable[Iterable[Text]]) -> Texts:
    """Returns all sources and all targets."""
    texts = [(decoded(source), decoded(target)) for source, target in pairs]
    return [source for source, _ in texts], [target for _, target in texts]


def texts_of(name: str, values: Iterable[Any]) -> list[str]:
    """Returns a list of texts, or raises `BadInput` with the option's name."""
    texts = list(values)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise BadInput(f"{name}: expected texts, got {type(text).__name__} at index {index}")
    return list(map(str, texts))  # converts NumPy's strings


def decoded(text: Text) -> str:
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


def even_parts(count: int, pairs: int) -> list[Part]:
    """Splits `count` pairs into shards of `pairs` pairs. The last one may have fewer."""
    if not count:
        raise BadInput("expected sentences, got an empty corpus")
    return [Part(index, first, min(pairs, count - first)) for index, first in enumerate(range(0, count, pairs))]


@dataclass(frozen=True)
class MemorySource(Source):
    """Two lists of texts, copied when the source is made and identified by their contents."""

    source: Sequence[str]
    target: Sequence[str]

    def __post_init__(self) -> None:
        check_fields(self)
        for side in ("source", "target"):
            object.__setattr__(self, side, tuple(texts_of(side, getattr(self, side))))
        if len(self.target) != (wanted := len(self.source)):
            raise BadInput(f"target: expected {wanted:,} texts, as many as of source, got {len(self.target):,}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.source):,} pairs)"

    def describe(self) -> dict[str, Any]:
        return {"sha256": self._checksum}

    @functools.cached_property
    def _checksum(self) -> str:
        return hashlib.sha256(json.dumps(list(self.pairs())).encode()).hexdigest()

    def pairs(self) -> Iterator[tuple[str, str]]:
        return zip(self.source, self.target, strict=True)

    def sentences(self) -> Iterator[str]:
        return itertools.chain(self.source, self.target)


@dataclass(frozen=True)
class TextSource(Source):
    """Two text files, line by line parallel, plain or .gz.

    Its first whole reading checks the lines and computes the checksums of both files. Later ones trust it.

    A .gz cannot be read from the middle. So `prepare` unpacks it next to the records until they are finished.
    """

    source: str | os.PathLike[str]
    target: str | os.PathLike[str]
    skip_bad_lines: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        for side in ("source", "target"):
            object.__setattr__(self, side, str(user_path(getattr(self, side), side)))

    def describe(self) -> dict[str, Any]:
        files = [str(self.source), str(self.target)]
        if "sums" not in vars(self):
            self.check()
        return {"train": files, "sha256": vars(self)["sums"], "skip_bad_lines": self.skip_bad_lines}

    def check(self) -> int:
        """Reads both files once, checks every line like `check_text_pairs`, and returns the number of pairs."""
        return sum(1 for _ in self.sentences()) // 2

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        with self._summed() as sums:
            yield from lines_of_pairs(str(self.source), str(self.target), sums)

    def sentences(self) -> Iterator[str]:
        with self._summed() as sums:
            yield from map(decoded, lines_of_both(str(self.source), str(self.target), self.skip_bad_lines, sums=sums))
        vars(self)["is_checked"] = not self.skip_bad_lines

    def _rows(self, part: Part | None) -> Iterator[Row]:
        if part is None and vars(self).get("is_checked"):
            yield from ((number, *pair) for number, pair in enumerate(self.pairs(), 1))
            return
        yield from super()._rows(part)
        if part is None:
            vars(self)["is_checked"] = not self.skip_bad_lines

    @contextlib.contextmanager
    def _summed(self) -> Iterator[list[Any]]:
        """Keeps the checksums of the files' contents, once a block has read both to their ends."""
        sums = [] if "sums" in vars(self) else [hashlib.sha256(), hashlib.sha256()]
        yield sums
        if sums:
            vars(self)["sums"] = [one.hexdigest() for one in sums]

    @checked
    def parts(self, pairs: PairsOfPart, folder: str | os.PathLike[str]) -> list[Part]:
        for file in (self.source, self.target):
            if not Path(file).is_file():
                raise FileNotFoundError(f"expected a text file, found none at {file}")
        folder = user_path(folder) / "unpacked"
        sums = [hashlib.sha256(), hashlib.sha256()]
        files = [unpacked(file, folder) for file in (self.source, self.target)]
        sides = [line_ranges([file], pairs, one) for file, one in zip(files, sums, strict=True)]
        vars(self)["sums"] = [one.hexdigest() for one in sums]
        counts = [sum(lines.count for lines in ranges) for ranges in sides]
        if counts[0] != counts[1]:
            raise unequal(self.source, self.target, *counts)
        if not counts[0]:
            raise empty_file(self.source)
        both = enumerate(zip(*sides, strict=True))
        return [Part(number, lines[0].first, lines[0].count, lines) for number, lines in both]

    def read(self, part: Part) -> Iterator[Pair]:
        source, target = (read_range(dataclasses.replace(lines, count=part.count)) for lines in part.where)
        yield from zip(source, target, strict=True)

    def place(self, side: int, number: int) -> str:
        return f"{(self.source, self.target)[side]}, line {number + 1:,}"
