"""Training, dev and test data of a run: parallel text, the toy corpus, or any source."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.data import toy_corpus
from tf_transformer.data.batches import Batches
from tf_transformer.data.held_out import Filter, HeldOut, Share
from tf_transformer.data.ids import Block, Ids, TokenizedSource, metadata_of, tokenized
from tf_transformer.data.sources import (
    Languages,
    MemorySource,
    Source,
    Texts,
    TextSource,
    lists_of,
    once,
    rows_of,
    texts_of,
)
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.utils.files import checksum, user_path
from tf_transformer.utils.lines import check_openable, read_text_pairs
from tf_transformer.utils.terminal import say
from tf_transformer.utils.values import Count, Seed, check_fields, checked, convert

Files = Sequence[str | os.PathLike[str]]
TOY_LANGUAGES = ("en", "de")
TOY = "grammar"  # the toy corpus in config.json of runs, also of earlier versions


@dataclass(frozen=True)
class Batching:
    """Settings that turn pairs into batches.

    Attributes:
        tokenizer: Tokenizer of source and target.
        batch_tokens: Maximum of source tokens, and of target tokens, in a batch.
        seed: Shuffling seed.
        folder: Directory for the ids of the training set, so that a run that resumes does not tokenize it again.
    """

    tokenizer: Tokenizer
    batch_tokens: Count
    seed: Seed
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.folder is not None:
            object.__setattr__(self, "folder", user_path(self.folder, "folder"))
        check_fields(self)


class DevSet(NamedTuple):
    """A dev or test set in one language pair, or none."""

    languages: Languages
    source: list[str]
    references: list[str]


class DevSets(tuple[list[str], list[str]]):
    """Sources and references of a dev or test set: those of all its `sets`, which have names, one after the other."""

    sets: dict[str, DevSet]

    @classmethod
    def of(cls, name: str, value: Any) -> "DevSets":
        """Returns the sets of a mapping by their names, and those of a source by language pair, such as "en-de"."""
        if isinstance(value, cls):
            return value
        value, sets = convert(name, value, Texts | Source | Mapping), dict[str, DevSet]()
        for key, one in (value if isinstance(value, Mapping) else {"": value}).items():
            for languages, (source, references) in _by_pair(name, one):
                known = sets.setdefault(key or "-".join(languages), DevSet(languages, [], []))
                if known.languages != languages:
                    raise BadInput(f"{name}: expected one language pair in {key}, got several")
                known.source.extend(source)
                known.references.extend(references)
        if not sets or not all(one.source for one in sets.values()):
            raise BadInput(f"{name}: expected sources and their references, got none")
        self = cls([text for one in sets.values() for text in one[side]] for side in (1, 2))
        self.sets = sets
        return self


def _by_pair(name: str, value: Any) -> Iterator[tuple[Languages, Texts]]:
    if isinstance(value, Source):
        for languages, rows in value.segments():
            yield languages, lists_of(row[1:] for row in once(rows) if all(row[1:]))
        return
    sources, references = (texts_of(name, side) for side in convert(name, value, Texts))
    if len(sources) != len(references):
        raise BadInput(f"{name}: expected as many references as sources, {len(sources):,}, got {len(references):,}")
    yield (), (sources, references)


@dataclass(frozen=True)
class Corpus:
    """Training, dev and test data for a `Trainer`.

        tt.Corpus(tt.sources.ParquetSource("corpus/*.parquet", ("en", "de")), dev=0.02)

    Attributes:
        train: Source of the training set, kept in memory as ids, or prepared `tt.Records` if it is larger than memory.
        dev: Sources and references of the dev set. Or a source, such as a `JoinedSource` of several language pairs,
            each of which has a score. Or several of both by name, for example of domains. Or the part of the training
            set to hold out: a share, such as 0.02, or a number of pairs.
        test: Sources and references of the test set, like `dev`. `None` means the dev set.
        languages: Languages of source and target, for example ("en", "de"). `None` if unknown.
        max_length: Maximum tokens per side, EOS included. Longer pairs are skipped. `None` means the source's.
        filters: Filters, such as `tt.Filters(duplicates=True)`, that drop pairs of the training set, and of a dev set
            held out of it. `None` means none.

    Raises:
        BadInput: If `dev` or `test` is not two equally long lists of texts, or the records have another max_length.
    """

    train: Source | TokenizedSource
    dev: Any  # Texts | Share | Source | Mapping[str, Texts | Source]; once made, `DevSets`
    test: Any = None
    languages: tuple[str, str] | None = None
    max_length: Count | None = None
    filters: Filter | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        # `vars`, since the class is frozen: these fields follow from the arguments.
        if self.filters:
            vars(self).update(train=self.filters(self.train), filters=None)
        longest = self.train.max_length
        if isinstance(self.train, TokenizedSource) and self.max_length not in (None, longest):
            raise BadInput(f"max_length: expected {longest}, that of the records, got {self.max_length}")
        vars(self)["max_length"] = self.max_length or longest
        dev = self.dev
        if isinstance(self.train, Source) and not isinstance(dev, DevSets):
            dev = convert("dev", dev, Texts | Share | Source | Mapping)
            # Held out before training, by the source, so that a run that resumes holds out the same pairs.
            if isinstance(dev, int | float):
                vars(self)["train"] = held_out = HeldOut(self.train, dev)
                dev = held_out.dev_set()
        vars(self)["dev"] = DevSets.of("dev", dev)
        vars(self)["test"] = self.dev if self.test is None else DevSets.of("test", self.test)

    def __repr__(self) -> str:
        sizes = "".join(f", {name} of {len(getattr(self, name)[0]):,}" for name in ("dev", "test"))
        return f"Corpus({self.train!r}{sizes}, max_length={self.max_length})"

    @property
    def kind(self) -> str:
        """Name of the task that the corpus trains, such as "translation"."""
        return self.train.kind

    def describe(self) -> dict[str, Any]:
        """Returns plain values that identify the training set, for config.json, like `Source.describe`."""
        return self.train.describe()

    def train_tokenizer(self, vocab_size: int, kind: Any) -> Tokenizer:
        """Learns the vocabulary of a new run."""
        return self.train.train_tokenizer(vocab_size, kind)

    def batches(self, batching: Batching) -> Batches:
        """Returns the batches of the training set, by their numbers."""
        if isinstance(self.train, Source):
            blocks = [Block.of(self.ids(batching), self.max_length or 0)]
        else:
            # A model to start from may have another tokenizer.
            if batching.tokenizer.fingerprint != self.train.tokenizer.fingerprint:
                name = self.describe()["train"]
                raise BadInput(f"{name}: expected to train with the tokenizer of the records, got another")
            blocks = self.train.blocks()
        return Batches(blocks, batching.batch_tokens, batching.seed)

    def dev_batches(self, batching: Batching) -> Batches:
        """Returns the batches of the dev set, without shuffling."""
        train = self.train if isinstance(self.train, Source) else MemorySource(*self.dev)
        sets, tokenizer = self.dev.sets.values(), batching.tokenizer
        pairs = (zip(source, train.learned(references), strict=True) for _, source, references in sets)
        segments = ((one.languages, rows_of(texts)) for one, texts in zip(sets, pairs, strict=True))
        # Without a seed, so that each validation sees the same batches in the same order.
        ids = tokenized(train.encoded(tokenizer, segments), self.max_length or 0, tokenizer.vocab_size)
        return Batches([Block.of(ids, self.max_length or 0)], batching.batch_tokens, seed=None)

    def ids(self, batching: Batching) -> Ids:
        """Returns the training set as ids, from the batching's directory if they are stored there."""
        assert isinstance(self.train, Source)
        folder, tokenizer = batching.folder, batching.tokenizer
        if folder and (metadata := self._stored(folder, tokenizer)):
            # Damaged ids are made again.
            with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError, OSError):
                return Ids.load(folder, int(metadata["skipped"]))
        segments = self.train.encoded(tokenizer, self.train.segments())
        return tokenized(segments, self.max_length or 0, tokenizer.vocab_size)

    def keep_ids(self, batching: Batching, batches: Batches) -> None:
        """Stores the ids in the batching's directory for a run that resumes, if the source has a checksum."""
        if not batching.folder or isinstance(self.train, TokenizedSource) or "sha256" not in self.describe():
            return
        # Memory-mapped ids are those of the directory itself.
        ids = batches.blocks[0].read()
        if isinstance(ids.lines, np.memmap) or self._stored(batching.folder, batching.tokenizer):
            return
        if batching.folder.exists():
            say(f"{batching.folder}: expected the training set as ids, found damaged files. They are written again.")
            shutil.rmtree(batching.folder)
        ids.save(batching.folder, {"of": self._key(batching.tokenizer)})

    def _stored(self, folder: Path, tokenizer: Tokenizer) -> dict[str, Any] | None:
        """Returns what is in shard.json, if the directory has undamaged ids of this corpus."""
        # By way of JSON, where tuples are lists and keys are strings.
        metadata = metadata_of(folder)
        return metadata if metadata and metadata.get("of") == json.loads(json.dumps(self._key(tokenizer))) else None

    def _key(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """Returns what the ids depend on."""
        assert isinstance(self.train, Source)
        contents = self.train.contents()
        return {"tokenizer": tokenizer.fingerprint, "max_length": self.max_length, "corpus": contents}


class ToySource(MemorySource):
    """Training set of the toy corpus."""

    def describe(self) -> dict[str, Any]:
        return {"train": TOY, "sha256": checksum(toy_corpus.FILE)}


def ToyCorpus() -> Corpus:
    """Returns the toy corpus: 25,000 pairs of short English and German sentences to train on. See `toy_corpus`."""
    splits = toy_corpus.corpus()
    columns = (zip(*splits[split], strict=True) for split in ("train", "dev", "test"))
    train, dev, test = ((list(source), list(target)) for source, target in columns)
    return Corpus(ToySource(*train), dev, test, TOY_LANGUAGES)


@checked
def TextCorpus(
    train: Files,
    dev: Files | Share,
    test: Files | None = None,
    skip_bad_lines: bool = False,
    filters: Filter | None = None,
) -> Corpus:
    """Returns parallel text as a corpus, one sentence per line, in UTF-8, plain or .gz.

    A `Trainer` checks the lines of the training set when it first reads them, before it learns from them. Dev and test
    set are read at once, and so is a training set that a dev set is held out of.

        corpus = tt.TextCorpus(train=("train.en", "train.de"), dev=0.02)

    Args:
        train: Two files, source and target.
        dev: Two files, or the part of the training set to hold out: a share, such as 0.02, or a number of pairs.
        test: Two files. `None` means the dev set.
        skip_bad_lines: Whether to skip pairs with an empty, over-long or invalid line, which are an error otherwise.
        filters: Filters, such as `tt.Filters(duplicates=True)`, that drop pairs of the training set.

    Raises:
        FileNotFoundError: If a file is missing.
        BadInput: If line counts differ or a line is bad, for the training set in `Trainer.fit`. The message names the
            line.
    """
    files = two_files("train", train)
    source = TextSource(files[0], files[1], skip_bad_lines)
    test_texts = read_texts(test, "test") if test else None
    dev_texts = dev if isinstance(dev, int | float) else read_texts(dev, "dev")
    check_openable(*files)
    return Corpus(source, dev_texts, test_texts, languages_of(files), filters=filters)


def read_texts(files: Files, name: str = "files") -> Texts:
    """Reads sources and references from two files, or raises `BadInput` if they are not parallel text in UTF-8."""
    source, target = two_files(name, files)
    return read_text_pairs(source, target)


def two_files(name: str, files: Files) -> list[str]:
    paths = [str(user_path(file, name)) for file in files]
    if len(paths) != 2:
        raise BadInput(f"{name}: expected two files, source and target, got {len(paths)}")
    return paths


def languages_of(train: Any) -> tuple[str, str] | None:
    """Returns the languages of a training set by its name in config.json: the endings of two files, or `TOY`."""
    if train == TOY:
        return TOY_LANGUAGES
    if not isinstance(train, list) or len(train) != 2:
        return None
    source, target = (str(name).removesuffix(".gz").rpartition(".")[2] for name in train)
    return (source, target) if all(len(name) == 2 and name.isalpha() for name in (source, target)) else None
