"""Pairs of texts in Parquet files."""

import dataclasses
import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tf_transformer.config import BadInput
from tf_transformer.data.sources import Pair, PairsOfPart, Part, Source, even_parts
from tf_transformer.utils.files import checksum, encoded, matching, user_path
from tf_transformer.utils.lazy import import_extra
from tf_transformer.utils.reading import reading
from tf_transformer.utils.values import check_fields, checked

# A Parquet file stores equal rows in few bytes.
MAX_ROWS_PER_BYTE = 1_000


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
            columns = [file.schema.column(leaf) for leaf in range(len(file.schema))]
            names = [column.path for column in columns]
            if missing := set(self.columns) - set(names):
                # A leaf of a list, such as a.list.element, has several texts per row.
                usable = [column.path for column in columns if not column.max_repetition_level]
                raise BadInput(f"{path}: expected columns among {', '.join(usable)}; got {', '.join(sorted(missing))}")
            for name in self.columns:
                column = file.schema.column(names.index(name))
                if column.max_repetition_level:
                    raise BadInput(f"{path}: expected a text per row in the column {name}, got lists")
                if column.physical_type != "BYTE_ARRAY":
                    raise BadInput(f"{path}: expected texts in the column {name}, got {column.physical_type}")
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
                    before = table.column_names
                    table = table.flatten()  # fields of columns become columns
                    if table.column_names == before:
                        raise ValueError(f"columns {', '.join(before)}")
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
