"""A text as ids: flat arrays, in memory or in a folder.

Texts, records and trees differ in how pairs are read. From there on all are flat arrays of ids: what a run keeps of its
text is a folder of them, and so is a shard of prepared records.
"""

import itertools
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tf_transformer.data.pairs import Encode, Row
from tf_transformer.masks import PAD_ID
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID
from tf_transformer.utils.files import checksum, new_folder
from tf_transformer.utils.terminal import say

CHUNK = 2_048  # pairs that are tokenized together
SECONDS = 10  # between lines of progress
FACTS = "shard.json"
ARRAYS = ("source", "source_starts", "target", "target_starts", "lines")


class Side(NamedTuple):
    """The sources, or the targets, of n pairs, without BOS and EOS."""

    ids: np.ndarray  # unsigned integers or int32 [tokens], one text after the other
    starts: np.ndarray  # int64 [n + 1], where each text begins; the last one is the number of tokens

    @classmethod
    def of(cls, ids: np.ndarray, lengths: np.ndarray) -> "Side":
        """From all ids and the length of each text."""
        return cls(ids, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))

    def lengths(self) -> np.ndarray:
        """Tokens of each text, EOS included: int64 [n]."""
        return np.diff(self.starts) + 1

    def rows(self, places: np.ndarray, width: int, rows: int) -> np.ndarray:
        """Some texts, each with padding behind it: int32 [rows, width]; rows beyond those of `places` are padding."""
        starts = self.starts[places]
        lengths = self.starts[places + 1] - starts
        columns = np.arange(width)
        real = columns < lengths[:, np.newaxis]
        padded = np.full((rows, width), PAD_ID, np.int32)
        padded[: len(places)][real] = self.ids[(starts[:, np.newaxis] + columns)[real]]
        return padded


class Batch(NamedTuple):
    """A batch of B pairs of at most S and T tokens; 0 is padding."""

    source: np.ndarray  # int32 [B, S], ends with EOS
    target_in: np.ndarray  # int32 [B, T], begins with BOS
    target_out: np.ndarray  # int32 [B, T], ends with EOS
    lines: np.ndarray  # int64 [B], the pairs' numbers in the text, from 1; 0 in a row of padding

    def pair(self) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
        """What `fit` takes: ((source, target_in), target_out)."""
        return (self.source, self.target_in), self.target_out


@dataclass(frozen=True)
class Ids:
    """The pairs of a text that fit, as ids.

    Attributes:
        source, target: the two sides.
        lines: int64 [n], the pairs' numbers in the text, from 1.
        skipped: how many pairs of the text are left out, as too long or empty.
    """

    source: Side
    target: Side
    lines: np.ndarray
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.lines)

    def lengths(self) -> np.ndarray:
        """The longer side of each pair, EOS included: int64 [n]."""
        return np.maximum(self.source.lengths(), self.target.lengths())

    def tokens(self) -> tuple[int, int]:
        """Tokens of all sources, and of all targets, EOS included."""
        return len(self.source.ids) + len(self), len(self.target.ids) + len(self)

    def batch(self, places: np.ndarray, shape: tuple[int, int] | None = None) -> Batch:
        """The pairs at some places, as narrow as they allow, or with `shape`, rows and tokens of both sides."""
        rows = shape[0] if shape else len(places)
        source, _ = self._framed(self.source, places, rows, shape and shape[1])
        target_out, plain = self._framed(self.target, places, rows, shape and shape[1])
        begins = np.full((rows, 1), PAD_ID, np.int32)
        begins[: len(places)] = BOS_ID
        lines = np.zeros(rows, np.int64)
        lines[: len(places)] = self.lines[places]
        return Batch(source, np.concatenate([begins, plain[:, :-1]], axis=1), target_out, lines)

    def _framed(self, side: Side, places: np.ndarray, rows: int, width: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Texts with EOS, and without: int32 [rows, width]."""
        lengths = side.starts[places + 1] - side.starts[places]
        plain = side.rows(places, width or int(lengths.max(initial=0)) + 1, rows)
        ended = plain.copy()
        ended[np.arange(len(places)), lengths] = EOS_ID
        return ended, plain

    @classmethod
    def joined(cls, parts: Sequence["Ids"]) -> "Ids":
        """Several texts as one, in memory."""

        def together(sides: list[Side]) -> Side:
            ids, lengths = [side.ids for side in sides], [np.diff(side.starts) for side in sides]
            return Side.of(np.concatenate(ids), np.concatenate(lengths))

        source, target = together([part.source for part in parts]), together([part.target for part in parts])
        return cls(source, target, np.concatenate([part.lines for part in parts]), sum(part.skipped for part in parts))

    def save(self, folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
        """Write them as a shard: a new folder of arrays, and shard.json with `facts`, the size and the checksums.

        Returns:
            what is in shard.json.
        """
        with new_folder(folder) as written:
            for name, array in zip(ARRAYS, (*self.source, *self.target, self.lines), strict=True):
                _write(written / f"{name}.npy", array)
            size = sum((written / f"{name}.npy").stat().st_size for name in ARRAYS)
            facts = facts | {"skipped": self.skipped, "bytes": size, "sha256": sums_of(written)}
            (written / FACTS).write_text(json.dumps(facts))
        return facts

    @classmethod
    def load(cls, folder: Path, skipped: int = 0) -> "Ids":
        """A shard that `save` wrote, read as it is needed.

        Raises:
            ValueError: the arrays are no ids.
            OSError: an array is missing.
        """
        source, source_starts, target, target_starts, lines = (
            np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ARRAYS
        )
        for ids, starts in ((source, source_starts), (target, target_starts)):
            if not (ids.ndim == starts.ndim == lines.ndim == 1 and len(starts) == len(lines) + 1):
                raise ValueError("arrays of other sizes")
            if ids.dtype.kind not in "iu" or (starts.dtype, lines.dtype) != (np.int64, np.int64):
                raise ValueError("arrays that are not whole numbers")
            if starts[0] != 0 or starts[-1] != len(ids) or (np.diff(starts) < 0).any():
                raise ValueError("texts that do not follow one another")
        return cls(Side(source, source_starts), Side(target, target_starts), lines, skipped)


def _write(file: Path, array: np.ndarray) -> None:
    """As `np.save`, whose error does not say that a disk is full."""
    try:
        with open(file, "wb") as written:
            form = np.lib.format
            form.write_array_header_1_0(written, form.header_data_from_array_1_0(array))
            written.write(np.ascontiguousarray(array).data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error


def sums_of(folder: Path) -> dict[str, str]:
    """The checksums of a shard's arrays."""
    return {name: checksum(folder / f"{name}.npy") for name in ARRAYS}


def facts_of(folder: Path) -> dict[str, Any] | None:
    """What shard.json says of a shard; `None` if there is none, or if it is damaged."""
    try:
        facts: dict[str, Any] = json.loads((folder / FACTS).read_text())
        return facts if facts["sha256"] == sums_of(folder) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def tokenized(rows: Iterable[Row], encode: Encode, max_length: int, vocab_size: int) -> Ids:
    """The ids of the pairs that fit, made once.

    Args:
        rows: the pairs' numbers, sources and targets, as of `Source.rows`.
        encode: from sources and targets to the ids of each.
        max_length: pairs with a side of more tokens, EOS included, or with an empty one, are left out.
        vocab_size: V; small ids take 2 bytes.

    Raises:
        BadInput: a line is bad, and bad ones are not to be skipped.
    """
    dtype = np.uint16 if vocab_size <= 2**16 else np.int32
    kept: list[list[np.ndarray]] = [[np.zeros(0, dtype if column in (0, 2) else np.int64)] for column in range(5)]
    remaining, total, began, said = iter(rows), 0, time.monotonic(), time.monotonic()
    while chunk := list(itertools.islice(remaining, CHUNK)):
        numbers, *texts = zip(*chunk, strict=True)
        total += len(numbers)
        sides = [_flat(side, dtype) for side in encode(*texts)]
        lengths = np.stack([side[1] for side in sides])
        fits = (lengths.max(axis=0) < max_length) & (lengths.min(axis=0) > 0)
        columns = [part for ids, sizes in sides for part in (ids[np.repeat(fits, sizes)], sizes[fits])]
        for column, values in zip(kept, [*columns, np.asarray(numbers, np.int64)[fits]], strict=True):
            column.append(values)
        if time.monotonic() - said > SECONDS:
            said = time.monotonic()
            say(f"  tokenized {total:,} pairs, {total / (said - began):,.0f} a second")
    source, source_lengths, target, target_lengths, lines = (np.concatenate(column) for column in kept)
    return Ids(Side.of(source, source_lengths), Side.of(target, target_lengths), lines, total - len(lines))


def _flat(rows: list[list[int]], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """All ids, one row after the other, and the length of each row."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return np.fromiter(itertools.chain.from_iterable(rows), dtype, int(lengths.sum())), lengths
