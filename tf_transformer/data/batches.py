"""Token ids of sentence pairs in flat arrays, and their batches (section 5.1).

All sources become flat arrays of ids: a run stores those of its training set in a directory, and a shard of prepared
records is such a directory. A batch has pairs of similar length and about as many tokens as every other batch. The
pairs of batch N follow from a seed and N, so a training resumes anywhere without reading earlier batches.
"""

import abc
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.data.sources import Encode, Row
from tf_transformer.masks import PAD_ID
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID, Tokenizer
from tf_transformer.utils.files import checksum, new_folder
from tf_transformer.utils.terminal import say

CHUNK = 2_048  # pairs that are tokenized together
SECONDS = 10  # between lines of progress
FACTS = "shard.json"
ARRAYS = ("source", "source_starts", "target", "target_starts", "lines")


# Why NumPy and not `tf.data`: with an index into flat arrays, a few operations make a whole batch, in any order and
# without a backend. A pipeline has operations for each pair, many times slower, and resumes by reading what came
# before. `fit` still gets a `tf.data.Dataset` on TensorFlow, of finished batches (`data.datasets`).


class Side(NamedTuple):
    """Sources or targets of n pairs, without BOS and EOS."""

    ids: np.ndarray  # unsigned integers or int32 [tokens], text after text
    starts: np.ndarray  # int64 [n + 1], where each text begins, then the number of tokens

    @classmethod
    def of(cls, ids: np.ndarray, lengths: np.ndarray) -> "Side":
        return cls(ids, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))

    def lengths(self) -> np.ndarray:
        """Returns the tokens of each text, EOS included: int64 [n]."""
        return np.diff(self.starts) + 1

    def padded(self, indices: np.ndarray, rows: int, width: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Returns some texts without and with EOS, then rows of padding: int32 [rows, width]."""
        starts = self.starts[indices]
        lengths = self.starts[indices + 1] - starts
        columns = np.arange(width or int(lengths.max(initial=0)) + 1)  # one more than tokens, for EOS
        is_token = columns < lengths[:, np.newaxis]  # [B, width]
        plain = np.full((rows, len(columns)), PAD_ID, np.int32)
        plain[: len(indices)][is_token] = self.ids[(starts[:, np.newaxis] + columns)[is_token]]
        ended = plain.copy()
        ended[np.arange(len(indices)), lengths] = EOS_ID
        return plain, ended


class Batch(NamedTuple):
    """A batch of B pairs of at most S and T tokens; 0 is padding."""

    source: np.ndarray  # int32 [B, S], ends with EOS
    target_in: np.ndarray  # int32 [B, T], begins with BOS
    target_out: np.ndarray  # int32 [B, T], ends with EOS
    lines: np.ndarray  # int64 [B], numbers of the pairs in the corpus, from 1; 0 in a row of padding

    def pair(self) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
        """Returns ((source, target_in), target_out), as `fit` takes it."""
        return (self.source, self.target_in), self.target_out


@dataclass(frozen=True)
class Ids:
    """Ids of the pairs of a corpus that are neither too long nor empty."""

    source: Side
    target: Side
    lines: np.ndarray  # int64 [n], numbers of the pairs in the corpus, from 1
    skipped: int = 0  # number of the other pairs

    def __len__(self) -> int:
        return len(self.lines)

    def lengths(self) -> np.ndarray:
        """Returns the tokens of each pair's longer side, EOS included: int64 [n]."""
        return np.maximum(self.source.lengths(), self.target.lengths())

    def tokens(self) -> tuple[int, int]:
        """Returns the number of source and of target tokens, EOS included."""
        return len(self.source.ids) + len(self), len(self.target.ids) + len(self)

    def batch(self, indices: np.ndarray, shape: tuple[int, int] | None = None) -> Batch:
        """Returns some pairs, padded to the longest one, or to `shape`: rows and tokens of both sides."""
        rows, width = shape or (len(indices), None)
        # The decoder's input is the target behind BOS, its label the target before EOS: "the output embeddings are
        # offset by one position" (section 3.1).
        _, source = self.source.padded(indices, rows, width)
        plain, target_out = self.target.padded(indices, rows, width)
        bos = np.full((rows, 1), PAD_ID, np.int32)
        bos[: len(indices)] = BOS_ID
        lines = np.zeros(rows, np.int64)
        lines[: len(indices)] = self.lines[indices]
        return Batch(source, np.concatenate([bos, plain[:, :-1]], axis=1), target_out, lines)

    @classmethod
    def joined(cls, shards: Sequence["Ids"]) -> "Ids":
        """Returns several shards as one, in memory."""
        sides = []
        for side in zip(*((shard.source, shard.target) for shard in shards), strict=True):
            lengths = np.concatenate([np.diff(part.starts) for part in side])
            sides.append(Side.of(np.concatenate([part.ids for part in side]), lengths))
        lines = np.concatenate([shard.lines for shard in shards])
        return cls(sides[0], sides[1], lines, sum(shard.skipped for shard in shards))

    def save(self, folder: Path, metadata: dict[str, Any]) -> dict[str, Any]:
        """Writes a new directory of arrays atomically, and returns its shard.json: `metadata`, size, checksums."""
        with new_folder(folder) as written:
            for name, array in zip(ARRAYS, (*self.source, *self.target, self.lines), strict=True):
                file, form = written / f"{name}.npy", np.lib.format
                # `np.save` hides that a disk is full.
                try:
                    with open(file, "wb") as stream:
                        form.write_array_header_1_0(stream, form.header_data_from_array_1_0(array))
                        stream.write(np.ascontiguousarray(array).data)
                except OSError as error:
                    raise OSError(error.errno, error.strerror, str(file)) from error
            size = sum((written / f"{name}.npy").stat().st_size for name in ARRAYS)
            metadata = metadata | {"skipped": self.skipped, "bytes": size, "sha256": sums_of(written)}
            (written / FACTS).write_text(json.dumps(metadata))
        return metadata

    @classmethod
    def load(cls, folder: Path, skipped: int = 0) -> "Ids":
        """Maps a directory that `save` wrote into memory. Invalid arrays raise `ValueError`, missing ones `OSError`."""
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


def sums_of(folder: Path) -> dict[str, str]:
    """Returns the checksums of a shard's arrays."""
    return {name: checksum(folder / f"{name}.npy") for name in ARRAYS}


def metadata_of(folder: Path) -> dict[str, Any] | None:
    """Returns what is in a shard's shard.json, or `None` if the shard is missing or damaged."""
    try:
        metadata: dict[str, Any] = json.loads((folder / FACTS).read_text())
        return metadata if metadata["sha256"] == sums_of(folder) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def tokenized(segments: Iterable[tuple[Encode, Iterable[Row]]], max_length: int, vocab_size: int) -> Ids:
    """Tokenizes numbered pairs, and skips those with an empty side or one of more than `max_length` tokens with EOS."""
    # Two bytes an id, for most vocabularies: a corpus of a hundred million tokens then takes 200 MB.
    dtype = np.uint16 if vocab_size <= 2**16 else np.int32
    columns: list[list[np.ndarray]] = [[np.zeros(0, dtype if column in (0, 2) else np.int64)] for column in range(5)]
    total, began, logged = 0, time.monotonic(), time.monotonic()
    for encode, rows in segments:
        remaining = iter(rows)
        while chunk := list(itertools.islice(remaining, CHUNK)):
            numbers, *texts = zip(*chunk, strict=True)
            total += len(numbers)
            sides = []
            for side in encode(*texts):
                sizes = np.fromiter(map(len, side), np.int64, len(side))
                sides.append((np.fromiter(itertools.chain.from_iterable(side), dtype, int(sizes.sum())), sizes))
            # Too long pairs are skipped, not cut: half a target would teach the model to end in the middle.
            lengths = np.stack([sizes for _, sizes in sides])  # [2, pairs]
            fits = (lengths.max(axis=0) < max_length) & (lengths.min(axis=0) > 0)
            arrays = [array for ids, sizes in sides for array in (ids[np.repeat(fits, sizes)], sizes[fits])]
            for column, array in zip(columns, [*arrays, np.asarray(numbers, np.int64)[fits]], strict=True):
                column.append(array)
            if time.monotonic() - logged > SECONDS:
                logged = time.monotonic()
                say(f"  tokenized {total:,} pairs, {total / (logged - began):,.0f} a second")
    source, source_lengths, target, target_lengths, lines = (np.concatenate(column) for column in columns)
    return Ids(Side.of(source, source_lengths), Side.of(target, target_lengths), lines, total - len(lines))


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
    """Pairs that are in memory together: a whole corpus, or some shards of one."""

    lengths: np.ndarray  # int64 [max_length + 1], number of pairs by the length of their longer side, EOS included
    tokens: tuple[int, int]  # number of source and of target tokens, EOS included
    skipped: int  # number of skipped pairs
    read: Callable[[], Ids]

    @classmethod
    def of(cls, ids: Ids, max_length: int) -> "Block":
        """Makes a block of ids that are in memory, or mapped into it."""
        return cls(np.bincount(ids.lengths(), minlength=max_length + 1), ids.tokens(), ids.skipped, lambda: ids)


class TokenizedSource(abc.ABC):
    """A tokenized training set, such as prepared records. `Corpus` accepts it in place of a `Source`.

    Attributes:
        tokenizer: Tokenizer that made the ids.
        max_length: Maximum number of tokens per side, EOS included.
    """

    kind = "translation"
    tokenizer: Tokenizer
    max_length: int

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Identifies the training set, like `Source.describe`."""

    @abc.abstractmethod
    def blocks(self) -> list[Block]:
        """Returns the ids."""

    def train_tokenizer(self, vocab_size: int, kind: str) -> Tokenizer:
        """Returns the tokenizer that made the ids, or raises `BadInput` if it has another size."""
        if (V := self.tokenizer.vocab_size) != vocab_size:
            raise BadInput(f"vocab_size: expected {V}, that of the records, got {vocab_size}")
        return self.tokenizer


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
