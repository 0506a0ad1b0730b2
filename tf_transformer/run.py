"""A run's folder: what it was asked to do, its checkpoints, its history. Written so that a killed run loses little."""

import contextlib
import csv
import errno
import hashlib
import io
import json
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tf_transformer.config import BadInput

STOPPED = "-stopped"  # how the name of a checkpoint between two epochs' ends does


class Run:
    """runs/NAME/{config.json, tokenizer.model, checkpoints/, logs/, history.csv, metrics.json}.

    A checkpoint is a folder checkpoints/step-N with the weights of model and optimizer, and state.json with the step,
    the random state, the history and a checksum of the weights. It is written beside its place and then renamed. One
    that was written because training was told to stop, checkpoints/step-N-stopped, goes when the next one is there, so
    that averages are those of a run which was never stopped.

    Args:
        path: the folder.
        keep: checkpoints to keep; older ones are removed.
        writes: whether this process is the one that writes, of several that train together.
    """

    def __init__(self, path, keep: int = 5, writes: bool = True):
        self.path = Path(path)
        self.keep = keep
        self.writes = writes
        self.history: list[dict[str, Any]] = []

    def exists(self, settings: dict[str, Any]) -> bool:
        """Whether the folder holds a run with these settings.

        Raises:
            BadInput: it holds a run with other settings, or something else.
        """
        file = self.path / "config.json"
        if not file.exists():
            if self.path.exists() and set(path.name for path in self.path.iterdir()) - {"tokenizer.model"}:
                raise BadInput(f"{self.path}: expected a run or an empty folder, found other files and no config.json")
            return False
        differences = _differences(self.settings(), json.loads(json.dumps(settings)))
        if differences:
            raise BadInput(
                f"{self.path} holds a run of another configuration: {'; '.join(differences)}; "
                f"give --run another folder, or the same options as before"
            )
        return True

    def settings(self) -> dict[str, Any]:
        """What config.json says.

        Raises:
            BadInput: there is none, or it is something else.
        """
        file = self.path / "config.json"
        if not file.is_file():
            raise BadInput(f"{self.path}: expected a run's folder, found no config.json in it")
        try:
            settings = json.loads(file.read_text())
        except ValueError as error:
            raise BadInput(f"{file}: expected JSON, got something else: {error}") from error
        if not isinstance(settings, dict) or not {"model", "data"} <= set(settings):
            raise BadInput(f"{file}: expected a run's configuration, got something else")
        return settings

    def begin(self, settings: dict[str, Any]) -> None:
        """Make the folder the run's with these settings."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / "config.json", settings)

    def checkpoints(self) -> list[Path]:
        """The checkpoints' folders, oldest first."""
        return sorted(path for path in (self.path / "checkpoints").glob("step-*") if (path / "state.json").exists())

    def weights(self, last: int) -> list[Path]:
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

    def save(self, model: keras.Model, step: int, **state) -> Path:
        """Write a checkpoint of a compiled model, then the history, and remove what is older than `keep`.

        Args:
            model: a compiled model.
            step: how many it has made.
            state: what more there is to remember; `half_done` of an epoch that is not at its end.

        Raises:
            OSError: it cannot be written, the disk is full; the checkpoints before it stay.
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
                "seeds": [_values(seed).tolist() for seed in _seeds(model)],
                "history": self.history,
                "sha256": checksum(weights),
            }
            write_json(temporary / "state.json", state)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(temporary, folder)
            self._write_history()
        except (OSError, RuntimeError) as error:  # HDF5 has both
            shutil.rmtree(temporary, ignore_errors=True)
            kept = ", ".join(path.name for path in self.checkpoints()[-1:]) or "none"
            raise OSError(f"{folder}: the checkpoint cannot be written: {error}; the last one kept: {kept}") from error
        stops = [path for path in self.checkpoints() if path.name.endswith(STOPPED)]
        at_ends = [path for path in self.checkpoints() if path not in stops]
        for old in [*at_ends[: -self.keep], *(path for path in stops if path != folder)]:
            shutil.rmtree(old)
        return folder

    def restore(self, model: keras.Model) -> dict[str, Any] | None:
        """Load the newest whole checkpoint into a built and compiled model; `None` if there is none."""
        for folder in reversed(self.checkpoints()):
            try:
                state = _whole(folder)
            except BadInput as error:
                print(f"{error}; trying the one before")
                continue
            model.optimizer.build(model.trainable_variables)
            model.load_weights(folder / "model.weights.h5")
            for seed, value in zip(_seeds(model), state["seeds"], strict=True):
                seed.assign(value)
            self.history = state["history"]
            if self.writes:
                self._write_history()
            return state
        return None

    def _write_history(self) -> None:
        columns = list(dict.fromkeys(name for row in self.history for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.history)
        write_text(self.path / "history.csv", text.getvalue())


class DevScore(keras.callbacks.Callback):
    """At the end of every epoch: a score of the dev text, in the logs as `dev_bleu`, and some outputs to look at.

    Args:
        name: of the score, e.g. "BLEU".
        function: list of strings to list of strings.
        score: of outputs and references, a number.
        source: sentences.
        references: their translations.
        sentences: use at most so many, evenly spread.
        show: how many to print.
        logs: TensorBoard's folder, for the same outputs, and the attention of the first if `function` has it.
    """

    def __init__(self, name: str, function, score, source, references, sentences: int = 500, show: int = 2, logs=None):
        super().__init__()
        self.name, self.function, self.score = name, function, score
        self.logs = logs
        every = -(-len(source) // sentences)
        self.source, self.references = source[::every], references[::every]
        self.show = show

    def on_epoch_end(self, epoch, logs=None):
        outputs = self.function(self.source)
        value = logs[f"dev_{self.name.lower()}"] = self.score(outputs, self.references)
        step = int(_values(self.model.optimizer.iterations))
        print(f"\n  step {step:,}: dev {self.name} {value:.2f}")
        shown = [(epoch * self.show + i) % len(outputs) for i in range(min(self.show, len(outputs)))]
        for k in shown:
            print(f"    {self.source[k]}\n      -> {outputs[k]}\n       = {self.references[k]}")
        if self.logs and shown:
            self._draw(step, shown, outputs)

    def _draw(self, step, shown, outputs):
        import tensorflow as tf

        lines = [f"| {self.source[k]} | {outputs[k]} | {self.references[k]} |" for k in shown]
        with tf.summary.create_file_writer(str(self.logs / "outputs")).as_default(step):
            tf.summary.text("outputs", "\n".join(["| source | output | reference |", "|---|---|---|", *lines]))
            if outputs[shown[0]] and hasattr(self.function, "attention_scores"):
                scores = self.function.attention_scores(self.source[shown[0]], outputs[shown[0]])
                heads = scores.cross[-1][0, ..., None]  # [h, T, S, 1]
                tf.summary.image("attention of the last layer's heads", heads, max_outputs=len(heads))


class Stopped(Exception):
    """Training was told to stop, by the signal of this `number`, and has saved where it is."""

    def __init__(self, message: str, number: int):
        super().__init__(message)
        self.number = number


class Progress(keras.callbacks.Callback):
    """Shows tokens/s; at the end of every epoch adds a row to the history and saves a checkpoint.

    At SIGTERM or Ctrl-C it saves one between two steps and raises `Stopped`; a second Ctrl-C does not wait for that. A
    run that goes on from there finishes the epoch: its row is that of a run which was never stopped.

    Args:
        run: where to.
        state: what the checkpoint says that training begins from (`Run.restore`), or `START`.
        steps: how many there are to be; the epoch ends with the last.
        alone: whether this process trains by itself; of several, one cannot save where the others are not.
    """

    def __init__(self, run: Run, state: dict[str, Any], steps: int | None = None, alone: bool = True):
        super().__init__()
        self.run = run
        self.alone = alone
        self.steps = steps
        self.step = state["step"]
        self.tokens = state["target_tokens"]
        self.seconds = state["seconds"]
        self.half_done = state.get("half_done")  # an epoch: seconds, and the metrics' sums
        self.told_to_stop = 0

    @contextlib.contextmanager
    def hears_signals(self):
        """What `fit` is called in, for SIGTERM and Ctrl-C to stop it: in the main thread, if they are not ignored, as
        Ctrl-C is by what a script starts with &.
        """

        def stop(number, _):
            self.told_to_stop = number
            if number == signal.SIGINT:
                signal.signal(number, before[number])
                os.write(2, b"\nsaving after this step; Ctrl-C again stops at once\n")

        able = self.alone and threading.current_thread() is threading.main_thread()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT) if able}
        before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
        try:
            for number in before:
                signal.signal(number, stop)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def on_train_end(self, logs=None):
        if self.told_to_stop:  # while the last epoch ended, too
            raise Stopped(f"stopped after saving step {self.step:,}", self.told_to_stop)

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter()
        self.first = self.step
        if self.half_done:
            self.began -= self.half_done["seconds"]

    def on_train_batch_end(self, batch, logs=None):
        self.elapsed = time.perf_counter() - self.began
        self.step = self.first + batch + 1
        if self.half_done:  # all metrics are sums, and some are made in the first step
            for variable, value in zip(self.model.metrics_variables, self.half_done["metrics"], strict=True):
                now = _values(variable)
                variable.assign(now + np.asarray(value, now.dtype))
            self.half_done = None
        self.seen = logs.pop("tokens")
        logs["tokens/s"] = self.seen / self.elapsed
        self.model.stop_training |= self.step == self.steps
        ends = self.model.stop_training or batch + 1 == self.params["steps"]  # the epoch, which then saves
        if self.told_to_stop and not ends:
            sums = [_values(variable).tolist() for variable in self.model.metrics_variables]
            self._save(half_done={"seconds": self.elapsed, "metrics": sums})
            self.on_train_end()

    def on_epoch_end(self, epoch, logs=None):
        tokens = int(logs.pop("tokens"))
        self.tokens += tokens
        self.seconds += self.elapsed
        logs.pop("val_tokens", None)
        logs["tokens/s"] = tokens / self.elapsed
        logs["learning_rate"] = float(_values(self.model.optimizer.learning_rate))
        if hasattr(self.model, "gradient_norm"):  # on TensorFlow
            logs["gradient_norm"] = float(self.model.gradient_norm.numpy())
        row = {"step": self.step, "target_tokens": self.tokens, "seconds": round(self.seconds, 1)}
        self.run.history.append(row | {name: float(value) for name, value in logs.items()})
        self._save()
        if self.steps and self.steps > self.step:
            minutes = (self.steps - self.step) * self.seconds / self.step / 60
            print(f"  step {self.step:,} of {self.steps:,}, about {minutes:,.0f} minutes to go")

    def _save(self, **state):
        self.run.save(self.model, self.step, target_tokens=self.tokens, seconds=self.seconds, **state)


START = {"step": 0, "seconds": 0.0, "target_tokens": 0}


class NumbersGoneWrong(keras.callbacks.Callback):
    """Looks after each step for a loss or a gradient that is not finite, and stops there or says that it was left out.

    Args:
        batches: a function of a batch's number, from 0, and `lines=True`, that gives the batches from there on, with
            the numbers of its lines.
        first: the number of the batch that training begins with.
        skip: go on; the model's `skip_not_finite` has left the update out.
    """

    def __init__(self, batches, first: int, skip: bool = False):
        super().__init__()
        self.batches, self.number, self.skip = batches, first, skip

    def on_train_begin(self, logs=None):
        self.seen = int(self.model.not_finite.numpy())

    def on_train_batch_end(self, batch, logs=None):
        self.number += 1
        seen = int(self.model.not_finite.numpy())
        if seen > self.seen:
            self.seen = seen
            *_, lines = next(iter(self.batches(self.number - 1, lines=True)))
            lines = sorted(np.asarray(lines).tolist())
            more = f" and {len(lines) - 20:,} others" if len(lines) > 20 else ""
            lines = f"lines {', '.join(map(str, lines[:20]))}{more} of the training text"
            what = f"step {self.number:,}: the loss or a gradient is not finite, from {lines}"
            if not self.skip:
                raise BadInput(f"{what}; the last checkpoint is from before it")
            print(f"\n  {what}; this update was left out")


def write_text(path, text: str | Iterable[str]) -> None:
    """Write a file, whole or not at all; what there was of it when it failed stays beside it, in <path>.tmp."""
    temporary = Path(f"{path}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.writelines([text] if isinstance(text, str) else text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path, value) -> None:
    """Write a JSON file, whole or not at all."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def _whole(folder: Path) -> dict[str, Any]:
    """What the state.json of a checkpoint says, if all of it is as it was written."""
    try:
        state = json.loads((folder / "state.json").read_text())
        if state["sha256"] != checksum(folder / "model.weights.h5"):
            raise ValueError("its checksum is wrong")
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"{folder}: expected a whole checkpoint, got a damaged one ({error})") from error
    return state


def _seeds(model: keras.Model) -> list[keras.Variable]:
    """The state of the model's random generators, which `save_weights` leaves out."""
    return [variable for variable in model.variables if variable.name == "seed_generator_state"]


def _check_room(folder: Path, model: keras.Model) -> None:
    """HDF5 may crash where a disk fills up while it writes."""
    variables = [*model.variables, *model.optimizer.variables]
    size = sum(math.prod(variable.shape) * np.dtype(variable.dtype).itemsize for variable in variables)
    free = shutil.disk_usage(folder).free
    if free < size:
        raise OSError(errno.ENOSPC, f"No space left on device: it takes {size:,} bytes, {free:,} are free")


def _values(variable) -> np.ndarray:
    return keras.ops.convert_to_numpy(variable)


def checksum(path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _differences(old, new, f"{prefix}{name}.")
        elif old != new and (name in before or new):  # what an older version had no word for was off
            found.append(f"{prefix}{name} was {json.dumps(old)}, now {json.dumps(new)}")
    return found
