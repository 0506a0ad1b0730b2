"""Callbacks of a training: non-finite values, progress, scores of the dev set."""

import re
import sys
import types
from contextlib import ExitStack

import numpy as np
import pytest
from test_run import fresh_model

import tf_transformer as tt
from tf_transformer.training import callbacks, tensorboard
from tf_transformer.training.callbacks import DevScore, DevText, StopOnNonFinite


def train(skip, wrong, steps=5, first=2):
    """Trains from batch `first`, where the losses of the batches `wrong` are infinite. Returns history and weights."""
    import tensorflow as tf

    class Numbers:
        def __getitem__(self, batch):
            return types.SimpleNamespace(lines=np.array([batch * 100 + 7, batch * 100 + 3, 0]))

    model = fresh_model()
    data = tf.data.Dataset.range(first, first + steps)
    data = data.map(lambda batch: tf.fill((5, 7), tf.where(tf.reduce_any(batch == wrong), 18, 5)))
    watch = StopOnNonFinite(Numbers(), first=first, skip=skip)
    fit = {"callbacks": [watch], "verbose": 0, "shuffle": False}
    return model.fit(data.map(lambda ids: ((ids, ids), ids)), **fit).history, model.get_weights()


MESSAGE = "step 5: the loss or a gradient is not finite, from lines 403, 407 of the training set"


def test_a_message_names_the_lines_of_a_batch_that_is_not_finite(capsys):
    history, weights = train(True, [4])
    assert capsys.readouterr().out.count(MESSAGE) == 1
    assert np.isfinite(history["loss"]).all()
    assert history["tokens"] == [4 * 5 * 7]
    assert all(np.isfinite(weight).all() for weight in weights)
    with pytest.raises(tt.BadInput, match=MESSAGE):
        train(False, [4])


def test_every_skipped_update_is_reported_once(capsys):
    wrong = [4, 7, 30, 31, 33, 60]
    train(True, wrong, steps=120)
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert [line.split(":")[0].rstrip(".") for line in lines] == [
        *("  step 5", "  step 8", "  step 31"),
        "  2 more updates were skipped, at steps 32, 34",
        "  step 61",
    ]
    train(True, list(range(130)), steps=120, first=0)
    printed = capsys.readouterr().out
    assert all(f" {number}{end}" in printed for number in (1, 51, 101) for end in ":")
    assert ", 50\n" in printed and ", 100\n" in printed and ", 120\n" in printed


@pytest.mark.parametrize(("steps_per_execution", "expected"), [(1, [0, 50, 100, 120]), (8, [0, 56, 112, 120])])
def test_a_check_of_each_step_would_make_a_gpu_wait(steps_per_execution, expected):
    """So it reads the variables of the device every 50 steps, and at the end of an epoch."""
    looks = []
    watch = StopOnNonFinite(iter, first=0)
    values = types.SimpleNamespace(numpy=lambda: looks.append(watch.number) or 0, shape=(50,))
    watch.set_model(types.SimpleNamespace(not_finite=values, not_finite_steps=values, steps_made=values))
    watch.on_train_begin()
    for batch in range(120)[steps_per_execution - 1 :: steps_per_execution]:
        watch.on_train_batch_end(batch, {"loss": 5.0})
    watch.on_epoch_end(0, {"loss": 5.0})
    assert looks == expected
    watch.on_train_batch_end(steps_per_execution - 1, {"loss": 5.0})
    assert watch.number == 120 + steps_per_execution


def test_a_log_file_gets_plain_lines(tmp_path, capsys, monkeypatch):
    """It gets a line every six seconds, which is three steps of two seconds, and at the end of an epoch."""
    now = iter(range(0, 10_000, 2))
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: next(now))
    watch = callbacks.ProgressLogger(seconds=6)
    watch.set_params({"steps": 10})
    watch.on_epoch_begin(0)
    for batch in range(10):
        watch.on_train_batch_end(batch, {"loss": 5.25, "tokens/s": 12_345.6})
    watch.on_epoch_end(0, {"loss": 4.125, "val_loss": float("nan")})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  3 of 10 steps: loss 5.25, tokens/s 12,346"
    assert lines[-1] == "epoch 1: loss 4.125, val_loss nan"
    assert len(lines) == 4 and all(line.isprintable() for line in lines)


@pytest.mark.parametrize("stream", [True, False, None, types.SimpleNamespace(write=len, flush=int), "closed"])
def test_a_terminal_gets_keras_s_bar(stream, tmp_path, monkeypatch):
    """A service's stream may be `None`, or have only `write` and `flush`, like a custom logger."""
    if stream == "closed":
        with open(tmp_path / "closed", "w") as stream:
            pass
    elif isinstance(stream, bool):
        stream = types.SimpleNamespace(isatty=lambda is_terminal=stream: is_terminal)
    monkeypatch.setattr("sys.stdout", stream)
    is_terminal = hasattr(stream, "isatty") and not hasattr(stream, "closed") and stream.isatty()
    assert type(callbacks.progress(7)) is (callbacks.Bar if is_terminal else callbacks.ProgressLogger)


def test_a_notebook_gets_the_bar(monkeypatch):
    monkeypatch.setattr("sys.stdout", types.SimpleNamespace(isatty=lambda: False))
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    assert isinstance(callbacks.progress(7), callbacks.Bar)


@pytest.mark.parametrize("bar", [True, False])
def test_progress_counts_the_steps_of_the_training(bar, capsys):
    """5 of 17 steps are made, and the next checkpoint is after 3 more. Lines count no epochs, which are passes."""
    watch = callbacks.Bar(steps=17) if bar else callbacks.ProgressLogger(seconds=0, steps=17)
    model = types.SimpleNamespace(optimizer=types.SimpleNamespace(iterations=np.array(5)))
    watch.set_model(model)
    watch.set_params({"steps": 3})
    watch.on_epoch_begin(1)
    for batch in range(3):
        watch.on_train_batch_end(batch, {"loss": 5.25})
    model.optimizer.iterations = np.array(8)
    watch.on_epoch_end(1, {"loss": 5.25, "val_loss": 4.125})
    printed = capsys.readouterr().out
    assert "poch" not in printed and "val_loss" in printed
    first, *lines = printed.splitlines()
    assert lines[-1] == "step 8 of 17: loss 5.25, val_loss 4.125"
    if bar:
        assert first == "steps 6 to 8 of 17" and "3/3" in printed
    else:
        assert [first, *lines[:-1]] == [f"step {step} of 17: loss 5.25" for step in (6, 7, 8)]


def test_the_bar_fits_the_terminal(capsys, monkeypatch):
    """It shows the first values that fit. The line of the checkpoint has all."""
    monkeypatch.setenv("COLUMNS", "80")
    watch = callbacks.Bar(steps=3)
    watch.set_model(types.SimpleNamespace(optimizer=types.SimpleNamespace(iterations=np.array(0))))
    watch.set_params({"steps": 3})
    watch.on_epoch_begin(0)
    logs = {name: 12_345.67 for name in ("accuracy", "loss", "perplexity", "learning_rate", "tokens/s")}
    for batch in range(3):
        watch.on_train_batch_end(batch, logs)
    printed = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out)
    assert "loss" in printed and "perplexity" not in printed
    assert max(map(len, re.split("[\r\n\b]+", printed))) < 80
    watch.on_epoch_end(0, logs)
    line = capsys.readouterr().out
    assert all(f"{name} 12,346" in line for name in logs)


def test_the_dev_set_is_thinned_evenly():
    dev = callbacks.DevText(tt.Metric("BLEU"), list(range(17)), list(range(17, 34)))
    assert dev.thinned(5).source == [0, 4, 8, 12, 16]
    assert dev.thinned(5).references == [17, 21, 25, 29, 33]
    assert dev.thinned(17) == dev.thinned(100) == dev


def test_outputs_are_written_into_one_file(tmp_path):
    """TensorBoard gets one file per `fit`, which is closed, also if a callback ends `fit`."""
    score = DevScore(lambda texts: texts, DevText(tt.Metric("BLEU"), ["a"], ["b"]), logs=tmp_path)
    score.set_model(types.SimpleNamespace(optimizer=types.SimpleNamespace(iterations=3), after_fit=ExitStack()))
    for number in range(2):
        score.on_train_begin()
        for epoch in range(3):
            score.on_epoch_end(epoch, {})
        writer = score._writer
        score.model.after_fit.close()
        assert len(list(tmp_path.rglob("events*"))) == number + 1
        assert writer._closed


def test_a_training_without_tensorboard(tmp_path, monkeypatch, capsys):
    """TensorFlow without TensorBoard cannot write events."""
    for module in (callbacks, tensorboard):
        monkeypatch.setattr(module, "is_installed", lambda name: name != "tensorboard")
    assert tensorboard.board(tmp_path) == []
    assert "nothing for TensorBoard, which is not installed" in capsys.readouterr().out
    metric = tt.Metric("Own", lambda outputs, sources, references: len(outputs + sources) + len(references[0]))
    dev = callbacks.DevText(metric, ["a b"], ["c d"])
    watch = callbacks.DevScore(lambda texts: texts, dev, logs=tmp_path)
    watch.set_model(types.SimpleNamespace(optimizer=types.SimpleNamespace(iterations=np.array(3))))
    watch.on_epoch_end(0, logs := {})
    assert logs == {"dev_own": 5.0} and not list(tmp_path.iterdir())
