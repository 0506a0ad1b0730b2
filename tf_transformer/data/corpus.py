"""What a run learns from: parallel text, TensorFlow Datasets, prepared records, the toy corpus; or any `Source`."""

import contextlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.data import toy_corpus
from tf_transformer.data.batches import Batches, Block
from tf_transformer.data.held_out import HeldOut, Share
from tf_transformer.data.ids import Ids, facts_of, tokenized
from tf_transformer.data.pairs import Source, Texts, contents_of, rows_of, texts_of
from tf_transformer.data.records import Records
from tf_transformer.data.sources import MemorySource, TextSource, TfdsSource
from tf_transformer.data.text_files import read_text_pairs
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.utils.files import checksum, user_path
from tf_transformer.utils.terminal import say
from tf_transformer.utils.type_names import VocabularyKind
from tf_transformer.utils.values import Count, Seed, check_fields, checked

Files = Sequence[str | os.PathLike[str]]
TOY_LANGUAGES = ("en", "de")


@dataclass(frozen=True)
class Batching:
    """How pairs become batches.

    Attributes:
        tokenizer: of source and target.
        batch_tokens: source tokens, and target tokens, in a batch.
        seed: of the order.
        folder: where the ids of the text are kept, so that they are made once; `None` means nowhere.
    """

    tokenizer: Tokenizer
    batch_tokens: Count
    seed: Seed
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.folder is not None:
            object.__setattr__(self, "folder", user_path(self.folder, "folder"))
        check_fields(self)


@dataclass(frozen=True)
class Corpus:
    """What a `Trainer` learns from and is watched with.

        tt.Corpus(tt.sources.ParquetSource("corpus/*.parquet", ("en", "de")), dev=(sources, references))

    Attributes:
        train: the training text, kept in memory as ids; or prepared `Records`, for texts larger than memory.
        dev: sources and references to watch the training with.
        test: sources and references to score the result with; `None` means the dev text.
        languages: of source and target, for example ("en", "de"); `None` if they are not known.
        max_length: tokens a side, EOS included; longer pairs are left out. `None` means the source's.

    Raises:
        BadInput: `dev` or `test` are no two lists of as many texts, or have none; or the records have pairs of other
            lengths.
    """

    train: Source | Records
    dev: Texts
    test: Texts | None = None
    languages: tuple[str, str] | None = None
    max_length: Count | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        own = self.train.max_length
        if isinstance(self.train, Records) and self.max_length not in (None, own):
            raise BadInput(f"max_length: expected {own}, that of the records, got {self.max_length}")
        object.__setattr__(self, "max_length", self.max_length or own)
        for name in ("dev", "test"):
            sources, references = (texts_of(name, side) for side in getattr(self, name) or self.dev)
            if len(sources) != len(references):
                counts = f"{len(sources):,}, got {len(references):,}"
                raise BadInput(f"{name}: expected as many references as sources, {counts}")
            if not sources:
                raise BadInput(f"{name}: expected sources and their references, got none")
            object.__setattr__(self, name, (sources, references))

    def __repr__(self) -> str:
        counts = {name: len(texts[0]) for name in ("dev", "test") if (texts := getattr(self, name))}
        sizes = "".join(f", {name} of {count:,}" for name, count in counts.items())
        return f"Corpus({self.train!r}{sizes}, max_length={self.max_length})"

    @property
    def kind(self) -> str:
        """What is learned, "translation" or "parsing"."""
        return self.train.kind

    def describe(self) -> dict[str, Any]:
        """Plain values for config.json that tell this training text from another, as `Source.describe`."""
        return self.train.describe()

    @checked
    def learn_tokenizer(self, vocab_size: Count, kind: VocabularyKind) -> Tokenizer:
        """The vocabulary of a new run."""
        return self.train.learn_tokenizer(vocab_size, kind)

    @checked
    def batches(self, batching: Batching) -> Batches:
        """The batches of the training text, by their numbers."""
        if isinstance(self.train, Records):
            if batching.tokenizer.fingerprint != self.train.tokenizer.fingerprint:  # that of a model to start from
                folder = self.train.folder
                raise BadInput(f"{folder}: expected to train with the tokenizer of the records, got another")
            blocks = self.train.blocks()
        else:
            blocks = [Block.of(self.ids(batching), self.max_length or 0)]
        return Batches(blocks, batching.batch_tokens, batching.seed)

    @checked
    def dev_batches(self, batching: Batching) -> Batches:
        """The batches of the dev text; an epoch has the pairs of a bucket in order."""
        source, references = self.dev
        train = self.train if isinstance(self.train, Source) else MemorySource(source, references)
        rows = rows_of(zip(source, train.learned(references), strict=True))
        V, longest = batching.tokenizer.vocab_size, self.max_length or 0
        ids = tokenized(rows, train.encoder(batching.tokenizer), longest, V)
        return Batches([Block.of(ids, longest)], batching.batch_tokens, seed=None)

    def ids(self, batching: Batching) -> Ids:
        """The training text as ids, as they are kept in the batching's folder, or made now."""
        assert isinstance(self.train, Source), "records are read by block"
        folder, tokenizer = batching.folder, batching.tokenizer
        if folder and (facts := self._kept(folder, tokenizer)):
            with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError, OSError):  # it is made again
                return Ids.load(folder, int(facts["skipped"]))
        return tokenized(self.train.rows(), self.train.encoder(tokenizer), self.max_length or 0, tokenizer.vocab_size)

    def keep_ids(self, batching: Batching, batches: Batches) -> None:
        """Write the ids into the batching's folder, for a run that goes on, if `describe` tells this text from every
        other by its contents."""
        if not batching.folder or isinstance(self.train, Records) or "sha256" not in self.describe():
            return
        ids = batches.blocks[0].read()
        if isinstance(ids.lines, np.memmap) or self._kept(batching.folder, batching.tokenizer):
            return
        if batching.folder.exists():
            say(f"{batching.folder}: expected the training text as ids, found damaged files; they are written again")
            shutil.rmtree(batching.folder)
        ids.save(batching.folder, {"of": self._key(batching.tokenizer)})

    def _kept(self, folder: Path, tokenizer: Tokenizer) -> dict[str, Any] | None:
        """What shard.json says, if the folder has whole ids of this text."""
        facts = facts_of(folder)
        return facts if facts and facts.get("of") == json.loads(json.dumps(self._key(tokenizer))) else None

    def _key(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """What the ids depend on."""
        contents = contents_of(self.describe())
        return {"tokenizer": tokenizer.fingerprint, "max_length": self.max_length, "corpus": contents}


class ToySource(MemorySource):
    """The training text of the toy corpus."""

    def describe(self) -> dict[str, Any]:
        return {"train": "grammar", "sha256": checksum(toy_corpus.FILE)}


def ToyCorpus() -> Corpus:
    """English and German in short sentences, 25,000 pairs to learn from, without a network; see `toy_corpus`."""
    splits = toy_corpus.corpus()
    columns = (zip(*splits[split], strict=True) for split in ("train", "dev", "test"))
    train, dev, test = ((list(source), list(target)) for source, target in columns)
    return Corpus(ToySource(*train), dev, test, TOY_LANGUAGES)


@checked
def TextCorpus(train: Files, dev: Files | Share, test: Files | None = None, skip_bad_lines: bool = False) -> Corpus:
    """Parallel text, a sentence a line, in UTF-8, plain or .gz; read and checked when the corpus is made.

    Args:
        train: two files, source and target.
        dev: two files to watch the training with; or how much of the training text to hold out for that: a share, such
            as 0.02, or a number of pairs.
        test: two files to score the result with; `None` means the dev text.
        skip_bad_lines: leave out pairs with an empty, over-long or invalid line, which are an error otherwise.

    Raises:
        FileNotFoundError: a file is missing.
        BadInput: the lines do not match, or one is bad; the message says where.
    """
    files = two_files("train", train)
    source = TextSource(files[0], files[1], skip_bad_lines)
    texts = read_texts(test) if test else None
    if isinstance(dev, float):
        source.check()
        held_out = HeldOut(source, dev)
        return Corpus(held_out, held_out.dev(), texts, languages_of(files))
    dev_texts = read_texts(dev)
    source.check()
    return Corpus(source, dev_texts, texts, languages_of(files))


@checked
def TfdsCorpus(
    name: str, languages: tuple[str, str] = ("en", "de"), data_dir: str | os.PathLike[str] | None = None
) -> Corpus:
    """A translation corpus of TensorFlow Datasets: its splits "train", "validation" and "test".

    Args:
        name: for example "wmt14_translate/de-en".
        languages: of source and target.
        data_dir: where the corpora lie; `None` means TFDS's own place.

    Raises:
        BadInput: there is no such language or split.
    """
    train, dev, test = (TfdsSource(name, split, languages, data_dir) for split in ("train", "validation", "test"))
    return Corpus(train, dev.texts(), test.texts(), languages)


def read_texts(files: Files) -> Texts:
    """Sources and references from two files.

    Raises:
        BadInput: they are not parallel text in UTF-8.
    """
    source, target = two_files("files", files)
    return read_text_pairs(source, target)


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
        return TOY_LANGUAGES
    if not isinstance(train, list) or len(train) != 2:
        return None
    source, target = (str(name).removesuffix(".gz").rpartition(".")[2] for name in train)
    return (source, target) if all(len(name) == 2 and name.isalpha() for name in (source, target)) else None
