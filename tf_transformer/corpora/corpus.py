"""What a run learns from: parallel text, TensorFlow Datasets, prepared records, the toy corpus; or your own kind."""

import abc
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from tf_transformer.base.files import checksum, user_path
from tf_transformer.base.type_names import VocabularyKind
from tf_transformer.base.values import Count, Natural, Seed, check_fields, checked
from tf_transformer.config import BadInput
from tf_transformer.corpora import data, toy_corpus
from tf_transformer.corpora.ids import Batches, Ids, Order
from tf_transformer.corpora.pairs import Row, Source
from tf_transformer.corpora.records import Records
from tf_transformer.corpora.sources import MemorySource, TextSource, TfdsSource
from tf_transformer.corpora.text_files import checksum_of_text
from tf_transformer.engines.translator import Translator
from tf_transformer.evaluation import bleu
from tf_transformer.text.text_decoder import TextDecoder
from tf_transformer.text.tokenizer import Tokenizer

Texts = tuple[list[str], list[str]]  # sources and their references
Files = Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class Batching:
    """How pairs become batches.

    Attributes:
        tokenizer: of source and target.
        batch_tokens: source tokens, and target tokens, in a batch.
        seed: of the order.
        fixed_shapes: fill batches with padding, so that they have few shapes (for XLA).
        folder: where the ids of the text are kept, so that they are made once; `None` means nowhere.
    """

    tokenizer: Tokenizer
    batch_tokens: Count
    seed: Seed
    fixed_shapes: bool = False
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.folder is not None:
            object.__setattr__(self, "folder", user_path(self.folder, "folder"))
        check_fields(self)


class Corpus(abc.ABC):
    """What a `Trainer` learns from and is watched with. For pairs of strings there is `PairCorpus`.

    Attributes:
        kind: what is learned, "translation" or "parsing".
        metric: name of the dev text's score.
        max_length: tokens a side; longer pairs are left out.
        dev: sources and references to watch the training with.
        test: sources and references to score the result with.
        languages: of source and target, for example ("en", "de"); `None` if they are not known.
    """

    kind = "translation"
    metric = "BLEU"
    max_length = data.MAX_LENGTH
    dev: Texts
    test: Texts
    languages: tuple[str, str] | None = None

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Plain values for config.json that tell this training text from another, as `Source.describe`."""

    @abc.abstractmethod
    def learn_tokenizer(self, vocab_size: int, kind: VocabularyKind) -> Tokenizer:
        """The vocabulary of a new run."""

    @abc.abstractmethod
    def batches(self, batching: Batching, first: int = 0, lines: bool = False) -> tf.data.Dataset:
        """Endless training batches as of `data.text_pairs`, from the one numbered `first` on.

        Args:
            batching: how pairs become batches.
            first: number of the first batch, from 0.
            lines: each batch also has the numbers of its lines, int64 [B], from 1.
        """

    @abc.abstractmethod
    def summary(self, batching: Batching) -> data.Summary:
        """Counts of one pass over the training text."""

    def keep_ids(self, batching: Batching) -> None:
        """Write the training text's ids into the batching's folder, for a run that goes on; by default not."""
        return

    def dev_batches(self, batching: Batching) -> tf.data.Dataset:
        """The dev text in batches, once."""
        return self.in_order(zip(*self.dev, strict=True), batching)

    def in_order(self, pairs: Iterable[tuple[str, str]], batching: Batching) -> tf.data.Dataset:
        """Pairs in batches, once; those of a bucket in order."""
        batches = self.made_of(data.rows_of(pairs), batching, shuffle=False)
        return data.dataset(lambda: itertools.islice(batches.since(), len(batches.order)))

    def made_of(self, rows: Iterable[Row], batching: Batching, shuffle: bool = True) -> Batches:
        """Pairs with their numbers as batches of pairs of similar length (section 5.1)."""
        ids = data.ids_of(rows, batching.tokenizer, self.max_length, self.pair_ids(batching.tokenizer))
        return self._in_order(ids, batching, shuffle)

    def _in_order(self, ids: Ids, batching: Batching, shuffle: bool = True) -> Batches:
        order = Order(ids.lengths(), batching.batch_tokens, self.max_length, batching.seed if shuffle else None)
        return Batches(ids, order, batching.fixed_shapes)

    def pair_ids(self, tokenizer: Tokenizer) -> data.PairIds | None:
        """A function from sources and targets, strings [B], to their ids; `None` means the tokenizer."""
        return None

    def decoder(self, model: TextDecoder, tokenizer: Tokenizer) -> Callable[[list[str]], list[str]]:
        """A function of a list of sources that gives the outputs of greedy search."""
        return Translator(model, tokenizer, beam_size=1)

    @classmethod
    def read(cls, files: Files) -> Texts:
        """Sources and references from files.

        Raises:
            BadInput: they are not parallel text in UTF-8.
        """
        source, target = two_files("files", files)
        return data.read_text_pairs(source, target)

    @classmethod
    def score(cls, outputs: list[str], references: list[str]) -> float:
        """The score that training is watched with."""
        return cls.scores(outputs, references)[cls.metric].value

    @classmethod
    def scores(cls, outputs: list[str], references: list[str]) -> dict[str, Any]:
        """Scores by name, `metric` among them; each has a `value` and a `signature`."""
        return {"BLEU": bleu.bleu(outputs, references), "chrF": bleu.chrf(outputs, references)}


class PairCorpus(Corpus):
    """Pairs of strings from any `Source`: `PairCorpus(tt.sources.ParquetSource(...), dev=(sources, references))`.

    Args:
        source: of the training text, which is kept in memory as ids.
        dev: sources and references to watch the training with.
        test: to score the result with; `None` means the dev text.
        languages: of source and target; `None` if they are not known.
    """

    @checked
    def __init__(
        self, source: Source, dev: Texts, test: Texts | None = None, languages: tuple[str, str] | None = None
    ) -> None:
        self.source, self.dev, self.test, self.languages = source, dev, test or dev, languages

    def describe(self) -> dict[str, Any]:
        return self.source.describe()

    def rows(self) -> Iterator[Row]:
        """The training text: pairs with their numbers, always in the same order."""
        return self.source.rows()

    def sentences(self) -> Iterator[str]:
        """Every sentence of the training text, of both sides."""
        return self.source.sentences()

    @checked
    def learn_tokenizer(self, vocab_size: Count, kind: VocabularyKind) -> Tokenizer:
        return Tokenizer.learn_from(self.sentences(), vocab_size, kind, symbols=self.source.symbols)

    @checked
    def batches(self, batching: Batching, first: Natural = 0, lines: bool = False) -> tf.data.Dataset:
        batches = self._in_order(self.ids(batching), batching)
        return data.dataset(lambda: batches.since(first), lines)

    def summary(self, batching: Batching) -> data.Summary:
        batches = self._in_order(self.ids(batching), batching)
        return data.summary_of(batches.ids, batches.order)

    def ids(self, batching: Batching) -> Ids:
        """The training text as ids, made once: kept in memory, and in the batching's folder."""
        tokenizer, folder, key = batching.tokenizer, batching.folder, self._key(batching)
        if self._ids is None or self._ids[0] != key:
            kept = Ids.load(folder, key) if folder else None
            made = kept or data.ids_of(self.rows(), tokenizer, self.max_length, self.pair_ids(tokenizer))
            self._ids = key, made
        return self._ids[1]

    def _key(self, batching: Batching) -> dict[str, Any]:
        """What the ids depend on."""
        contents = {name: value for name, value in self.describe().items() if name != "train"}
        return {"tokenizer": batching.tokenizer.fingerprint, "max_length": self.max_length, "corpus": contents}

    def keep_ids(self, batching: Batching) -> None:
        """Write the ids into the batching's folder, if `describe` tells this text from every other by its contents."""
        if batching.folder and "sha256" in self.describe() and not batching.folder.exists():
            self.ids(batching).save(batching.folder, self._key(batching))

    _ids: tuple[dict[str, Any], Ids] | None = None


class TextCorpus(PairCorpus):
    """Parallel text, a sentence a line, in UTF-8, plain or .gz; read and checked when the corpus is made.

    Args:
        train: two files, source and target.
        dev: two files to watch the training with.
        test: two files to score the result with; `None` means the dev files.
        skip_bad_lines: leave out pairs with an empty, over-long or invalid line, which are an error otherwise.

    Raises:
        FileNotFoundError: a file is missing.
        BadInput: the lines do not match, or one is bad; the message says where.
    """

    @checked
    def __init__(self, train: Files, dev: Files, test: Files | None = None, skip_bad_lines: bool = False):
        source, target = self.train = two_files("train", train)
        texts = self.read(dev), self.read(test) if test else None
        super().__init__(TextSource(source, target, skip_bad_lines), *texts, languages_of(self.train))
        data.check_text_pairs(source, target, skip_bad_lines)
        self._checksums = [checksum_of_text(file) for file in self.train]

    def describe(self) -> dict[str, Any]:
        return {"train": self.train, "sha256": self._checksums, "skip_bad_lines": self.source.skip_bad_lines}


class TfdsCorpus(PairCorpus):
    """A translation corpus of TensorFlow Datasets: its splits "train", "validation" and "test".

    Args:
        name: for example "wmt14_translate/de-en".
        languages: of source and target.
        data_dir: where the corpora lie; `None` means TFDS's own place.

    Raises:
        BadInput: there is no such language or split.
    """

    @checked
    def __init__(
        self, name: str, languages: tuple[str, str] = ("en", "de"), data_dir: str | os.PathLike[str] | None = None
    ):
        self.name = name
        train, dev, test = (TfdsSource(name, split, languages, data_dir) for split in ("train", "validation", "test"))
        super().__init__(train, dev.texts(), test.texts(), languages)

    def describe(self) -> dict[str, Any]:
        return {"train": self.name, "languages": list(self.languages or ())}


class ToyCorpus(PairCorpus):
    """English and German in short sentences, 25,000 pairs to learn from, without a network; see `toy_corpus`."""

    languages = ("en", "de")

    def __init__(self) -> None:
        splits = toy_corpus.corpus()
        columns = (zip(*splits[split], strict=True) for split in ("train", "dev", "test"))
        train, dev, test = ((list(source), list(target)) for source, target in columns)
        super().__init__(MemorySource(*train), dev, test, ToyCorpus.languages)

    def describe(self) -> dict[str, Any]:
        return {"train": "grammar", "sha256": checksum(toy_corpus.FILE)}


class PreparedCorpus(Corpus):
    """Records that `tf-transformer prepare` wrote, for texts larger than memory.

    Args:
        folder: of the records.
        dev: sources and references to watch the training with.
        test: to score the result with; `None` means the dev text.
        languages: of source and target; `None` if they are not known.

    Raises:
        BadInput: the folder holds something else, or damaged records.
    """

    @checked
    def __init__(
        self,
        folder: str | os.PathLike[str],
        dev: Texts,
        test: Texts | None = None,
        languages: tuple[str, str] | None = None,
    ) -> None:
        self.records = Records(folder)
        self.max_length = self.records.max_length
        self.dev, self.test, self.languages = dev, test or dev, languages

    def describe(self) -> dict[str, Any]:
        return {"train": str(self.records.folder), "sha256": self.records.checksum}

    @checked
    def learn_tokenizer(self, vocab_size: Count, kind: VocabularyKind) -> Tokenizer:
        tokenizer = self.records.tokenizer
        if tokenizer.vocab_size != vocab_size:
            raise BadInput(f"vocab_size: expected {tokenizer.vocab_size}, that of the records, got {vocab_size}")
        return tokenizer

    @checked
    def batches(self, batching: Batching, first: Natural = 0, lines: bool = False) -> tf.data.Dataset:
        made = self.records.made_of(batching.batch_tokens, batching.seed, batching.fixed_shapes)
        return data.dataset(lambda: made.since(first), lines)

    def summary(self, batching: Batching) -> data.Summary:
        if batching.tokenizer.fingerprint != self.records.tokenizer.fingerprint:  # that of a model to start from
            raise BadInput(f"{self.records.folder}: expected to train with the tokenizer of the records, got another")
        return self.records.summary(batching.batch_tokens)


def two_files(name: str, files: Files) -> list[str]:
    """Two files, source and target, or `BadInput` with the option's name."""
    paths = [str(user_path(file)) for file in files]
    if len(paths) != 2:
        raise BadInput(f"{name}: expected two files, source and target, got {len(paths)}")
    return paths


def languages_of(train: Any) -> tuple[str, str] | None:
    """The languages of a training text, as its files' names end: train.en, train.de.gz.

    Args:
        train: what config.json says of it: "grammar", the toy corpus; two files; or the name of something else.
    """
    if train == "grammar":
        return ToyCorpus.languages
    if not isinstance(train, list) or len(train) != 2:
        return None
    source, target = (str(name).removesuffix(".gz").rpartition(".")[2] for name in train)
    return (source, target) if all(len(name) == 2 and name.isalpha() for name in (source, target)) else None
