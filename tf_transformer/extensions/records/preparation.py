"""Preparation of records: steps for single shards, filters, and a run of all steps that many processes can share.

`tf_transformer.extensions.beam` runs the same steps on many machines.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import operator
import os
import re
import shutil
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.data.held_out import Filter, Wrapper, untagged
from tf_transformer.data.ids import TokenizedSource, metadata_of, tokenized
from tf_transformer.data.sources import MAX_LENGTH, Languages, PairsOfPart, Part, Row, Source, once
from tf_transformer.extensions.records.records import check_shard
from tf_transformer.models.families import load_tokenizer
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.training.settings import differences
from tf_transformer.utils.files import locked, user_path, write_json
from tf_transformer.utils.reading import read_json
from tf_transformer.utils.terminal import say
from tf_transformer.utils.values import Count, check_fields, checked

# Names of files that a stopped program may leave in the directory.
LEFTOVERS = re.compile(r"\.lock|unpacked|log|tokenizer\.model|records\.json|(\.export-)?shard-\d{5,}(-\w+)?|.*\.tmp")
# Directories that this thread has locked, so that `run` may call `begin`. Other threads must wait.
HELD = ContextVar[frozenset[Path]]("HELD", default=frozenset())
BUCKET_PAIRS = 4_000_000  # pairs whose hashes are compared at a time, in 100 MB of memory
# A hash of 128 bits is two integers, since NumPy has none so large.
_HASHED = np.dtype([("high", "u8"), ("low", "u8"), ("shard", "u4"), ("index", "u4")])  # 24 bytes per pair


@dataclass(frozen=True)
class Filters(Filter):
    """Filters that drop pairs of a corpus. A pair counts for the first filter that drops it.

        corpus = tt.Corpus(source, dev=0.02, filters=tt.Filters(duplicates=True, identical=True))

    Filters see texts like the tokenizer: in NFKC, with single spaces between words. Tags of a source, such as "<2de>",
    count only for duplicates. To filter by language, length ratio or alignment, run OpusCleaner or OpusFilter before
    `prepare`.

    Attributes:
        duplicates: Drop all but the first of equal pairs in the corpus, by a hash of 128 bits.
        identical: Drop pairs whose two sides are the same text.
    """

    duplicates: bool = False
    identical: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def parse(cls, names: Iterable[str]) -> "Filters":
        """Returns filters by their names on a command line, for example "duplicates", "identical"."""
        filters, known = dict.fromkeys(names, True), [field.name for field in dataclasses.fields(cls)]
        if unknown := [name for name in filters if name not in known]:
            raise BadInput(f"filter: expected one of {', '.join(known)}, got {unknown[0]!r}")
        return cls(**filters)

    def __call__(self, source: Source | TokenizedSource) -> Source | TokenizedSource:
        """Returns a source without the pairs that the filters drop, for a training set in memory."""
        if not self.chosen():
            return source
        if not isinstance(source, Source):
            raise BadInput("filters: expected none, since records are filtered by `prepare`")
        return Filtered(source, self)

    def chosen(self) -> dict[str, Any]:
        """Returns the filters that are on, for records.json."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value}

    def reason(self, source: bytes, target: bytes) -> str | None:
        """Returns the name of the filter that drops a pair of texts in UTF-8 whatever the other pairs are."""
        return "identical" if self.identical and _normal(source) == _normal(target) else None

    def kept(
        self, rows: Iterable[Row], tags: Sequence[str], is_repeated: Callable[[Row], bool], dropped: dict[str, int]
    ) -> Iterator[Row]:
        """Yields the rows of bad pairs and of those that the filters keep, and counts the others in `dropped`."""
        for _, copies in itertools.groupby(rows, key=operator.itemgetter(0)):
            first, *others = copies
            _, source, target = first
            reason = "duplicates" if is_repeated(first) else self.reason(untagged(source, tags), target)
            if reason and source:
                dropped[reason] += 1
            else:
                yield from (first, *others)


@dataclass(frozen=True)
class Filtered(Wrapper):
    """A source without the pairs that filters drop, for a training set in memory."""

    source: Source
    filters: Filters

    def describe(self) -> dict[str, Any]:
        return {**self.source.describe(), "filters": self.filters.chosen()}

    def parts(self, pairs: PairsOfPart, folder: str | os.PathLike[str]) -> list[Part]:
        raise BadInput("source: expected one without filters. Pass them to Preparation.")

    def segments(self, part: Part | None = None) -> Iterator[tuple[Languages, Iterator[Row]]]:
        seen, dropped = set[bytes](), collections.Counter[str]()

        def is_repeated(languages: Languages, row: Row) -> bool:
            before = len(seen)
            if self.filters.duplicates:
                seen.add(_digest(_in_languages(languages, row[1]), row[2]))
            return self.filters.duplicates and len(seen) == before

        for languages, rows in self.source.segments():
            is_duplicate = functools.partial(is_repeated, languages)
            yield languages, self.filters.kept(rows, self.symbols, is_duplicate, dropped)
        if dropped and "_reported" not in self.__dict__:
            self.__dict__["_reported"] = True
            say("filters dropped " + ", ".join(f"{count:,} {name}" for name, count in dropped.items()))


def _digest(source: bytes, target: bytes) -> bytes:
    return hashlib.blake2b(f"{_normal(source)}\n{_normal(target)}".encode(), digest_size=16).digest()


def _in_languages(languages: Languages, source: bytes) -> bytes:
    """Returns a text for `_digest`. Equal pairs of different languages, such as names, are not duplicates."""
    return " ".join([*languages, ""]).encode() + source


def _normal(text: bytes) -> str:
    return " ".join(unicodedata.normalize("NFKC", text.decode()).split())


@dataclass(frozen=True)
class Preparation:
    """Records of a corpus, in a directory that all workers can read and write. Instances can be pickled.

    A shard is a directory of arrays (`ids.Ids`): the ids of both sides, and the lines of the pairs. Its shard.json
    has their checksums, and the number of pairs of each length and of skipped ones. records.json has those of all
    shards. They are independent. Finished ones in the directory are kept, and only their checksums are computed.

    Attributes:
        source: Source of the pairs.
        folder: Directory of the records.
        filters: Filters that drop pairs.
        max_length: Pairs with a side of more tokens, EOS included, or with an empty one, are skipped.
    """

    source: Source
    folder: Path
    filters: Filters = Filters()
    max_length: Count = MAX_LENGTH

    def __post_init__(self) -> None:
        folder = user_path(self.folder, "folder").absolute()  # workers may have another current directory
        if folder.exists() and not folder.is_dir():
            raise BadInput(f"folder: expected one for the records, found a file at {folder}")
        object.__setattr__(self, "folder", folder)
        check_fields(self)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the directory against other processes and threads, or raises `BadInput` if it holds something else.

        If the block fails before its first shard, nothing is left.
        """
        before = {*self.folder.iterdir()} if self.folder.exists() else set()
        # `begin` removes shards of an unfinished start, so a directory with files of others must not pass for one.
        others = [path.name for path in before if not LEFTOVERS.fullmatch(path.name)]
        if others and self.folder / "records.json" not in before:
            raise BadInput(f"{self.folder}: expected records or an empty directory, found {others[0]} in it")
        if self.folder in (held := HELD.get()):
            yield
            return
        new = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        message = f"{self.folder}: another process prepares records in this directory"
        with locked(self.folder / ".lock", message):
            token = HELD.set(held | {self.folder})
            try:
                yield
            except Exception:
                if not any(self.folder.glob("shard-*")):
                    with contextlib.suppress(OSError):  # the first error counts
                        for path in {*self.folder.iterdir()} - before:
                            shutil.rmtree(path) if path.is_dir() else path.unlink()
                        for path in new:
                            path.rmdir()
                raise
            finally:
                HELD.reset(token)

    def run(
        self,
        parts: list[Part],
        tokenizer: Tokenizer,
        each: Callable[..., Any] = map,
        report: Callable[[dict[str, Any]], Any] = lambda shard: None,
    ) -> list[dict[str, Any]]:
        """Locks the directory and writes the records: all steps, in this process or in others.

            work = tt.Preparation(source, "records/mine")
            work.run(source.parts(100_000, work.folder), tokenizer)

        Args:
            parts: Shards of the source.
            tokenizer: Tokenizer of source and target, of any family.
            each: Calls a function for each of some items, like `map`.
            report: Called with the result of each finished shard.

        Returns:
            The entries of records.json, one per shard.

        Raises:
            BadInput: If a line is bad, another process prepares records in the directory, or it holds those of
                something else.
            OSError: If a file cannot be read or written.
        """
        with self.locked():
            self.begin(parts, tokenizer)
            drops = collections.defaultdict[int, list[bytes]](list)  # indices of duplicate pairs, by shard
            if self.filters.duplicates:
                by_bucket = collections.defaultdict[int, list[bytes]](list)
                hashes = each(functools.partial(self.hashes, buckets=buckets(parts)), parts)
                for bucket, packed in itertools.chain.from_iterable(hashes):
                    by_bucket[bucket].append(packed)
                for number, indices in itertools.chain.from_iterable(map(repeated, by_bucket.values())):
                    drops[number].append(indices)
            shards = []
            for shard in each(self.write, parts, [drops[part.number] for part in parts]):
                shards.append(shard)
                report(shard)
            self.finish(shards)
        return shards

    @checked
    def begin(self, parts: list[Part], tokenizer: Tokenizer) -> None:
        """Checks the contents of the directory, and writes the files that the workers need.

        Raises:
            BadInput: If the directory holds something else, or records of another corpus, tokenizer, length or filters,
                or the tokenizer has no languages for the texts, or no tokens for the tags of the source.
        """
        if not parts:
            raise BadInput("parts: expected the shards of the source, got none")
        list(self.source.encoded(tokenizer, self.source.segments()))  # raises what `write` would
        manifest: dict[str, Any] = {"tokenizer": tokenizer.fingerprint, "max_length": self.max_length}
        corpus = self.source.contents() | {"pairs": sum(part.count for part in parts)}
        manifest |= {"corpus": corpus, "shard_lines": parts[0].count, "filters": self.filters.chosen()}
        with self.locked():
            if (file := self.folder / "records.json").exists():
                stored = {name: value for name, value in read_json(file).items() if name in manifest}
                if changed := differences(stored, manifest):
                    raise BadInput(f"{self.folder} holds other records: {'; '.join(changed)}. Pass another directory.")
            else:
                for unfinished in self.folder.glob("shard-*"):
                    shutil.rmtree(unfinished)
                write_json(file, manifest | {"complete": False, "shards": []})
            for unfinished in self.folder.glob(".export-shard-*"):  # left by workers that were killed
                shutil.rmtree(unfinished, ignore_errors=True)
            tokenizer.save(self.folder / "tokenizer.model")

    def hashes(self, part: Part, buckets: int) -> list[tuple[int, bytes]]:
        """Returns `hashed` of a shard's pairs."""
        pairs = (
            (number - part.first - 1, _in_languages(languages, source), target)
            for languages, rows in self.source.segments(part)
            for number, source, target in once(rows)
            if source and target
        )
        return hashed(part.number, pairs, buckets)

    def write(self, part: Part, drops: Iterable[bytes] = ()) -> dict[str, Any]:
        """Writes a shard atomically, unless it exists, and returns its entry of records.json.

        `drops` are the indices of its duplicate pairs, from `repeated`.
        """
        folder = self.folder / f"shard-{part.number:05d}"
        with contextlib.suppress(BadInput):  # a damaged shard is made again
            if (stored := metadata_of(folder)) and check_shard(stored, self.max_length)["shard"] == folder.name:
                return stored
        dropped = dict.fromkeys(self.filters.chosen(), 0)
        tokenizer = _tokenizer(self.folder / "tokenizer.model", os.stat(self.folder / "tokenizer.model").st_mtime_ns)
        duplicates = set(np.frombuffer(b"".join(drops), "u4").tolist())
        options = self.source.symbols, lambda row: row[0] - part.first - 1 in duplicates, dropped
        kept = ((languages, self.filters.kept(rows, *options)) for languages, rows in self.source.segments(part))
        ids = tokenized(self.source.encoded(tokenizer, kept), self.max_length, tokenizer.vocab_size)
        lengths = np.bincount(ids.lengths(), minlength=self.max_length + 1).tolist()
        metadata = {"shard": folder.name, "lengths": lengths, "tokens": list(ids.tokens()), "filtered": dropped}
        try:
            return ids.save(folder, metadata)
        except FileExistsError:
            # Another worker wrote it, after this one was thought dead.
            if stored := metadata_of(folder):
                return check_shard(stored, self.max_length)
            shutil.rmtree(folder)
            return ids.save(folder, metadata)

    def finish(self, shards: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """Writes records.json with the entries from `write`, in any order, and removes the workers' files."""
        file = self.folder / "records.json"
        # shard-100000 follows shard-99999.
        ordered = sorted(shards, key=lambda shard: (len(shard["shard"]), shard["shard"]))
        manifest = read_json(file) | {"complete": True, "shards": ordered}
        write_json(file, manifest)
        shutil.rmtree(self.folder / "unpacked", ignore_errors=True)
        return manifest


@functools.lru_cache(1)
def _tokenizer(file: Path, modified: int) -> Tokenizer:
    """Loads the tokenizer once for all shards of a process, unless the file is `modified`."""
    return load_tokenizer(file)


def buckets(parts: list[Part]) -> int:
    """Returns the number of buckets in which the hashes of a corpus are compared."""
    return -(-sum(part.count for part in parts) // BUCKET_PAIRS)


def hashed(shard: int, pairs: Iterable[tuple[int, bytes, bytes]], buckets: int) -> list[tuple[int, bytes]]:
    """Hashes a shard's pairs, each with its index, and returns a list of (bucket, packed hashes for `repeated`).

    Equal pairs of all shards meet in one bucket.
    """
    digests = {index: _digest(source, target) for index, source, target in pairs}
    hashes = np.zeros(len(digests), _HASHED)
    hashes["high"], hashes["low"] = np.frombuffer(b"".join(digests.values()), "u8").reshape(-1, 2).T
    hashes["shard"], hashes["index"] = shard, [*digests]
    numbers = hashes["high"] % np.uint64(buckets)
    return [(int(bucket), hashes[numbers == bucket].tobytes()) for bucket in np.unique(numbers)]


def repeated(hashes: Iterable[bytes]) -> list[tuple[int, bytes]]:
    """Returns all but the first of a bucket's equal pairs, as a list of (shard, their indices in it, uint32)."""
    pairs = np.frombuffer(b"".join(hashes), _HASHED)
    pairs = pairs[np.lexsort((pairs["index"], pairs["shard"], pairs["low"], pairs["high"]))]
    is_repeated = (pairs["high"][1:] == pairs["high"][:-1]) & (pairs["low"][1:] == pairs["low"][:-1])
    later = pairs[1:][is_repeated]
    return [(int(shard), later["index"][later["shard"] == shard].tobytes()) for shard in np.unique(later["shard"])]
