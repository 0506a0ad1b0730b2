"""A corpus made into records: the steps, each for one shard, and a way through them, which many processes can share.
`tf_transformer.beam` has another, for many machines."""

import collections
import contextlib
import functools
import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tf_transformer.base.files import checksum, locked, new_file, user_path, write_json
from tf_transformer.base.reading import read_json
from tf_transformer.base.values import Count, check_fields, checked
from tf_transformer.config import BadInput
from tf_transformer.corpora.data import MAX_LENGTH
from tf_transformer.corpora.filters import Filters, hashed, repeated
from tf_transformer.corpora.pairs import Part, Source
from tf_transformer.corpora.records import check_shard
from tf_transformer.text.tokenizer import Tokenizer

READ_LINES = 1_000  # tokenized at a time
NO_FILTERS = Filters()
BUCKET_PAIRS = 4_000_000  # pairs whose hashes are compared at a time, in memory: 100 MB


@dataclass(frozen=True)
class Preparation:
    """The records of a corpus, in a folder that all workers see. It pickles.

    A shard is a file of `tf.train.Example`: ids "source" and "target" without BOS and EOS, and the "line", from 1. It
    holds the pairs of one part of the source, so that it depends on no other shard. Beside it lies a .json with its
    checksum, and how many pairs of each length it holds and were left out; records.json has that of all.

    What is in the folder already is kept: of a finished shard only the checksum is computed.

    Attributes:
        source: of the pairs.
        folder: of the records, a path.
        filters: which pairs to leave out.
        max_length: pairs with a side of more tokens, EOS included, or with an empty one, are left out.
    """

    source: Source
    folder: Path
    filters: Filters = NO_FILTERS
    max_length: Count = MAX_LENGTH

    def __post_init__(self) -> None:
        folder = user_path(self.folder, "folder").absolute()  # workers may have another current folder
        object.__setattr__(self, "folder", folder)
        check_fields(self)

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """While no other program prepares records in the folder.

        Raises:
            BadInput: one does.
        """
        message = f"{self.folder}: expected a folder that nothing else prepares; it is in use"
        return locked(self.folder / ".lock", message)

    def run(self, parts: list[Part], tokenizer: Tokenizer, each: Callable[..., Any] = map) -> Iterator[dict[str, Any]]:
        """All steps, in this process or in others.

        Args:
            parts: of the source.
            tokenizer: of source and target.
            each: calls a function for each of some items, as `map` does.

        Yields:
            what records.json says of each shard, when it is there.

        Raises:
            BadInput: a line is bad, or the folder holds records of something else.
            OSError: a file cannot be read or written.
        """
        self.begin(parts, tokenizer)
        drops = self._drops(parts, each) if self.filters.duplicates else {}
        shards = []
        for shard in each(self.write, parts, [drops.get(part.number, ()) for part in parts]):
            shards.append(shard)
            yield shard
        self.finish(shards)

    def begin(self, parts: list[Part], tokenizer: Tokenizer) -> None:
        """Check what is in the folder, and put there what the workers need.

        Raises:
            BadInput: the folder holds records of another corpus, tokenizer, length or other filters.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        manifest: dict[str, Any] = {"tokenizer": tokenizer.fingerprint, "max_length": self.max_length}
        manifest |= {"corpus": self.source.describe() | {"pairs": _pairs(parts)}, "shard_lines": parts[0].count}
        manifest["filters"] = self.filters.chosen()
        if (file := self.folder / "records.json").exists():
            found = read_json(file)
            for name, value in manifest.items():
                if found.get(name) != value:
                    raise BadInput(f"{self.folder}: holds records of another {name}: {found.get(name)}, not {value}")
        else:
            for facts in self.folder.glob("shard-*.json"):
                facts.unlink()
            write_json(file, manifest | {"complete": False, "shards": []})
        for left in self.folder.glob(".shard-*.tmp"):  # by workers that were killed
            left.unlink()
        tokenizer.save(self.folder / "tokenizer.model")

    @checked  # `int` alone, since Beam reads annotations, too
    def hashes(self, part: Part, buckets: int) -> list[tuple[int, bytes]]:
        """A part's pairs for `filters.repeated`, in as many buckets: their numbers, and hashes."""
        return hashed(part.number, self.source.good_pairs(part), buckets)

    def write(self, part: Part, drops: Iterable[bytes] = ()) -> dict[str, Any]:
        """Write a part's shard, whole or not at all, unless it is there.

        Args:
            part: of the source.
            drops: places of pairs in it that came before, of `filters.repeated`.

        Returns:
            what records.json says of the shard.
        """
        path = self.folder / f"shard-{part.number:05d}.tfrecord"
        facts_file = path.with_suffix(".json")
        if facts_file.exists() and path.exists():
            with contextlib.suppress(BadInput):  # damaged: it is made again
                found = check_shard(read_json(facts_file), self.max_length)
                if (found["file"], found["sha256"]) == (path.name, checksum(path)):
                    return found
        with new_file(path) as temporary:
            facts = self._write(part, drops, temporary)
            facts = {"file": path.name, "sha256": checksum(temporary), "bytes": temporary.stat().st_size} | facts
        with new_file(facts_file) as temporary:
            temporary.write_text(json.dumps(facts))
        return facts

    def finish(self, shards: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """Write records.json, and remove what only the workers needed.

        Args:
            shards: what `write` returned, in any order.

        Returns:
            what is in records.json.
        """
        file = self.folder / "records.json"
        manifest = read_json(file)
        manifest |= {"complete": True, "shards": sorted(shards, key=lambda shard: (len(shard["file"]), shard["file"]))}
        write_json(file, manifest)
        shutil.rmtree(self.folder / "unpacked", ignore_errors=True)
        return manifest

    def _drops(self, parts: list[Part], each: Callable[..., Any]) -> dict[int, list[bytes]]:
        """For each shard, the places of pairs that came before."""
        by_bucket, drops = collections.defaultdict(list), collections.defaultdict(list)
        for of_part in each(functools.partial(self.hashes, buckets=buckets(parts)), parts):
            for bucket, found in of_part:
                by_bucket[bucket].append(found)
        for hashes in by_bucket.values():
            for number, places in repeated(hashes):
                drops[number].append(places)
        return drops

    def _write(self, part: Part, drops: Iterable[bytes], path: Path) -> dict[str, Any]:
        taken = dict.fromkeys(self.filters.chosen(), 0)
        lengths, tokens = [0] * (self.max_length + 1), [0, 0]
        tokenizer = _tokenizer((self.folder / "tokenizer.model").read_bytes())
        with _records(path) as write:
            for places, sources, targets in self._batches(part, drops, taken):
                ids = tokenizer.tokenize(sources), tokenizer.tokenize_target(targets)
                for place, source, target in zip(places, *map(_lists, ids), strict=True):
                    sizes = len(source) + 1, len(target) + 1  # with EOS
                    if max(sizes) <= self.max_length and min(sizes) > 1:
                        lengths[max(sizes)] += 1
                        tokens = [tokens[0] + sizes[0], tokens[1] + sizes[1]]
                        write(_example(source, target, part.first + place + 1))
        skipped = part.count - sum(lengths) - sum(taken.values())
        return {"skipped": skipped, "tokens": tokens, "lengths": lengths, "filtered": taken}

    def _batches(self, part: Part, drops: Iterable[bytes], taken: dict[str, int]) -> Iterator[Any]:
        """Pairs that the filters leave, `READ_LINES` at a time: places, sources, targets; `taken` counts the others."""
        came_before = set(np.frombuffer(b"".join(drops), "u4").tolist())

        def stays(row: tuple[int, bytes, bytes]) -> bool:
            place, source, target = row
            reason = "duplicates" if place in came_before else self.filters.reason(*map(self._text, (source, target)))
            if reason:
                taken[reason] += 1
            return not reason

        rows = filter(stays, self.source.good_pairs(part))
        while batch := list(itertools.islice(rows, READ_LINES)):
            yield zip(*batch, strict=True)

    def _text(self, text: bytes) -> bytes:
        """What filters see of a text: symbols are no part of it."""
        for symbol in self.source.symbols:
            text = text.replace(symbol.encode(), b"")
        return text


def buckets(parts: list[Part]) -> int:
    """How many buckets the hashes of a corpus are compared in."""
    return -(-_pairs(parts) // BUCKET_PAIRS)


def _pairs(parts: list[Part]) -> int:
    return sum(part.count for part in parts)


@functools.lru_cache(1)
def _tokenizer(model: bytes) -> Tokenizer:
    """One for all shards of a process."""
    return Tokenizer(model)


def _lists(ids: tf.RaggedTensor) -> Iterator[list[int]]:
    """Rows of a ragged tensor [B, None]; lists are much faster than slices of arrays."""
    values, splits = ids.values.numpy().tolist(), ids.row_splits.numpy().tolist()
    return (values[start:end] for start, end in itertools.pairwise(splits))


def _example(source: list[int], target: list[int], line: int) -> bytes:
    example = tf.train.Example()
    for name, ids in (("source", source), ("target", target), ("line", [line])):
        example.features.feature[name].int64_list.value.extend(ids)
    return example.SerializeToString(deterministic=True)


@contextlib.contextmanager
def _records(path: Path) -> Iterator[Any]:
    """A function that writes a record to a file."""
    try:
        with tf.io.TFRecordWriter(str(path)) as writer:
            yield writer.write
    except tf.errors.OpError as error:
        raise OSError(f"cannot write records: {error.message}") from error
