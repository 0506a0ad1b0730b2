"""Prepared records: a tokenized corpus on disk in shards, for corpora larger than memory."""

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.data.ids import Block, Ids, TokenizedSource, sums_of
from tf_transformer.models.families import load_tokenizer
from tf_transformer.utils.files import checksum, user_path
from tf_transformer.utils.reading import check_kinds, read_json, reading
from tf_transformer.utils.values import Count

SHARD_LINES = 100_000
BLOCK_SHARDS = 8  # shards that are shuffled together in memory
MANIFEST = {"complete": bool, "max_length": Count, "tokenizer": str, "shards": list}
SHARD = {"shard": str, "bytes": int, "lengths": list, "tokens": list, "skipped": int, "filtered": dict, "sha256": dict}


class Records(TokenizedSource):
    """Records that `Preparation` wrote. Train on them with `tt.Corpus(tt.Records("records/mine"), dev)`.

    `BLOCK_SHARDS` shards are in memory at a time. The position of step N follows from records.json, so resuming there
    reads only the block of N.

    Args:
        folder: Directory of the records.

    Raises:
        BadInput: If the directory holds something else, or damaged records.
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
                raise BadInput(f"{self.folder}: records are not complete. Run tf-transformer prepare again.")
            manifest["shards"] = [check_shard(shard, manifest["max_length"]) for shard in manifest["shards"]]
            if not manifest["shards"]:
                raise BadInput(f"{file}: expected shards, got none")
        self.tokenizer = load_tokenizer(self.folder / "tokenizer.model")
        if self.tokenizer.fingerprint != manifest["tokenizer"]:
            raise BadInput(f"{self.folder / 'tokenizer.model'}: expected the one that made the records, got another")
        self.max_length, self.shards = manifest["max_length"], manifest["shards"]
        self._verified = set[str]()  # shards whose checksums are right
        for shard in self.shards:
            path = self.folder / shard["shard"]
            if (size := sum(array.stat().st_size for array in path.glob("*.npy"))) != shard["bytes"]:
                raise BadInput(
                    f"{path}: expected {shard['bytes']:,} bytes, got {size:,}. Run prepare again to repair it."
                )

    @property
    def filtered(self) -> dict[str, int]:
        """Number of pairs that each filter dropped."""
        names = dict.fromkeys(name for shard in self.shards for name in shard["filtered"])
        return {name: sum(shard["filtered"].get(name, 0) for shard in self.shards) for name in names}

    def describe(self) -> dict[str, Any]:
        """Identifies the corpus, like `Source.describe`, by the checksums in records.json."""
        return {"train": str(self.folder), "sha256": checksum(self.folder / "records.json")}

    def blocks(self) -> list[Block]:
        """Returns blocks of `BLOCK_SHARDS` random shards each. A block keeps their order."""
        # A fixed seed, so that a resumed run has the same blocks.
        indices = np.random.default_rng(0).permutation(len(self.shards)).tolist()
        blocks = []
        for start in range(0, len(indices), BLOCK_SHARDS):
            group = [self.shards[i] for i in sorted(indices[start : start + BLOCK_SHARDS])]
            lengths, tokens = (np.sum([shard[name] for shard in group], axis=0) for name in ("lengths", "tokens"))
            skipped = sum(shard["skipped"] for shard in group)
            blocks.append(Block(lengths, tuple(tokens.tolist()), skipped, functools.partial(self._read, group)))
        return blocks

    def _read(self, shards: list[dict[str, Any]]) -> Ids:
        block = []
        for shard in shards:
            folder = self.folder / shard["shard"]
            with reading(folder, "the records that tf-transformer prepare wrote"):
                if folder.name not in self._verified and sums_of(folder) != shard["sha256"]:
                    raise ValueError("its checksums are wrong")
                self._verified.add(folder.name)
                ids = Ids.load(folder, shard["skipped"])
                # A manipulated directory may have matching checksums, so the values are checked as well.
                if np.bincount(ids.lengths(), minlength=self.max_length + 1).tolist() != shard["lengths"]:
                    raise ValueError("pairs of other lengths than in records.json")
                if max(int(side.ids.max(initial=0)) for side in (ids.source, ids.target)) >= self.tokenizer.vocab_size:
                    raise ValueError("ids beyond the vocabulary")
                block.append(ids)
        return Ids.joined(block)


def check_shard(shard: Any, max_length: int) -> dict[str, Any]:
    """Checks and returns a shard's entry of records.json."""
    if not isinstance(shard, dict) or not shard.keys() >= SHARD.keys():
        raise BadInput(f"expected {', '.join(SHARD)} of every shard, got other fields")
    shard = check_kinds(shard, SHARD)
    if Path(shard["shard"]).name != shard["shard"]:
        raise BadInput(f"expected the name of a directory next to it, got {shard['shard']!r}")
    counts = [*shard["lengths"], *shard["tokens"], *shard["filtered"].values()]
    wrong = len(shard["lengths"]) != max_length + 1 or len(shard["tokens"]) != 2
    if wrong or any(type(count) is not int or not 0 <= count < 2**48 for count in counts):
        raise BadInput(f"expected counts of pairs and tokens, those of lengths up to {max_length}, got others")
    if (pairs := sum(shard["lengths"])) > shard["bytes"]:
        raise BadInput(f"{shard['shard']}: expected at most one pair per byte, {shard['bytes']:,}, got {pairs:,} pairs")
    return shard
