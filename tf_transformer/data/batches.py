"""Batches of pairs of similar length, about as many tokens in every batch, by arithmetic (section 5.1).

Which pairs make batch number N follows from a seed and N alone, so a training goes on anywhere without reading what
came before.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.data.ids import Batch, Ids
from tf_transformer.utils.values import Count, Natural, Seed, checked


@dataclass(frozen=True)
class Summary:
    """Counts of one epoch, without padding."""

    batches: int
    pairs: int
    skipped: int
    source_tokens: int
    target_tokens: int

    def __str__(self) -> str:
        return (
            f"{self.pairs:,} pairs, {self.source_tokens:,} + {self.target_tokens:,} tokens, "
            f"{self.skipped:,} skipped, {self.batches:,} batches"
        )


@dataclass(frozen=True)
class Block:
    """Pairs that are in memory together: a whole text, or some shards of one.

    Attributes:
        lengths: int64 [max_length + 1], the number of pairs of each length, that of the longer side with EOS.
        tokens: of all sources, and of all targets, EOS included.
        skipped: how many pairs are left out.
        read: gives the ids.
    """

    lengths: np.ndarray
    tokens: tuple[int, int]
    skipped: int
    read: Callable[[], Ids]

    @classmethod
    def of(cls, ids: Ids, max_length: int) -> "Block":
        """A text that is in memory, or mapped into it."""
        lengths = np.bincount(ids.lengths(), minlength=max_length + 1)
        return cls(lengths, ids.tokens(), ids.skipped, lambda: ids)


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

    def __getitem__(self, number: int) -> tuple[np.ndarray, tuple[int, int]]:
        """The places of the pairs of batch `number`, from 0 without end, and its bucket's shape, rows and tokens."""
        epoch, place = divmod(number, len(self))
        pairs, order = self._epoch(epoch)
        bucket, parts = self._batches[order[place]]
        shape = self.sizes[bucket], self.bounds[bucket]
        return np.concatenate([pairs[start:stop] for start, stop in parts]), shape

    def _order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The pairs of an epoch by bucket, and the order of its batches."""
        if self.seed is None:
            return np.argsort(self._buckets, kind="stable"), np.arange(len(self))
        rng = np.random.default_rng([*self.seed, epoch])
        pairs = rng.permutation(len(self._buckets))
        return pairs[np.argsort(self._buckets[pairs], kind="stable")], rng.permutation(len(self))


class Batches:
    """The batches of some blocks by their numbers, from 0 without end.

    One block is in memory at a time. An epoch has every block once; every epoch has the blocks, and the pairs in each,
    in another order. How many batches a block makes follows from the lengths of its pairs, so that going on from batch
    N reads nothing of what came before its block.

    Args:
        blocks: of the text.
        batch_tokens: the most source tokens, and target tokens, of a batch, padding included.
        seed: of the order; `None` keeps the blocks, and the pairs of a bucket, in order, and short batches first.
        fixed_shapes: fill each batch to its bucket's shape, so that a compiler sees few shapes; it may change.

    Raises:
        BadInput: a batch cannot hold the longest pair.
    """

    @checked
    def __init__(
        self, blocks: Sequence[Block], batch_tokens: Count, seed: Seed | None = 0, fixed_shapes: bool = False
    ) -> None:
        self.blocks, self.batch_tokens, self.seed, self.fixed_shapes = blocks, batch_tokens, seed, fixed_shapes
        self.max_length = max((len(block.lengths) - 1 for block in blocks), default=1)
        bounds = bucket_bounds(self.max_length)
        sizes = batch_sizes(bounds, batch_tokens)
        self.counts, filled = [], set[int]()  # batches of each block; buckets that have batches
        for block in blocks:
            batches = batches_of(np.diff(np.cumsum(block.lengths)[bounds], prepend=0).tolist(), sizes)
            self.counts.append(len(batches))
            filled |= {bucket for bucket, _ in batches}
        self.shapes = [(sizes[bucket], bounds[bucket]) for bucket in sorted(filled)]
        self._ends = functools.lru_cache(2)(self._order)
        self._read: tuple[int, Ids, Order] | None = None

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return sum(self.counts)

    @checked
    def __getitem__(self, number: Natural) -> Batch:
        epoch, place = divmod(number, len(self))
        blocks, ends = self._ends(epoch)
        at = int(np.searchsorted(ends, place, side="right"))
        block = int(blocks[at])
        ids, order = self._block(block)
        places, shape = order[epoch * len(order) + place - (int(ends[at]) - len(order))]
        return ids.batch(places, shape if self.fixed_shapes else None)

    def since(self, first: int = 0) -> Iterator[Batch]:
        """Batches without end, from the one numbered `first` on.

        Raises:
            BadInput: there are none.
        """
        if not len(self):
            raise BadInput(f"expected sentences of at most {self.max_length} tokens, got none")
        return (self[number] for number in itertools.count(first))

    def summary(self) -> Summary:
        """Count the batches, pairs and tokens of one epoch."""
        pairs = sum(int(block.lengths.sum()) for block in self.blocks)
        source, target = (sum(block.tokens[side] for block in self.blocks) for side in (0, 1))
        return Summary(len(self), pairs, sum(block.skipped for block in self.blocks), source, target)

    def _order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The blocks of an epoch in order, and the number of batches up to the end of each."""
        count = len(self.blocks)
        if self.seed is None or count == 1:
            blocks = np.arange(count)
        else:
            blocks = np.random.default_rng([self.seed, epoch]).permutation(count)
        return blocks, np.cumsum(np.asarray(self.counts)[blocks])

    def _block(self, number: int) -> tuple[Ids, Order]:
        if self._read is None or self._read[0] != number:
            self._read = None  # the block before goes first
            ids = self.blocks[number].read()
            seed = self.seed if self.seed is None or len(self.blocks) == 1 else [self.seed, number]
            self._read = number, ids, Order(ids.lengths(), self.batch_tokens, self.max_length, seed)
        return self._read[1:]


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
