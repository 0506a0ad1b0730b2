"""A corpus made into records: the steps, each for one shard, and a way through them, which many processes can share.
`tf_transformer.extensions.beam` has another, for many machines."""

import collections
import contextlib
import dataclasses
import functools
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.data.filters import Filters, hashed, repeated
from tf_transformer.data.ids import facts_of, tokenized
from tf_transformer.data.pairs import MAX_LENGTH, Part, Row, Source
from tf_transformer.data.records import check_shard
from tf_transformer.models.families import load_tokenizer
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.utils.files import locked, user_path, write_json
from tf_transformer.utils.reading import read_json
from tf_transformer.utils.values import Count, check_fields, checked

NO_FILTERS = Filters()
# What a program that was stopped may leave in the folder.
OWN = re.compile(r"\.lock|unpacked|log|tokenizer\.model|records\.json|(\.export-)?shard-\d{5,}(-\w+)?|.*\.tmp")
HELD = ContextVar[frozenset[Path]]("HELD", default=frozenset())  # folders that this thread has locked
BUCKET_PAIRS = 4_000_000  # pairs whose hashes are compared at a time, in memory: 100 MB


@dataclass(frozen=True)
class Preparation:
    """The records of a corpus, in a folder that all workers see. It pickles.

    A shard is a folder of arrays (`ids.Ids`): the ids of both sides and the lines of the pairs of one part of the
    source, so that it depends on no other shard. Its shard.json has their checksums, and how many pairs of each length
    it holds and were left out; records.json has that of all.

    What is in the folder already is kept: of a finished shard only the checksums are computed.

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
        if folder.exists() and not folder.is_dir():
            raise BadInput(f"folder: expected one for the records, found a file at {folder}")
        object.__setattr__(self, "folder", folder)
        check_fields(self)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """While no other process, and no other thread, prepares records in the folder. What fails before its first
        shard leaves nothing.

        Raises:
            BadInput: one does, or the folder holds something else.
        """
        self._check_folder()
        if self.folder in (held := HELD.get()):
            yield
            return
        new = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        before = {*self.folder.iterdir()} if self.folder.exists() else set()
        message = f"{self.folder}: expected a folder that nothing else prepares; it is in use"
        with locked(self.folder / ".lock", message):
            token = HELD.set(held | {self.folder})
            try:
                yield
            except Exception:
                if not any(self.folder.glob("shard-*")):
                    with contextlib.suppress(OSError):  # the error counts
                        for path in {*self.folder.iterdir()} - before:
                            shutil.rmtree(path) if path.is_dir() else path.unlink()
                        for path in new:
                            path.rmdir()
                raise
            finally:
                HELD.reset(token)

    def _check_folder(self) -> None:
        """Check that a folder without records.json holds nothing of others: the shards there go when records begin."""
        if self.folder.exists() and not (self.folder / "records.json").exists():
            for path in self.folder.iterdir():
                if not OWN.fullmatch(path.name):
                    raise BadInput(f"{self.folder}: expected records or an empty folder, found {path.name} in it")

    def run(
        self,
        parts: list[Part],
        tokenizer: Tokenizer,
        each: Callable[..., Any] = map,
        report: Callable[[dict[str, Any]], Any] = lambda shard: None,
    ) -> list[dict[str, Any]]:
        """Writes the records: all steps, in this process or in others. It locks the folder meanwhile.

            work = tt.Preparation(source, "records/mine")
            work.run(source.parts(100_000, work.folder), tokenizer)

        Args:
            parts: of the source.
            tokenizer: of source and target, of any family.
            each: calls a function for each of some items, as `map` does.
            report: is called with a shard's part of the result when it is there.

        Returns:
            what records.json says of each shard.

        Raises:
            BadInput: a line is bad, another process prepares records in the folder, or it holds those of something
                else.
            OSError: a file cannot be read or written.
        """
        with self.locked():
            self.begin(parts, tokenizer)
            drops = self._drops(parts, each) if self.filters.duplicates else {}
            shards = []
            for shard in each(self.write, parts, [drops.get(part.number, ()) for part in parts]):
                shards.append(shard)
                report(shard)
            self.finish(shards)
        return shards

    @checked
    def begin(self, parts: list[Part], tokenizer: Tokenizer) -> None:
        """Check what is in the folder, and put there what the workers need.

        Raises:
            BadInput: the folder holds something else, or records of another corpus, tokenizer, length or other filters;
                another process prepares records there; the tokenizer is of several languages, and those of the texts
                are missing; or it has no tokens for the tags of the source.
        """
        if not parts:
            raise BadInput("parts: expected those of the source, got none")
        tokenizer.spoken()
        self.source.encoder(tokenizer)
        manifest: dict[str, Any] = {"tokenizer": tokenizer.fingerprint, "max_length": self.max_length}
        manifest |= {"corpus": self.source.contents() | {"pairs": _pairs(parts)}, "shard_lines": parts[0].count}
        manifest["filters"] = self.filters.chosen()
        with self.locked():
            if (file := self.folder / "records.json").exists():
                found = read_json(file)
                for name, value in manifest.items():
                    if found.get(name) != value:
                        got = f"holds records of another {name}: {found.get(name)}, not {value}; give another folder"
                        raise BadInput(f"{self.folder}: {got}")
            else:
                for left in self.folder.glob("shard-*"):
                    shutil.rmtree(left)
                write_json(file, manifest | {"complete": False, "shards": []})
            for left in self.folder.glob(".export-shard-*"):  # by workers that were killed
                shutil.rmtree(left, ignore_errors=True)
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
        folder = self.folder / f"shard-{part.number:05d}"
        with contextlib.suppress(BadInput):  # damaged: it is made again
            if (found := facts_of(folder)) and check_shard(found, self.max_length)["shard"] == folder.name:
                return found
        taken = dict.fromkeys(self.filters.chosen(), 0)
        tokenizer = _tokenizer(self.folder / "tokenizer.model", os.stat(self.folder / "tokenizer.model").st_mtime_ns)
        rows, encode = self._rows(part, drops, taken), self.source.encoder(tokenizer)
        ids = tokenized(rows, encode, self.max_length, tokenizer.vocab_size)
        skipped = part.count - len(ids) - sum(taken.values())
        lengths = np.bincount(ids.lengths(), minlength=self.max_length + 1).tolist()
        facts = {"shard": folder.name, "lengths": lengths, "tokens": list(ids.tokens()), "filtered": taken}
        ids = dataclasses.replace(ids, skipped=skipped)
        try:
            return ids.save(folder, facts)
        except FileExistsError:
            if found := facts_of(folder):  # of another worker, while this one was thought dead
                return check_shard(found, self.max_length)
            shutil.rmtree(folder)
            return ids.save(folder, facts)

    def finish(self, shards: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """Write records.json, and remove what only the workers needed.

        Args:
            shards: what `write` returned, in any order.

        Returns:
            what is in records.json.
        """
        file = self.folder / "records.json"
        manifest = read_json(file)
        manifest |= {
            "complete": True,
            "shards": sorted(shards, key=lambda shard: (len(shard["shard"]), shard["shard"])),
        }
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

    def _rows(self, part: Part, drops: Iterable[bytes], taken: dict[str, int]) -> Iterator[Row]:
        """Pairs that the filters leave, with their numbers in the corpus, from 1; `taken` counts the others."""
        came_before = set(np.frombuffer(b"".join(drops), "u4").tolist())
        for place, source, target in self.source.good_pairs(part):
            reason = "duplicates" if place in came_before else self.filters.reason(*map(self._text, (source, target)))
            if reason:
                taken[reason] += 1
            else:
                yield part.first + place + 1, source, target

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
def _tokenizer(file: Path, modified: int) -> Tokenizer:
    """One for all shards of a process."""
    return load_tokenizer(file)
