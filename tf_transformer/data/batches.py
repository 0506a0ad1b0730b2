"""Batches of token ids (section 5.1).

A batch has pairs of similar length and about as many tokens as every other batch. The
pairs of batch N follow from a seed and N, so a training resumes anywhere without reading earlier batches.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.data.ids import Batch, Block, Ids

# Why NumPy and not `tf.data`: with an index into flat arrays, a few operations make a whole batch, in any order and
# without a backend. A pipeline has operations for each pair, many times slower, and resumes by reading what came
# before. `fit` still gets a `tf.data.Dataset` on TensorFlow, of finished batches (`data.datasets`).


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


def remembered(values: dict[int, Any], epoch: int, make: Callable[[int], Any]) -> Any:
    """Returns `make(epoch)`, from `values` if it is one of the last two: prefetching may read an epoch ahead."""
    # Not `functools.lru_cache` of a method: the cycle would keep a block's arrays until Python looks for cycles.
    if epoch not in values:
        while len(values) >= 2:
            values.pop(next(iter(values)), None)
        values[epoch] = make(epoch)
    return values[epoch]


class Order:
    """Order of a block's pairs in batches: those of batch N are a function of the pairs' lengths, a seed and N.

    Pairs of similar length share a bucket. An epoch has every pair once: full batches of each bucket, and the remaining
    pairs together, longest first, in a random order of batches. Without a `seed`, pairs keep their order within a
    bucket, and batches are sorted from short to long pairs.
    """

    def __init__(
        self, lengths: np.ndarray, batch_tokens: int, max_length: int, seed: int | Sequence[int] | None
    ) -> None:
        self.bounds = bucket_bounds(max_length)
        self.sizes = batch_sizes(self.bounds, batch_tokens)
        self.seed = [seed] if isinstance(seed, int) else seed
        self._buckets = np.searchsorted(self.bounds, lengths).astype(np.uint8)  # there are a few dozen
        self._batches = batches_of(np.bincount(self._buckets, minlength=len(self.bounds)).tolist(), self.sizes)
        self._epochs: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, number: int) -> tuple[np.ndarray, tuple[int, int]]:
        """Returns the indices of the pairs of batch `number`, and its bucket's shape, rows and tokens."""
        epoch, index = divmod(number, len(self))
        pairs, order = remembered(self._epochs, epoch, self._order)
        bucket, ranges = self._batches[order[index]]
        shape = self.sizes[bucket], self.bounds[bucket]
        return np.concatenate([pairs[start:stop] for start, stop in ranges]), shape

    def _order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pairs of an epoch sorted by bucket, and the order of its batches."""
        if self.seed is None:
            return np.argsort(self._buckets, kind="stable"), np.arange(len(self))
        # A new generator per epoch, so that epoch N needs none before it. The stable sort keeps the shuffled order
        # within each bucket.
        rng = np.random.default_rng([*self.seed, epoch])
        pairs = rng.permutation(len(self._buckets))
        return pairs[np.argsort(self._buckets[pairs], kind="stable")], rng.permutation(len(self))


class Batches:
    """Batches of some blocks by their numbers, from 0 without end.

    One block is in memory at a time. Every epoch has each block once, and shuffles the blocks, and the pairs in each,
    unless `seed` is `None`. The lengths in a block determine how many batches it makes, so resuming at batch N reads
    only the block of N. A batch has at most `batch_tokens` source tokens, and target tokens, padding included. With
    `fixed_shapes`, which can be set at any time, it is filled to its bucket's shape, so that a compiler compiles few.
    """

    def __init__(
        self, blocks: Sequence[Block], batch_tokens: int, seed: int | None = 0, fixed_shapes: bool = False
    ) -> None:
        self.blocks, self.batch_tokens, self.seed, self.fixed_shapes = blocks, batch_tokens, seed, fixed_shapes
        self.max_length = max((len(block.lengths) - 1 for block in blocks), default=1)
        bounds = bucket_bounds(self.max_length)
        sizes = batch_sizes(bounds, batch_tokens)
        self.counts, filled = [], set[int]()  # batches of each block, and buckets with batches
        for block in blocks:
            # The pairs in each bucket, from counts by length, before any block is read.
            batches = batches_of(np.diff(np.cumsum(block.lengths)[bounds], prepend=0).tolist(), sizes)
            self.counts.append(len(batches))
            filled |= {bucket for bucket, _ in batches}
        self.shapes = [(sizes[bucket], bounds[bucket]) for bucket in sorted(filled)]
        self._epochs: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._read: tuple[int, Ids, Order] | None = None

    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""
        return sum(self.counts)

    def __getitem__(self, number: int) -> Batch:
        # From the number to the epoch, to the block, to the batch within it. No earlier batch is made.
        epoch, index = divmod(number, len(self))
        blocks, ends = remembered(self._epochs, epoch, self._order)
        position = int(np.searchsorted(ends, index, side="right"))
        block = int(blocks[position])
        if self._read is None or self._read[0] != block:
            self._read = None  # frees the previous block before the next one is read
            ids = self.blocks[block].read()
            seed = self.seed if self.seed is None or len(self.blocks) == 1 else [self.seed, block]
            self._read = block, ids, Order(ids.lengths(), self.batch_tokens, self.max_length, seed)
        _, ids, order = self._read
        indices, shape = order[epoch * len(order) + index - (int(ends[position]) - len(order))]
        return ids.batch(indices, shape if self.fixed_shapes else None)

    def since(self, first: int = 0) -> Iterator[Batch]:
        """Returns batches without end, from number `first`. Raises `BadInput` without batches."""
        if not len(self):
            raise BadInput(f"expected sentences of at most {self.max_length} tokens, got none")
        return (self[number] for number in itertools.count(first))

    def summary(self) -> Summary:
        """Counts the batches, pairs and tokens of one epoch."""
        pairs = sum(int(block.lengths.sum()) for block in self.blocks)
        source, target = (sum(block.tokens[side] for block in self.blocks) for side in (0, 1))
        return Summary(len(self), pairs, sum(block.skipped for block in self.blocks), source, target)

    def _order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the blocks of an epoch in order, and the number of batches up to the end of each."""
        blocks = np.arange(len(self.blocks))
        if self.seed is not None and len(blocks) > 1:
            blocks = np.random.default_rng([self.seed, epoch]).permutation(len(blocks))
        return blocks, np.cumsum(np.asarray(self.counts)[blocks])


def batch_sizes(bounds: Sequence[int], batch_tokens: int) -> list[int]:
    """Returns the rows of a full batch of each bucket, or raises `BadInput` if a batch cannot hold the longest pair."""
    if batch_tokens < bounds[-1]:
        raise BadInput(f"batch_tokens: expected at least max_length={bounds[-1]}, got {batch_tokens}")
    # "Sentence pairs were batched together by approximate sequence length. Each training batch contained a set of
    # sentence pairs containing approximately 25000 source tokens and 25000 target tokens."
    return [batch_tokens // bound for bound in bounds]


def batches_of(counts: list[int], sizes: list[int]) -> list[tuple[int, list[tuple[int, int]]]]:
    """Returns the batches of an epoch: the bucket of the longest pair, and ranges of the pairs sorted by bucket."""
    ends = list(itertools.accumulate(counts))
    batches, remainders = [], []
    for bucket, (end, count, size) in enumerate(zip(ends, counts, sizes, strict=True)):
        starts = range(end - count, end - size + 1, size)
        batches += [(bucket, [(start, start + size)]) for start in starts]
        if count % size:
            remainders.append((bucket, end - count % size, end))
    # A short batch for each bucket's remainder would waste steps. So the remainders fill batches together, longest
    # first: the first pair of a batch sets its width, and shorter pairs are padded to it.
    ranges, room = list[tuple[int, int]](), 0
    for bucket, start, end in reversed(remainders):
        while start < end:
            if not room:
                ranges, room = [], sizes[bucket]
                batches.append((bucket, ranges))
            size = min(room, end - start)
            ranges.append((end - size, end))
            end, room = end - size, room - size
    return batches


def bucket_bounds(max_length: int) -> list[int]:
    """Returns the maximum length of each bucket: 8, then about a tenth more each time, which keeps padding low."""
    lengths = itertools.accumulate(itertools.repeat(8), lambda bound, _: max(bound + 2, int(bound * 1.1)))
    return [*itertools.takewhile(lambda bound: bound < max_length, lengths), max_length]
