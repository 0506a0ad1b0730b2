"""Sources of pairs: text files, Parquet, TensorFlow Datasets, lists, several sources together, or a custom class.

A corpus trains on any of them, and `tf-transformer prepare` makes records of any, shard by shard.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.data.pairs import (
    Encode,
    Languages,
    Pair,
    PairsOfPart,
    Row,
    Text,
    even_parts,
    once,
    texts_of,
    untagged,
)
from tf_transformer.data.pairs import Part as Part
from tf_transformer.data.pairs import Source as Source
from tf_transformer.data.text_files import check_text_pairs, line_ranges, read_range, unequal, unpacked
from tf_transformer.tokenizers.tokenizer import Tokenizer, check_symbols, sentences
from tf_transformer.utils.extras import import_extra
from tf_transformer.utils.files import checksum, encoded, lines_of, matching, open_text, user_path
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.reading import reading
from tf_transformer.utils.values import Kind, Positive, check_fields, checked, convert, shown, span

tfds = lazily("tensorflow_datasets", "a corpus of TensorFlow Datasets")
# A Parquet file stores equal rows in few bytes.
MAX_ROWS_PER_BYTE = 1_000
Share = Annotated[
    float,
    Kind("a share of the pairs below 0.5, or a number of them", lambda x: 0 < x < 0.5 or (x >= 1 and x.is_integer())),
]


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
        return {"train": files, "sha256": self._checksums, "skip_bad_lines": self.skip_bad_lines}

    @functools.cached_property
    def _checksums(self) -> list[str]:
        sums = []
        for path in (self.source, self.target):
            with open_text(path) as file:  # a .gz has the checksum of its contents
                sums.append(hashlib.file_digest(file, "sha256").hexdigest())
        return sums

    def check(self) -> int:
        """Reads both files once, checks every line like `check_text_pairs`, and returns the number of pairs."""
        sums = [hashlib.sha256(), hashlib.sha256()]
        count = check_text_pairs(self.source, self.target, self.skip_bad_lines, sums=sums)
        self.__dict__["_checksums"] = [one.hexdigest() for one in sums]
        return count

    def pairs(self) -> Iterator[Pair]:
        sides = lines_of(self.source), lines_of(self.target)
        for number, (source, target) in enumerate(itertools.zip_longest(*sides)):
            if source is None or target is None:
                longer = number + 1 + sum(1 for _ in itertools.chain(*sides))
                counts = (number, longer) if source is None else (longer, number)
                raise unequal(self.source, self.target, *counts)
            yield source, target

    def sentences(self) -> Iterator[str]:
        return sentences([self.source, self.target])

    @checked
    def parts(self, pairs: PairsOfPart, folder: str | os.PathLike[str]) -> list[Part]:
        for file in (self.source, self.target):
            if not Path(file).is_file():
                raise FileNotFoundError(f"expected a text file, found none at {file}")
        folder = user_path(folder) / "unpacked"
        sums = [hashlib.sha256(), hashlib.sha256()]
        files = [unpacked(file, folder) for file in (self.source, self.target)]
        sides = [line_ranges([file], pairs, one) for file, one in zip(files, sums, strict=True)]
        self.__dict__["_checksums"] = [one.hexdigest() for one in sums]
        counts = [sum(lines.count for lines in ranges) for ranges in sides]
        if counts[0] != counts[1]:
            raise unequal(self.source, self.target, *counts)
        if not counts[0]:
            raise BadInput(f"expected sentences, got an empty file: {self.source}")
        both = enumerate(zip(*sides, strict=True))
        return [Part(number, lines[0].first, lines[0].count, lines) for number, lines in both]

    def read(self, part: Part) -> Iterator[Pair]:
        source, target = (read_range(dataclasses.replace(lines, count=part.count)) for lines in part.where)
        yield from zip(source, target, strict=True)

    def place(self, side: int, number: int) -> str:
        return f"{(self.source, self.target)[side]}, line {number + 1:,}"


@dataclass(frozen=True)
class TfdsSource(Source):
    """A translation corpus of TensorFlow Datasets, downloaded at first use.

    Attributes:
        name: Name of the corpus, for example "wmt14_translate/de-en".
        split: Split, such as "train"; a range of it, such as "train[200:300]" or "train[:10%]"; or several, with "+".
        languages: Languages of source and target, for example ("en", "de").
        data_dir: Folder of the corpora. `None` means the default of TFDS.
    """

    name: str
    split: str = "train"
    languages: tuple[str, str] = ("en", "de")
    data_dir: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.data_dir is not None:
            object.__setattr__(self, "data_dir", str(user_path(self.data_dir, "data_dir")))

    def describe(self) -> dict[str, Any]:
        version = str(self._named().info.version)
        return {"train": self.name, "version": version, "split": self.split, "languages": list(self.languages)}

    def pairs(self) -> Iterator[Pair]:
        return self._pairs(self.split)

    @checked
    def parts(self, pairs: PairsOfPart, folder: str | os.PathLike[str]) -> list[Part]:
        return even_parts(sum(len(indices) for _, indices in self._ranges(self._builder())), pairs)

    def read(self, part: Part) -> Iterator[Pair]:
        # TFDS reads a range of a split from its first file on. Skipping examples would read all files before it.
        first, last = part.first, part.first + part.count
        for split, indices in self._ranges(self._builder()):
            if part_of_split := indices[max(first, 0) : max(last, 0)]:
                yield from self._pairs(f"{split}[{part_of_split.start}:{part_of_split.stop}]")
            first, last = first - len(indices), last - len(indices)

    def _pairs(self, split: str) -> Iterator[Pair]:
        texts = self._builder().as_dataset(split=split, shuffle_files=False)
        return (tuple(text[name] for name in self.languages) for text in texts.as_numpy_iterator())

    def _ranges(self, builder: Any) -> list[tuple[str, range]]:
        """Returns the name and the indices of each range in `split`, such as "train[:10%]+test"."""
        sizes = {name: info.num_examples for name, info in builder.info.splits.items()}
        try:
            ranges = tfds.core.ReadInstruction.from_spec(self.split).to_absolute(builder.info.splits)
        except (ValueError, NotImplementedError) as error:
            expected = f"expected one of the splits {', '.join(sizes)}, or a range of one such as train[:10%]"
            raise BadInput(f"{self.name}: {expected}, got {self.split!r}") from error
        return [(part.splitname, range(sizes[part.splitname])[part.from_ : part.to]) for part in ranges]

    def _builder(self) -> Any:
        builder = self._named()
        if missing := set(self.languages) - set(builder.info.features):
            languages = ", ".join(builder.info.features)
            raise BadInput(f"{self.name}: expected languages among {languages}, got {', '.join(sorted(missing))}")
        builder.download_and_prepare()
        self._ranges(builder)
        return builder

    def _named(self) -> Any:
        try:
            return tfds.builder(self.name, data_dir=self.data_dir)
        except ValueError as error:  # its message ends with a list of all corpora
            reason = re.split(r"\n| Here are ", str(error))[0]
            raise BadInput(f"{self.name}: expected a corpus of TensorFlow Datasets, got none: {reason}") from error


@dataclass(frozen=True)
class ParquetSource(Source):
    """Parquet files with a column of source texts and one of target texts. It needs pyarrow, which Beam installs.

    Attributes:
        pattern: A file, or a pattern such as "corpus/*.parquet" of files, which are read in the order of their names.
        columns: Columns of source and target, of strings or bytes. "translation.en" is the field "en" of the column
            "translation".
    """

    pattern: str | os.PathLike[str]
    columns: tuple[str, str]

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "pattern", str(user_path(self.pattern, "pattern")))

    def describe(self) -> dict[str, Any]:
        return {"train": str(self.pattern), "columns": list(self.columns), "sha256": self._checksums}

    @functools.cached_property
    def _checksums(self) -> list[str]:
        return [checksum(file) for file in self._files()]

    def pairs(self) -> Iterator[Pair]:
        (whole,) = self.parts(sys.maxsize, Path())
        return self.read(whole)

    @checked
    def parts(self, pairs: PairsOfPart, folder: str | os.PathLike[str]) -> list[Part]:
        groups, count = list[tuple[str, int, int, int]](), 0  # file, row group, its first row in the corpus, rows
        for path in self._files():
            file = _parquet(path)
            names = [file.schema.column(leaf).path for leaf in range(len(file.schema))]
            if missing := set(self.columns) - set(names):
                raise BadInput(f"{path}: expected columns among {', '.join(names)}; got {', '.join(sorted(missing))}")
            for name in self.columns:
                kind = file.schema.column(names.index(name)).physical_type
                if kind != "BYTE_ARRAY":
                    raise BadInput(f"{path}: expected texts in the column {name}, got {kind}")
            with reading(path, "a Parquet file"):
                for group in range(file.num_row_groups):
                    rows = file.metadata.row_group(group).num_rows
                    groups.append((path, group, count, rows))
                    count += rows
                if not 0 <= count <= MAX_ROWS_PER_BYTE * sum(map(os.path.getsize, self._files())):
                    raise ValueError(f"{count:,} rows, which so few bytes cannot hold")
        shards = []
        for shard in even_parts(count, pairs):
            end = shard.first + shard.count
            inside = (group for group in groups if group[2] < end and shard.first < group[2] + group[3])
            shards.append(dataclasses.replace(shard, where=tuple(inside)))
        return shards

    def read(self, part: Part) -> Iterator[Pair]:
        for path, group, first, rows in part.where:
            start, stop = max(part.first - first, 0), min(part.first + part.count - first, rows)
            with reading(path, "a Parquet file"):
                table = _parquet(path).read_row_group(group, columns=list(self.columns)).slice(start, stop - start)
                while any(name not in table.column_names for name in self.columns):
                    table = table.flatten()  # fields of columns become columns
                source, target = (table.column(name).to_pylist() for name in self.columns)
            for pair in zip(source, target, strict=True):
                yield encoded(pair[0] or b""), encoded(pair[1] or b"")

    def _files(self) -> list[str]:
        if files := matching(self.pattern):
            return files
        raise FileNotFoundError(f"expected Parquet files, found none at {self.pattern}")


def _parquet(path: str) -> Any:
    import_extra("pyarrow", "parquet", "reading Parquet files")
    from pyarrow import parquet

    with reading(path, "a Parquet file"):
        return parquet.ParquetFile(path)


class Composite(Source):
    """A source that is made of others. Its pairs are its rows, in which bad pairs are empty."""

    def pairs(self) -> Iterator[Pair]:
        return ((source, target) for _, source, target in self.rows())

    def read(self, part: Part) -> Iterator[Pair]:
        return ((source, target) for _, source, target in self.rows(part))


@dataclass(frozen=True)
class TaggedSource(Composite):
    """Several sources, one after the other, with a tag before each source text.

    So one model learns several directions, and the tag of a text selects one:

        german, french = tt.sources.TextSource("train.en", "train.de"), tt.sources.TextSource("train.en", "train.fr")
        both = tt.sources.TaggedSource({"<2de>": german, "<2fr>": french})  # "<2de> A dog runs."

    Every tag is one token of a vocabulary that is trained on it. Another tokenizer must have the tags as tokens.
    Sources may handle bad lines differently.

    Attributes:
        sources: Sources by their tags, which are `user_defined_symbols` of a vocabulary. "" means no tag. A list of
            (tag, source) may repeat a tag.
        weights: How often an epoch has the pairs of each source. With 2.5, it has each pair twice and every other one a
            third time. `None` means 1 for all.
    """

    sources: Mapping[str, Source] | Sequence[tuple[str, Source]]
    weights: Sequence[Positive] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.sources, Mapping):
            object.__setattr__(self, "sources", tuple(self.sources))
        by_tag = self._by_tag()
        are_pairs = all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in by_tag)
        if not by_tag or not are_pairs or not all(isinstance(source, Source) for _, source in by_tag):
            raise BadInput(f"sources: expected sources of pairs by their tags, got {shown(self.sources)}")
        tags, sources = zip(*by_tag, strict=True)
        check_symbols(dict.fromkeys(tag for tag in tags if tag != ""), "sources")
        if kinds := {source.kind for source in sources} - {self.kind}:
            raise BadInput(f"sources: expected sources of {self.kind}, got one of {', '.join(kinds)}")
        if self.weights is not None:
            weights = tuple(convert("weights", weight, Positive) for weight in self.weights)
            if len(weights) != len(sources):
                raise BadInput(f"weights: expected one for each of {len(sources)} sources, got {len(weights)}")
            object.__setattr__(self, "weights", weights)
        inner_tags = (tag for source in sources for tag in source.symbols)
        object.__setattr__(self, "symbols", list(dict.fromkeys([*filter(None, tags), *inner_tags])))
        object.__setattr__(self, "max_length", max(source.max_length for source in sources))

    def _by_tag(self) -> list[tuple[str, Source]]:
        return list(self.sources.items() if isinstance(self.sources, Mapping) else self.sources)

    def describe(self) -> dict[str, Any]:
        contents = [(tag, source.contents()) for tag, source in self._by_tag()]
        checksums = [content.get("sha256") for _, content in contents]
        weights = {"weights": list(self.weights)} if self.weights else {}
        # A list, since the order of the sources counts.
        return {"tagged": list(map(list, contents))} | weights | ({"sha256": checksums} if all(checksums) else {})

    def segments(self, part: Part | None = None) -> Iterator[tuple[Languages, Iterator[Row]]]:
        sources, shard, last = list(enumerate(self._by_tag())), None, 0
        if part:
            index, shard = part.where
            sources, last = [sources[index]], part.first - shard.first
            shard = dataclasses.replace(shard, count=part.count)

        def copies(index: int, tag: str, first: int, rows: Iterator[Row]) -> Iterator[Row]:
            nonlocal last
            weight = self.weights[index] if self.weights else 1
            for number, text, target in rows:
                last = first + number
                # The first n pairs have floor(n * weight) copies: an exact number, without a seed.
                for _ in range(int(number * weight) - int((number - 1) * weight)):
                    yield last, _tagged(tag, text) if text else text, target

        for index, (tag, source) in sources:
            first = last
            for languages, rows in source.segments(shard):
                yield languages, copies(index, tag, first, rows)

    @checked
    def parts(self, pairs: PairsOfPart, folder: str | os.PathLike[str]) -> list[Part]:
        shards, first = list[Part](), 0
        for index, (_, source) in enumerate(self._by_tag()):
            for shard in source.parts(pairs, user_path(folder)):
                shards.append(Part(len(shards), first, shard.count, (index, shard)))
                first += shard.count
        return shards


@checked
def JoinedSource(sources: Sequence[Source], weights: Sequence[Positive] | None = None) -> TaggedSource:
    """Joins at least one source, one after the other, without tags.

        both = tt.sources.JoinedSource([tt.sources.TextSource("old.en", "old.de"), new], weights=[1, 2.5])

    A source that occurs twice counts twice. Sources may handle bad lines differently, and be `DirectedSource`s of
    several languages. `weights` are those of `TaggedSource`, for example `temperature_weights(sources, 5)`.
    """
    return TaggedSource([("", source) for source in sources], weights)


@checked
def temperature_weights(sources: Sequence[Source], temperature: Annotated[float, span(1)]) -> list[float]:
    """Returns weights that sample each source in proportion to n^(1/T), where n is its number of pairs.

    The largest source has weight 1. M2M100 was trained with T=5 (Fan et al. 2020).

    Args:
        sources: Sources, whose pairs are counted.
        temperature: T. 1 keeps the sizes, and `math.inf` makes them equal.
    """
    counts = [sum(1 for _ in source.pairs()) for source in sources]
    if not all(counts):
        raise BadInput(f"sources: expected pairs in each, got none at index {counts.index(0)}")
    return [(max(counts) / count) ** (1 - 1 / temperature) for count in counts]


def _tagged(tag: str, text: Text) -> bytes:
    return encoded(tag) + b" " * bool(tag) + encoded(text)


class Wrapper(Composite):
    """A source with the rows and shards of another one, `source`."""

    source: Source

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("kind", "max_length", "skip_bad_lines", "symbols", "place"):
            object.__setattr__(self, name, getattr(self.source, name))

    @checked
    def parts(self, pairs: PairsOfPart, folder: str | os.PathLike[str]) -> list[Part]:
        return self.source.parts(pairs, user_path(folder))

    def encoder(self, tokenizer: Tokenizer) -> Encode:
        return self.source.encoder(tokenizer)


@dataclass(frozen=True)
class DirectedSource(Wrapper):
    """A source in a language pair of a multilingual model, such as M2M100 or NLLB-200. Join several for one run:

        german = tt.sources.DirectedSource(tt.sources.TextSource("train.en", "train.de"), ("en", "de"))
        both = tt.sources.JoinedSource([german, french])

    Attributes:
        source: Pairs.
        languages: The model's codes of source and target language.
    """

    source: Source
    languages: tuple[str, str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if inner := [languages for languages, _ in self.source.segments() if languages]:
            raise BadInput(f"source: expected one without languages, got one from {' to '.join(inner[0])}")

    def describe(self) -> dict[str, Any]:
        return {**self.source.describe(), "direction": list(self.languages)}

    def segments(self, part: Part | None = None) -> Iterator[tuple[Languages, Iterator[Row]]]:
        yield self.languages, self.source.rows(part)


@dataclass(frozen=True)
class HeldOut(Wrapper):
    """A source without the pairs of a dev set, which a hash of their source texts selects, or this dev set.

    The selection does not depend on the order, since neighbors in a corpus are alike. Pairs with the same source text
    are on the same side, whatever their tags and languages. The reverse of a dev pair is on neither side.

    Attributes:
        source: All pairs.
        share: Share of the dev set, below 0.5, or its number of pairs. Equal source texts may add some pairs.
        dev: Whether this is the dev set, in which each pair counts once.

    Raises:
        BadInput: If `share` is something else, or the dev set would have no pairs, or at least half of them.
    """

    source: Source
    share: Share
    dev: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._split

    @functools.cached_property
    def _split(self) -> tuple[int, frozenset[tuple[int, int]]]:
        """Returns a limit, below which are the hashes of the dev set's source texts, and the hashes of its pairs."""
        rows = (row for row in once(self.source.rows()) if all(row[1:]))
        hashes = np.fromiter((self._hashes(*row[1:]) for row in rows), np.dtype("u8,u8"))
        limit, count = int(min(self.share, 0.5) * 2**64), len(hashes)
        if self.share >= 1 and count:
            limit = int(np.sort(hashes["f0"])[min(int(self.share), count) - 1]) + 1
        dev = hashes[hashes["f0"] < limit].tolist()
        if not 0 < 2 * len(dev) < count:
            size = len(dev) or self.share
            raise BadInput(f"dev: expected 1 to {(count - 1) // 2:,} of {count:,} pairs, got {size:,.6g}")
        return limit, frozenset(dev)

    def describe(self) -> dict[str, Any]:
        return {**self.source.describe(), "held_out": self.share} | ({"dev": True} if self.dev else {})

    def segments(self, part: Part | None = None) -> Iterator[tuple[Languages, Iterator[Row]]]:
        for languages, rows in self.source.segments(part):
            rows = (row for row in once(rows) if all(row[1:])) if self.dev else rows
            yield languages, (row for row in rows if self._has(*row[1:]))

    def _has(self, source: bytes, target: bytes) -> bool:
        (limit, dev), (of_source, of_target) = self._split, self._hashes(source, target)
        if self.dev or of_source < limit:
            return self.dev and of_source < limit
        return (of_target, of_source) not in dev

    def _hashes(self, source: bytes, target: bytes) -> tuple[int, int]:
        return _hash(untagged(source, self.symbols)), _hash(target)


def _hash(text: bytes) -> int:
    # `hash` is salted in each process, but a run that resumes needs the same split. Texts that differ only in outer
    # white space are the same.
    return int.from_bytes(hashlib.blake2b(text.strip(), digest_size=8).digest())
