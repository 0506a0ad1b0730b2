"""The example of back-translation: the training data of each model."""

from types import SimpleNamespace

import pytest
from programs import fails, options

import tf_transformer as tt
from examples import back_translation


@pytest.mark.extensions
def test_training_data(text, tmp_path, monkeypatch, capsys):
    """The sources of additional pairs are not used, and only synthetic pairs have a tag."""
    english, german = ((text / f"train.{side}").read_text().splitlines() for side in ("en", "de"))
    trainers = {}
    monkeypatch.setattr(tt.Trainer, "fit", lambda self: trainers.update({self.run.path.name: self}))
    reverse = SimpleNamespace(sample=lambda texts, k: [f"{k} of {text}" for text in texts])
    monkeypatch.setattr(tt.Trainer, "translator", lambda self: reverse)
    argv = [*options(text), "--run", str(tmp_path), "--real", "31", "--synthetic", "17", "--k", "3", "--steps", "9"]
    back_translation.main(argv)
    real, extra = list(zip(english[:31], german[:31], strict=True)), german[31:48]
    expected = {"reverse": [pair[::-1] for pair in real], "real": real}
    expected["both"] = real + [(f"<bt> 3 of {text}", text) for text in extra]
    for (name, pairs), trainer in zip(expected.items(), trainers.values(), strict=True):
        assert [(source.decode(), target.decode()) for _, source, target in trainer.corpus.train.rows()] == pairs
        assert trainer.run.path == tmp_path / name and trainer.recipe.steps == 9
        sides = [(text / f"dev.{side}").read_text().splitlines() for side in ("en", "de")]
        assert trainer.corpus.dev == tuple(sides[::-1] if name == "reverse" else sides)
    assert "--train: expected 1,031 pairs, got 900" in fails(back_translation, [*argv, "--synthetic", 1_000], capsys)
