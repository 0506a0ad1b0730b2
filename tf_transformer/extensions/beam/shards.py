"""Text files in, translated files out. Shards are complete or absent, so that a stopped pipeline resumes."""

import contextlib
import glob
import gzip
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import apache_beam as beam
from apache_beam.ml.inference.base import RunInference

from tf_transformer.config import BadInput
from tf_transformer.extensions.beam.translation import Handler, Model, TranslationSettings
from tf_transformer.utils.files import checksum, locked, matching, new_file, user_path, write_json
from tf_transformer.utils.folders import model_folder, needs_no_tensorflow
from tf_transformer.utils.lines import LineRange, line_ranges, read_range, unpacked
from tf_transformer.utils.reading import read_json, reading
from tf_transformer.utils.values import Count, check_fields

SHARD_LINES = 10_000


@dataclass(frozen=True)
class Shard:
    """Lines of an input, and the file for their translations.

    Attributes:
        lines: Range of lines.
        path: Output file, one line per line, as `TranslationResult.written` writes it for the suffix. A name in .gz
            means gzip.
    """

    lines: LineRange
    path: str


@dataclass(frozen=True)
class BulkJob:
    """A translation of files to PREFIX-00000-of-00007.txt and so on, with PREFIX.work as working directory.

    Attributes:
        inputs: Files, plain or .gz, or patterns of their names, in the order of the output.
        prefix: Start of the output's names, such as out/part.
        method: How texts are translated.
        lines: Maximum number of lines per shard.
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
        """PREFIX.work, with the settings, a lock, and unpacked inputs until the work is done."""
        return Path(f"{self.prefix}.work")

    @contextlib.contextmanager
    def opened(self) -> Iterator[list[Shard]]:
        """Yields all shards in order, while no other process works on them. Finished shards have a file.

        Raises:
            BadInput: If there are no inputs, an input is damaged, or the prefix is in use or has output of other
                inputs, another model or other settings.
        """
        paths = list[str]()
        for pattern in self.inputs:
            if not (files := matching(pattern)):
                raise BadInput(f"expected text files, found none at {pattern}")
            paths += files
        if folders := [path for path in paths if os.path.isdir(path)]:
            raise BadInput(f"expected text files, got the directory {folders[0]}")
        model_folder(self.method.path)
        message = f"{self.prefix}: expected output that nothing else writes; it is being written"
        with locked(self.folder / "lock", message):
            self._check_settings(paths)
            plain = [unpacked(path, self.folder / "inputs") for path in paths]
            ranges = line_ranges([path.absolute() for path in plain], self.lines)
            prefix, end = Path(self.prefix).absolute(), f"-of-{len(ranges):05d}{self.ending}"
            yield [Shard(lines, f"{prefix}-{i:05d}{end}") for i, lines in enumerate(ranges)]
            shutil.rmtree(self.folder / "inputs", ignore_errors=True)

    def _check_settings(self, paths: Sequence[str]) -> None:
        """Writes the settings, or compares them with those of existing output."""
        file = self.folder / "settings.json"
        method = {"n_best": self.method.n_best, "options": dict(self.method.options)}
        model = model_folder(self.method.path)
        # A SavedModel's graph and weights identify it, whatever else is in its directory.
        files = [model / "saved_model.pb", *sorted(model.glob("variables/*"))]
        if needs_no_tensorflow(model):
            files = sorted(model.iterdir())
        sha256 = hashlib.sha256("".join(checksum(file) for file in files).encode()).hexdigest()
        settings = {
            "inputs": [{"path": path, "sha256": checksum(path)} for path in paths],
            "model": {"path": self.method.path, "sha256": sha256},
            "settings": {**method, "lines": self.lines, "ending": self.ending},
        }
        outputs = sorted(glob.glob(f"{glob.escape(str(self.prefix))}-*-of-*"))
        if not outputs:
            write_json(file, settings)
            return
        if not file.exists():
            raise BadInput(f"{self.prefix}: expected no output of another work, found {outputs[0]}")
        stored = read_json(file)
        with reading(file, "the settings of the output that is there"):
            before = {name: (_contents(stored[name]), _described(stored[name])) for name in settings}
        for name, label in (("inputs", "other inputs"), ("model", "another model"), ("settings", "other settings")):
            if before[name][0] != _contents(settings[name]):
                was, now = before[name][1], _described(settings[name])
                raise BadInput(f"{self.prefix}: it has output of {label}: {was}; not of {now}. Give another --output")


def _contents(value: Any) -> Any:
    """Returns a part of the settings without paths, since files may be moved."""
    if isinstance(value, list):
        return [_contents(each) for each in value]
    return {name: each for name, each in value.items() if name != "path"}


def _described(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} files, {', '.join(_described(each) for each in value[:2])}"
    if "sha256" in value:
        return f"{value['path']} ({value['sha256'][:8]})"
    return json.dumps(value)


@dataclass(frozen=True)
class ShardResult:
    """A translated shard.

    Attributes:
        path: Its file.
        lines: Number of lines.
        truncated, empty: Number of lines with this flag.
        seconds: Duration.
    """

    path: str
    lines: int
    truncated: int
    empty: int
    seconds: float


class TranslateShards(beam.PTransform[Any, Any]):
    """Translates `Shard`s by a method, one at a time per process, to `ShardResult`s."""

    def __init__(self, method: TranslationSettings) -> None:
        super().__init__()
        self._handler = Handler(method, 1, lambda model, shards: [_translated(model, shard) for shard in shards])

    def expand(self, shards: Any) -> Any:
        # Without a reshuffle, Beam fuses this step with the one that creates the shards, on one worker.
        return shards | beam.Reshuffle() | RunInference(self._handler)


_loaded = dict[str, Model]()


def translate_shard(method: TranslationSettings, shard: Shard) -> ShardResult:
    """Translates a shard. A process keeps the model of its last call."""
    # Options are a dictionary, so a method has no hash.
    key = repr(method)
    if key not in _loaded:
        _loaded.clear()
        _loaded[key] = Model(method)
    return _translated(_loaded[key], shard)


def _translated(model: Model, shard: Shard) -> ShardResult:
    """Writes the translations of a shard, one per line, to a file that is complete or absent."""
    began = time.monotonic()
    rows = model.replies(read_range(shard.lines))
    ending, n_best = Path(shard.path.removesuffix(".gz")).suffix, model.method.n_best > 1
    content = "".join(f"{row.written(ending, n_best)}\n" for row in rows).encode()
    if shard.path.endswith(".gz"):
        content = gzip.compress(content, mtime=0)  # without the time, the bytes are the same whenever it is written
    try:
        with new_file(shard.path) as temporary, open(temporary, "wb") as file:
            file.write(content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, shard.path) from error
    truncated, empty = (sum(getattr(row, name) for row in rows) for name in ("truncated", "empty"))
    return ShardResult(shard.path, len(rows), truncated, empty, time.monotonic() - began)
