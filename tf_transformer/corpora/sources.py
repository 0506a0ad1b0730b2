"""Where a corpus's pairs come from: text files, Parquet, TensorFlow Datasets; in parts that a worker reads."""

import abc
import codecs
import dataclasses
import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tf_transformer.config import BadInput
from tf_transformer.corpora import data
from tf_transformer.corpora.ranges import line_ranges, read_range, unpacked
from tf_transformer.extras import import_extra

Pair = tuple[bytes, bytes]  # source and target, in UTF-8 unless they are bad


@dataclass(frozen=True)
class Part:
    """Pairs that follow one another: those of one shard.

    Attributes:
        number: of the part, from 0.
        first: number of its first pair in the corpus, from 0.
        count: how many pairs it has; fewer mean its first ones.
        where: what the source needs to find them.
    """

    number: int
    first: int
    count: int
    where: tuple[Any, ...] = ()


class Source(abc.ABC):
    """Pairs of texts, always in the same order. It pickles, and every worker can read what it names.

    Attributes:
        skip_bad_lines: leave out pairs with a side that is empty, not UTF-8, or longer than 16,384 bytes; otherwise
            such a pair is an error.
    """

    skip_bad_lines = True

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Plain values for records.json that tell this corpus from another."""

    @abc.abstractmethod
    def parts(self, pairs: int, folder: Path) -> list[Part]:
        """The corpus in parts of `pairs` pairs; the last one may have fewer.

        Args:
            pairs: of a part.
            folder: which the workers see, for files that the source has to write.

        Raises:
            BadInput: there are no pairs, or they are damaged.
        """

    @abc.abstractmethod
    def read(self, part: Part) -> Iterator[Pair]:
        """The pairs of a part."""

    def place(self, side: int, number: int) -> str:
        """Where a text is, for people; `number` is its pair's, from 0."""
        return f"{('source', 'target')[side]}, pair {number + 1:,}"

    def good_pairs(self, part: Part) -> Iterator[tuple[int, bytes, bytes]]:
        """The pairs of a part without bad ones, each with its place in the part, from 0.

        Raises:
            BadInput: a line is bad, and bad ones are not to be skipped.
        """
        for place, pair in enumerate(self.read(part)):
            problems = [data.line_problem(text) for text in pair]
            if problems == [None, None]:
                yield place, *pair
            elif not self.skip_bad_lines:
                side = 0 if problems[0] else 1
                name = self.place(side, part.first + place)
                raise BadInput(f"{name}: expected a sentence in UTF-8, got {problems[side]}")

    def sample(self, parts: list[Part], pairs: int) -> Iterator[str]:
        """Texts of both sides to learn a vocabulary from: the first of every part, about `pairs` in all."""
        each = -(-pairs // len(parts))
        for part in parts:
            for pair in self.read(dataclasses.replace(part, count=min(each, part.count))):
                yield from (text.decode("utf-8", "replace") for text in pair)


@dataclass(frozen=True)
class TextSource(Source):
    """Two text files, line by line parallel, plain or .gz.

    A .gz cannot be read from the middle: it is unpacked beside the records, until they are finished.
    """

    source: str
    target: str
    skip_bad_lines: bool = False

    def describe(self) -> dict[str, Any]:
        files = (self.source, self.target)
        return {"text": [Path(file).name for file in files], "bytes": [os.path.getsize(file) for file in files]}

    def parts(self, pairs: int, folder: Path) -> list[Part]:
        for file in (self.source, self.target):
            if not Path(file).is_file():
                raise FileNotFoundError(f"expected a text file, found none at {file}")
        sides = [line_ranges([unpacked(file, folder / "unpacked")], pairs) for file in (self.source, self.target)]
        counts = [sum(lines.count for lines in ranges) for ranges in sides]
        if counts[0] != counts[1]:
            raise BadInput(data.unequal(self.source, self.target, *counts))
        if not counts[0]:
            raise BadInput(f"expected sentences, got an empty file: {self.source}")
        both = enumerate(zip(*sides, strict=True))
        return [Part(number, lines[0].first, lines[0].count, lines) for number, lines in both]

    def read(self, part: Part) -> Iterator[Pair]:
        source, target = (read_range(dataclasses.replace(lines, count=part.count)) for lines in part.where)
        for number, pair in enumerate(zip(source, target, strict=True), part.first):
            sides = (side.removesuffix(b"\r") for side in pair)
            yield tuple(sides if number else (side.removeprefix(codecs.BOM_UTF8) for side in sides))  # type: ignore[misc]

    def place(self, side: int, number: int) -> str:
        return f"{(self.source, self.target)[side]}, line {number + 1:,}"


@dataclass(frozen=True)
class TfdsSource(Source):
    """A translation corpus of TensorFlow Datasets; the arguments are those of `data.tfds_pairs`."""

    name: str
    split: str = "train"
    languages: tuple[str, str] = ("en", "de")
    data_dir: str | None = None

    def describe(self) -> dict[str, Any]:
        return {"tfds": self.name, "split": self.split, "languages": list(self.languages)}

    def parts(self, pairs: int, folder: Path) -> list[Part]:
        count = int(self._pairs(self.split).cardinality())
        return _even_parts(count, pairs)

    def read(self, part: Part) -> Iterator[Pair]:
        # A range of its own reads the files from there on; skipping would read all before it.
        yield from self._pairs(f"{self.split}[{part.first}:{part.first + part.count}]").as_numpy_iterator()

    def _pairs(self, split: str) -> Any:
        return data.tfds_pairs(self.name, split, self.languages, self.data_dir)


@dataclass(frozen=True)
class ParquetSource(Source):
    """Parquet files with a column of source texts and one of target texts. It needs pyarrow, which Beam brings.

    Args:
        pattern: one file, or several by a pattern as "corpus/*.parquet", which are read in the order of their names.
        columns: names of the columns of source and target, of strings or bytes; "translation.en" is the field "en" of a
            column "translation".
    """

    pattern: str
    columns: tuple[str, str]

    def describe(self) -> dict[str, Any]:
        files = self._files()
        sizes = sum(os.path.getsize(file) for file in files)
        return {"parquet": Path(self.pattern).name, "columns": list(self.columns), "files": len(files), "bytes": sizes}

    def parts(self, pairs: int, folder: Path) -> list[Part]:
        groups = []  # (file, row group, number of its first row, rows)
        count = 0
        for path in self._files():
            file = _parquet(path)
            known = [file.schema.column(leaf).path for leaf in range(len(file.schema))]
            if missing := set(self.columns) - set(known):
                raise BadInput(f"{path}: expected columns among {', '.join(known)}; got {', '.join(sorted(missing))}")
            for name in self.columns:
                kind = file.schema.column(known.index(name)).physical_type
                if kind != "BYTE_ARRAY":
                    raise BadInput(f"{path}: expected texts in the column {name}, got {kind}")
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                groups.append((path, group, count, rows))
                count += rows
        parts = []
        for part in _even_parts(count, pairs):
            end = part.first + part.count
            inside = [group for group in groups if group[2] < end and part.first < group[2] + group[3]]
            parts.append(Part(part.number, part.first, part.count, tuple(inside)))
        return parts

    def read(self, part: Part) -> Iterator[Pair]:
        for path, group, first, rows in part.where:
            start, stop = max(part.first - first, 0), min(part.first + part.count - first, rows)
            table = _parquet(path).read_row_group(group, columns=list(self.columns)).slice(start, stop - start)
            while any(name not in table.column_names for name in self.columns):
                table = table.flatten()  # fields of columns become columns
            source, target = (table.column(name).to_pylist() for name in self.columns)
            for pair in zip(source, target, strict=True):
                yield _encoded(pair[0]), _encoded(pair[1])

    def _files(self) -> list[str]:
        files = sorted(glob.glob(self.pattern))
        if not files:
            raise FileNotFoundError(f"expected Parquet files, found none at {self.pattern}")
        return files


def _parquet(path: str) -> Any:
    pyarrow = import_extra("pyarrow", "parquet", "reading Parquet files")
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise BadInput(f"{path}: expected a Parquet file, got something else: {error}") from error


def _encoded(text: str | bytes | None) -> bytes:
    return text if isinstance(text, bytes) else (text or "").encode("utf-8", "surrogatepass")


def _even_parts(count: int, pairs: int) -> list[Part]:
    if not count:
        raise BadInput("expected sentences, got an empty corpus")
    starts = enumerate(range(0, count, pairs))
    return [Part(number, first, min(pairs, count - first)) for number, first in starts]
