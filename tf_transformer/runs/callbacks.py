"""Callbacks that watch a training: its score, its progress, its end, numbers that go wrong."""

import contextlib
import os
import signal
import threading
import time
from typing import Any

import keras
import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.runs.run import Run


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


def _values(variable) -> np.ndarray:
    return keras.ops.convert_to_numpy(variable)
