"""The callback that makes a run of a `fit`: it saves checkpoints, and resumes from the newest."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras.ops import convert_to_numpy

from tf_transformer.config import BadInput, TransformerConfig
from tf_transformer.decoding.primitives import ON_TENSORFLOW
from tf_transformer.training.run import Run
from tf_transformer.training.settings import compiled, inner
from tf_transformer.utils.terminal import TrainingInterrupted as TrainingInterrupted
from tf_transformer.utils.terminal import duration, say, say_in_a_handler
from tf_transformer.utils.values import MOST, Count, checked

if TYPE_CHECKING:
    from tf_transformer.tokenizers.tokenizer import Tokenizer

Logs = dict[str, Any]  # Keras's values by name, at the end of a batch or an epoch


def exchange_averages(model: keras.Model) -> bool:
    """Exchanges a model's weights and their moving averages, and returns whether its optimizer has any."""
    optimizer = inner(model.optimizer)
    if not getattr(optimizer, "use_ema", False):
        return False
    for weight, average in zip(model.trainable_weights, optimizer._model_variables_moving_average, strict=True):
        value = np.array(convert_to_numpy(weight))  # a copy, since the next line changes the weight
        weight.assign(average)
        average.assign(value)
    return True


def _updates(model: keras.Model) -> int:
    """Returns the number of updates of a model: since `compile`, those skipped included, or by its optimizer."""
    if not getattr(model, "optimizer", None):
        return 0
    if hasattr(model, "steps_made"):
        return int(convert_to_numpy(model.steps_made))
    # The optimizer counts accumulated steps as one.
    accumulated = getattr(inner(model.optimizer), "gradient_accumulation_steps", None) or 1
    return int(convert_to_numpy(model.optimizer.iterations)) * accumulated


def numbers_in(logs: Logs) -> dict[str, float]:
    """Returns the logs that are numbers: other callbacks may add texts and arrays."""
    numbers = dict[str, float]()
    for name, value in logs.items():
        with contextlib.suppress(TypeError, ValueError, RuntimeError):  # the last is PyTorch's
            numbers[name] = float(value)
    return numbers


# Why not Keras's `BackupAndRestore`: it keeps one backup until `fit` ends, without the history and the random state of
# dropout. This keeps several, with both, so a resumed training ends with the weights of an uninterrupted one.
class Checkpoints(keras.callbacks.Callback):
    """Resumes from a run's newest checkpoint, and saves a checkpoint and a row of the history after every epoch.

    In the logs, "tokens/s" replaces the metric `TokenCount`, if the model has it. Each row has the learning rate and
    the norm of the last gradient. `fit` skips completed epochs and logs this. Weights, optimizer and learning rate are
    then the checkpoint's. If the model was compiled with another optimizer, rate or loss, it raises an error.

    If the optimizer has `use_ema=True`, validation, later callbacks at an epoch's end and the stored weights are the
    moving averages, and training resumes from the weights that it had. Don't add `SwapEMAWeights`.

        checkpoints = tt.callbacks.Checkpoints("runs/mine", tokenizer)
        batches = tt.data.text_pairs("train.en", "train.de", tokenizer, first_epoch=checkpoints.epoch)
        # or, if epochs are parts of an endless dataset: batches.skip(checkpoints.step)
        with checkpoints.saving_on_signals():  # also saves before an error of another callback
            model.fit(batches, epochs=10, shuffle=False, callbacks=[checkpoints])

    Args:
        run: Directory of the run, or a `Run`.
        tokenizer: Tokenizer to store in the run, unless it has one, so that `tt.load` can make a translator of it.
        steps: Last step of the training, where an epoch ends. `None` leaves that to `fit`. With Keras's
            `steps_per_execution`, training stops at the end of the execution with this step.
        until: Step to save and stop at, like `steps`. `None` means no such stop.
        single_process: Whether only this process trains. One of several workers stops only where the others do.

    Attributes:
        step: Number of updates made.
        epoch: Number of complete epochs.
    """

    @checked
    def __init__(
        self,
        run: Run | str | os.PathLike[str],
        tokenizer: "Tokenizer | None" = None,
        steps: Count | None = None,
        until: Count | None = None,
        single_process: bool = True,
    ):
        super().__init__()
        self.run = run if isinstance(run, Run) else Run(run)
        self.tokenizer = tokenizer
        self.steps, self.until, self.single_process = steps, until, single_process
        newest = self.run.newest()
        self._set_state(newest[1] if newest else {"step": 0})
        # It may raise, so that nothing is saved.
        self.before_saving: Callable[[], None] = lambda: None
        self._restored: keras.Model | None = None  # set if the caller restored it and chooses the first epoch
        self._locked = False  # True if this callback holds the lock
        self._averaged = False  # the model has the moving averages, and the optimizer the weights
        self._scoring = False  # True from an epoch's last step until its checkpoint is saved
        self._made: tuple[int, Logs] | None = None  # a step whose end this callback has not seen yet
        self._batch: int | None = None  # the step of an epoch that began last
        self._unsaved = False  # True from the end of a step to the beginning of the next one or a checkpoint
        self.told_to_stop = 0  # the signal's number

    def _set_state(self, state: dict[str, Any]) -> None:
        rows, tokens = state.get("history", ()), state.get("target_tokens", 0)
        self.step: int = state["step"]
        self.epoch = len(rows)
        self.tokens: int | None = None if rows and not tokens else tokens  # `None` if not counted
        self.seconds: float = state.get("seconds", 0.0)
        self.stopped_of = state.get("stopped_of", 0)  # the last step of a training that another callback stopped
        self.partial_epoch = state.get("half_done")  # seconds and metric sums
        self._compiled: dict[str, Any] = state.get("compiled", {})  # stored if this callback created the run

    def restore(self, model: keras.Model) -> None:
        """Loads the newest checkpoint, if there is one, into a built and compiled model.

        `fit` then begins at its `initial_epoch`. Without this call it begins after the last complete epoch.
        """
        # In the scope, since the optimizer may create its variables here.
        strategy = getattr(model, "distribute_strategy", None)
        with strategy.scope() if strategy else contextlib.nullcontext():
            state = self.run.restore(model)
            if state and state.get("averaged"):
                exchange_averages(model)
        if state:
            self._set_state(state)
        self._restored = model

    def complete(self, scores: Sequence[keras.callbacks.Callback], validate: Callable[[], dict[str, float]]) -> None:
        """Completes the restored checkpoint, whose scoring a signal or an error ended, by these callbacks."""
        # As `on_epoch_end` would have been called, with the row that was saved without scores.
        self.set_model(self._restored)
        self.model.stop_training = bool(self.steps) and self.steps <= self.stopped_of
        self._use_averages(True)
        row = self.run.history.pop()
        if "val_loss" not in row:
            row |= {f"val_{name}": value for name, value in validate().items() if name != "tokens"}
        for callback in scores:
            callback.set_model(self.model)
            callback.on_epoch_end(self.epoch - 1, row)
            callback.on_train_end()
        self.run.history.append(row)
        self._save_epoch()

    def on_train_begin(self, logs: object = None) -> None:
        self._locked = self.run.lock()
        if hasattr(self.model, "after_fit"):
            self.model.after_fit.push(self._leave_fit)
        if self._restored is self.model:
            return
        # Not restored by the caller, so this is a `fit` of the user's own, which begins or resumes a run here.
        try:
            self._create_run()
            compiled_now = compiled(self.model)  # a callback may change the rate later
            self.restore(self.model)
            self._restored = None
        except BaseException:
            self._end_fit()
            raise
        if not self.step:
            self._compiled = compiled_now
        else:
            done, epochs = self.epoch, self.params["epochs"]
            say(
                f"going on from the checkpoint at step {self.step:,} of {self.run.path}, with its weights, optimizer "
                f"and learning rate; {done:,} {'epoch is' if done == 1 else 'epochs are'} done"
            )
            if epochs <= done:
                all_epochs = f"all {epochs:,} epochs are" if epochs > 1 else "the one epoch is"
                say(f"{all_epochs} done: nothing to train. Pass more epochs= or another directory.")
        # Keras has this attribute for its BackupAndRestore.
        self.model._initial_epoch = self.epoch or None
        if (end := min(self.steps or MOST, self.until or MOST)) <= self.step:
            say(f"nothing to train: this run is at step {self.step:,} of {end:,}")
            self.model._initial_epoch = max(self.epoch, self.params["epochs"])

    def _create_run(self) -> None:
        """Writes config.json and the tokenizer, as `Trainer` does, if `load` can rebuild the model."""
        if not self.run.writes or not isinstance(getattr(self.model, "config", None), TransformerConfig):
            return
        from tf_transformer.models.families import load_tokenizer, stored_family  # needs TensorFlow

        family = stored_family(self.model.config)
        V, tokenizer, file = self.model.config.vocab_size, self.tokenizer, self.run.path / "tokenizer.model"
        if tokenizer and tokenizer.vocab_size != V:
            raise BadInput(f"tokenizer: expected one of the model's vocab_size={V}, got {tokenizer.vocab_size}")
        model, exists = self.model.config.to_dict(), (self.run.path / "config.json").exists()
        if exists:
            # Raises if the settings differ.
            self.run.exists(self.run.settings() | {"model": model})
        # A run may have started without a tokenizer, or been killed before it stored one.
        if tokenizer and exists and file.exists():
            if load_tokenizer(file, family.get("family")).fingerprint != tokenizer.fingerprint:
                raise BadInput(f"tokenizer: expected that of the run, {file}, got another. Pass another directory.")
        elif tokenizer:
            tokenizer.save(file)
        if not exists:
            self.run.begin({"kind": "translation", "model": model, **family, "recipe": {}, "corpus": {}})

    def on_train_end(self, logs: object = None) -> None:
        self._end_fit()
        if self.told_to_stop:  # a signal may arrive while the last epoch ends
            raise self._stopped()

    def _stopped(self) -> TrainingInterrupted:
        return TrainingInterrupted(f"stopped after saving step {self.step:,}", self.told_to_stop)

    @contextlib.contextmanager
    def saving_on_signals(self) -> Iterator[None]:
        """Makes SIGTERM and Ctrl-C save a checkpoint and raise `TrainingInterrupted`. A second Ctrl-C exits at once.

        An error of another callback saves a checkpoint as well. Without this block, only a `fit` of this package's
        models does that. With JAX and PyTorch, none does within an epoch.

        While an epoch is scored they end the scoring, so its row in the history has fewer values. Ignored signals are
        still ignored, as Ctrl-C is in a program that a script starts with &.
        """

        # While steps are made, the handler only takes a note, which the end of a step reads. It may run between any two
        # lines of Python, where a checkpoint could be half a step's.
        def stop(number: int, _: object) -> None:
            first, self.told_to_stop = not self.told_to_stop, number
            when = "now" if self._scoring else "after this step"
            if number == signal.SIGINT:
                signal.signal(number, before[number])
                say_in_a_handler(f"saving {when}; Ctrl-C again stops at once")
            else:
                say_in_a_handler(f"saving {when}")
            if first and self._scoring:
                # Nothing catches it, unlike an Exception.
                raise KeyboardInterrupt

        # Python sets handlers in its main thread only.
        can_handle = self.single_process and threading.current_thread() is threading.main_thread()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT) if can_handle}
        before: dict[int, Any] = {
            number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)
        }
        try:
            for number in before:
                signal.signal(number, stop)
            yield
        except (KeyboardInterrupt, SystemError, RuntimeError):  # TensorFlow's C++ turns the first into the others
            if not (self.told_to_stop and self._scoring):
                raise
            self.on_epoch_end(self.epoch, self._logs)
            raise self._stopped() from None
        except Exception:
            self._save_after_error()  # again, like `_end_fit`
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._end_fit()  # again, since a model of another class has no `after_fit` to call it after an exception

    def note_step(self, batch: int, logs: Logs) -> None:
        """Notes that a step was made, for a caller that runs this before all callbacks. One of them may raise."""
        self._made = batch, dict(logs)

    def _save_after_error(self) -> None:
        """Saves the steps since the last checkpoint, if a callback or a score raised after one was made."""
        if self.told_to_stop:  # `saving_on_signals` saves
            return
        is_seen = self._made or self._unsaved or self._batch is None
        if not is_seen and _updates(self.model) > self.counted + self.step - self.first:
            # A callback before this one raised at the end of a step.
            self._made = self._batch or 0, self.model.get_metrics_result()
        if self._made:
            with contextlib.suppress(TrainingInterrupted):  # it has saved
                self.on_train_batch_end(*self._made)
        if not self._unsaved:
            return
        try:
            if self._scoring:
                self.on_epoch_end(self.epoch, self._logs)  # without scores, which a later `fit` adds
            elif ON_TENSORFLOW:  # Elsewhere, Keras keeps a step's weights to itself until an epoch ends.
                self._save_within_epoch()
            else:
                return
        except (BadInput, OSError) as error:  # The step was not finite, or the disk is full.
            say(f"not saved: {error}")
        else:
            say(f"saved step {self.step:,} before this error")

    def _leave_fit(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind and issubclass(kind, Exception):
            self._save_after_error()
        self._end_fit()

    def _end_fit(self) -> None:
        """Undoes what `fit` must not leave behind, also after an exception."""
        if self.model:
            self.model._initial_epoch = None
            self._use_averages(False)
        if self._locked:
            self.run.unlock()
            self._locked = False

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        if self.told_to_stop:  # while another callback ended the previous epoch, which is saved
            raise self._stopped()
        self.began = time.perf_counter()
        self.first, self.counted, self._batch = self.step, _updates(self.model), None
        if self.partial_epoch:
            self.began -= self.partial_epoch["seconds"]

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        self._unsaved = False  # From here to its end, a step may have changed some of the weights.
        self._batch = batch

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        self.elapsed = time.perf_counter() - self.began
        self._made, self._unsaved = None, True
        self.step = self.first + batch + 1
        if ON_TENSORFLOW:
            self._count_executions()
        if self.partial_epoch:
            # All metrics are sums. They are added after the first step, since that creates some of them.
            for variable, value in zip(self.model.metrics_variables, self.partial_epoch["metrics"], strict=True):
                current = convert_to_numpy(variable)
                variable.assign(current + np.asarray(value, current.dtype))
            self.partial_epoch = None
        self._logs = dict(logs)
        if "tokens" in logs:
            logs["tokens/s"] = logs.pop("tokens") / self.elapsed
        # Several steps may end at once.
        self.model.stop_training |= self.step >= (self.steps or MOST)
        # The end of an epoch saves anyway.
        self._scoring = self.model.stop_training or batch + 1 >= (self.params["steps"] or MOST)
        if not self.told_to_stop and (self._scoring or self.step < (self.until or MOST)):
            return
        if self._scoring:
            # Saves before the dev set is scored: a scheduler may kill this process during scoring.
            self.on_epoch_end(self.epoch, self._logs)
        else:
            self._save_within_epoch()
        raise self._stopped()

    def _count_executions(self) -> None:
        # Keras counts the last execution of an epoch as a whole one, even if it had fewer steps.
        if getattr(self.model, "steps_per_execution", 1) > 1:
            self.step = self.first + _updates(self.model) - self.counted

    def _save_within_epoch(self) -> None:
        self._unsaved = False
        sums = [convert_to_numpy(variable).tolist() for variable in self.model.metrics_variables]
        self._save(half_done={"seconds": self.elapsed, "metrics": sums})

    def on_test_begin(self, logs: object = None) -> None:
        self._use_averages(True)

    def _use_averages(self, use: bool) -> None:
        if use != self._averaged:
            self._averaged = exchange_averages(self.model) and use

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Adds a row to the history and saves a checkpoint. `logs` may have only the values of the epoch's steps."""
        # Only the time of the steps counts in rates, not that of scoring.
        self._scoring = self._unsaved = False
        self._count_executions()
        self.seconds += self.elapsed
        if "tokens" in logs:
            tokens = int(logs.pop("tokens"))
            self.tokens = None if self.tokens is None else self.tokens + tokens
            logs["tokens/s"] = tokens / self.elapsed
        else:
            self.tokens = None
        logs.pop("val_tokens", None)  # the number of dev tokens is always the same
        logs["learning_rate"] = float(convert_to_numpy(self.model.optimizer.learning_rate))
        if hasattr(self.model, "gradient_norm"):  # TensorFlow only
            logs["gradient_norm"] = float(self.model.gradient_norm.numpy())
        row = {"step": self.step} | self._counted() | {"seconds": round(self.seconds, 1)}
        self.run.history.append(row | numbers_in(logs))
        self.epoch = len(self.run.history)
        self._save_epoch()
        if self.steps and self.steps > self.step:
            left = (self.steps - self.step) * self.seconds / self.step
            say(f"  step {self.step:,} of {self.steps:,}, {duration(left)} to go")

    def _save_epoch(self) -> None:
        self.stopped_of = self.steps if self.steps and self.model.stop_training and self.step < self.steps else 0
        self._save(**({"stopped_of": self.stopped_of} if self.stopped_of else {}))

    def _save(self, **state: Any) -> None:
        # The averages are stored as the model's weights, so that loading the file returns the better model. The
        # optimizer stores the others, from which training continues.
        self.before_saving()
        state |= self._counted() | ({"compiled": self._compiled} if self._compiled else {})
        self._use_averages(True)
        state |= {"averaged": True} if self._averaged else {}
        self.run.save(self.model, self.step, seconds=self.seconds, **state)
        self._use_averages(False)

    def _counted(self) -> dict[str, int]:
        return {} if self.tokens is None else {"target_tokens": self.tokens}
