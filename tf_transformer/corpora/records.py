"""A tokenized corpus on disk, for texts larger than memory: TFRecords, read from any step on."""

import collections
import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tf_transformer.base.files import checksum, user_path
from tf_transformer.base.reading import check_kinds, read_json, reading
from tf_transformer.base.values import Count, Natural, Seed, checked
from tf_transformer.config import BadInput
from tf_transformer.corpora.data import Summary, dataset
from tf_transformer.corpora.ids import Batch, Batches, Order, batch_sizes, batches_of, bucket_bounds, collected
from tf_transformer.text.tokenizer import Tokenizer

SHARD_LINES = 100_000
BLOCK_SHARDS = 8  # shards that are shuffled together in memory
PARSED = 8_192  # records that are parsed together
MANIFEST = {"complete": bool, "max_length": int, "tokenizer": str, "shards": list}
SHARD = {"file": str, "bytes": int, "lengths": list, "tokens": list, "skipped": int, "filtered": dict}
FEATURES = {name: tf.io.RaggedFeature(tf.int64) for name in ("source", "target")} | {
    "line": tf.io.FixedLenFeature((), tf.int64)
}


class Records:
    """What `preparation` wrote, as batches.

    `BLOCK_SHARDS` shards are in memory at a time. Where step N is follows from records.json alone, so that going on
    from there reads nothing of what came before its block.

    Args:
        folder: of the records.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = user_path(folder)
        file = self.folder / "records.json"
        if not file.is_file():
            raise BadInput(f"{self.folder}: expected records of tf-transformer prepare, found no records.json in it")
        manifest = read_json(file)
        with reading(file, "records of tf-transformer prepare"):
            manifest = check_kinds(manifest, MANIFEST)
            if not manifest["complete"]:
                raise BadInput(f"{self.folder}: is not complete; start tf-transformer prepare again to go on")
            manifest["shards"] = [check_shard(shard, manifest["max_length"]) for shard in manifest["shards"]]
        self.tokenizer = Tokenizer.load(self.folder / "tokenizer.model")
        if self.tokenizer.fingerprint != manifest["tokenizer"]:
            raise BadInput(f"{self.folder / 'tokenizer.model'}: expected the one that made the records, got another")
        self.max_length, self.shards = manifest["max_length"], manifest["shards"]
        for shard in self.shards:
            path = self.folder / shard["file"]
            if not path.is_file() or path.stat().st_size != shard["bytes"]:
                raise BadInput(
                    f"{path}: expected {shard['bytes']:,} bytes, got others or none; prepare again to mend it"
                )

    @property
    def filtered(self) -> dict[str, int]:
        """How many pairs each filter left out."""
        found: collections.Counter[str] = collections.Counter()
        for shard in self.shards:
            found.update(shard["filtered"])
        return dict(found)

    @checked
    def summary(self, batch_tokens: Count) -> Summary:
        """Count the batches, pairs and tokens of one epoch, without padding."""
        pairs = sum(sum(shard["lengths"]) for shard in self.shards)
        source, target = np.sum([shard["tokens"] for shard in self.shards], axis=0).tolist()
        skipped = sum(shard["skipped"] for shard in self.shards)
        made = self.made_of(batch_tokens, 0)
        return Summary(len(made), pairs, skipped, source, target, shapes=made.shapes)

    @checked
    def batches(
        self, batch_tokens: Count = 25_000, seed: Seed = 0, first: Natural = 0, lines: bool = False
    ) -> tf.data.Dataset:
        """Endless batches as of `data.text_pairs`, from the one numbered `first` on; with the lines [B] if asked."""
        made = self.made_of(batch_tokens, seed)
        return dataset(lambda: made.since(first), lines)

    @checked
    def made_of(self, batch_tokens: Count, seed: Seed, fixed_shapes: bool = False) -> "RecordBatches":
        """The batches by their numbers."""
        return RecordBatches(self, batch_tokens, seed, fixed_shapes)

    @property
    def checksum(self) -> str:
        """SHA-256 of records.json, which has one of every shard."""
        return checksum(self.folder / "records.json")


class RecordBatches:
    """The batches of records by their numbers.

    Shards are read in blocks of `BLOCK_SHARDS`, which the seed chooses. Every epoch has the blocks, and the pairs in
    each, in another order. How many batches a block makes follows from records.json alone.

    Args:
        records: the records.
        batch_tokens: the most source tokens, and target tokens, of a batch.
        seed: of the blocks and of the order.
        fixed_shapes: as of `ids.Batches`.
    """

    @checked
    def __init__(self, records: Records, batch_tokens: Count, seed: Seed, fixed_shapes: bool = False) -> None:
        self.records, self.batch_tokens, self.seed, self.fixed_shapes = records, batch_tokens, seed, fixed_shapes
        bounds = bucket_bounds(records.max_length)
        sizes = batch_sizes(bounds, batch_tokens)
        shards = np.random.default_rng(seed).permutation(len(records.shards)).tolist()
        self.blocks = [shards[start : start + BLOCK_SHARDS] for start in range(0, len(shards), BLOCK_SHARDS)]
        self.counts, filled = [], set[int]()  # batches of each block; buckets that have batches
        for block in self.blocks:
            lengths = np.sum([records.shards[shard]["lengths"] for shard in block], axis=0)
            pairs = np.diff(np.cumsum(lengths)[bounds], prepend=0)
            batches = batches_of(pairs.tolist(), sizes)
            self.counts.append(len(batches))
            filled |= {bucket for bucket, _ in batches}
        self.shapes = len(filled)

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return sum(self.counts)

    @checked
    def since(self, first: Natural = 0) -> Iterator[Batch]:
        """Batches without end, from the one numbered `first` on. The next block is read while one is used."""
        blocks = self._blocks_since(first)
        with ThreadPoolExecutor(1) as reader:
            following = reader.submit(self._read, *next(blocks))
            while True:
                batches, numbers = following.result()
                following = reader.submit(self._read, *next(blocks))
                for number in numbers:
                    yield batches[number]

    def _blocks_since(self, first: int) -> Iterator[tuple[int, range]]:
        """A block, and the numbers that its batches have in it, for ever."""
        begin, skip = divmod(first, len(self))
        for epoch in itertools.count(begin):
            for block in np.random.default_rng([self.seed, epoch]).permutation(len(self.blocks)).tolist():
                count = self.counts[block]
                if skip < count:
                    yield block, range(epoch * count + skip, (epoch + 1) * count)
                skip = max(0, skip - count)

    def _read(self, block: int, numbers: range) -> tuple[Batches, range]:
        records = self.records
        files = [str(records.folder / records.shards[shard]["file"]) for shard in self.blocks[block]]
        size = records.tokenizer.vocab_size
        parsed = tf.data.TFRecordDataset(files).batch(PARSED).map(_parsed, num_parallel_calls=tf.data.AUTOTUNE)
        with reading(", ".join(files), "the records that tf-transformer prepare wrote"):
            ids = collected(parsed.prefetch(4).as_numpy_iterator(), records.max_length + 1, size)
            lengths = np.sum([records.shards[shard]["lengths"] for shard in self.blocks[block]], axis=0)
            if not np.array_equal(np.bincount(ids.lengths(), minlength=len(lengths)), lengths):
                raise ValueError("pairs of other lengths than in records.json")
        order = Order(ids.lengths(), self.batch_tokens, records.max_length, [self.seed, block])
        return Batches(ids, order, self.fixed_shapes), numbers


@checked
def check_shard(shard: dict[str, Any], max_length: Count) -> dict[str, Any]:
    """What records.json says of a shard, checked.

    Raises:
        BadInput: one is another.
    """
    if not isinstance(shard, dict) or not shard.keys() >= SHARD.keys():
        raise BadInput(f"expected {', '.join(SHARD)} of every shard, got others")
    shard = check_kinds(shard, SHARD)
    if Path(shard["file"]).name != shard["file"]:
        raise BadInput(f"expected the name of a file beside it, got {shard['file']!r}")
    counts = [*shard["lengths"], *shard["tokens"], *shard["filtered"].values()]
    wrong = len(shard["lengths"]) != max_length + 1 or len(shard["tokens"]) != 2
    if wrong or any(type(count) is not int or not 0 <= count < 2**48 for count in counts):
        raise BadInput(f"expected counts of pairs and tokens, those of lengths up to {max_length}, got others")
    if (pairs := sum(shard["lengths"])) > shard["bytes"]:
        raise BadInput(f"{shard['file']}: expected at most a pair a byte, {shard['bytes']:,}, got {pairs:,} pairs")
    return shard


def _parsed(examples: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Flat ids and lengths of both sides, and the lines."""
    fields = tf.io.parse_example(examples, FEATURES)
    sides = [part for name in ("source", "target") for part in (fields[name].values, fields[name].row_lengths())]
    return *sides, fields["line"]
