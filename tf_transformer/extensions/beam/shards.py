"""Text files in, translated files out: shards that are complete or absent, so that a stopped pipeline goes on."""

import contextlib
import glob
import gzip
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import apache_beam as beam
from apache_beam.ml.inference.base import RunInference

from tf_transformer.config import BadInput
from tf_transformer.data.text_files import LineRange, line_ranges, read_range, unpacked
from tf_transformer.extensions.beam.translation import Handler, Model, TranslationSettings
from tf_transformer.inference.engine import Reply
from tf_transformer.utils.files import checksum, locked, matching, new_file, user_path, write_json
from tf_transformer.utils.folders import model_folder, needs_no_tensorflow
from tf_transformer.utils.reading import read_json, reading
from tf_transformer.utils.values import Count, check_fields

SHARD_LINES = 10_000


@dataclass(frozen=True)
class Shard:
    """Lines, and the file that their translations go to.

    Attributes:
        lines: of an input.
        path: the output, a line for each line, as `Reply.written` by its ending; gzip if it ends in .gz, too.
    """

    lines: LineRange
    path: str


@dataclass(frozen=True)
class BulkJob:
    """A translation of files, <prefix>-00000-of-00007.txt and so on; beside them <prefix>.work has what it needs.

    Attributes:
        inputs: plain files or .gz, or patterns of their names, in the order of the output.
        prefix: begins the output's names, e.g. out/part.
        method: how texts are translated.
        lines: the most lines of a shard.
        ending: .txt, .tsv or .jsonl, or one of them with .gz.
    """

    inputs: tuple[str | os.PathLike[str], ...]
    prefix: str | os.PathLike[str]
    method: TranslationSettings
    lines: Count = SHARD_LINES
    ending: Literal[".txt", ".tsv", ".jsonl", ".txt.gz", ".tsv.gz", ".jsonl.gz"] = ".txt"

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "inputs", tuple(str(user_path(path, "inputs")) for path in self.inputs))
        object.__setattr__(self, "prefix", str(user_path(self.prefix, "prefix")))

    @property
    def folder(self) -> Path:
        """<prefix>.work: the settings, a lock, and what was unpacked, until the work is done."""
        return Path(f"{self.prefix}.work")

    @contextlib.contextmanager
    def opened(self) -> Iterator[list[Shard]]:
        """All shards, in order, while no other process works on them. What is finished has its `path` on disk.

        Raises:
            BadInput: there are no inputs; one is damaged; the prefix is in use, or has output of other inputs, of
                another model or of other settings.
        """
        paths = self._paths()
        model_folder(self.method.path)
        message = f"{self.prefix}: expected output that nothing else writes; it is being written"
        with locked(self.folder / "lock", message):
            self._check_settings(paths)
            plain = [unpacked(path, self.folder / "inputs") for path in paths]
            ranges = line_ranges([path.absolute() for path in plain], self.lines)
            prefix = Path(self.prefix).absolute()
            yield [
                Shard(lines, f"{prefix}-{i:05d}-of-{len(ranges):05d}{self.ending}") for i, lines in enumerate(ranges)
            ]
            shutil.rmtree(self.folder / "inputs", ignore_errors=True)

    def _paths(self) -> list[str]:
        found = []
        for pattern in self.inputs:
            files = matching(pattern)
            if not files:
                raise BadInput(f"expected text files, found none at {pattern}")
            found += files
        for path in found:
            if os.path.isdir(path):
                raise BadInput(f"expected text files, got the folder {path}")
        return found

    def _check_settings(self, paths: Sequence[str]) -> None:
        """Write the settings, or compare them with those of what is there."""
        file = self.folder / "settings.json"
        method = {name: value for name, value in asdict(self.method).items() if name in ("n_best", "options")}
        settings = {
            "inputs": [{"path": path, "sha256": checksum(path)} for path in paths],
            "model": {"path": self.method.path, "sha256": _checksum_of_model(model_folder(self.method.path))},
            "settings": {**method, "lines": self.lines, "ending": self.ending},
        }
        there = sorted(glob.glob(f"{glob.escape(str(self.prefix))}-*-of-*"))
        if not there:
            write_json(file, settings)
            return
        if not file.exists():
            raise BadInput(f"{self.prefix}: expected no output of another work, found {there[0]}")
        found = read_json(file)
        with reading(file, "the settings of the output that is there"):
            before = {name: (_contents(found[name]), _described(found[name])) for name in settings}
        for name, of in (("inputs", "other inputs"), ("model", "another model"), ("settings", "other settings")):
            if before[name][0] != _contents(settings[name]):
                was, now = before[name][1], _described(settings[name])
                raise BadInput(f"{self.prefix}: it has output of {of}: {was}; not of {now}. Give another --output")


def _contents(value: Any) -> Any:
    """A part of the settings without the places of files, which may be moved."""
    if isinstance(value, list):
        return [_contents(each) for each in value]
    return {name: each for name, each in value.items() if name != "path"}


def _described(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} files, {', '.join(_described(each) for each in value[:2])}"
    if "sha256" in value:
        return f"{value['path']} ({value['sha256'][:8]})"
    return json.dumps(value)


def _checksum_of_model(path: Path) -> str:
    """SHA-256 of graph and weights, or of all files of an export that has no such."""
    own = [path / "saved_model.pb", *sorted(path.glob("variables/*"))]
    files = sorted(path.iterdir()) if needs_no_tensorflow(path) else own
    return hashlib.sha256("".join(checksum(file) for file in files).encode()).hexdigest()


@dataclass(frozen=True)
class ShardResult:
    """A shard that was translated.

    Attributes:
        path: its file.
        lines: how many it has.
        truncated, empty: how many of them were flagged so.
        seconds: the time it took.
    """

    path: str
    lines: int
    truncated: int
    empty: int
    seconds: float


class TranslateShards(beam.PTransform[Any, Any]):
    """Translates `Shard`s, one at a time in a process, and gives a `ShardResult` for each.

    Args:
        method: how texts are translated.
    """

    def __init__(self, method: TranslationSettings) -> None:
        super().__init__()
        self._handler = _ShardHandler(method, 1)

    def expand(self, shards: Any) -> Any:
        return shards | beam.Reshuffle() | RunInference(self._handler)


class _ShardHandler(Handler):
    def run_inference(
        self, batch: Sequence[Shard], model: Model, inference_args: dict[str, Any] | None = None
    ) -> Iterable[ShardResult]:
        for shard in batch:
            began = time.monotonic()
            rows = model.replies(read_range(shard.lines))
            write_shard(shard.path, rows, self.method.n_best > 1)
            truncated, empty = (sum(getattr(row, name) for row in rows) for name in ("truncated", "empty"))
            yield ShardResult(shard.path, len(rows), truncated, empty, time.monotonic() - began)


class ShardWorker:
    """A function that translates a shard. A process loads the model once, however often it unpickles the function.

    Args:
        method: how texts are translated.
    """

    def __init__(self, method: TranslationSettings) -> None:
        self._handler = _ShardHandler(method, 1)
        self._model: Model | None = None

    def __call__(self, shard: Shard) -> ShardResult:
        self._model = self._model or self._handler.load_model()
        (result,) = self._handler.run_inference([shard], self._model)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._handler.method,)


_workers = dict[str, ShardWorker]()


def _unpickled(method: TranslationSettings) -> ShardWorker:
    return _workers.setdefault(repr(method), ShardWorker(method))


def write_shard(path: str, rows: Sequence[Reply], n_best: bool) -> None:
    """Write translations, a line for each, to a file that is complete or absent. `n_best`: JSON has all of them.

    Raises:
        OSError: it cannot be written; the error names the file.
    """
    ending = Path(path.removesuffix(".gz")).suffix
    text = "".join(f"{row.written(ending, n_best)}\n" for row in rows).encode()
    try:
        with new_file(path) as temporary, open(temporary, "wb") as file:
            if path.endswith(".gz"):
                with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:  # the same bytes at any time
                    packed.write(text)
            else:
                file.write(text)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
