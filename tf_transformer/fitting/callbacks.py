"""Keras callbacks for `fit`: checkpoints and resuming, dev scores, plain progress lines, a check for finite numbers.

`Trainer` uses them. They also work in a `model.fit` of your own:

    checkpoints = tt.callbacks.Checkpoints("runs/mine", tokenizer)
    model.fit(batches, epochs=10, callbacks=[checkpoints])  # run again: goes on after the last whole epoch
    tt.load("runs/mine").save("savedmodels/mine/1")  # the average of its last checkpoints
"""

import contextlib
import importlib.util
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras.ops import convert_to_numpy

from tf_transformer.base.files import encoded, user_path
from tf_transformer.base.terminal import Stopped as Stopped
from tf_transformer.base.terminal import is_terminal, say, say_in_a_handler
from tf_transformer.base.values import Amount, Count, Natural, check_fields, checked
from tf_transformer.config import BadInput, TransformerConfig
from tf_transformer.runs.run import Run, compiled

if TYPE_CHECKING:
    from tf_transformer.text.tokenizer import Tokenizer

Answers = Callable[[list[str]], list[str]]  # of sources
Logs = dict[str, Any]  # Keras's values by name, at the end of a batch or an epoch


class Checkpoints(keras.callbacks.Callback):
    """Resumes from a run's newest checkpoint; saves a checkpoint and a row of the history after every epoch.

    In the logs, "tokens/s" replaces the metric `TokenCount`, if the model has it. Each row has the learning rate and
    the norm of the last gradient. `fit` skips completed epochs, and says so. Weights, optimizer and learning rate are
    then the checkpoint's; a model that was compiled with another optimizer, rate or loss is refused. If epochs are
    parts of an endless dataset, give `fit` `batches.skip(checkpoints.step)`.

    Args:
        run: the run's folder, or a `Run`.
        tokenizer: kept in the folder, so that `load` can make a translator of the run; not needed if it is there.
        steps: the last step of the training, where an epoch ends; `None` leaves that to `fit`.
        until: save and stop at this step; `None` means no such stop.
        alone: whether this process trains by itself. One of several workers stops only where the others do.
    """

    @checked
    def __init__(
        self,
        run: Run | str | os.PathLike[str],
        tokenizer: "Tokenizer | None" = None,
        steps: Count | None = None,
        until: Count | None = None,
        alone: bool = True,
    ):
        super().__init__()
        self.run = run if isinstance(run, Run) else Run(run)
        self.tokenizer = tokenizer
        self.steps, self.until, self.alone = steps, until, alone
        newest = self.run.newest()
        self._begin_at(newest[1] if newest else {"step": 0})
        self.before_saving: Callable[[], None] = lambda: None  # may raise, so that nothing is saved
        self._restored: keras.Model | None = None  # by the caller, who then chooses where `fit` begins
        self._locked = False  # by this callback
        self._scoring = False  # an epoch's steps are made; its row and its checkpoint are not
        self.told_to_stop = 0

    def _begin_at(self, state: dict[str, Any]) -> None:
        self.step: int = state["step"]
        tokens, rows = state.get("target_tokens", 0), state.get("history")
        self.tokens: int | None = None if rows and not tokens else tokens  # None: nobody counted
        self.seconds: float = state.get("seconds", 0.0)
        self.stopped_of = state.get("stopped_of", 0)  # all steps of a training that another callback stopped before
        self.half_done = state.get("half_done")  # of an epoch: seconds, and the metrics' sums
        self._compiled: dict[str, Any] = state.get("compiled", {})  # of a run that this callback began

    def restore(self, model: keras.Model) -> None:
        """Load the newest checkpoint, if there is one, into a built and compiled model.

        `fit` then begins at its `initial_epoch`; without this call it begins after the last complete epoch.
        """
        self._load(model)
        self._restored = model

    def _load(self, model: keras.Model) -> None:
        strategy = getattr(model, "distribute_strategy", None)
        with strategy.scope() if strategy else contextlib.nullcontext():
            state = self.run.restore(model)
        if state:
            self._begin_at(state)

    def on_train_begin(self, logs: object = None) -> None:
        self._locked = self.run.lock()
        if hasattr(self.model, "after_fit"):
            self.model.after_fit.callback(self._unlock)
        if self._restored is not self.model:
            self._begin()
            now = compiled(self.model)  # before a callback changes the rate
            self._load(self.model)
            if self.step:
                self._say_where()
            else:
                self._compiled = now
            self.model._initial_epoch = len(self.run.history) or None  # Keras's own for this: BackupAndRestore's

    def _say_where(self) -> None:
        done, epochs = len(self.run.history), self.params["epochs"]
        say(
            f"going on from the checkpoint at step {self.step:,} of {self.run.path}, with its weights, optimizer and "
            f"learning rate; {done:,} {'epoch is' if done == 1 else 'epochs are'} done"
        )
        if epochs <= done:
            asked = f"all {epochs:,} epochs are" if epochs > 1 else "the one epoch is"
            say(f"{asked} done: nothing to train; give more epochs=, or another folder")

    def _begin(self) -> None:
        """Write config.json and the tokenizer, as `Trainer` does for a new run, if `load` can rebuild the model.

        Raises:
            BadInput: the folder holds another run, or another tokenizer; the tokenizer has another size than the model.
        """
        if not self.run.writes or not isinstance(getattr(self.model, "config", None), TransformerConfig):
            return
        V, tokenizer = self.model.config.vocab_size, self.tokenizer
        if tokenizer and tokenizer.vocab_size != V:
            raise BadInput(f"tokenizer: expected one of the model's vocab_size={V}, got {tokenizer.vocab_size}")
        model, is_there = self.model.config.to_dict(), (self.run.path / "config.json").exists()
        if is_there:
            self.run.exists(self.run.settings() | {"model": model})  # raises if the settings differ
        self._keep_tokenizer(self.run.path / "tokenizer.model", is_there)
        if not is_there:
            self.run.begin({"kind": "translation", "model": model, "recipe": {}, "corpus": {}})

    def _keep_tokenizer(self, file: Path, is_there: bool) -> None:
        """Keep the tokenizer, also of a run that began without one, or that was killed before it had one."""
        if not self.tokenizer:
            return
        from tf_transformer.families.registry import load_tokenizer  # TensorFlow's

        if not (is_there and file.exists()):
            self.tokenizer.save(file)
        elif load_tokenizer(file).fingerprint != self.tokenizer.fingerprint:
            raise BadInput(f"tokenizer: expected that of the run, {file}, got another; give another folder")

    def on_train_end(self, logs: object = None) -> None:
        self._unlock()
        if self.told_to_stop:  # a signal during the last epoch's end counts, too
            raise self._stopped()

    def _stopped(self) -> Stopped:
        return Stopped(f"stopped after saving step {self.step:,}", self.told_to_stop)

    @contextlib.contextmanager
    def saving_on_signals(self) -> Iterator[None]:
        """Inside this block, SIGTERM and Ctrl-C save a checkpoint and raise `Stopped`; a second Ctrl-C stops at once.

        While an epoch is scored they end the scoring, so its row in the history has fewer values. Ignored signals stay
        ignored, as Ctrl-C is in a program that a script starts with &.
        """

        def stop(number: int, _: object) -> None:
            first, self.told_to_stop = not self.told_to_stop, number
            when = "now" if self._scoring else "after this step"
            if number == signal.SIGINT:
                signal.signal(number, before[number])
                say_in_a_handler(f"saving {when}; Ctrl-C again stops at once")
            else:
                say_in_a_handler(f"saving {when}")
            if first and self._scoring:
                raise KeyboardInterrupt  # which everything lets through

        able = self.alone and threading.current_thread() is threading.main_thread()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT) if able}
        before: dict[int, Any] = {
            number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)
        }
        try:
            for number in before:
                signal.signal(number, stop)
            yield
        except KeyboardInterrupt:
            if not (self.told_to_stop and self._scoring):
                raise
            self._end_epoch()
            raise self._stopped() from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._unlock()  # an exception ended `fit` of a model of another kind

    def _unlock(self) -> None:
        """What the end of `fit` undoes, also an end by an exception."""
        if self.model:
            self.model._initial_epoch = None
        if self._locked:
            self.run.unlock()
            self._locked = False

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        if self.told_to_stop:  # in another callback's end of the epoch before, which is saved
            raise self._stopped()
        self.began = time.perf_counter()
        self.first = self.step
        if self.half_done:
            self.began -= self.half_done["seconds"]

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        self.elapsed = time.perf_counter() - self.began
        self.step = self.first + batch + 1
        if self.half_done:  # all metrics are sums, and some are made in the first step
            for variable, value in zip(self.model.metrics_variables, self.half_done["metrics"], strict=True):
                now = convert_to_numpy(variable)
                variable.assign(now + np.asarray(value, now.dtype))
            self.half_done = None
        self._logs = dict(logs)
        if "tokens" in logs:
            logs["tokens/s"] = logs.pop("tokens") / self.elapsed
        self.model.stop_training |= self.step == self.steps
        ends = self.model.stop_training or batch + 1 == self.params["steps"]  # of the epoch, whose end saves
        if (self.told_to_stop or self.step == self.until) and not ends:
            sums = [convert_to_numpy(variable).tolist() for variable in self.model.metrics_variables]
            self._save(half_done={"seconds": self.elapsed, "metrics": sums})
            raise self._stopped()
        self._scoring = ends
        if ends and self.told_to_stop:  # who waits for scores of the dev text may kill this process before it saves
            self._end_epoch()
            raise self._stopped()

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._end_epoch(logs)

    def _end_epoch(self, logs: Logs | None = None) -> None:
        """Save with the epoch's values, or with those of its steps alone."""
        self._scoring, logs = False, self._logs if logs is None else logs
        self.seconds += self.elapsed
        if "tokens" in logs:
            tokens = int(logs.pop("tokens"))
            self.tokens = None if self.tokens is None else self.tokens + tokens
            logs["tokens/s"] = tokens / self.elapsed
        else:
            self.tokens = None
        logs.pop("val_tokens", None)
        logs["learning_rate"] = float(convert_to_numpy(self.model.optimizer.learning_rate))
        if hasattr(self.model, "gradient_norm"):  # on TensorFlow
            logs["gradient_norm"] = float(self.model.gradient_norm.numpy())
        row = {"step": self.step} | self._counted() | {"seconds": round(self.seconds, 1)}
        self.run.history.append(row | {name: float(value) for name, value in logs.items()})
        stopped = self.steps and self.model.stop_training and self.step < self.steps
        self._save(**({"stopped_of": self.steps} if stopped else {}))
        if self.steps and self.steps > self.step:
            minutes = (self.steps - self.step) * self.seconds / self.step / 60
            say(f"  step {self.step:,} of {self.steps:,}, about {minutes:,.0f} minutes to go")

    def _save(self, **state: Any) -> None:
        self.before_saving()
        state |= self._counted() | ({"compiled": self._compiled} if self._compiled else {})
        self.run.save(self.model, self.step, seconds=self.seconds, **state)

    def _counted(self) -> dict[str, int]:
        return {} if self.tokens is None else {"target_tokens": self.tokens}


@dataclass(frozen=True)
class DevText:
    """A dev text and its score, to watch a training with.

    Attributes:
        metric: the score's name, for example "BLEU".
        score: a function from outputs and references to a number.
        source: sentences.
        references: the outputs wanted for them.
    """

    metric: str
    score: Callable[[list[str], list[str]], float]
    source: list[str]
    references: list[str]

    def __post_init__(self) -> None:
        check_fields(self)

    @checked
    def thinned(self, most: Count) -> "DevText":
        """At most `most` of the sentences, evenly spread."""
        every = max(1, -(-len(self.source) // most))
        return DevText(self.metric, self.score, self.source[::every], self.references[::every])


class DevScore(keras.callbacks.Callback):
    """Scores the dev text at the end of every epoch, as `dev_bleu` in the logs, and shows some outputs.

    Args:
        function: from a list of strings to a list of strings, for example a `Translator`.
        dev: the text to score it with.
        show: the number of outputs to print.
        logs: TensorBoard's folder, for these outputs and, if `function` has it, the attention of the first.
    """

    @checked
    def __init__(self, function: Answers, dev: DevText, show: Natural = 2, logs: str | os.PathLike[str] | None = None):
        super().__init__()
        self.function, self.dev, self.show = function, dev, show
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
        source, references = self.dev.source, self.dev.references
        outputs = self.function(source)
        value = logs[f"dev_{self.dev.metric.lower()}"] = self.dev.score(outputs, references)
        step = int(convert_to_numpy(self.model.optimizer.iterations))
        say(f"\n  step {step:,}: dev {self.dev.metric} {value:.2f}")
        shown = [(epoch * self.show + i) % len(outputs) for i in range(min(self.show, len(outputs)))]
        for k in shown:
            say(f"    {source[k]}\n      -> {outputs[k]}\n       = {references[k]}")
        if self.logs and shown:
            self._draw(self.logs, step, shown, outputs)

    def _draw(self, logs: Path, step: int, shown: list[int], outputs: list[str]) -> None:
        import tensorflow as tf

        source, references = self.dev.source, self.dev.references
        lines = [f"| {source[k]} | {outputs[k]} | {references[k]} |" for k in shown]
        self._writer = self._writer or tf.summary.create_file_writer(str(logs / "outputs"))
        with self._writer.as_default(step):
            table = "\n".join(["| source | output | reference |", "|---|---|---|", *lines])
            tf.summary.text("outputs", encoded(table))
            if outputs[shown[0]] and hasattr(self.function, "attention_scores"):
                scores = self.function.attention_scores(source[shown[0]], outputs[shown[0]])
                heads = scores.cross[-1][0, ..., None]  # [h, T, S, 1]
                tf.summary.image("attention of the last layer's heads", heads, max_outputs=len(heads))


class PlainLines(keras.callbacks.Callback):
    """Progress for a log file: a line every N seconds, and one at the end of an epoch.

    Args:
        seconds: from one line to the next.
    """

    @checked
    def __init__(self, seconds: Amount = 30.0):
        super().__init__()
        self.seconds = seconds

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.last_line = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        if time.monotonic() - self.last_line >= self.seconds:
            self.last_line = time.monotonic()
            self._say(f"  {batch + 1:,} of {self.params['steps'] or '?'} steps", logs)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._say(f"epoch {epoch + 1:,}", logs)

    def _say(self, what: str, logs: dict[str, Any]) -> None:
        values = (
            f"{name} {float(value):,.0f}" if abs(value) >= 1_000 else f"{name} {float(value):.4g}"
            for name, value in logs.items()
        )
        say(f"{what}: {', '.join(values)}")


class StopOnNonFinite(keras.callbacks.Callback):
    """Checks that losses and gradients are finite. If not, it stops, or reports the skipped updates.

    It looks every 50 steps and at the end of an epoch: each look waits for the device. Stand before the callbacks that
    save, since weights may have been wrong for some steps.

    Args:
        batches: by their numbers, from 0; each has the numbers of its `lines`.
        first: the number of the batch that training begins with.
        skip: go on, since the model's `skip_not_finite` leaves the updates out.
    """

    @checked
    def __init__(self, batches: Any, first: Natural, skip: bool = False):
        super().__init__()
        self.batches, self.number, self.skip = batches, first, skip

    def on_train_begin(self, logs: object = None) -> None:
        self.counts = hasattr(self.model, "not_finite")  # on TensorFlow
        self.every = self.model.not_finite_steps.shape[0] if self.counts else 50  # as many as the model remembers
        self.seen = int(self.model.not_finite.numpy()) if self.counts else 0
        self.unchecked = 0

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        self.number += 1
        self.unchecked += 1
        self.loss = logs["loss"]  # a mean over the epoch so far
        if self.unchecked == self.every:
            self.check()

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self.check()

    def check(self) -> None:
        """Look at the steps since the last look.

        Raises:
            BadInput: the loss or a gradient of one was not finite, and such updates are not skipped.
        """
        looked_at, self.unchecked = self.unchecked, 0
        if not self.counts:
            if looked_at and not math.isfinite(float(self.loss)):
                steps = f"steps {self.number - looked_at + 1:,} to {self.number:,}"
                raise BadInput(f"{steps}: a loss is not finite; the last checkpoint is from before it")
            return
        before, self.seen = self.seen, int(self.model.not_finite.numpy())
        if self.seen == before:
            return
        steps = self.model.not_finite_steps.numpy()
        newest = [steps[i % len(steps)] for i in range(max(before, self.seen - len(steps)), self.seen)]
        first = self.number - int(self.model.steps_made.numpy())
        numbers = [first + int(step) for step in newest]
        if not self.skip:
            raise BadInput(f"{self._describe(numbers[0])}; the last checkpoint is from before it")
        for number in numbers[:3]:  # their lines take a while to find
            say(f"\n  {self._describe(number)}; this update was left out")
        if numbers[3:]:
            say(f"  {self.seen - before - 3:,} more updates were left out, of steps {', '.join(map(str, numbers[3:]))}")

    def _describe(self, number: int) -> str:
        lines: Any = sorted(filter(None, self.batches[number - 1].lines.tolist()))  # 0 is in rows of padding
        others = f" and {len(lines) - 20:,} others" if len(lines) > 20 else ""
        lines = f"lines {', '.join(map(str, lines[:20]))}{others} of the training text"
        return f"step {number:,}: the loss or a gradient is not finite, from {lines}"


class StopAfter(keras.callbacks.Callback):
    """Stops after so many epochs in a row without a better value. It counts in the run's history, so that a run which
    was stopped goes on counting; stand before `Checkpoints`, which adds the row.

    Args:
        run: whose history it is.
        name: of the value.
        count: of epochs.
        smaller: whether a smaller value is better.
    """

    @checked
    def __init__(self, run: Run, name: str, count: Count, smaller: bool = False):
        super().__init__()
        self.run, self.name, self.count, self.sign = run, name, count, -1 if smaller else 1

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        values = [self.sign * float(row[self.name]) for row in (*self.run.history, logs) if self.name in row]
        if values and len(values) - 1 - int(np.argmax(values)) >= self.count:
            say(f"  no better {self.name} in {self.count:,} checkpoints")
            self.model.stop_training = True


class Scalars(keras.callbacks.Callback):
    """The values of each epoch for TensorBoard, by its own package, where TensorFlow is not installed.

    Args:
        logs: TensorBoard's folder.
    """

    @checked
    def __init__(self, logs: str | os.PathLike[str]):
        super().__init__()
        self.logs = user_path(logs, "logs")
        self._writer: Any = None

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = self._writer or EventFileWriter(str(self.logs / "train"))
        for name, value in logs.items():
            summary = Summary(value=[Summary.Value(tag=f"epoch_{name}", simple_value=float(value))])
            self._writer.add_event(Event(wall_time=time.time(), step=epoch, summary=summary))
        self._writer.flush()

    def on_train_end(self, logs: object = None) -> None:
        if self._writer:
            self._writer.close()
            self._writer = None


def board(logs: Path) -> list[keras.callbacks.Callback]:
    """The callback that writes for TensorBoard, by TensorFlow or by TensorBoard's own package; none without both."""
    if _is_installed("tensorflow"):
        return [keras.callbacks.TensorBoard(str(logs), write_graph=False)]
    if _is_installed("tensorboard"):
        return [Scalars(logs)]
    say("nothing for TensorBoard, since neither tensorboard nor TensorFlow is installed: pip install tensorboard")
    return []


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def progress() -> tuple[int, list[keras.callbacks.Callback]]:
    """The `verbose` and the callbacks of `fit` that show progress: Keras's bar on a terminal, plain lines elsewhere."""
    return (1, []) if is_terminal() else (0, [PlainLines()])
