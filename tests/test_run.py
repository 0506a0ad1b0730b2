"""A run's folder survives being killed, damaged and reused."""

import csv
import json

import keras
import numpy as np
import pytest

import tf_transformer as tt
from tf_transformer.run import Progress, Run

CONFIG = tt.TransformerConfig(1, 12, 17, 3, dropout=0.3, vocab_size=19)


def new_model():
    keras.utils.set_random_seed(5)
    model = tt.Transformer(CONFIG)
    model.build()
    model.compile(
        optimizer=keras.optimizers.Adam(tt.WarmupSchedule(CONFIG.d_model, 20)),
        loss=tt.SmoothedCrossEntropy(0.1),
        metrics=[tt.TokenAccuracy(), tt.TokenCount()],
    )
    return model


def batches(first=0):
    """An endless stream of batches, from the one numbered `first` on."""
    import tensorflow as tf

    rng = np.random.default_rng(2)
    source, target = rng.integers(3, 19, (30, 5, 7), "int32"), rng.integers(3, 19, (30, 5, 8), "int32")
    return tf.data.Dataset.from_tensor_slices(((source, target[:, :, :-1]), target[:, :, 1:])).repeat().skip(first)


def train(run, epochs):
    """Train to so many epochs of three steps, going on from the last checkpoint."""
    model = new_model()
    state = run.restore(model) or {"step": 0, "seconds": 0.0, "target_tokens": 0}
    progress = Progress(run, state)
    first = state["step"] // 3
    model.fit(
        batches(state["step"]),
        steps_per_epoch=3,
        initial_epoch=first,
        epochs=epochs,
        callbacks=[progress],
        verbose=0,
        shuffle=False,
    )
    return model


def test_resumed_is_never_stopped(tmp_path):
    """Weights, optimizer, schedule, dropout's random state, position in the data, history."""
    whole, parts = Run(tmp_path / "whole"), Run(tmp_path / "parts")
    expected = train(whole, 4)
    train(parts, 1)
    train(Run(tmp_path / "parts"), 3)
    model = train(Run(tmp_path / "parts"), 4)
    for weight, other in zip(model.variables, expected.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(weight), np.asarray(other), err_msg=weight.path)
    files = [(tmp_path / name / "history.csv").read_text().splitlines() for name in ("whole", "parts")]
    rows = [list(csv.DictReader(lines)) for lines in files]
    assert [row["step"] for row in rows[1]] == ["3", "6", "9", "12"]
    for row, other in zip(*rows, strict=True):
        assert {k: v for k, v in row.items() if "s" not in k} == {k: v for k, v in other.items() if "s" not in k}
        assert (row["loss"], row["target_tokens"]) == (other["loss"], other["target_tokens"])
    assert rows[0][-1]["target_tokens"] == str(4 * 3 * 5 * 7)


def test_keeps_the_last_checkpoints(tmp_path):
    run = Run(tmp_path / "run", keep=2)
    train(run, 4)
    assert [path.name for path in run.checkpoints()] == ["step-00000009", "step-00000012"]
    assert run.weights(last=1) == [tmp_path / "run/checkpoints/step-00000012/model.weights.h5"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "state"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, capsys, damage):
    train(Run(tmp_path), 2)
    newest = tmp_path / "checkpoints/step-00000006"
    weights = newest / "model.weights.h5"
    content = weights.read_bytes()
    if damage == "cut":
        weights.write_bytes(content[:-100])
    elif damage == "flipped":
        weights.write_bytes(content[:-100] + bytes([content[-100] ^ 1]) + content[-99:])
    elif damage == "gone":
        weights.unlink()
    else:
        (newest / "state.json").write_text("{")
    state = Run(tmp_path).restore(new_model())
    assert state["step"] == 3
    assert "step-00000006 is damaged" in capsys.readouterr().out


def test_half_written_is_not_a_checkpoint(tmp_path):
    train(Run(tmp_path), 1)
    half = tmp_path / "checkpoints/.step-00000006"
    half.mkdir()
    (half / "model.weights.h5").write_bytes(b"half")
    run = Run(tmp_path)
    assert run.restore(new_model())["step"] == 3
    train(run, 2)  # and is no obstacle
    assert not half.exists()


def test_a_disk_that_fills_up_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    run = Run(tmp_path)
    model = train(run, 1)

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model, "save_weights", full)
    with pytest.raises(OSError, match="No space left"):
        run.save(model, 6)
    assert Run(tmp_path).restore(new_model())["step"] == 3


def test_a_folder_belongs_to_one_configuration(tmp_path):
    run = Run(tmp_path / "run")
    settings = {"model": {"num_layers": 2, "d_k": None}, "data": {"train": ("a", "b")}}
    assert not run.exists(settings)
    assert not run.path.exists()
    run.begin(settings)
    assert Run(tmp_path / "run").exists(settings)
    with pytest.raises(tt.BadInput, match=r"another configuration: model\.num_layers was 2, now 3; give --run another"):
        run.exists(settings | {"model": {"num_layers": 3, "d_k": None}})


def test_other_peoples_folders_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(tt.BadInput, match="found other files and no config.json"):
        Run(tmp_path).exists({})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(tt.BadInput, match="expected JSON"):
        Run(tmp_path).exists({})


def test_state_says_what_was_saved(tmp_path):
    train(Run(tmp_path), 1)
    state = json.loads((tmp_path / "checkpoints/step-00000003/state.json").read_text())
    assert state["step"] == 3
    assert state["target_tokens"] == 3 * 5 * 7
    assert len(state["history"]) == 1
