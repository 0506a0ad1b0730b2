"""What a source of pairs of texts is: pairs in an order, in parts that a worker reads, good ones and bad ones."""

import abc
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tf_transformer.config import BadInput
from tf_transformer.data.text_files import line_problem
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.utils.files import encoded
from tf_transformer.utils.type_names import VocabularyKind
from tf_transformer.utils.values import Count, Natural, between, check_fields, checked, shown

MAX_LENGTH = 256  # tokens a side, EOS included
Pairs = Annotated[int, between(0, 2**63 - 1)]  # how many
PairsOfPart = Annotated[int, between(1, 2**63 - 1)]
Text = str | bytes
Pair = tuple[Text, Text]  # source and target, in UTF-8 unless they are bad
Row = tuple[int, bytes, bytes]  # a pair's number, source and target
Texts = tuple[list[str], list[str]]  # sources and their references
# From sources and targets to the ids of each, without BOS and EOS.
Encode = Callable[[Sequence[bytes], Sequence[bytes]], tuple[list[list[int]], list[list[int]]]]


@dataclass(frozen=True)
class Part:
    """Pairs that follow one another: those of one shard.

    Attributes:
        number: of the part, from 0.
        first: number of its first pair in the corpus, from 0.
        count: number of pairs; with a smaller number, the first ones.
        where: what the source needs to find them.
    """

    number: Natural
    first: Pairs
    count: Pairs
    where: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)


class Source(abc.ABC):
    """Pairs of texts, always in the same order. Write `describe` and `pairs`; the rest follows.

        class Dictionary(tt.sources.Source):
            def describe(self):
                return {"train": "dictionary.json"}

            def pairs(self):
                yield from json.loads(Path("dictionary.json").read_text()).items()

        corpus = tt.Corpus(Dictionary(), dev=(sources, references))

    It pickles, and every worker can read what it names.

    Attributes:
        kind: what is learned, "translation" or "parsing".
        max_length: tokens a side, EOS included; longer pairs are left out, unless a corpus has another length.
        skip_bad_lines: leave out pairs with a side that is empty, not UTF-8, or longer than 16,384 bytes; otherwise
            such a pair is an error.
        symbols: what the texts contain that is a piece of its own in a vocabulary, as of `Tokenizer.learn_from`.
    """

    kind: str = "translation"
    max_length: int = MAX_LENGTH
    skip_bad_lines: bool = True
    symbols: Sequence[str] = ()

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Plain values that tell this text from another, for records.json and a run's config.json.

        With "sha256", a checksum of its contents, "train" is only a name: the text may have another one, or move.
        """

    def contents(self) -> dict[str, Any]:
        """What `describe` says of the contents alone."""
        return contents_of(self.describe())

    @abc.abstractmethod
    def pairs(self) -> Iterator[Pair]:
        """All pairs."""

    def parts(self, pairs: int, folder: Path) -> list[Part]:
        """The pairs in parts of `pairs` pairs; the last one may have fewer.

        Args:
            pairs: of a part.
            folder: which the workers see, for files that the source has to write.

        Raises:
            BadInput: there are no pairs, or they are damaged.
        """
        return even_parts(sum(1 for _ in self.pairs()), pairs)

    def read(self, part: Part) -> Iterator[Pair]:
        """The pairs of a part. A source that can begin in the middle does not read what comes before."""
        return itertools.islice(self.pairs(), part.first, part.first + part.count)

    def place(self, side: int, number: int) -> str:
        """Where a text is, for people; `number` is its pair's, from 0."""
        return f"{('source', 'target')[side]}, pair {number + 1:,}"

    def sentences(self) -> Iterator[str]:
        """Every text of both sides, which a vocabulary is learned from."""
        for pair in pairs_of_texts(self.pairs()):
            yield from map(decoded, pair)

    @checked
    def learn_tokenizer(self, vocab_size: Count, kind: VocabularyKind) -> Tokenizer:
        """The vocabulary of a new run, learned from these texts."""
        return Tokenizer.learn_from(self.sentences(), vocab_size, kind, symbols=self.symbols)

    def encoder(self, tokenizer: Tokenizer) -> Encode:
        """Returns a function from sources and targets to the ids to learn.

        Raises:
            BadInput: If one of `symbols` is not a token of `tokenizer`.
        """
        rows = [row[tokenizer.codes :] for row in tokenizer.encode(self.symbols)]
        tokens = [[token.strip("▁") for token in tokenizer.source_tokens(row)] for row in rows]
        if unknown := [symbol for symbol, own in zip(self.symbols, tokens, strict=True) if symbol not in own]:
            got = f"expected one with a token for each tag of the sources, got none for {', '.join(unknown)}"
            raise BadInput(f"tokenizer: {got}. Train one on the sources, or use tags that it has.")
        return encoder_of(tokenizer)

    def learned(self, references: Sequence[str]) -> list[str]:
        """The targets of a dev text's references; they are the same, unless what is learned has another form."""
        return list(references)

    def texts(self) -> Texts:
        """All sources, and all targets, to watch a training with or to score: `Corpus(train, dev=dev.texts())`.

        Raises:
            BadInput: a line is bad, and bad ones are not to be skipped.
        """
        return lists_of(pair for _, *pair in self.rows() if all(pair))

    def rows(self) -> Iterator[Row]:
        """All pairs with their numbers, from 1; both texts of a bad pair are empty.

        Raises:
            BadInput: a line is bad, and bad ones are not to be skipped.
        """
        for number, pair in enumerate(pairs_of_texts(self.pairs())):
            yield number + 1, *(self._checked(number, pair) or (b"", b""))

    def good_pairs(self, part: Part) -> Iterator[Row]:
        """The pairs of a part without bad ones, each with its place in the part, from 0.

        Raises:
            BadInput: a line is bad, and bad ones are not to be skipped.
        """
        for place, pair in enumerate(pairs_of_texts(self.read(part), part.first)):
            if good := self._checked(part.first + place, pair):
                yield place, *good

    @checked
    def sample(self, parts: list[Part], pairs: Pairs) -> Iterator[str]:
        """Texts of both sides to learn a vocabulary from: the first of every part, about `pairs` in all."""
        each = -(-pairs // len(parts))
        for part in parts:
            first = dataclasses.replace(part, count=min(each, part.count))
            for pair in pairs_of_texts(self.read(first), part.first):
                yield from map(decoded, pair)

    def _checked(self, number: int, pair: Pair) -> tuple[bytes, bytes] | None:
        source, target = map(encoded, pair)
        problems = [line_problem(text) for text in (source, target)]
        if problems == [None, None]:
            return source, target
        if not self.skip_bad_lines:
            side = 0 if problems[0] else 1
            raise BadInput(f"{self.place(side, number)}: expected a sentence in UTF-8, got {problems[side]}")
        return None


def encoder_of(tokenizer: Tokenizer) -> Encode:
    """A function from sources and targets to the ids of each."""
    return lambda sources, targets: (tokenizer.encode(sources), tokenizer.encode_target(targets))


def contents_of(description: dict[str, Any]) -> dict[str, Any]:
    """What a source's `describe` says of its contents: with a checksum, "train" is only a name."""
    return {name: value for name, value in description.items() if name != "train" or "sha256" not in description}


def rows_of(pairs: Iterable[tuple[Text, Text]]) -> Iterator[Row]:
    """Pairs with their numbers, from 1."""
    whole = enumerate(pairs_of_texts(pairs), 1)
    return ((number, encoded(source), encoded(target)) for number, (source, target) in whole)


@checked
def pairs_of_texts(pairs: Iterable[Any], first: Pairs = 0) -> Iterator[Pair]:
    """Yields pairs, the first of which has the number `first`, from 0.

    Raises:
        BadInput: If one is something else, such as `None` or three texts.
    """
    for number, pair in enumerate(pairs, first + 1):
        is_list = isinstance(pair, Iterable) and not isinstance(pair, str | bytes | Mapping | Set)
        texts = tuple(pair) if is_list else ()
        if len(texts) != 2 or not all(isinstance(text, str | bytes) for text in texts):
            raise BadInput(f"pair {number:,}: expected two texts, as str or bytes, got {shown(pair)}. Skip such pairs.")
        yield texts


def lists_of(pairs: Iterable[Iterable[Text]]) -> Texts:
    """All sources, and all targets."""
    sources, targets = list[str](), list[str]()
    for source, target in pairs:
        sources.append(decoded(source))
        targets.append(decoded(target))
    return sources, targets


def texts_of(name: str, given: Iterable[Any]) -> list[str]:
    """A list of texts.

    Raises:
        BadInput: one is something else; `name` is that of the option.
    """
    texts = list(given)
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise BadInput(f"{name}: expected texts, got {type(text).__name__} at place {place}")
    return list(map(str, texts))  # of NumPy's own, too


def decoded(text: Text) -> str:
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


@checked
def even_parts(count: Pairs, pairs: PairsOfPart) -> list[Part]:
    """Parts of `pairs` pairs of `count`; the last one may have fewer.

    Raises:
        BadInput: there are none.
    """
    if not count:
        raise BadInput("expected sentences, got an empty corpus")
    starts = enumerate(range(0, count, pairs))
    return [Part(number, first, min(pairs, count - first)) for number, first in starts]
