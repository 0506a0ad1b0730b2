"""A run's directory: settings, checkpoints and history. A killed run loses only the work since its last checkpoint."""

import contextlib
import csv
import errno
import io
import json
import math
import os
import re
import shutil
from pathlib import Path
from typing import Any, ClassVar

import h5py
import keras
import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.evaluation.bleu import Metric
from tf_transformer.models.weights import wake_adapters
from tf_transformer.training.recipe import Recipe
from tf_transformer.training.settings import comparable, differences, unchangeable, with_new_options
from tf_transformer.utils.files import checksum, flush, locked, user_path, write_json, write_text
from tf_transformer.utils.reading import check_file, check_h5, check_kinds, made_of, read_json, reading, with_new_names
from tf_transformer.utils.terminal import say
from tf_transformer.utils.values import Count, Natural, checked

VERSION = 1  # format of config.json
STOPPED = "-stopped"  # suffix of a checkpoint that was saved within an epoch
LOCK = ".lock"
START = "start.weights.h5"
IDS = "ids"  # the tokenized training set
SETTINGS = {"kind": str, "model": dict, "recipe": dict, "corpus": dict}
NUMBER = int | float
STATE = {"step": int, "sha256": str, "seeds": list, "history": list, "target_tokens": NUMBER, "seconds": NUMBER}
STATE |= {"stopped_of": int, "half_done": dict, "compiled": dict, "averaged": bool, "best": list}


class History(list[dict[str, Any]]):
    """Rows of a run's history, one per checkpoint, with a short text for notebooks."""

    @property
    def history(self) -> dict[str, list[Any]]:
        """Columns by name, like those of Keras's `History`. `None` marks a row without such a value."""
        names = dict.fromkeys(name for row in self for name in row)
        return {name: [row.get(name) for row in self] for name in names}

    def __repr__(self) -> str:
        row = (self[-1] if self else {}).items()
        last = "".join(f", {name} {value:,.0f}" if value > 999 else f", {name} {value:.4g}" for name, value in row)
        return f"History of {len(self):,} checkpoint{'s' * (len(self) != 1)}{last}"


# Why files are written under a temporary name: a kill can interrupt a write halfway, but not a rename. A run that
# resumes checks what could have changed since: settings, optimizer, loss and the files' checksums.
class Run:
    """Directory of a training run.

    It holds config.json, tokenizer.model, checkpoints/, logs/, history.csv and metrics.json. It also holds ids/, the
    tokenized training set, unless that comes from prepared records, and start.weights.h5, if the run started from
    another model. docs/reference/run.md lists the fields of each file.

    A checkpoint is a directory checkpoints/step-N. It holds the weights of model and optimizer, and state.json with the
    step, the random state, the history and a checksum of the weights. It is written to a temporary directory and then
    renamed. A checkpoint that was saved because training was interrupted, checkpoints/step-N-stopped, is removed when
    the next one is written, so that averages equal those of an uninterrupted run.

    Args:
        path: Directory of the run.
        keep: Number of checkpoints to keep. Older ones are removed.
        writes: Whether this process writes. Only one of several workers does.
        metric: Metric whose best checkpoints are kept, besides the two newest. `None` keeps the newest.
    """

    _locks: ClassVar[dict[Path, contextlib.ExitStack]] = {}  # held by this process, by directory

    @checked
    def __init__(
        self, path: str | os.PathLike[str], keep: Count = 5, writes: bool = True, metric: Metric | None = None
    ):
        self.path = user_path(path)
        self.keep = keep
        self.writes = writes
        self.metric = metric
        self.history: list[dict[str, Any]] = []
        self._locked: Path | None = None  # the directory, if this object holds its lock

    def exists(self, settings: dict[str, Any]) -> bool:
        """Returns whether the directory holds a run with these settings, apart from those that may change.

        Raises:
            BadInput: If the directory holds a run with other settings, or something else.
        """
        if files := [path for path in (self.path, *self.path.parents) if path.exists() and not path.is_dir()]:
            raise BadInput(f"{files[0]}: expected a directory, found a file")
        if not (self.path / "config.json").exists():
            # A process that was killed before it wrote config.json leaves these, and .tmp files.
            names = {path.name for path in self.path.iterdir()} if self.path.exists() else set()
            names -= {"tokenizer.model", LOCK, IDS, START, f".{START}"}
            if not all(name.endswith(".tmp") for name in names):
                raise BadInput(f"{self.path}: expected a run or an empty directory, got files without config.json")
            return False
        before = self.settings()
        # A run stores its start, so it is resumed without. Runs of earlier versions have no checksum of the dev set and
        # no name of a family.
        omitted = () if "start" in settings else ("start", "frozen")
        before = {name: value for name, value in before.items() if name not in omitted}
        settings = {name: value for name, value in settings.items() if name in before or name not in ("dev", "family")}
        self._check_same(unchangeable(before), unchangeable(json.loads(json.dumps(settings))))
        return True

    def _check_same(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        if changes := differences(before, now):
            raise BadInput(
                f"{self.path} holds a run of another configuration: {'; '.join(changes)}; "
                f"give {self.way_out}, or the same options as before"
            )

    @property
    def way_out(self) -> str:
        """Advice for error messages: how to train with other settings."""
        start = f'start=tt.Translator.from_pretrained("{self.path}")'
        return f"another directory, with {start} (--from {self.path}) to begin with these weights"

    def settings(self) -> dict[str, Any]:
        """Returns the contents of config.json.

        Raises:
            BadInput: If the file is missing, is something else, or has another version.
        """
        file = self.path / "config.json"
        if not file.is_file():
            raise BadInput(f"{self.path}: expected a run's directory, found no config.json in it")
        settings = read_json(file)
        if not settings.keys() >= {"version", *SETTINGS}:
            raise BadInput(f"{file}: expected a run's configuration, got something else")
        if settings["version"] != VERSION:
            raise BadInput(f"{file}: expected version {VERSION}, got {settings['version']}")
        with reading(file, "a run's configuration"):
            settings = check_kinds(settings, SETTINGS | {"family": str, "start": dict, "frozen": list, "keras": dict})
            made_of(Recipe, settings["recipe"])
            settings["recipe"] = with_new_names(settings["recipe"], Recipe.RENAMED)
        return dict(with_new_options(settings))

    def begin(self, settings: dict[str, Any]) -> None:
        """Creates the directory of a new run with these settings."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / "config.json", {"version": VERSION} | settings)

    def lock(self) -> bool:
        """Keeps other processes from training in this directory, until `unlock` or the end of this process.

        Returns:
            Whether the lock is new: false if this process holds it already, or if another worker writes.

        Raises:
            BadInput: If another process trains there.
        """
        # By directory and not by object, since a process may have several `Run`s of one.
        folder = self.path.resolve()
        if folder in self._locks or not self.writes:
            return False
        message = f"{self.path}: expected a run that nothing else trains; {{owner}} is training it"
        with contextlib.ExitStack() as stack:
            stack.enter_context(locked(self.path / LOCK, message))
            self._locks[folder] = stack.pop_all()
        self._locked = folder
        return True

    def unlock(self) -> None:
        """Releases the lock, if this object holds it and not another `Run` of this process."""
        if self._locked:
            self._locks.pop(self._locked).close()
            self._locked = None

    def checkpoints(self) -> list[Path]:
        """Returns the directories of all checkpoints, oldest first."""
        folders = (self.path / "checkpoints").glob("step-*")
        return sorted((path for path in folders if _place(path) and (path / "state.json").exists()), key=_place)

    @checked
    def averaged(self, last: Count) -> list[Path]:
        """Returns the directories of the last checkpoints, or of the best if the newest names them."""
        # The newest checkpoint names the best ones, since its history has all scores.
        folders, best = self.checkpoints(), list[str]()
        with contextlib.suppress(BadInput, IndexError):  # `weights` reports damage
            best = check_kinds(read_json(folders[-1] / "state.json"), STATE).get("best", [])
        return [folder for name in best[:last] for folder in folders if folder.name == name] or folders[-last:]

    @checked
    def weights(self, last: Count, step: Count | None = None) -> list[Path]:
        """Returns the weight files of the last or best checkpoints, for `average_weights`, or of a step's checkpoint.

        Raises:
            BadInput: If one is damaged, or the step has none.
        """
        folders = self.averaged(last)
        if step and not (folders := [path for path in self.checkpoints() if _place(path)[0] == step]):
            names = ", ".join(path.name for path in self.checkpoints())
            raise BadInput(f"{self.path}: step: expected one of {names or 'no checkpoints'}, got {step}")
        for folder in folders:
            try:
                _whole(folder)
            except BadInput as error:
                raise BadInput(f"{error}; remove this directory to average others") from error
        return [folder / "model.weights.h5" for folder in folders]

    @checked
    def save(self, model: keras.Model, step: Natural, **state: Any) -> Path:
        """Writes a checkpoint of a compiled model, then the history, and removes checkpoints that are not needed.

        Args:
            model: Compiled model.
            step: Number of updates made.
            state: More values to store. `half_done` marks a partial epoch.

        Raises:
            OSError: If it cannot be written, for example on a full disk. Earlier checkpoints are kept.
        """
        name = f"step-{step:08d}{STOPPED if 'half_done' in state else ''}"
        folder = self.path / "checkpoints" / name
        if not self.writes:
            return folder
        # 1. Which checkpoints to keep. Later ones are damaged, since training resumed before them.
        before = [path for path in self.checkpoints() if _place(path) < _place(folder)]
        complete = [path for path in before if not path.name.endswith(STOPPED)]
        complete += [folder] * ("half_done" not in state)
        kept = complete[-2 if self.metric else -self.keep :]
        if self.metric:
            by_step = {_place(path)[0]: path for path in complete}
            rows = [row for row in self.history if row["step"] in by_step]
            best = [by_step[rows[i]["step"]] for i in self.metric.best_first(rows)[: self.keep]]
            state["best"], kept = [path.name for path in best], kept + best

        # 2. Write the new one. A leading dot hides it from `checkpoints` until it is complete.
        temporary = folder.with_name(f".{folder.name}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        weights = temporary / "model.weights.h5"
        try:
            # HDF5 may crash when a disk fills up.
            variables = [*model.variables, *model.optimizer.variables]
            size = sum(math.prod(variable.shape) * np.dtype(variable.dtype).itemsize for variable in variables)
            if (free := shutil.disk_usage(temporary).free) < size:
                raise OSError(errno.ENOSPC, f"No space left on device: it takes {size:,} bytes, {free:,} are free")
            model.save_weights(weights)
            state |= {
                "step": step,
                "seeds": [keras.ops.convert_to_numpy(seed).tolist() for seed in _seeds(model)],
                "history": self.history,
                "sha256": checksum(weights),
            }
            # To the disk before the rename: after a power failure, a renamed directory could hold empty files.
            write_json(temporary / "state.json", state)
            flush(temporary)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(temporary, folder)
            self._write_history()
        except (OSError, RuntimeError) as error:  # HDF5 raises both
            shutil.rmtree(temporary, ignore_errors=True)
            last = ", ".join(path.name for path in self.checkpoints()[-1:]) or "none"
            raise OSError(f"{folder}: the checkpoint cannot be written: {error}; the last one kept: {last}") from error

        # 3. Only now are others removed, so that a full disk keeps the earlier ones.
        for other in {*self.checkpoints()} - {*kept, folder}:
            shutil.rmtree(other)
        return folder

    def newest(self) -> tuple[Path, dict[str, Any]] | None:
        """Returns the directory and the state.json of the newest undamaged checkpoint, or `None` without one."""
        for folder in reversed(self.checkpoints()):
            try:
                return folder, _whole(folder)
            except BadInput as error:
                say(f"{error}; trying the one before")
        return None

    def restore(self, model: keras.Model) -> dict[str, Any] | None:
        """Loads the newest undamaged checkpoint into a built and compiled model, and returns its state.json.

        Raises:
            BadInput: If the checkpoint stores another optimizer, learning rate, loss or dtype than the model has.
        """
        newest = self.newest()
        if not newest:
            self.history = []  # a run that was removed leaves none
            return None
        folder, state = newest
        # A `Trainer` compares settings in config.json. A model's own `compile` is only described in its checkpoints.
        if before := state.get("compiled"):
            rate = state["history"][-1].get("learning_rate") if state["history"] else None
            self._check_same(*comparable(before, model, rate))
        if not model.optimizer.built:  # building twice would give that of float16 more variables than are stored
            model.optimizer.build(model.trainable_variables)
        with reading(folder, "a checkpoint of this model"):
            weights = folder / "model.weights.h5"
            check_h5(weights)
            # If the optimizer has other variables, Keras only warns, and leaves it as it is.
            with h5py.File(weights) as file:
                stored, expected = len(file.get("optimizer/vars", ())), len(model.optimizer.variables)
            if stored != expected:
                raise ValueError(f"expected {expected} variables of the optimizer, got {stored}")
            model.load_weights(weights)
            # Dropout continues with the random numbers that would have been next.
            wake_adapters(model)
            seeds, values = _seeds(model), [np.asarray(value) for value in state["seeds"]]
            are_integers = {value.dtype.kind for value in values} <= set("iu")
            if not are_integers or not all(isinstance(row, dict) for row in state["history"]):
                raise ValueError("expected numbers as seeds and rows of a history in state.json")
            if seeds and values:  # without dropout, a model has no seeds
                for seed, value in zip(seeds, values, strict=True):
                    # By way of a list, since an array of another shape would abort TensorFlow.
                    seed.assign(np.asarray(value.tolist(), seed.dtype))
            self.history = [dict(row) for row in state["history"]]
        if self.writes:
            self._write_history()
        return state

    def _write_history(self) -> None:
        # Written whole each time: rows may have columns that earlier ones have not.
        columns = list(dict.fromkeys(name for row in self.history for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.history)
        write_text(self.path / "history.csv", text.getvalue())


def _place(folder: Path) -> tuple[int, ...]:
    """Returns a checkpoint's place in the order of time, by the step in its name. `()` for another directory."""
    # Not by name: eight digits are not enough for all steps.
    match = re.fullmatch(f"step-([0-9]+)({STOPPED})?", folder.name)
    return (int(match[1]), 1 if match[2] else 0) if match else ()


def _whole(folder: Path) -> dict[str, Any]:
    """Returns the contents of a checkpoint's state.json, if the checkpoint is undamaged."""
    try:
        state = read_json(folder / "state.json")
        state = check_kinds({"step": None} | state, STATE)
        if half_done := state.get("half_done"):
            check_kinds({"seconds": None, "metrics": None} | half_done, {"seconds": NUMBER, "metrics": list})
        if state["sha256"] != checksum(check_file(folder / "model.weights.h5")):
            raise ValueError("its checksum is wrong")
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"{folder}: expected a whole checkpoint, got a damaged one ({error})") from error
    return state


def _seeds(model: keras.Model) -> list[keras.Variable]:
    """Returns the state of the model's random generators, which `save_weights` omits."""
    return [variable for variable in model.variables if variable.name == "seed_generator_state"]
