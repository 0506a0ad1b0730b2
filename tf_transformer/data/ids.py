"""Token ids of sentence pairs in flat arrays.

All sources become such arrays: a run stores those of its training set in a directory, and a shard of prepared records
is such a directory.
"""

import abc
import itertools
import json
import time
from collections.abc import Callable, Iterable, Sequence
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
