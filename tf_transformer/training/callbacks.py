"""Keras callbacks for `fit`: checkpoints and resuming, dev scores, progress in a log file, a check for NaN.

`Trainer` uses them. They also work in your own `model.fit`:

    checkpoints = tt.callbacks.Checkpoints("runs/mine", tokenizer)
    model.fit(batches, epochs=10, callbacks=[checkpoints])  # run it again to resume after the last complete epoch
    tt.load("runs/mine").save("savedmodels/mine/1")  # the average of its last checkpoints
"""

import importlib.util
import math
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
from keras.ops import convert_to_numpy

from tf_transformer.config import BadInput
from tf_transformer.decoding.primitives import ON_TENSORFLOW
from tf_transformer.evaluation.bleu import Metric
from tf_transformer.training.checkpoints import Checkpoints as Checkpoints
from tf_transformer.training.checkpoints import Logs, numbers_in
from tf_transformer.training.checkpoints import TrainingInterrupted as TrainingInterrupted
from tf_transformer.training.run import Run
from tf_transformer.utils.files import encoded, user_path
from tf_transformer.utils.terminal import is_watched, say
from tf_transformer.utils.values import Amount, Count, Natural, check_fields, checked

RATE_CALLBACKS = (keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler)
Translate = Callable[..., list[str]]  # from a list of texts


@dataclass(frozen=True)
class DevText:
    """A dev set and its metric, to validate on.

    Attributes:
        metric: Metric of the outputs, for example `tt.Metric("chrF")`.
        source: Source sentences.
        references: Their references.
    """

    metric: Metric
    source: list[str]
    references: list[str]

    def __post_init__(self) -> None:
        check_fields(self)

    @checked
    def thinned(self, most: Count) -> "DevText":
        """Returns at most `most` evenly spaced sentences."""
        # Not the first ones: neighbors in a corpus are alike.
        every = max(1, -(-len(self.source) // most))
        return DevText(self.metric, self.source[::every], self.references[::every])


class DevScore(keras.callbacks.Callback):
    """Scores the dev set at the end of every epoch, in the logs as `dev_bleu` and such, and prints some outputs.

    Args:
        function: Function from a list of strings to a list of strings, for example a `Translator`. For several dev
            sets, a dictionary of functions with their names.
        dev: Dev set to score it with. With several by name, `dev_bleu` is the mean, and `dev_bleu_NAME` one of them.
        show: Number of outputs to print.
        logs: TensorBoard's directory for these outputs and, if `function` has it, the attention of the first. Only on
            TensorFlow, since TensorBoard's own package writes only numbers.
    """

    @checked
    def __init__(
        self,
        function: Translate | Mapping[str, Translate],
        dev: DevText | Mapping[str, DevText],
        show: Natural = 2,
        logs: str | os.PathLike[str] | None = None,
    ):
        super().__init__()
        self.sets = dict(dev) if isinstance(dev, Mapping) else {"": dev}
        self.functions = dict(function) if isinstance(function, Mapping) else dict.fromkeys(self.sets, function)
        self.show = show
        self.logs = None if logs is None else user_path(logs, "logs")
        self._writer: Any = None

    def on_train_begin(self, logs: object = None) -> None:
        if hasattr(self.model, "after_fit"):
            self.model.after_fit.callback(self.on_train_end)

    def on_train_end(self, logs: object = None) -> None:
        if self._writer:
            self._writer.close()
            self._writer = None

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        scores = dict[str, float]()
        for name, dev in self.sets.items():
            outputs = self.functions[name](dev.source)
            scores[name] = dev.metric.score(outputs, dev.source, dev.references)
            say(f"\n  step {steps_of(self.model):,}: dev {dev.metric.name} {scores[name]:.2f}{name and f' of {name}'}")
            self._show(epoch, name, outputs)
        if len(scores) > 1:
            logs |= {f"{dev.metric.column}_{name}": score for name, score in scores.items()}
        logs[dev.metric.column] = sum(scores.values()) / len(scores)

    def _show(self, epoch: int, name: str, outputs: list[str]) -> None:
        source, references = self.sets[name].source, self.sets[name].references
        # Other sentences at each checkpoint, in turn.
        rows = [(epoch * self.show + i) % len(outputs) for i in range(min(self.show, len(outputs)))]
        width = shutil.get_terminal_size((120, 24)).columns - len("      -> ")
        for k in rows:
            texts = source[k], outputs[k], references[k]
            lines = [textwrap.shorten(text, width, placeholder=" ...") for text in texts]
            say(f"    {lines[0]}\n      -> {lines[1]}\n       = {lines[2]}")
        if not (self.logs and rows and ON_TENSORFLOW and is_installed("tensorboard")):
            return
        import tensorflow as tf

        lines = [f"| {source[k]} | {outputs[k]} | {references[k]} |" for k in rows]
        function = self.functions[name]
        self._writer = self._writer or tf.summary.create_file_writer(str(self.logs / "outputs"))
        with self._writer.as_default(steps_of(self.model)):
            table = "\n".join(["| source | output | reference |", "|---|---|---|", *lines])
            tf.summary.text(f"outputs {name}".strip(), encoded(table))
            if outputs[rows[0]] and hasattr(function, "attention_scores"):
                scores = function.attention_scores(source[rows[0]], outputs[rows[0]])
                heads = scores.cross[-1][0, ..., None]  # [h, T, S, 1]
                tf.summary.image(f"attention of the last layer's heads {name}".strip(), heads, max_outputs=len(heads))


class ProgressLogger(keras.callbacks.Callback):
    """Progress for a log file: a line every N seconds, and one at the end of an epoch.

    Args:
        seconds: Seconds between lines.
        steps: Total steps of the training, if an epoch ends at each checkpoint instead of after a pass over the data.
            The lines then count steps instead of epochs.
    """

    @checked
    def __init__(self, seconds: Amount = 30.0, steps: Count | None = None):
        super().__init__()
        self.seconds, self.steps = seconds, steps

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.last_line = time.monotonic()
        self.first = steps_of(self.model) if self.steps else 0

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        if time.monotonic() - self.last_line >= self.seconds:
            self.last_line = time.monotonic()
            if self.steps:
                self._say(f"step {self.first + batch + 1:,} of {self.steps:,}", logs)
            else:
                self._say(f"  {batch + 1:,} of {self.params['steps'] or '?'} steps", logs)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._say(f"step {steps_of(self.model):,} of {self.steps:,}" if self.steps else f"epoch {epoch + 1:,}", logs)

    def _say(self, start: str, logs: dict[str, Any]) -> None:
        numbers = numbers_in(logs).items()
        values = (f"{name} {value:,.0f}" if abs(value) >= 1_000 else f"{name} {value:.4g}" for name, value in numbers)
        say(f"{start}: {', '.join(values)}")


class Bar(ProgressLogger):
    """`ProgressLogger` with `steps`, for a terminal or a notebook: Keras's bar to the next checkpoint, a line there."""

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        super().on_epoch_begin(epoch)
        count = self.params["steps"]
        say(f"steps {self.first + 1:,} to {self.first + count:,} of {self.steps:,}")
        self.bar = keras.utils.Progbar(count, unit_name="step")

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        # A bar wider than the terminal would be printed again at each step. Its counts and times take 50 columns.
        columns, values = shutil.get_terminal_size((80, 24)).columns - 50, dict[str, Any]()
        for name in ("loss", "tokens/s", "accuracy", *logs):
            columns -= len(f" - {name}: 12345.6789")
            if name in logs and name not in values and columns >= 0:
                values[name] = logs[name]
        self.bar.update(batch + 1, [*values.items()], finalize=batch + 1 == self.bar.target)


def steps_of(model: keras.Model) -> int:
    """Returns the number of updates that a model's optimizer has made."""
    return int(convert_to_numpy(model.optimizer.iterations))


class StopOnNonFinite(keras.callbacks.Callback):
    """Checks that losses and gradients are finite. If not, it raises an error, or reports the skipped updates.

    It looks every 50 steps and at the end of an epoch, since each look waits for the device. Put it before callbacks
    that save: by the time it looks, weights may have been wrong for some steps.

    Args:
        batches: Batches by their index, from 0. Each has the line numbers of its rows, `lines`.
        first: Index of the first batch.
        skip: Whether the model skips such updates, by `skip_not_finite`, and training continues.
    """

    @checked
    def __init__(self, batches: Any, first: Natural, skip: bool = False):
        super().__init__()
        self.batches, self.number, self.skip = batches, first, skip

    def on_train_begin(self, logs: object = None) -> None:
        self.counts = hasattr(self.model, "not_finite")  # TensorFlow only
        # The model remembers that many steps.
        self.every = self.model.not_finite_steps.shape[0] if self.counts else 50
        self.seen = int(self.model.not_finite.numpy()) if self.counts else 0
        self.unchecked = self.made = 0

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        steps, self.made = batch + 1 - self.made, batch + 1  # several with Keras's steps_per_execution
        self.number += steps
        self.unchecked += steps
        self.loss = logs["loss"]  # a mean over the epoch so far
        if self.unchecked >= self.every:
            self.check()

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self.check()
        self.made = 0

    def check(self) -> None:
        """Checks the steps since the last check.

        Raises:
            BadInput: If a loss or a gradient was not finite, and such updates are not skipped.
        """
        count, self.unchecked = self.unchecked, 0
        # On JAX and PyTorch, Keras's step returns no flags. A mean over the epoch so far stays NaN once it is.
        if not self.counts:
            if count and not math.isfinite(float(self.loss)):
                self.unchecked = count  # raises again if somebody would save
                steps = f"steps {self.number - count + 1:,} to {self.number:,}"
                raise BadInput(f"{steps}: a loss is not finite. The last checkpoint is from before it.")
            return
        # The model counts such steps on the device, and stores their numbers in a ring, so each is found here at last.
        before, seen = self.seen, int(self.model.not_finite.numpy())
        if seen == before:
            return
        steps = self.model.not_finite_steps.numpy()
        newest = [steps[i % len(steps)] for i in range(max(before, seen - len(steps)), seen)]
        first = self.number - int(self.model.steps_made.numpy())
        numbers = [first + int(step) for step in newest]
        if not self.skip:
            raise BadInput(f"{self._describe(numbers[0])}. The last checkpoint is from before it.")
        self.seen = seen
        # It takes a while to find the lines of a batch.
        for number in numbers[:3]:
            say(f"\n  {self._describe(number)}. This update was skipped.")
        if numbers[3:]:
            say(f"  {seen - before - 3:,} more updates were skipped, at steps {', '.join(map(str, numbers[3:]))}")

    def _describe(self, number: int) -> str:
        lines: Any = sorted(filter(None, self.batches[number - 1].lines.tolist()))  # rows of padding have 0
        omitted = f" and {len(lines) - 20:,} others" if len(lines) > 20 else ""
        lines = f"lines {', '.join(map(str, lines[:20]))}{omitted} of the training set"
        return f"step {number:,}: the loss or a gradient is not finite, from {lines}"


class StopAfter(keras.callbacks.Callback):
    """Stops a training whose score has not improved for some epochs, which end at checkpoints.

    It counts rows of the run's history, so a resumed run continues counting. Put it before `Checkpoints`.

    Args:
        run: Run with this history.
        metric: Metric of the scores.
        count: Number of epochs in a row.
    """

    @checked
    def __init__(self, run: Run, metric: Metric, count: Count):
        super().__init__()
        self.run, self.metric, self.count = run, metric, count

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        # Indices from the best row to the worst. The rows after the best one are checkpoints without a better score.
        order = self.metric.best_first([*self.run.history, logs])
        if order and sum(row > order[0] for row in order) >= self.count:
            say(f"  no better {self.metric.column} in {self.count:,} checkpoints")
            self.model.stop_training = True


def is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


@checked
def progress(steps: Count) -> keras.callbacks.Callback:
    """Returns the callback that shows progress: a bar on a terminal or in a notebook, lines elsewhere."""
    return Bar(steps=steps) if is_watched(sys.stdout) else ProgressLogger(steps=steps)
