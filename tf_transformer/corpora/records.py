"""A tokenized corpus on disk, for texts larger than memory: TFRecords, read from any step on."""

import collections
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tf_transformer.config import BadInput
from tf_transformer.corpora.data import Summary, bucket_bounds, bucketed
from tf_transformer.text.tokenizer import Tokenizer

SHARD_LINES = 100_000
BLOCK_SHARDS = 8  # shards that are shuffled together in memory, drawn anew every epoch
FEATURES = {name: tf.io.RaggedFeature(tf.int64) for name in ("source", "target")} | {
    "line": tf.io.FixedLenFeature((), tf.int64)
}


class Records:
    """What `preparation` wrote, as batches.

    Every epoch draws the shards in a new order and shuffles `BLOCK_SHARDS` of them at a time in memory. Where step N is
    follows from records.json alone, so that going on from there reads nothing of what came before its block.
    A block ends with a batch of those left over for each length.

    Args:
        folder: of the records.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        file = self.folder / "records.json"
        if not file.is_file():
            raise BadInput(f"{self.folder}: expected records of tf-transformer prepare, found no records.json in it")
        manifest = json.loads(file.read_text())
        if not manifest["complete"]:
            raise BadInput(f"{self.folder}: is not complete; start tf-transformer prepare again to go on")
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

    def summary(self, batch_tokens: int, seed: int = 0) -> Summary:
        """Of the first epoch; padding is not counted."""
        blocks = itertools.takewhile(lambda block: block[0] == 0, self._blocks(seed))
        batches = sum(self._count(shards, batch_tokens) for _, _, shards in blocks)
        pairs = sum(sum(shard["lengths"]) for shard in self.shards)
        source, target = np.sum([shard["tokens"] for shard in self.shards], axis=0).tolist()
        return Summary(batches, pairs, sum(shard["skipped"] for shard in self.shards), source, target, None)

    def batches(
        self, batch_tokens: int = 25_000, seed: int = 0, first: int = 0, lines: bool = False
    ) -> tf.data.Dataset:
        """Endless batches as of `data.text_pairs`, from the one numbered `first` on; with the lines [B] if asked."""
        if batch_tokens < self.max_length:
            raise BadInput(f"batch_tokens: expected at least max_length={self.max_length}, got {batch_tokens}")

        def blocks() -> Iterator[tuple[list[str], Any, int]]:
            skip = first
            for epoch, block, shards in self._blocks(seed):
                if skip < (count := self._count(shards, batch_tokens)):
                    files = [str(self.folder / self.shards[shard]["file"]) for shard in shards]
                    yield files, np.random.default_rng([seed, epoch, block]).integers(2**62), skip
                skip = max(0, skip - count)

        def read(files: tf.Tensor, seed: tf.Tensor, skip: tf.Tensor) -> tf.data.Dataset:
            shuffled = tf.data.TFRecordDataset(files).shuffle(
                BLOCK_SHARDS * SHARD_LINES, seed=seed, reshuffle_each_iteration=False
            )
            ids = shuffled.batch(256).map(parse, num_parallel_calls=tf.data.AUTOTUNE).unbatch()
            return bucketed(ids, batch_tokens, self.max_length).skip(skip)

        def parse(examples: tf.Tensor) -> tuple[tf.Tensor, ...]:
            found = tf.io.parse_example(examples, FEATURES)
            source, target = (tf.cast(found[name], tf.int32) for name in ("source", "target"))
            return (source, target, found["line"]) if lines else (source, target)

        number = tf.TensorSpec((), tf.int64)
        signature = (tf.TensorSpec((None,), tf.string), number, number)
        return tf.data.Dataset.from_generator(blocks, output_signature=signature).flat_map(read).prefetch(16)

    def _blocks(self, seed: int) -> Iterator[tuple[int, int, list[int]]]:
        """For ever: the number of the epoch, of the block in it, and the block's shards."""
        for epoch in itertools.count():
            order = np.random.default_rng([seed, epoch]).permutation(len(self.shards)).tolist()
            for block, start in enumerate(range(0, len(order), BLOCK_SHARDS)):
                yield epoch, block, order[start : start + BLOCK_SHARDS]

    def _count(self, shards: list[int], batch_tokens: int) -> int:
        """How many batches a block of these shards makes."""
        lengths = np.sum([self.shards[shard]["lengths"] for shard in shards], axis=0)
        bounds = bucket_bounds(self.max_length)
        pairs = np.diff(np.cumsum(lengths)[bounds], prepend=0)
        return int(np.sum(-(-pairs // (batch_tokens // np.array(bounds)))))
