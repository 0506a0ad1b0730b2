"""How a run is trained: what changes while it learns, and what a run that was stopped makes of it."""

import dataclasses

import pytest
from programs import checkpoint, same_weights

import tf_transformer as tt
from tf_transformer import toy_corpus
from trainers import learning, translation


@pytest.mark.parametrize(
    ("over", "interval", "steps", "expected"),
    [
        (4_500, 500, 13_000, {1_500: 0.0, 3_000: 0.1, 4_500: 0.2, 13_000: 0.3}),
        (1_300, 500, 13_000, {500: 0.0, 1_000: 0.1, 1_500: 0.2, 13_000: 0.3}),
        (10, 500, 13_000, {500: 0.0, 13_000: 0.3}),
        (4_500, 500, 2_000, {1_500: 0.0, 2_000: 0.1}),
        (4_500, 500, 1_500, {1_500: 0.0}),
        (9, 7, 11, {7: 0.0, 11: 0.2}),
        (0, 500, 13_000, {0: 0.0, 13_000: 0.3}),
    ],
)
def test_dropout_grows_in_thirds_that_end_at_checkpoints(over, interval, steps, expected):
    assert learning.growing(0.3, over, interval, steps) == pytest.approx(expected)


class Asked(Exception):
    """For a model, to train."""


@pytest.fixture
def argv(tmp_path, monkeypatch):
    monkeypatch.setitem(tt.PRESETS, "tiny", dataclasses.replace(tt.PRESETS["tiny"], num_layers=1, d_model=16, d_ff=8))
    toy_corpus.write_corpus(tmp_path, train=43, dev=5, test=5)
    sides = [[f"--{split}", str(tmp_path / f"{split}.en"), str(tmp_path / f"{split}.de")] for split in ("train", "dev")]
    argv = [*sides[0], *sides[1], "--vocab-size", "350", "--batch-tokens", "256", "--eval-every", "2"]
    return [*argv, "--dropout", "0.3", "--dropout-steps", "3", "--beam-size", "1", "--steps"]


def test_a_run_goes_on_with_the_dropout_of_its_step(argv, tmp_path, monkeypatch):
    """Which grows at the steps 2, as a third and two thirds of 3 steps have passed at that checkpoint, and 4."""

    def compiled(tt, args, strategy, config, recipe, steps):
        raise Asked(config.dropout)

    monkeypatch.setattr(learning, "compiled", compiled)
    run = tmp_path / "run"
    for step, rate in ((0, 0.0), (1, 0.0), (2, 0.2), (3, 0.2), (4, 0.3), (7, 0.3), (8, 0.3)):
        if step:
            checkpoint(run, step)
        with pytest.raises(Asked) as asked:
            translation.main([*argv, "8", "--run", str(run)])
        assert asked.value.args == (pytest.approx(rate),)


@pytest.mark.parametrize("steps", [8, 3])
def test_the_rate_falls_in_a_runs_last_steps(steps, argv, tmp_path, monkeypatch):
    """Which are all that there are, where more are asked for."""

    def schedule(d_model, warmup_steps, factor, cooldown_steps, train_steps):
        raise Asked(cooldown_steps, train_steps)

    monkeypatch.setattr(tt, "WarmupSchedule", schedule)
    with pytest.raises(Asked) as asked:
        translation.main([*argv, str(steps), "--cooldown-steps", "5", "--run", str(tmp_path / "run")])
    assert asked.value.args == (min(5, steps), steps)


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_with_the_weights_of_one_that_was_not(argv, tmp_path, monkeypatch):
    rates, compiled = [], learning.compiled

    def spied(tt, args, strategy, config, recipe, steps):
        rates.append((args.steps, config.dropout))
        return compiled(tt, args, strategy, config, recipe, steps)

    monkeypatch.setattr(learning, "compiled", spied)
    monkeypatch.setattr(translation, "publish", lambda *given: tmp_path)
    for run, *ends in (("whole", "8"), ("parts", "4", "6", "8")):
        for end in ends:
            translation.main([*argv, end, "--run", str(tmp_path / run)])
    parts = [(4, 0.0), (4, pytest.approx(0.2)), (6, 0.3), (8, 0.3)]
    assert rates == [(8, 0.0), (8, pytest.approx(0.2)), (8, 0.3), *parts]
    same_weights(tmp_path / "whole", tmp_path / "parts")
