"""The callback `Checkpoints`: interrupted trainings resume as if they had not been interrupted."""

import contextlib
import csv
import functools
import itertools
import json
import signal
import types

import keras
import numpy as np
import pytest
from test_run import CONFIG, batches, fresh_model, train

import tf_transformer as tt
from tf_transformer.training import checkpoints
from tf_transformer.training.callbacks import Checkpoints, DevScore, DevText, ProgressLogger, TrainingInterrupted
from tf_transformer.training.run import Run


class Signals(keras.callbacks.Callback):
    """Sends signals to this process during a step."""

    def __init__(self, step, *numbers):
        super().__init__()
        self.step, self.numbers = step, numbers

    def on_train_batch_begin(self, batch, logs=None):
        self.step -= 1
        if self.step == 0:
            for number in self.numbers:
                signal.raise_signal(number)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, monkeypatch):
    """Weights, optimizer, schedule, random state of dropout, position in the data and history, also within epochs."""
    # A clock on which a step takes a second, and everything else no time.
    monkeypatch.setattr(checkpoints, "time", types.SimpleNamespace(perf_counter=itertools.count(0.0).__next__))
    whole, parts = Run(tmp_path / "whole"), Run(tmp_path / "parts")
    expected = [np.array(variable) for variable in train(whole, 4).variables]
    train(parts, 1)
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(TrainingInterrupted, match="stopped after saving step 5"):
        train(Run(tmp_path / "parts"), 3, Signals(2, signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) is handler
    train(Run(tmp_path / "parts"), 3)
    model = train(Run(tmp_path / "parts"), 4)
    for weight, other in zip(model.variables, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(weight), other, err_msg=weight.path)
    names = [[path.name for path in run.checkpoints()] for run in (whole, parts)]
    assert names[0] == names[1]
    files = [(tmp_path / name / "history.csv").read_text().splitlines() for name in ("whole", "parts")]
    rows = [list(csv.DictReader(lines)) for lines in files]
    assert [row["step"] for row in rows[1]] == ["3", "6", "9", "12"]
    for row, other in zip(*rows, strict=True):
        assert row == other
    assert rows[0][-1]["target_tokens"] == str(4 * 3 * 5 * 7)
    assert [row["seconds"] for row in rows[0]] == ["3.0", "6.0", "9.0", "12.0"]
    assert {float(row["tokens/s"]) for row in rows[0]} == {5 * 7}


@pytest.mark.parametrize("steps_per_execution", [1, 3, 4])
def test_several_steps_may_end_together(steps_per_execution, tmp_path, capsys):
    """Training stops with the execution of its last step. Steps are those that the optimizer has made."""

    def fit(ids, steps=None, until=None, epochs=9):
        checkpoints = Checkpoints(tmp_path / "run", steps=steps, until=until)
        with checkpoints.saving_on_signals():
            model.fit(ids, ids, 2, epochs, shuffle=False, verbose=0, callbacks=[checkpoints])
        made = int(model.optimizer.iterations)
        assert checkpoints.step == made and checkpoints.run.newest()[1]["step"] == made
        return made

    ids = keras.Input((4,), dtype="int32")
    model = keras.Model(ids, keras.layers.Dense(9)(keras.layers.Embedding(9, 2)(ids)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, steps_per_execution=steps_per_execution)
    rows = np.ones((10, 4), "int32")  # 5 steps, so that the last execution of an epoch has fewer
    with pytest.raises(TrainingInterrupted, match="stopped after saving step"):
        fit(rows, until=7)
    assert (reached := int(model.optimizer.iterations)) in (7, 8, 9) and reached - 7 < steps_per_execution
    with contextlib.suppress(TrainingInterrupted):  # Nothing is left to do before step 7.
        assert fit(rows, until=7) == reached
    made = fit(rows, steps=12)
    assert 12 <= made < 12 + steps_per_execution
    assert fit(rows, steps=12) == made and "nothing to train: this run is at step" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("hook", "first"),  # An error after this callback's begin of a step may have changed some of the weights.
    [("on_train_batch_begin", True), *itertools.product(["on_train_batch_end", "on_epoch_end"], [False, True])],
)
def test_an_error_of_a_callback_in_a_model_of_keras(hook, first, tmp_path):
    """The steps before it are saved, whatever the order of the callbacks."""
    ids = keras.Input((4,), dtype="int32")
    model = keras.Model(ids, keras.layers.Dense(9)(keras.layers.Embedding(9, 2)(ids)))
    model.compile(keras.optimizers.SGD(0.1), tt.SmoothedCrossEntropy(0.0))
    raising, checkpoints = keras.callbacks.Callback(), Checkpoints(tmp_path)
    setattr(
        raising, hook, lambda *_, **logs: 1 / 0 if model.optimizer.iterations == (5 if "epoch" in hook else 3) else None
    )
    callbacks = [raising, checkpoints] if first else [checkpoints, raising]
    with pytest.raises(ZeroDivisionError), checkpoints.saving_on_signals():
        model.fit(np.ones((10, 4)), np.ones((10, 4)), 2, 3, shuffle=False, verbose=0, callbacks=callbacks)
    made, saved = int(model.optimizer.iterations), model.get_weights()
    state = Run(tmp_path).restore(model)
    assert state["step"] == made == (5 if "epoch" in hook else 3)
    for one, other in zip(model.get_weights(), saved, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_signal_in_the_last_step_of_an_epoch(tmp_path):
    """The epoch ends, with its row, and no other step is made."""
    whole, parts = (Run(tmp_path / name, keep=2) for name in ("whole", "parts"))
    train(whole, 3)
    with pytest.raises(TrainingInterrupted, match="stopped after saving step 6"):
        train(parts, 3, Signals(6, signal.SIGTERM))
    names = [path.name for path in parts.checkpoints()]
    assert names == ["step-00000003", "step-00000006"]
    train(Run(tmp_path / "parts", keep=2), 3)
    assert [path.name for path in parts.checkpoints()] == ["step-00000006", "step-00000009"]
    for row, other in zip(*(Run(run.path).newest()[1]["history"] for run in (whole, parts)), strict=True):
        assert row["loss"] == other["loss"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_last_epoch_ends(number, ctrl_c, tmp_path):
    stop = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: signal.raise_signal(number))
    run = Run(tmp_path / "run")
    handler = signal.getsignal(number)
    with pytest.raises(TrainingInterrupted, match="stopped after saving step 3") as stopped:
        train(run, 1, stop)
    assert stopped.value.number == number
    assert signal.getsignal(number) is handler
    assert [path.name for path in run.checkpoints()] == ["step-00000003"]


def test_a_signal_while_an_epoch_is_scored_does_not_wait_for_the_scores(ctrl_c, tmp_path, capfd):
    """The epoch's checkpoint is the last. Its row has the values of the steps and no partial score."""
    model, last = fresh_model(), None
    fit = {"steps_per_epoch": 3, "epochs": 2, "validation_data": batches(), "validation_steps": 2, "verbose": 0}
    for event in ("on_train_batch_end", "on_test_batch_end", "on_test_end", "on_epoch_end", "on_test_begin"):
        events, checkpoints, stopper = [], Checkpoints(tmp_path / event), keras.callbacks.Callback()
        dev = DevScore(lambda texts: pytest.fail("scored"), DevText(tt.Metric("BLEU"), ["a"], ["b"]))

        def stop(*_, of=event, events=events, **__):
            events.append(of)
            if len(events) == (3 if of == "on_train_batch_end" else 1):
                try:
                    signal.raise_signal(signal.SIGTERM)
                except KeyboardInterrupt as error:
                    # As TensorFlow does while it traces a function.
                    raise SystemError if of == "on_test_begin" else error from None

        setattr(stopper, event, stop)
        with (
            pytest.raises(TrainingInterrupted, match="stopped after saving step 3") as stopped,
            checkpoints.saving_on_signals(),
        ):
            model.fit(batches(), shuffle=False, callbacks=[stopper, dev, checkpoints], **fit)
        assert stopped.value.number == signal.SIGTERM and len(events) == (3 if event == "on_train_batch_end" else 1)
        assert [path.name for path in checkpoints.run.checkpoints()] == ["step-00000003"]
        (row,) = checkpoints.run.history
        assert row["step"] == 3 and np.isfinite(row["loss"]) and not {"val_loss", "dev_bleu"} & set(row)
        assert last is None or row["loss"] < last  # trains on the same batches again
        last = row["loss"]
        assert capfd.readouterr().err.count("saving") == 1


def test_ctrl_c_saves_and_a_second_one_does_not_wait(ctrl_c, tmp_path, capfd):
    run = Run(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        train(run, 1, Signals(2, signal.SIGINT, signal.SIGINT))
    assert not run.checkpoints()
    with pytest.raises(TrainingInterrupted, match="stopped after saving step 2"):
        train(run, 1, Signals(2, signal.SIGINT))
    assert [path.name for path in run.checkpoints()] == ["step-00000002-stopped"]
    assert capfd.readouterr().err.count("saving after this step") == 2


@pytest.mark.parametrize("stream", [None, types.SimpleNamespace(write=len), "closed"])
def test_a_signal_without_standard_error_writes_into_no_file(stream, ctrl_c, tmp_path, monkeypatch):
    """If it is closed, a checkpoint's file may have its number."""
    if stream == "closed":
        with open(tmp_path / "closed", "w") as stream:
            pass
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("os.write", lambda *_: pytest.fail("wrote to a number"))
    with pytest.raises(TrainingInterrupted), Checkpoints(tmp_path / "run").saving_on_signals():
        signal.raise_signal(signal.SIGTERM)
        raise TrainingInterrupted("as at the end of a step")


def test_an_ignored_signal_is_still_ignored(tmp_path):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        train(Run(tmp_path / "run"), 1, Signals(2, signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)


def begin_fit(folder, model, epochs=1, tokenizer=None):
    """Returns the callback after the beginning of a `fit`, without a `fit`."""
    checkpoints = Checkpoints(folder, tokenizer)
    checkpoints.set_params({"epochs": epochs, "steps": 3})
    checkpoints.set_model(model)
    model.optimizer.build(model.trainable_variables)
    checkpoints.on_train_begin()
    return checkpoints


def run_epoch(checkpoints, **logs):
    """Calls the callback for one more epoch of three steps, without training."""
    checkpoints.on_epoch_begin(0)
    for batch in range(3):
        checkpoints.on_train_batch_end(batch, {"loss": 5.0} | logs)
    checkpoints.on_epoch_end(0, {"loss": 5.0} | logs)
    checkpoints.on_train_end()


@functools.cache
def built(dtype):
    model = tt.Transformer(CONFIG, dtype=dtype)
    model.build()
    return model, model.get_weights()


def compiled(optimizer=None, loss=None, dtype=None):
    """Returns a compiled model without training, the same object for all calls, since building one takes long."""
    model, weights = built(dtype)
    model.set_weights(weights)
    model.compile(optimizer or keras.optimizers.Adam(0.5), loss or tt.SmoothedCrossEntropy(0.1))
    return model


def test_resuming_is_printed(tmp_path, capsys):
    """Weights and optimizer of the new model are replaced, or there is nothing to train."""
    folder, lines = tmp_path / "run", lambda: capsys.readouterr().out.splitlines()
    run_epoch(begin_fit(folder, compiled(), 1))
    assert lines() == []
    model = compiled()
    model.embedding.embeddings.assign(np.zeros((19, 12)))
    again = begin_fit(folder, model, 1)
    resumes, nothing = lines()
    assert resumes.startswith(f"going on from the checkpoint at step 3 of {folder}, with its weights, optimizer and")
    assert resumes.endswith("; 1 epoch is done")
    assert nothing == "the one epoch is done: nothing to train. Pass more epochs= or another directory."
    assert np.asarray(model.embedding.embeddings).any()
    again.on_train_end()
    run_epoch(begin_fit(folder, compiled(), 2))
    assert len(lines()) == 1
    begin_fit(folder, compiled(), 2).on_train_end()
    assert lines()[1].startswith("all 2 epochs are done: nothing to train")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"optimizer": keras.optimizers.Adam(0.25)}, r"optimizer\.config\.learning_rate was 0\.5, now 0\.25;"),
        ({"optimizer": keras.optimizers.Adam(tt.WarmupSchedule(7))}, r"learning_rate was 0\.5, now {.*WarmupSchedule"),
        ({"optimizer": keras.optimizers.Adam(0.5, beta_2=0.7)}, r"optimizer\.config\.beta_2 was 0\.999, now 0\.7;"),
        ({"optimizer": keras.optimizers.SGD(0.5)}, r'optimizer\.class_name was "Adam", now "SGD"'),
        ({"loss": tt.SmoothedCrossEntropy(0.3)}, r"loss\.config\.label_smoothing was 0\.1, now 0\.3;"),
        ({"loss": tt.SmoothedCrossEntropy(0.1, ignore_class=None)}, r"loss\.config\.ignore_class was 0, now null;"),
        ({"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}, 'class_name was .*, now "SparseC'),
        ({"dtype": "mixed_bfloat16"}, 'dtype was "float32", now "mixed_bfloat16"'),
    ],
)
def test_a_fit_resumes_only_with_the_same_settings(changed, message, tmp_path):
    run_epoch(begin_fit(tmp_path, compiled()))
    model = compiled(**changed)
    model.embedding.embeddings.assign(np.zeros((19, 12)))
    with pytest.raises(tt.BadInput, match=f"{tmp_path} holds a run of another configuration: .*{message}"):
        begin_fit(tmp_path, model)
    assert not np.asarray(model.embedding.embeddings).any()  # nothing was restored
    assert not Run._locks


def test_a_run_whose_loss_had_fewer_settings_resumes(tmp_path):
    """Losses did not always have ignore_class."""
    run_epoch(begin_fit(tmp_path, compiled()))
    (state,) = tmp_path.glob("checkpoints/*/state.json")
    former = json.loads(state.read_text())
    former["compiled"]["loss"]["config"] = {"epsilon": 0.1, "reduction": "sum"}
    state.write_text(json.dumps(former))
    begin_fit(tmp_path, compiled(), 2).on_train_end()
    with pytest.raises(tt.BadInput, match=r"loss\.config\.ignore_class was 0, now -100;"):
        begin_fit(tmp_path, compiled(loss=tt.SmoothedCrossEntropy(0.1, ignore_class=-100)), 2)
    Run(tmp_path).unlock()


def test_an_optimizer_of_float16_is_restored(tmp_path):
    """`fit` has built it before a callback restores it. Other variables are an error, not only Keras's warning."""
    model = compiled(dtype="mixed_float16")
    first = begin_fit(tmp_path, model)
    for variable in model.optimizer.variables:
        variable.assign(variable + np.ones(variable.shape))
    stored = [np.array(keras.ops.convert_to_numpy(variable)) for variable in model.optimizer.variables]
    run_epoch(first)
    model.compile(keras.optimizers.Adam(0.5), tt.SmoothedCrossEntropy(0.1))
    begin_fit(tmp_path, model, 2).on_train_end()
    for variable, expected in zip(model.optimizer.variables, stored, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), expected, err_msg=variable.path)
    model.compile(keras.optimizers.Adam(0.5), tt.SmoothedCrossEntropy(0.1))
    model.embedding.trainable = False
    with pytest.raises(tt.BadInput, match="step-00000003: expected a checkpoint of this model, got"):
        begin_fit(tmp_path, model, 2)
    assert not Run._locks


def test_a_fit_resumes_with_a_rate_that_is_a_function(tmp_path):
    """Keras writes its code and its position in a file into the settings."""
    rates = [lambda: 0.25, lambda: 0.125 + 0.125]
    for rate in rates:
        run_epoch(begin_fit(tmp_path, compiled(keras.optimizers.Adam(rate)), 2))


def test_a_run_resumes_with_a_rate_that_a_callback_changed(tmp_path):
    """The process may have the changed rate, or have compiled the first one again."""
    model = compiled()
    first = begin_fit(tmp_path, model)
    model.optimizer.learning_rate = 0.125
    run_epoch(first)
    for make_model in (lambda: model, compiled):
        again = begin_fit(tmp_path, make_model(), 2)
        assert float(model.optimizer.learning_rate) == 0.125
        again.on_train_end()
    with pytest.raises(tt.BadInput, match=r"learning_rate was 0\.5, now 0\.25"):
        begin_fit(tmp_path, compiled(keras.optimizers.Adam(0.25)))
    assert not Run._locks


def test_tokens_are_stored_only_if_all_were_counted(tmp_path):
    """A run may resume with a metric that it did not have at first."""
    for name, counts, expected in (("none", ({}, {"tokens": 7.0}), None), ("all", [{"tokens": 7.0}] * 2, 14)):
        for logs in counts:
            run_epoch(begin_fit(tmp_path / name, compiled(), 2), **logs)
        state = Run(tmp_path / name).newest()[1]
        assert state.get("target_tokens") == expected
        columns = (tmp_path / name / "history.csv").read_text().splitlines()[0].split(",")
        assert ("target_tokens" in columns) == bool(expected)


def test_only_numbers_of_the_logs_are_stored(tmp_path, capsys):
    """Custom callbacks may add other values."""
    custom = {"note": "good", "rates": np.ones(3), "nothing": None, "mine": np.float32(0.5)}
    run_epoch(begin_fit(tmp_path, compiled()), **custom)
    (row,) = Run(tmp_path).newest()[1]["history"]
    assert row["mine"] == 0.5 and row["loss"] == 5.0 and not {"note", "rates", "nothing"} & set(row)
    lines = ProgressLogger()
    lines.on_epoch_end(0, {"loss": 5.0} | custom)
    assert capsys.readouterr().out.splitlines()[-1] == "epoch 1: loss 5, mine 0.5"


def test_a_run_may_get_its_tokenizer_later(translator, tmp_path):
    """It started without one, or was killed before it stored one."""
    file, of_350 = tmp_path / "tokenizer.model", translator.tokenizer
    tokenizer = types.SimpleNamespace(vocab_size=19, fingerprint=of_350.fingerprint, save=of_350.save)
    run_epoch(begin_fit(tmp_path, compiled()))
    assert not file.exists()
    begin_fit(tmp_path, compiled(), tokenizer=tokenizer).on_train_end()
    assert tt.Tokenizer.load(file).fingerprint == tokenizer.fingerprint
    begin_fit(tmp_path, compiled(), tokenizer=tokenizer).on_train_end()
    other = types.SimpleNamespace(vocab_size=19, fingerprint="another")
    with pytest.raises(tt.BadInput, match="tokenizer: expected that of the run, .*, got another"):
        begin_fit(tmp_path, compiled(), tokenizer=other)
    with pytest.raises(tt.BadInput, match="tokenizer: expected one of the model's vocab_size=19, got 350"):
        begin_fit(tmp_path / "new", compiled(), tokenizer=of_350)
    assert [path.name for path in (tmp_path / "new").iterdir()] == [".lock"]
    assert not Run._locks
