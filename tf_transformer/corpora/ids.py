"""A text as ids, and batches of pairs of similar length by arithmetic (section 5.1).

Texts, records and trees differ in how pairs are read. From there on all are flat arrays of ids. Which pairs make batch
number N follows from a seed and N alone, so a training goes on anywhere without reading what came before.
"""

import functools
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tf_transformer.base.files import checksum, new_folder
from tf_transformer.config import BadInput
from tf_transformer.masks import PAD_ID
from tf_transformer.text.tokenizer import BOS_ID, EOS_ID


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

    def save(self, folder: Path, key: dict[str, Any]) -> None:
        """Keep them in a new folder, for `load`, with what they are of."""
        with new_folder(folder) as written:
            for name, array in self._arrays().items():
                np.save(written / f"{name}.npy", array)
            sums = {name: checksum(written / f"{name}.npy") for name in self._arrays()}
            (written / "of.json").write_text(json.dumps(key | {"skipped": self.skipped, "sha256": sums}))

    @classmethod
    def load(cls, folder: Path, key: dict[str, Any]) -> "Ids | None":
        """What `save` kept, read as it is needed; `None` if the folder has ids of something else, damaged ones, or
        none."""
        names = ("source", "source_starts", "target", "target_starts", "lines")
        try:
            found = json.loads((folder / "of.json").read_text())
            skipped, sums = int(found.pop("skipped")), found.pop("sha256")
            if found != json.loads(json.dumps(key)) or sums != {
                name: checksum(folder / f"{name}.npy") for name in names
            }:
                return None
            source, source_starts, target, target_starts, lines = (
                np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in names
            )
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return None
        return cls(Side(source, source_starts), Side(target, target_starts), lines, skipped)

    def _arrays(self) -> dict[str, np.ndarray]:
        sides = {"source": self.source, "target": self.target}
        arrays = {name: side.ids for name, side in sides.items()}
        return arrays | {f"{name}_starts": side.starts for name, side in sides.items()} | {"lines": self.lines}


class Order:
    """Which pairs make batch number N, a function of the pairs' lengths, a seed and N.

    Pairs of similar length share a bucket. An epoch has every pair once: full batches of each bucket, and the pairs
    that are left over in batches together, the longest ones first. An epoch's order depends on seed and epoch alone.

    Args:
        lengths: int [n], of the longer side of each pair, EOS included.
        batch_tokens: the most source tokens, and target tokens, of a batch, padding included.
        max_length: the greatest length; a bucket's bound.
        seed: of the order, one number or several; `None` keeps the pairs of a bucket in order, and short batches first.
    """

    def __init__(
        self, lengths: np.ndarray, batch_tokens: int, max_length: int, seed: int | Sequence[int] | None
    ) -> None:
        self.bounds = bucket_bounds(max_length)
        self.sizes = batch_sizes(self.bounds, batch_tokens)
        self.seed = [seed] if isinstance(seed, int) else seed
        self._buckets = np.searchsorted(self.bounds, lengths).astype(np.uint8)
        self._batches = batches_of(np.bincount(self._buckets, minlength=len(self.bounds)).tolist(), self.sizes)
        self._epoch = functools.lru_cache(2)(self._order)  # prefetching may look into the next one

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return len(self._batches)

    def shapes(self) -> list[tuple[int, int]]:
        """The shapes that batches have, rows and tokens, if each is filled to its bucket's shape."""
        return sorted({self._shape(bucket) for bucket, _ in self._batches}, key=lambda shape: shape[1])

    def __getitem__(self, number: int) -> tuple[np.ndarray, tuple[int, int]]:
        """The places of the pairs of batch `number`, from 0 without end, and its bucket's shape, rows and tokens."""
        epoch, place = divmod(number, len(self))
        pairs, order = self._epoch(epoch)
        bucket, parts = self._batches[order[place]]
        return np.concatenate([pairs[start:stop] for start, stop in parts]), self._shape(bucket)

    def _shape(self, bucket: int) -> tuple[int, int]:
        return self.sizes[bucket], self.bounds[bucket]

    def _order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The pairs of an epoch by bucket, and the order of its batches."""
        if self.seed is None:
            return np.argsort(self._buckets, kind="stable"), np.arange(len(self))
        rng = np.random.default_rng([*self.seed, epoch])
        pairs = rng.permutation(len(self._buckets))
        return pairs[np.argsort(self._buckets[pairs], kind="stable")], rng.permutation(len(self))


class Batches:
    """The batches of some ids, by their numbers, from 0 without end.

    Args:
        ids: of the pairs.
        order: of their batches.
        fixed_shapes: fill each batch to its bucket's shape, so that a compiler sees few shapes.
    """

    def __init__(self, ids: Ids, order: Order, fixed_shapes: bool = False) -> None:
        self.ids, self.order, self.fixed_shapes = ids, order, fixed_shapes

    def __getitem__(self, number: int) -> Batch:
        places, shape = self.order[number]
        return self.ids.batch(places, shape if self.fixed_shapes else None)

    def since(self, first: int = 0) -> Iterator[Batch]:
        """Batches without end, from the one numbered `first` on."""
        return (self[number] for number in itertools.count(first))


def batch_sizes(bounds: Sequence[int], batch_tokens: int) -> list[int]:
    """The rows of a full batch, by the bounds of lengths.

    Raises:
        BadInput: a batch cannot hold the longest pair.
    """
    if batch_tokens < bounds[-1]:
        raise BadInput(f"batch_tokens: expected at least max_length={bounds[-1]}, got {batch_tokens}")
    return [batch_tokens // bound for bound in bounds]


def batches_of(counts: list[int], sizes: list[int]) -> list[tuple[int, list[tuple[int, int]]]]:
    """The batches of an epoch: the bucket of the longest pair, and which pairs, as ranges of all pairs by bucket.

    Args:
        counts: pairs in each bucket.
        sizes: rows of a full batch of each bucket.
    """
    ends = list(itertools.accumulate(counts))
    batches, left = [], []
    for bucket, (end, count, size) in enumerate(zip(ends, counts, sizes, strict=True)):
        starts = range(end - count, end - size + 1, size)
        batches += [(bucket, [(start, start + size)]) for start in starts]
        if count % size:
            left.append((bucket, end - count % size, end))
    open_batch: tuple[int, list[tuple[int, int]]] | None = None
    room = 0
    for bucket, start, end in reversed(left):
        while start < end:
            if not room:
                open_batch, room = (bucket, []), sizes[bucket]
                batches.append(open_batch)
            assert open_batch is not None
            taken = min(room, end - start)
            open_batch[1].append((end - taken, end))
            end, room = end - taken, room - taken
    return batches


def bucket_bounds(max_length: int) -> list[int]:
    """The greatest length of each bucket: 8, then about a tenth more each time, which keeps padding low."""
    lengths = itertools.accumulate(itertools.repeat(8), lambda bound, _: max(bound + 2, int(bound * 1.1)))
    return [*itertools.takewhile(lambda bound: bound < max_length, lengths), max_length]


def collected(chunks: Iterator[Any], max_length: int, vocab_size: int) -> Ids:
    """The pairs that fit, from chunks of flat arrays.

    Args:
        chunks: of (source ids, source lengths, target ids, target lengths, lines), without BOS and EOS.
        max_length: pairs with a side of more tokens, EOS included, or with an empty one, are left out.
        vocab_size: V; small ids take 2 bytes.
    """
    dtype = np.uint16 if vocab_size <= 2**16 else np.int32
    columns: list[list[np.ndarray]] = [[np.zeros(0, dtype if column in (0, 2) else np.int64)] for column in range(5)]
    total = 0
    for source, source_lengths, target, target_lengths, lines in chunks:
        total += len(lines)
        fits = (np.maximum(source_lengths, target_lengths) < max_length) & (
            np.minimum(source_lengths, target_lengths) > 0
        )
        kept = (
            source[np.repeat(fits, source_lengths)].astype(dtype),
            source_lengths[fits],
            target[np.repeat(fits, target_lengths)].astype(dtype),
            target_lengths[fits],
            lines[fits],
        )
        for column, values in zip(columns, kept, strict=True):
            column.append(values)
    source, source_lengths, target, target_lengths, lines = (np.concatenate(column) for column in columns)
    sides = Side.of(source, source_lengths), Side.of(target, target_lengths)
    return Ids(*sides, lines, total - len(lines))
