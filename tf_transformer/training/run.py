"""A run's folder: settings, checkpoints, history. A killed run loses only the work since its last checkpoint."""

import contextlib
import csv
import errno
import io
import json
import math
import os
import shutil
import warnings
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.layers.lora import wake_adapters
from tf_transformer.training.losses import SmoothedCrossEntropy
from tf_transformer.training.recipe import CHANGEABLE, Recipe
from tf_transformer.utils.files import checksum, flush, locked, user_path, write_json, write_text
from tf_transformer.utils.reading import check_file, check_h5, check_kinds, made_of, read_json, reading
from tf_transformer.utils.terminal import say
from tf_transformer.utils.values import Count, Natural, checked

VERSION = 1  # of config.json
STOPPED = "-stopped"  # ends the name of a checkpoint that was saved in the middle of an epoch
LOCK = ".lock"
START = "start.weights.h5"
IDS = "ids"  # the training text, tokenized
SETTINGS = {"kind": str, "model": dict, "recipe": dict, "corpus": dict}
NUMBER = int | float
STATE = {"step": int, "sha256": str, "seeds": list, "history": list, "target_tokens": NUMBER, "seconds": NUMBER}
STATE |= {"stopped_of": int, "half_done": dict, "compiled": dict, "averaged": bool}


class History(list[dict[str, Any]]):
    """The rows of a run's history, one for each checkpoint, with a short text for a notebook."""

    @property
    def history(self) -> dict[str, list[Any]]:
        """The columns by name, as Keras's `History` has them; `None` where a row has no such value."""
        names = dict.fromkeys(name for row in self for name in row)
        return {name: [row.get(name) for row in self] for name in names}

    def __repr__(self) -> str:
        row = (self[-1] if self else {}).items()
        last = "".join(f", {name} {value:,.0f}" if value > 999 else f", {name} {value:.4g}" for name, value in row)
        return f"History of {len(self):,} checkpoint{'s' * (len(self) != 1)}{last}"


class Run:
    """The folder of a training run.

    It holds config.json, tokenizer.model, checkpoints/, logs/, history.csv and metrics.json; ids/, the training text as
    ids, unless it lies in prepared records; and start.weights.h5, if the run began with the weights of another model.
    config.json has the run's settings:

        version   1
        kind      "translation" or "parsing"
        model     the fields of `TransformerConfig`
        recipe    the fields of `Recipe`
        corpus    the values of `Corpus.describe`: "train", the training text, and the options that change it
        max_length  tokens a side, if it was given
        start     the origin of the model that the run began with, if it began with one
        frozen    its layers and weights that do not learn, if there are any
        dev       a checksum of the dev set, if a `Trainer` began the run
        keras     Keras's own settings in that process, where they are others than float32: dtype_policy, floatx

    A checkpoint is a folder checkpoints/step-N. It holds the weights of model and optimizer, and state.json with the
    step, the random state, the history and a checksum of the weights. It is written beside its place and then renamed.
    A checkpoint that was saved because training was told to stop, checkpoints/step-N-stopped, is removed when the next
    one is written. So an average is that of a run which was never stopped.

    Args:
        path: the folder.
        keep: checkpoints to keep; older ones are removed.
        writes: whether this process writes; of several workers, one does.
    """

    _locks: ClassVar[dict[Path, contextlib.ExitStack]] = {}  # held by this process, by folder

    @checked
    def __init__(self, path: str | os.PathLike[str], keep: Count = 5, writes: bool = True):
        self.path = user_path(path)
        self.keep = keep
        self.writes = writes
        self.history: list[dict[str, Any]] = []
        self._locked: Path | None = None  # the folder whose lock this object holds

    def exists(self, settings: dict[str, Any]) -> bool:
        """Whether the folder holds a run with these settings; some settings may change as a run goes on.

        Raises:
            BadInput: the folder holds a run with other settings, or something else.
        """
        if self.path.exists() and not self.path.is_dir():
            raise BadInput(f"{self.path}: expected a run's folder, found a file")
        if not (self.path / "config.json").exists():
            own = {"tokenizer.model", LOCK, IDS, START, f".{START}"}
            found = {path.name for path in self.path.iterdir()} if self.path.exists() else set()
            if any(not name.endswith(".tmp") for name in found - own):  # those are what a killed process leaves
                raise BadInput(f"{self.path}: expected a run or an empty folder, found other files and no config.json")
            return False
        before = self.settings()
        if "start" not in settings:  # the run keeps what it started from
            before = {name: value for name, value in before.items() if name not in ("start", "frozen")}
        if "dev" not in before:  # as in runs of earlier versions
            settings = {name: value for name, value in settings.items() if name != "dev"}
        self._check_same(_fixed(before), _fixed(json.loads(json.dumps(settings))))
        return True

    def _check_same(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        if differences := _differences(before, now):
            raise BadInput(
                f"{self.path} holds a run of another configuration: {'; '.join(differences)}; "
                f"give {self.way_out}, or the same options as before"
            )

    @property
    def way_out(self) -> str:
        """How to train on with other settings, for messages."""
        start = f'start=tt.Translator.from_pretrained("{self.path}")'
        return f"another folder, with {start} (--from {self.path}) to begin with these weights"

    def settings(self) -> dict[str, Any]:
        """The contents of config.json.

        Raises:
            BadInput: there is no config.json, it is something else, or it has another version.
        """
        file = self.path / "config.json"
        if not file.is_file():
            raise BadInput(f"{self.path}: expected a run's folder, found no config.json in it")
        settings = read_json(file)
        if not settings.keys() >= {"version", *SETTINGS}:
            raise BadInput(f"{file}: expected a run's configuration, got something else")
        if settings["version"] != VERSION:
            raise BadInput(f"{file}: expected version {VERSION}, got {settings['version']}")
        with reading(file, "a run's configuration"):
            settings = check_kinds(settings, SETTINGS | {"start": dict, "frozen": list, "keras": dict})
            made_of(Recipe, settings["recipe"])
        return settings

    def begin(self, settings: dict[str, Any]) -> None:
        """Create the folder of a new run with these settings."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / "config.json", {"version": VERSION} | settings)

    def save_start(self, model: keras.Model) -> None:
        """Keep the weights that the run begins with."""
        temporary = self.path / f".{START}"  # Keras wants this ending
        model.save_weights(temporary)
        flush(temporary)
        os.replace(temporary, self.path / START)

    def lock(self) -> bool:
        """Keep other processes from training in this folder, until `unlock` or the end of this process.

        Returns:
            whether the lock is new: false if this process holds it already, or if another worker writes.

        Raises:
            BadInput: another process trains there.
        """
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
        """Releases the lock, if this `Run` holds it and not another one of this process."""
        if self._locked:
            self._locks.pop(self._locked).close()
            self._locked = None

    def checkpoints(self) -> list[Path]:
        """The checkpoints' folders, oldest first."""
        return sorted(path for path in (self.path / "checkpoints").glob("step-*") if (path / "state.json").exists())

    @checked
    def weights(self, last: Count) -> list[Path]:
        """The weight files of the last checkpoints, for `average_weights`.

        Raises:
            BadInput: one of them is damaged.
        """
        folders = self.checkpoints()[-last:]
        for folder in folders:
            try:
                _whole(folder)
            except BadInput as error:
                raise BadInput(f"{error}; remove this folder to average others") from error
        return [folder / "model.weights.h5" for folder in folders]

    @checked
    def save(self, model: keras.Model, step: Natural, **state: Any) -> Path:
        """Writes a checkpoint of a compiled model, then the history; removes those older than `keep`, and later ones,
        which are damaged.

        Args:
            model: a compiled model.
            step: updates made.
            state: further values to store; `half_done` marks an unfinished epoch.

        Raises:
            OSError: it cannot be written, for example on a full disk; earlier checkpoints stay.
        """
        name = f"step-{step:08d}{STOPPED if 'half_done' in state else ''}"
        folder = self.path / "checkpoints" / name
        if not self.writes:
            return folder
        temporary = folder.with_name(f".{folder.name}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        weights = temporary / "model.weights.h5"
        try:
            _check_room(temporary, model)
            model.save_weights(weights)
            state |= {
                "step": step,
                "seeds": [keras.ops.convert_to_numpy(seed).tolist() for seed in _seeds(model)],
                "history": self.history,
                "sha256": checksum(weights),
            }
            write_json(temporary / "state.json", state)
            flush(temporary)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(temporary, folder)
            self._write_history()
        except (OSError, RuntimeError) as error:  # HDF5 has both
            shutil.rmtree(temporary, ignore_errors=True)
            kept = ", ".join(path.name for path in self.checkpoints()[-1:]) or "none"
            raise OSError(f"{folder}: the checkpoint cannot be written: {error}; the last one kept: {kept}") from error
        stops = [path for path in self.checkpoints() if path.name.endswith(STOPPED)]
        later = [path for path in self.checkpoints() if path > folder]  # damaged: training resumed before them
        at_ends = [path for path in self.checkpoints() if path not in stops + later]
        for other in {*at_ends[: -self.keep], *later, *stops} - {folder}:
            shutil.rmtree(other)
        return folder

    def newest(self) -> tuple[Path, dict[str, Any]] | None:
        """The folder and the state.json of the newest undamaged checkpoint; `None` if there is none."""
        for folder in reversed(self.checkpoints()):
            try:
                return folder, _whole(folder)
            except BadInput as error:
                say(f"{error}; trying the one before")
        return None

    def restore(self, model: keras.Model) -> dict[str, Any] | None:
        """Load the newest undamaged checkpoint into a built and compiled model; `None` if there is none.

        Raises:
            BadInput: the run began with another optimizer, learning rate, loss or dtype, where its checkpoint has them.
        """
        newest = self.newest()
        if not newest:
            return None
        folder, state = newest
        if before := state.get("compiled"):
            rate = state["history"][-1].get("learning_rate") if state["history"] else None
            self._check_same(_of_this_version(before, model.loss), _but_for_the_rate(compiled(model), before, rate))
        if not model.optimizer.built:  # twice would give that of float16 more variables than are stored
            model.optimizer.build(model.trainable_variables)
        with reading(folder, "a checkpoint of this model"):
            check_h5(folder / "model.weights.h5")
            with warnings.catch_warnings():  # where the optimizer does not fit, Keras leaves it as it is
                warnings.filterwarnings("error", "Skipping variable loading for optimizer")
                model.load_weights(folder / "model.weights.h5")
            wake_adapters(model)
            seeds, values = _seeds(model), [np.asarray(value) for value in state["seeds"]]
            if not {value.dtype.kind for value in values} <= set("iu") or not all(
                isinstance(row, dict) for row in state["history"]
            ):
                raise ValueError("expected numbers as seeds and rows of a history in state.json")
            if seeds and values:  # there are none without dropout
                for seed, value in zip(seeds, values, strict=True):
                    seed.assign(np.asarray(value.tolist(), seed.dtype))  # a list of many axes would end TensorFlow
            self.history = [dict(row) for row in state["history"]]
        if self.writes:
            self._write_history()
        return state

    def _write_history(self) -> None:
        columns = list(dict.fromkeys(name for row in self.history for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.history)
        write_text(self.path / "history.csv", text.getvalue())


def _whole(folder: Path) -> dict[str, Any]:
    """The contents of a checkpoint's state.json, if the checkpoint is undamaged."""
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
    """The state of the model's random generators, which `save_weights` leaves out."""
    return [variable for variable in model.variables if variable.name == "seed_generator_state"]


def compiled(model: keras.Model) -> dict[str, Any]:
    """What a model was compiled with, and its dtype, as far as it changes a training."""
    optimizer = described(inner(model.optimizer))
    return {"dtype": model.dtype_policy.name, "optimizer": optimizer, "loss": described(model.loss)}


def inner(optimizer: Any) -> Any:
    """The optimizer itself; float16 has another one around it."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _of_this_version(before: dict[str, Any], loss: Any) -> dict[str, Any]:
    """Returns `before` with the settings that its loss has now: earlier versions recorded fewer."""
    former = before.get("loss")
    if isinstance(loss, SmoothedCrossEntropy) and isinstance(former, dict) and isinstance(former.get("config"), dict):
        return before | {"loss": former | {"config": described(type(loss).from_config(former["config"]))["config"]}}
    return before


def _but_for_the_rate(now: dict[str, Any], before: dict[str, Any], rate: Any) -> dict[str, Any]:
    """`now`, where a learning rate that is already the checkpoint's counts as the one before: a callback changed it."""
    try:
        settings, former = now["optimizer"]["config"], before["optimizer"]["config"]
        if rate is not None and settings["learning_rate"] == rate:
            settings["learning_rate"] = former["learning_rate"]
    except (KeyError, TypeError):  # an optimizer without settings, or without a rate
        pass
    return now


def described(given: Any) -> Any:
    """The class and the settings of a schedule, an optimizer or a loss, for JSON; its name alone if it has none."""
    name = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
    try:
        with warnings.catch_warnings():  # of functions as rates
            warnings.simplefilter("ignore")
            settings = json.dumps(given.get_config(), default=_plain)
    except (AttributeError, NotImplementedError):  # the latter from Keras's base class
        return name
    return {"class_name": name, "config": json.loads(settings, object_hook=_without_name)}


def _plain(value: Any) -> Any:
    array = np.asarray(value)
    return array.tolist() if array.dtype.kind in "biufU" else type(value).__name__


def _without_name(settings: dict[str, Any]) -> Any:
    """Keras numbers the names of the optimizers of a process. A function without a name has its place in a file."""
    if settings.get("class_name") == "__lambda__":
        return "function"
    return {name: value for name, value in settings.items() if name != "name"}


def _check_room(folder: Path, model: keras.Model) -> None:
    """Raise if the disk has too little room; HDF5 may crash when a disk fills up."""
    variables = [*model.variables, *model.optimizer.variables]
    size = sum(math.prod(variable.shape) * np.dtype(variable.dtype).itemsize for variable in variables)
    free = shutil.disk_usage(folder).free
    if free < size:
        raise OSError(errno.ENOSPC, f"No space left on device: it takes {size:,} bytes, {free:,} are free")


def _fixed(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without those that may change as a run goes on."""
    recipe = {name: value for name, value in settings.get("recipe", {}).items() if name not in CHANGEABLE}
    return {name: value for name, value in settings.items() if name != "version"} | {"recipe": recipe}


def _differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    differences, names = [], dict.fromkeys([*before, *now])
    if {"sha256"} <= before.keys() & now.keys():  # a text with a checksum may have another name
        del names["sha256"]
        names.pop("train", None)
        if before["sha256"] != now["sha256"]:
            differences.append(f"the training text has changed{_changed_files(before, now)}")
    for name in names:
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            differences += _differences(old, new, f"{prefix}{name}.")
        elif name == "dev" and old != new:
            differences.append("the dev text has changed")
        elif old != new and (old or new):  # an option that another version lacks counts as off
            words = [_short(old), _short(new)]
            words = [json.dumps(old), json.dumps(new)] if words[0] == words[1] else words
            differences.append(f"{prefix}{name} was {words[0]}, now {words[1]}")
    return differences


def _changed_files(before: dict[str, Any], now: dict[str, Any]) -> str:
    """The names of the files whose checksums differ, as far as they are known."""
    values = now.get("train"), before["sha256"], now["sha256"]
    columns = (value if isinstance(value, list) else [value] for value in values)
    changed = [str(file) for file, old, new in zip(*columns, strict=False) if file and old != new]
    return f": {', '.join(changed)}" if changed else ""


def _short(value: Any) -> str:
    """A value in JSON; a rate as people write it, where Keras gives all the digits of a float32."""
    return json.dumps(float(str(np.float32(value))) if isinstance(value, float) else value)
