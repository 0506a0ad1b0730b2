"""A run's folder: what it was asked to do, its checkpoints, its history. Written so that a killed run loses little."""

import csv
import hashlib
import io
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tf_transformer.config import BadInput


class Run:
    """runs/NAME/{config.json, tokenizer.model, checkpoints/, logs/, history.csv, metrics.json}.

    A checkpoint is a folder checkpoints/step-N with the weights of model and optimizer, and state.json with the step,
    the random state, the history and a checksum of the weights. It is written beside its place and then renamed.

    Args:
        path: the folder.
        keep: checkpoints to keep; older ones are removed.
    """

    def __init__(self, path, keep: int = 5):
        self.path = Path(path)
        self.keep = keep
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
        """The weight files of the last checkpoints, for `average_weights`."""
        return [path / "model.weights.h5" for path in self.checkpoints()[-last:]]

    def save(self, model: keras.Model, step: int, **state) -> Path:
        """Write a checkpoint of a compiled model, then the history, and remove what is older than `keep`."""
        folder = self.path / "checkpoints" / f"step-{step:08d}"
        temporary = folder.with_name(f".{folder.name}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        weights = temporary / "model.weights.h5"
        model.save_weights(weights)
        state |= {
            "step": step,
            "seeds": [np.asarray(seed).tolist() for seed in _seeds(model)],
            "history": self.history,
            "sha256": _checksum(weights),
        }
        write_json(temporary / "state.json", state)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)
        self._write_history()
        for old in self.checkpoints()[: -self.keep]:
            shutil.rmtree(old)
        return folder

    def restore(self, model: keras.Model) -> dict[str, Any] | None:
        """Load the newest whole checkpoint into a built and compiled model; `None` if there is none."""
        for folder in reversed(self.checkpoints()):
            weights = folder / "model.weights.h5"
            try:
                state = json.loads((folder / "state.json").read_text())
                if state["sha256"] != _checksum(weights):
                    raise ValueError("its checksum is wrong")
            except (OSError, ValueError, KeyError) as error:
                print(f"{folder} is damaged ({error}); trying the one before")
                continue
            model.optimizer.build(model.trainable_variables)
            model.load_weights(weights)
            for seed, value in zip(_seeds(model), state["seeds"], strict=True):
                seed.assign(value)
            self.history = state["history"]
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
    """

    def __init__(self, name: str, function, score, source, references, sentences: int = 500, show: int = 2):
        super().__init__()
        self.name, self.function, self.score = name, function, score
        every = -(-len(source) // sentences)
        self.source, self.references = source[::every], references[::every]
        self.show = show

    def on_epoch_end(self, epoch, logs=None):
        outputs = self.function(self.source)
        value = logs[f"dev_{self.name.lower()}"] = self.score(outputs, self.references)
        step = int(self.model.optimizer.iterations)
        print(f"\n  step {step:,}: dev {self.name} {value:.2f}")
        for i in range(min(self.show, len(outputs))):
            k = (epoch * self.show + i) % len(outputs)
            print(f"    {self.source[k]}\n      -> {outputs[k]}\n       = {self.references[k]}")


class Progress(keras.callbacks.Callback):
    """Shows tokens/s; at the end of every epoch adds a row to the history and saves a checkpoint.

    Args:
        run: where to.
        state: of the checkpoint that training began from: target_tokens and seconds so far.
    """

    def __init__(self, run: Run, state: dict[str, Any]):
        super().__init__()
        self.run = run
        self.tokens = state["target_tokens"]
        self.seconds = state["seconds"]

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.elapsed = time.perf_counter() - self.began
        self.seen = logs.pop("tokens")
        logs["tokens/s"] = self.seen / self.elapsed

    def on_epoch_end(self, epoch, logs=None):
        self.tokens += int(self.seen)
        self.seconds += self.elapsed
        for name in ("tokens", "val_tokens"):
            logs.pop(name, None)
        logs["tokens/s"] = self.seen / self.elapsed
        step = int(self.model.optimizer.iterations)
        row = {"step": step, "target_tokens": self.tokens, "seconds": round(self.seconds, 1)}
        self.run.history.append(row | {name: float(value) for name, value in logs.items()})
        self.run.save(self.model, step, target_tokens=self.tokens, seconds=self.seconds)


def write_text(path, text: str) -> None:
    """Write a file, whole or not at all."""
    temporary = Path(f"{path}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path, value) -> None:
    """Write a JSON file, whole or not at all."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def _seeds(model: keras.Model) -> list[keras.Variable]:
    """The state of the model's random generators, which `save_weights` leaves out."""
    return [variable for variable in model.variables if variable.name == "seed_generator_state"]


def _checksum(path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _differences(old, new, f"{prefix}{name}.")
        elif old != new:
            found.append(f"{prefix}{name} was {json.dumps(old)}, now {json.dumps(new)}")
    return found
