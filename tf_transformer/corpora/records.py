"""A tokenized corpus on disk, for texts larger than memory: TFRecords, written once, read from any step on."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tf_transformer.config import BadInput
from tf_transformer.data import MAX_LENGTH, Summary, bucket_bounds, bucketed, numbered
from tf_transformer.files import checksum, new_file, write_json
from tf_transformer.tokenizer import Tokenizer

SHARD_LINES = 100_000
READ_LINES = 1_000  # tokenized at a time
BLOCK_SHARDS = 8  # so many shards, drawn anew every epoch, are shuffled together, in memory
FEATURES = {name: tf.io.RaggedFeature(tf.int64) for name in ("source", "target")} | {
    "line": tf.io.FixedLenFeature((), tf.int64)
}


def write_records(pairs: tf.data.Dataset, tokenizer: Tokenizer, folder, max_length: int = MAX_LENGTH) -> Iterator[dict]:
    """Tokenize pairs (source, target) of strings into `folder`; what is there already is kept, and gone on from.

    A shard is a file of `tf.train.Example`: ids "source" and "target" without BOS and EOS, and the "line", from 1.
    records.json lists the finished ones, with their checksums and how many pairs of each length they hold.

    Args:
        pairs: the same ones, in the same order, if it goes on.
        max_length: pairs with a side of more tokens, EOS included, or with an empty one, are left out.

    Yields:
        what records.json says of each shard, when it is written.

    Raises:
        BadInput: the folder holds records of another tokenizer or length, or damaged ones.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    manifest: dict[str, Any] = {"tokenizer": tokenizer.fingerprint, "max_length": max_length}
    manifest |= {"complete": False, "shards": []}
    if (folder / "records.json").exists():
        found = json.loads((folder / "records.json").read_text())
        for name in ("tokenizer", "max_length"):
            if found[name] != manifest[name]:
                raise BadInput(f"{folder}: holds records of another {name}: {found[name]}, not {manifest[name]}")
        manifest = found
        for shard in manifest["shards"]:
            if checksum(folder / shard["file"]) != shard["sha256"]:
                raise BadInput(f"{folder / shard['file']}: its checksum is wrong; remove {folder} and prepare again")
    tokenizer.save(folder / "tokenizer.model")
    if manifest["complete"]:
        return
    done = len(manifest["shards"])
    batches = numbered(pairs).skip(done * SHARD_LINES).batch(READ_LINES).map(_tokenize(tokenizer), tf.data.AUTOTUNE)
    batches = batches.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()
    for number in itertools.count(done):
        in_shard = list(itertools.islice(batches, SHARD_LINES // READ_LINES))
        if not in_shard:
            break
        file = f"shard-{number:05d}.tfrecord"
        shard = {"file": file} | _write_shard(in_shard, folder / file, max_length)
        manifest["shards"].append(shard)
        write_json(folder / "records.json", manifest)
        yield shard
    write_json(folder / "records.json", manifest | {"complete": True})


def _tokenize(tokenizer):
    def tokenize(source, target, line):
        source, target = tokenizer.tokenize(source), tokenizer.tokenize_target(target)
        return source.values, source.row_splits, target.values, target.row_splits, line

    return tokenize


def _write_shard(batches, path, max_length) -> dict:
    lengths, skipped, tokens = np.zeros(max_length + 1, "int64"), 0, np.zeros(2, "int64")
    with new_file(path) as temporary, tf.io.TFRecordWriter(str(temporary)) as writer:
        for source, source_splits, target, target_splits, lines in batches:
            for i, line in enumerate(lines):
                pair = [
                    ids[splits[i] : splits[i + 1]] for ids, splits in ((source, source_splits), (target, target_splits))
                ]
                sizes = [len(ids) + 1 for ids in pair]  # with EOS
                if max(sizes) > max_length or min(sizes) == 1:
                    skipped += 1
                    continue
                lengths[max(sizes)] += 1
                tokens += sizes
                writer.write(_example(pair[0], pair[1], line))
    facts = {"sha256": checksum(path), "bytes": path.stat().st_size, "skipped": skipped}
    return facts | {"tokens": tokens.tolist(), "lengths": lengths.tolist()}


def _example(source, target, line) -> bytes:
    values = {"source": source, "target": target, "line": [line]}
    feature = {name: tf.train.Feature(int64_list=tf.train.Int64List(value=ids)) for name, ids in values.items()}
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


class Records:
    """What `write_records` wrote, as batches.

    Every epoch draws the shards in a new order and shuffles `BLOCK_SHARDS` of them at a time in memory. Where step N is
    follows from records.json alone, so that going on from there reads nothing of what came before its block.
    A block ends with a batch of those left over for each length.

    Args:
        folder: of `write_records`.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        file = self.folder / "records.json"
        if not file.is_file():
            raise BadInput(f"{self.folder}: expected records of trainers.prepare, found no records.json in it")
        manifest = json.loads(file.read_text())
        if not manifest["complete"]:
            raise BadInput(f"{self.folder}: is not complete; start trainers.prepare again to go on")
        self.tokenizer = Tokenizer.load(self.folder / "tokenizer.model")
        if self.tokenizer.fingerprint != manifest["tokenizer"]:
            raise BadInput(f"{self.folder / 'tokenizer.model'}: expected the one that made the records, got another")
        self.max_length, self.shards = manifest["max_length"], manifest["shards"]
        for shard in self.shards:
            path = self.folder / shard["file"]
            if not path.is_file() or path.stat().st_size != shard["bytes"]:
                raise BadInput(f"{path}: expected {shard['bytes']:,} bytes; it is damaged or gone")

    def summary(self, batch_tokens: int, seed: int = 0) -> Summary:
        """Of the first epoch; padding is not counted."""
        blocks = itertools.takewhile(lambda block: block[0] == 0, self._blocks(seed))
        batches = sum(self._count(shards, batch_tokens) for _, _, shards in blocks)
        pairs = sum(sum(shard["lengths"]) for shard in self.shards)
        source, target = np.sum([shard["tokens"] for shard in self.shards], axis=0).tolist()
        return Summary(batches, pairs, sum(shard["skipped"] for shard in self.shards), source, target, None)

    def batches(self, batch_tokens: int = 25_000, seed: int = 0, first: int = 0, lines=False) -> tf.data.Dataset:
        """Endless batches as of `data.text_pairs`, from the one numbered `first` on; with the lines [B] if asked."""
        if batch_tokens < self.max_length:
            raise BadInput(f"batch_tokens: expected at least max_length={self.max_length}, got {batch_tokens}")

        def blocks():
            skip = first
            for epoch, block, shards in self._blocks(seed):
                if skip < (count := self._count(shards, batch_tokens)):
                    files = [str(self.folder / self.shards[shard]["file"]) for shard in shards]
                    yield files, np.random.default_rng([seed, epoch, block]).integers(2**62), skip
                skip = max(0, skip - count)

        def read(files, seed, skip):
            shuffled = tf.data.TFRecordDataset(files).shuffle(
                BLOCK_SHARDS * SHARD_LINES, seed=seed, reshuffle_each_iteration=False
            )
            ids = shuffled.batch(256).map(parse, num_parallel_calls=tf.data.AUTOTUNE).unbatch()
            return bucketed(ids, batch_tokens, self.max_length).skip(skip)

        def parse(examples):
            found = tf.io.parse_example(examples, FEATURES)
            source, target = (tf.cast(found[name], tf.int32) for name in ("source", "target"))
            return (source, target, found["line"]) if lines else (source, target)

        number = tf.TensorSpec((), tf.int64)
        signature = (tf.TensorSpec((None,), tf.string), number, number)
        return tf.data.Dataset.from_generator(blocks, output_signature=signature).flat_map(read).prefetch(16)

    def _blocks(self, seed) -> Iterator[tuple[int, int, list[int]]]:
        """For ever: the number of the epoch, of the block in it, and the block's shards."""
        for epoch in itertools.count():
            order = np.random.default_rng([seed, epoch]).permutation(len(self.shards)).tolist()
            for block, start in enumerate(range(0, len(order), BLOCK_SHARDS)):
                yield epoch, block, order[start : start + BLOCK_SHARDS]

    def _count(self, shards, batch_tokens) -> int:
        """How many batches a block of these shards makes."""
        lengths = np.sum([self.shards[shard]["lengths"] for shard in shards], axis=0)
        bounds = bucket_bounds(self.max_length)
        pairs = np.diff(np.cumsum(lengths)[bounds], prepend=0)
        return int(np.sum(-(-pairs // (batch_tokens // np.array(bounds)))))
