"""Folders of runs that were killed, damaged or reused."""

import dataclasses
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import types

import keras
import numpy as np
import portalocker
import pytest

import tf_transformer as tt
from tf_transformer.training.callbacks import Checkpoints
from tf_transformer.training.run import LOCK, History, Run
from tf_transformer.training.settings import described

FORMER = {
    "num_microbatches": "parts",
    "learning_rate_factor": "factor",
    "early_stopping_patience": "stop_after",
    "label_smoothing": "epsilon",
}

CONFIG = tt.TransformerConfig(1, 12, 17, 3, dropout=0.3, vocab_size=19)


class InfiniteAt18(tt.SmoothedCrossEntropy):
    """Infinite if all labels of a batch are 18."""

    def call(self, y_true, y_pred):
        return super().call(y_true, y_pred) * keras.ops.where(keras.ops.all(y_true == 18), np.inf, 1.0)


def new_model(config=CONFIG):
    keras.utils.set_random_seed(5)
    model = tt.Transformer(config)
    model.build()
    model.skip_not_finite = True
    model.compile(
        optimizer=keras.optimizers.Adam(tt.WarmupSchedule(CONFIG.d_model, 20)),
        loss=InfiniteAt18(0.1),
        metrics=[tt.TokenAccuracy(), tt.Perplexity(), tt.TokenCount()],
    )
    return model


@functools.cache
def traced_model():
    """Returns a model for all tests, since tracing its step takes seconds, and its variables with their values."""
    model = new_model()
    model.optimizer.build(model.trainable_variables)
    model.make_train_function()
    variables = [*model.variables, *model.optimizer.variables]
    variables += [model.steps_made, model.not_finite, model.not_finite_steps]
    return model, [(variable, np.array(variable)) for variable in variables]


def fresh_model():
    """Returns the model of all tests with its initial values."""
    model, values = traced_model()
    for variable, value in values:
        variable.assign(value)
    return model


def batches(first=0):
    """Returns an endless stream of batches, from index `first`."""
    import tensorflow as tf

    rng = np.random.default_rng(2)
    source, target = rng.integers(3, 19, (30, 5, 7), "int32"), rng.integers(3, 19, (30, 5, 8), "int32")
    return tf.data.Dataset.from_tensor_slices(((source, target[:, :, :-1]), target[:, :, 1:])).repeat().skip(first)


def train(run, epochs, *callbacks, steps=None):
    """Trains up to `epochs` epochs of three steps, or `steps` steps, from the last checkpoint."""
    model = fresh_model()
    checkpoints = Checkpoints(run, steps=steps)
    checkpoints.restore(model)
    while checkpoints.step < (steps or 3 * epochs):
        first, done = divmod(checkpoints.step, 3)
        with checkpoints.saving_on_signals():
            model.fit(
                batches(checkpoints.step),
                steps_per_epoch=3 - done,
                initial_epoch=first,
                epochs=first + 1 if done else epochs,
                callbacks=[checkpoints, *callbacks],
                verbose=0,
                shuffle=False,
            )
    return model


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train(Run(folder), 2)
    return folder


@pytest.fixture
def two_epochs(trained, tmp_path):
    """A new copy of a run with checkpoints at steps 3 and 6."""
    return shutil.copytree(trained, tmp_path / "two")


@pytest.fixture
def one_epoch(trained, tmp_path):
    """A new copy of a run with a checkpoint at step 3."""
    folder = shutil.copytree(trained, tmp_path / "one")
    shutil.rmtree(folder / "checkpoints/step-00000006")
    return folder


def restored(run):
    model = fresh_model()
    assert run.restore(model)["step"] == 3
    return model


@pytest.mark.parametrize("damage", ["flipped", "gone", "state"])
def test_a_damaged_checkpoint_is_skipped_and_not_averaged(two_epochs, capsys, damage):
    newest = two_epochs / "checkpoints/step-00000006"
    weights = newest / "model.weights.h5"
    content = weights.read_bytes()
    if damage == "flipped":
        weights.write_bytes(content[:-100] + bytes([content[-100] ^ 1]) + content[-99:])
    elif damage == "gone":
        weights.unlink()
    else:
        (newest / "state.json").write_text("{")
    run = Run(two_epochs)
    restored(run)
    damaged = "step-00000006: expected a whole checkpoint, got a damaged one"
    assert damaged in capsys.readouterr().out
    with pytest.raises(tt.BadInput, match=f"{damaged} .*; remove this directory"):
        run.weights(last=2)


def test_a_damaged_checkpoint_is_removed_when_training_resumed_before_it(two_epochs):
    """A checkpoint at another step would not replace it."""
    (two_epochs / "checkpoints/step-00000006/model.weights.h5").write_bytes(b"damaged")
    run = Run(two_epochs)
    run.save(restored(run), 5)
    assert [path.parent.name for path in run.weights(last=2)] == ["step-00000003", "step-00000005"]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_best_checkpoints_are_kept(two_epochs, sign):
    """Besides the two newest. Loading averages them, or opens one by its step."""
    metric = tt.Metric("Own", max, higher_is_better=sign > 0)
    run, model = Run(two_epochs, 2, metric=metric), fresh_model()
    run.restore(model)
    scores = {7: 5, 8: 9, 9: 5, 10: 0, 11: 2, 12: 1}
    for step, score in scores.items():
        run.history.append({"step": step, "dev_own": sign * score})
        run.save(model, step)
    run.save(model, 13, half_done={"seconds": 1, "metrics": []})
    names = [f"step-{step:08d}" for step in (7, 8, 11, 12)]
    assert [path.name for path in run.checkpoints()] == [*names, "step-00000013-stopped"]
    assert [path.name for path in Run(two_epochs).averaged(5)] == [names[1], names[0]]
    assert [path.name for path in Run(two_epochs).averaged(1)] == [names[1]]
    assert [path.parent.name for path in Run(two_epochs).weights(1, step=11)] == [names[2]]
    with pytest.raises(tt.BadInput, match="two: step: expected one of step-00000007, .*, step-00000013-stopped, got 9"):
        Run(two_epochs).weights(1, step=9)
    last = Run(two_epochs, 2)
    last.restore(model)
    last.save(model, 14)
    assert [path.name for path in Run(two_epochs).averaged(5)] == [names[3], "step-00000014"]


def test_dropout_may_begin_and_end_with_a_checkpoint(one_epoch, tmp_path):
    """A model without dropout has no random generators."""
    model = new_model(dataclasses.replace(CONFIG, dropout=0.0))
    first, second = Run(one_epoch), Run(tmp_path / "second")
    assert first.restore(model)["step"] == 3
    second.save(model, 3)
    weights = restored(second).get_weights()
    for weight, expected in zip(weights, restored(first).get_weights(), strict=True):
        np.testing.assert_array_equal(weight, expected)


def test_checkpoints_are_in_the_order_of_their_steps(one_epoch):
    """Also those of more than eight digits, and one within an epoch comes after the complete one of its step."""
    folder = one_epoch / "checkpoints"
    names = ["step-99999999", "step-100000000", "step-100000000-stopped", "step-1000000000"]
    for name in [*reversed(names), "step-best", "step-00000003-copy"]:
        shutil.copytree(folder / "step-00000003", folder / name)
    run = Run(one_epoch)
    assert [path.name for path in run.checkpoints()] == ["step-00000003", *names]
    assert run.newest()[0].name == names[-1] and [path.parent.name for path in run.weights(2)] == names[-2:]
    assert run.weights(1, step=10**8)[0].parent.name == names[1]
    run.save(restored(run), 10**9 + 1)
    kept = ["step-00000003", *names[:2], names[3], "step-1000000001"]  # five
    assert [path.name for path in run.checkpoints()] == kept


def test_half_written_is_not_a_checkpoint(one_epoch):
    half = one_epoch / "checkpoints/.step-00000006"
    half.mkdir()
    (half / "model.weights.h5").write_bytes(b"half")
    run = Run(one_epoch)
    restored(run)
    train(run, 2)
    assert not half.exists()


def test_a_checkpoint_is_on_the_disk_before_it_gets_its_name(one_epoch, monkeypatch):
    run = Run(one_epoch)
    model = restored(run)
    flushed, fsync, replace, moved = [], os.fsync, os.replace, []
    monkeypatch.setattr(os, "fsync", lambda file: (fsync(file), flushed.append(os.fstat(file).st_ino)))
    monkeypatch.setattr(os, "replace", lambda old, new: (moved.append((new, [*flushed])), replace(old, new)))
    folder = run.save(model, 10)
    (before,) = (before for path, before in moved if path == folder)
    for path in (folder, folder / "model.weights.h5", folder / "state.json"):
        assert path.stat().st_ino in before, path


def test_a_disk_that_fills_up_leaves_the_last_checkpoint(one_epoch, monkeypatch):
    run = Run(one_epoch)
    model = restored(run)

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model, "save_weights", full)
    with pytest.raises(OSError, match=r"step-00000006: the checkpoint cannot be written: .*No space left"):
        run.save(model, 6)
    restored(Run(one_epoch))


def test_a_disk_with_too_little_room_is_not_written_to(one_epoch, monkeypatch):
    """HDF5 would crash when the disk is full."""
    run = Run(one_epoch)
    model = restored(run)
    least = sum(np.asarray(v).nbytes for v in [*model.trainable_variables, *model.optimizer.variables])
    for free, fits in ((least - 1, False), (2 * least, True)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: types.SimpleNamespace(free=free))
        if fits:
            run.save(model, 6)
            assert Run(one_epoch).restore(fresh_model())["step"] == 6
        else:
            with pytest.raises(
                OSError, match=rf"it takes [\d,]+ bytes, {free:,} are free; the last one kept: step-00000003"
            ):
                run.save(model, 6)
            assert [path.name for path in (one_epoch / "checkpoints").iterdir()] == ["step-00000003"]


SETTINGS = {
    "kind": "translation",
    "model": {"num_layers": 2, "d_k": None},
    "recipe": {"seed": 7, "steps": 30},
    "corpus": {"train": ("a", "b")},
}


def test_a_folder_belongs_to_one_configuration(tmp_path):
    run = Run(tmp_path / "run")
    assert not run.exists(SETTINGS)
    assert not run.path.exists()
    run.begin(SETTINGS)
    assert json.loads((run.path / "config.json").read_text())["version"] == 1
    assert Run(tmp_path / "run").exists(SETTINGS)
    later = SETTINGS | {"corpus": SETTINGS["corpus"] | {"word_dropout": 0.0}}  # a later version has one more option
    assert Run(tmp_path / "run").exists(later)
    later["corpus"]["word_dropout"] = 0.1
    with pytest.raises(tt.BadInput, match=r"corpus.word_dropout was null, now 0.1"):
        Run(tmp_path / "run").exists(later)
    older = Run(tmp_path / "zero")  # 0 and null may mean something else, where both versions have them
    older.begin(SETTINGS | {"corpus": SETTINGS["corpus"] | {"ignored": 0}})
    with pytest.raises(tt.BadInput, match=r"corpus\.ignored was 0, now null;"):
        older.exists(SETTINGS | {"corpus": SETTINGS["corpus"] | {"ignored": None}})
    older = Run(tmp_path / "older")  # an earlier version had two more
    older.begin(SETTINGS | {"corpus": SETTINGS["corpus"] | {"sorted": 0, "shards": 2}})
    with pytest.raises(tt.BadInput, match=r"configuration: corpus\.shards was 2, now null;"):
        older.exists(SETTINGS)
    with pytest.raises(tt.BadInput, match=r"another configuration: model\.num_layers was 2, now 3; give another"):
        run.exists(SETTINGS | {"model": {"num_layers": 3, "d_k": None}})
    with pytest.raises(tt.BadInput, match='kind was "translation", now "parsing"'):
        run.exists(SETTINGS | {"kind": "parsing"})


def test_options_that_may_change_when_a_run_is_resumed(tmp_path):
    """The weights do not depend on them."""
    run = Run(tmp_path)
    run.begin(SETTINGS | {"recipe": tt.Recipe(steps=30).to_dict()})
    free = {"steps": 40, "eval_every": 7, "average_last": 3, "dev_sentences": 11, "num_microbatches": 2}
    free |= {"on_nan": "skip", "jit_compile": "on", "early_stopping_patience": 3, "metric": "TER", "average": "best"}
    assert run.exists(SETTINGS | {"recipe": tt.Recipe(**free).to_dict()})
    changes = {"batch_tokens": 7, "warmup_steps": 7, "learning_rate_factor": 0.7, "cooldown_steps": 7}
    changes |= {"tokenizer": "unigram"}
    changes |= {"mixed_precision": "bfloat16", "clip_norm": 0.7, "seed": 7, "learning_rate": 0.7, "ema_momentum": 0.7}
    assert {*free, *changes, "epochs"} == set(tt.Recipe().to_dict())
    for name, value in changes.items():
        with pytest.raises(tt.BadInput, match=f"recipe.{name} was "):
            run.exists(SETTINGS | {"recipe": tt.Recipe(**{name: value}).to_dict()})


def test_a_recipe_that_lacks_an_option_had_its_default(tmp_path, monkeypatch):
    """Also one whose default is not off."""
    option = dataclasses.field(default=0.3)
    later = dataclasses.make_dataclass("Later", [("noise", float, option)], bases=(tt.Recipe,), frozen=True)
    run = Run(tmp_path)
    run.begin(SETTINGS | {"recipe": tt.Recipe(steps=30).to_dict()})
    for module in ("run", "settings"):
        monkeypatch.setattr(f"tf_transformer.training.{module}.Recipe", later)
    assert run.exists(SETTINGS | {"recipe": later(steps=30).to_dict()})
    for noise in (0.0, 0.5):
        with pytest.raises(tt.BadInput, match=f"recipe.noise was 0.3, now {noise};"):
            run.exists(SETTINGS | {"recipe": later(steps=30, noise=noise).to_dict()})


def test_a_run_with_former_names_of_options_is_the_same_run(tmp_path):
    """The names occur in the recipe, the schedule and the loss."""
    recipe = tt.Recipe(steps=30, num_microbatches=2, learning_rate_factor=0.5, early_stopping_patience=7)
    schedule, loss = tt.WarmupSchedule(32, 10, learning_rate_factor=0.5), tt.SmoothedCrossEntropy(0.2)
    now = SETTINGS | {"recipe": recipe.to_dict(), "keras": {"schedule": described(schedule), "loss": described(loss)}}
    run, text = Run(tmp_path), json.dumps(now)
    for name, former in FORMER.items():
        assert f'"{name}"' in text
        text = text.replace(f'"{name}"', f'"{former}"')
    run.begin(json.loads(text))
    assert Run(tmp_path).exists(now)
    for expected in (schedule, loss):
        config = {FORMER.get(name, name): value for name, value in expected.get_config().items()}
        assert type(expected).from_config(config).get_config() == expected.get_config()


def test_a_run_of_another_version_is_an_error(tmp_path):
    for version in (0, 2):
        (tmp_path / "config.json").write_text(json.dumps(SETTINGS | {"version": version}))
        with pytest.raises(tt.BadInput, match=f"expected version 1, got {version}$"):
            Run(tmp_path).settings()


LOCKS = """
import sys
from pathlib import Path
from tf_transformer.utils.files import locked
with locked(Path(sys.argv[1]), "{owner} is training it"):
    print("locked", flush=True)
    sys.stdin.read()
"""  # like `Run.lock`, without importing Keras


@pytest.mark.program
def test_a_run_in_use_is_locked_until_its_process_dies(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    command, pipe = [sys.executable, "-c", LOCKS, str(path / LOCK)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout.readline() == "locked\n", process.stderr.read()
            with pytest.raises(tt.BadInput, match=f"run: .*; process {process.pid} on .* is training it"):
                Run(path).lock()
            assert not Run(path, writes=False).lock()  # another worker, which does not write
        finally:
            process.kill()
    run, other = Run(path), Run(path)
    assert run.lock() and not other.lock()  # this process has it
    error = subprocess.run(command, stderr=pipe, text=True).stderr
    assert error.strip().endswith(f"process {os.getpid()} on {socket.gethostname()} is training it")
    other.unlock()
    assert not other.lock()  # this process still has it
    run.unlock()
    assert other.lock()
    other.unlock()
    assert not Run(path).exists(SETTINGS)  # a new run may begin despite the lock file


def test_a_fit_that_raises_releases_the_lock(two_epochs):
    """Another process and the next `fit` can take it."""

    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            with pytest.raises(portalocker.LockException):
                lock()
            raise KeyboardInterrupt

    def lock():
        with open(two_epochs / ".lock") as file:
            portalocker.lock(file, portalocker.LOCK_EX | portalocker.LOCK_NB)

    def fit(model, *callbacks):
        steps = {"steps_per_epoch": 3, "epochs": 3, "verbose": 0}
        model.fit(batches(), callbacks=[Checkpoints(two_epochs), *callbacks], **steps)

    model = fresh_model()
    with pytest.raises(KeyboardInterrupt):
        fit(model, Fails())
    lock()
    fit(model)
    lock()
    assert [path.name for path in Run(two_epochs).checkpoints()][-1] == "step-00000009"


def test_lora_is_restored_and_trains(tmp_path):
    """In Keras's files, adapters are merged into the weights. Adapters of zeros would have no gradient."""

    def adapted():
        model = new_model()
        layer = model.encoder_layers[0].feed_forward.hidden
        layer.enable_lora(2)
        return model, layer

    model, layer = adapted()
    layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
    model.optimizer.build(model.trainable_variables)
    Run(tmp_path).save(model, 3)
    restored_model, restored_layer = adapted()
    Run(tmp_path).restore(restored_model)
    np.testing.assert_allclose(restored_layer.kernel, layer.kernel, rtol=1e-5)
    assert np.all(restored_layer.lora_kernel_a != 0) and np.all(restored_layer.lora_kernel_b == 0)


def test_a_history_has_columns_and_a_short_text():
    history = History([{"step": 3, "loss": 5.25}, {"step": 1_006}])
    assert history.history == {"step": [3, 1_006], "loss": [5.25, None]}
    assert repr(history) == "History of 2 checkpoints, step 1,006"


def test_a_folder_of_other_files_is_an_error(tmp_path):
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(tt.BadInput, match="got files without config.json"):
        Run(tmp_path).exists({})
    for path in (tmp_path / "thesis.tex", tmp_path / "thesis.tex" / "run" / "1"):
        with pytest.raises(tt.BadInput, match="thesis.tex: expected a directory, found a file$"):
            Run(path).exists({})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(tt.BadInput, match="config.json: expected a JSON object, got something else"):
        Run(tmp_path).exists({})


def test_a_lambda_without_source_code():
    """As one of an interactive session."""

    class Loss(keras.losses.Loss):
        def get_config(self):
            return {"function": keras.saving.serialize_keras_object(eval("lambda y: y"))}

    with pytest.raises(tt.BadInput, match="^Loss: expected named functions, got a lambda without source code"):
        described(Loss())
