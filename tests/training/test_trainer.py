"""The Trainer: runs that are stopped, killed and resumed, and settings that change or don't fit."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
import signal
import socket
from unittest import mock

import keras
import numpy as np
import portalocker
import pytest
import tensorflow as tf
from programs import same_weights

import tf_transformer as tt
from tf_transformer.data.corpus import Batching, Corpus
from tf_transformer.data.ids import Ids
from tf_transformer.data.sources import MemorySource
from tf_transformer.models.families import build_model
from tf_transformer.training import trainer as trainers
from tf_transformer.training.callbacks import TrainingInterrupted
from tf_transformer.training.losses import average_weights
from tf_transformer.training.run import LOCK, Run
from tf_transformer.utils.files import locked

CONFIG = dataclasses.replace(tt.PRESETS["tiny"], num_layers=1, d_model=16, d_ff=8, vocab_size=350)
RECIPE = tt.Recipe(steps=7, batch_tokens=512, warmup_steps=3, eval_every=3, dev_sentences=3)


MAKE_MODEL = tt.Trainer.make_model


@functools.cache
def traced_model(recipe):
    """Returns a model for all tests, since tracing its step takes seconds, and its variables with their values."""
    corpus = Corpus(MemorySource(["a"], ["b"]), (["a"], ["b"]))
    model = MAKE_MODEL(tt.Trainer("nowhere", CONFIG, corpus, recipe), RECIPE.steps)
    model.optimizer.build(model.trainable_variables)
    model.make_train_function()
    variables = [*model.variables, *model.optimizer.variables]
    variables += [model.steps_made, model.not_finite, model.not_finite_steps]
    return model, [(variable, np.array(variable)) for variable in variables]


def fresh_model(trainer, steps):
    """Replaces `make_model`. Steps and checkpoints do not change the model if its rate has no cooldown."""
    assert trainer.config == CONFIG and not (trainer.recipe.cooldown_steps or trainer.optimizer or trainer.schedule)
    same = {"steps": RECIPE.steps, "eval_every": RECIPE.eval_every, "early_stopping_patience": None}
    model, values = traced_model(dataclasses.replace(trainer.recipe, **same))
    for variable, value in values:
        variable.assign(value)
    return model


@pytest.fixture
def one_model(monkeypatch):
    monkeypatch.setattr(tt.Trainer, "make_model", fresh_model)


@pytest.mark.parametrize(("batches", "tokens", "name"), [(6, 25_000, "multi30k"), (1, 4_096, "tiny"), (20, 25_000, "")])
def test_a_warning_of_few_batches_names_a_recipe(batches, tokens, name, capsys):
    """Six batches of 25,000 tokens are thirty-six of 4,096."""
    trainers._warn_of_few(batches, tokens)
    printed = capsys.readouterr().out
    assert printed == (
        f"warning: a pass over this corpus is only {batches} batches of {tokens:,} tokens. The recipe "
        f"{name!r} has {tt.RECIPES[name].batch_tokens:,} tokens per batch.\n"
        if name
        else ""
    )


@pytest.mark.program
def test_the_best_checkpoint_of_an_interrupted_run(one_model, unscored, corpus, tmp_path):
    """It is that of an uninterrupted run, also if a signal ends the scoring of the best, or of the last."""
    scores = [None, 1, 5, 9, 3, 9, 2, 1]

    def trained(name, *signals):
        signals = list(signals)

        def length(outputs, sources, references):
            assert outputs == sources == corpus.dev[0][::8] and len(references) == 3
            step = int(trainer._model.optimizer.iterations)
            if step in signals:
                signals.remove(step)
                signal.raise_signal(signal.SIGTERM)
            return scores[step]

        recipe = dataclasses.replace(RECIPE, eval_every=1, early_stopping_patience=3, average="best", average_last=1)
        for interrupted in (*signals, None):
            trainer = tt.Trainer(tmp_path / name, CONFIG, corpus, recipe, metric=length)
            with pytest.raises(TrainingInterrupted) if interrupted else contextlib.nullcontext():
                trainer.fit()
            if interrupted:
                assert "dev_length" not in trainer.run.history[-1] and trainer.run.history[-1]["step"] == interrupted
        return trainer.run

    whole, parts = trained("whole"), trained("parts", 3, 6)
    for run in (whole, parts):
        assert [row["dev_length"] for row in run.history] == [1, 5, 9, 3, 9, 2]
        assert [path.name for path in run.checkpoints()] == [f"step-0000000{step}" for step in (3, 5, 6)]
        assert [path.name for path in run.averaged(1)] == ["step-00000003"]
    same_weights(whole.path, parts.path)
    expected = build_model(CONFIG, "float32")
    for step in (None, 5):
        average_weights(expected, [whole.path / f"checkpoints/step-0000000{step or 3}/model.weights.h5"])
        loaded = tt.load(whole.path, step=step) if step else tt.load(whole.path)
        for weight, other in zip(loaded.model.get_weights(), expected.get_weights(), strict=True):
            np.testing.assert_array_equal(weight, other)
    with pytest.raises(tt.BadInput, match="whole: step: expected one of step-00000003, .*, got 4"):
        tt.load(whole.path, step=4)


@pytest.mark.slow
def test_a_compiled_step_gets_the_shapes_that_were_counted(unscored, corpus, tmp_path, monkeypatch, capsys):
    """Each batch has its bucket's shape, and trains like the narrow one."""
    losses, shapes = {}, set()
    batch = Ids.batch
    for switch in ("on", "off"):
        monkeypatch.setattr(Ids, "batch", lambda *args: shapes.add(args[2:]) or batch(*args))
        recipe = dataclasses.replace(RECIPE, jit_compile=switch, steps=2, batch_tokens=2_048)
        config = dataclasses.replace(CONFIG, dropout=0.0)
        history = tt.Trainer(tmp_path / switch, config, corpus, recipe).fit()
        losses[switch] = [row[name] for row in history for name in ("loss", "val_loss", "accuracy", "target_tokens")]
        printed = capsys.readouterr().out
        count = re.search(r"XLA compiles the step for (\d+) shapes of batches", printed)
        assert bool(count) == (switch == "on")
        if count:
            batching = Batching(tt.Tokenizer.load(tmp_path / "on/tokenizer.model"), 2_048, recipe.seed)
            of_train, of_dev = (set(made(batching).shapes) for made in (corpus.batches, corpus.dev_batches))
            assert int(count[1]) == len(of_train) and {shape for (shape,) in shapes} <= of_train | of_dev | {None}
            assert len(shapes) > 2
            shapes.clear()
    assert shapes == {(None,)}
    np.testing.assert_allclose(losses["on"], losses["off"], rtol=1e-5)


@pytest.mark.program
def test_a_run_is_opened_and_scored(one_model, unscored, corpus, text, tmp_path):
    trainer = tt.Trainer(tmp_path, CONFIG, corpus, RECIPE)
    trainer.fit(until=2)
    scores = trainer.evaluate((text / "test.en", text / "test.de"), list)
    assert set(scores) == {"BLEU", "chrF"} and scores["BLEU"].signature.startswith("nrefs:1|case:mixed")
    translator = trainer.translator(beam_size=2)
    assert isinstance(translator, tt.Translator) and translator.beam_size == 2
    for weight, other in zip(tt.load(tmp_path).model.weights, translator.model.weights, strict=True):
        np.testing.assert_array_equal(weight, other)
    assert isinstance(tt.load([tmp_path, tmp_path]).model, tt.Ensemble)
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["kind"] == "translation"
    assert tt.Recipe(**settings["recipe"]) == trainer.recipe
    files = [text / "train.en", text / "train.de"]
    assert settings["corpus"] == {
        "train": [str(file) for file in files],
        "sha256": [hashlib.sha256(file.read_bytes()).hexdigest() for file in files],
        "skip_bad_lines": False,
    }
    with pytest.raises(tt.BadInput, match="the training set has changed: grammar; the dev set has changed; give"):
        tt.Trainer(tmp_path, CONFIG, tt.ToyCorpus(), RECIPE).fit()


def test_several_devices_cannot_use_jit_compile(corpus, tmp_path):
    """TensorFlow would raise a long error about the variables of the second device."""
    two = mock.create_autospec(tf.distribute.Strategy, instance=True, num_replicas_in_sync=2, cluster_resolver=None)
    for when in ("auto", "off"):
        tt.Trainer(tmp_path, CONFIG, corpus, dataclasses.replace(RECIPE, jit_compile=when), strategy=two)
    with pytest.raises(tt.BadInput, match="jit_compile: expected auto or off on 2 devices, got on"):
        tt.Trainer(tmp_path, CONFIG, corpus, dataclasses.replace(RECIPE, jit_compile="on"), strategy=two)


@pytest.mark.parametrize(
    ("until", "message"),
    [(0, "a positive whole number below 2..31 or None, got 0"), (8, "at most 7, the recipe's last step, got 8")],
)
def test_a_fit_ends_within_the_recipe(until, message, corpus, tmp_path):
    with pytest.raises(tt.BadInput, match=f"^until: expected {message}$"):
        tt.Trainer(tmp_path, CONFIG, corpus, RECIPE).fit(until)


def test_a_run_without_a_checkpoint_needs_a_fit(corpus, tmp_path):
    trainer = tt.Trainer(tmp_path / "nope", CONFIG, corpus, RECIPE)
    for use in (trainer.translator, trainer.evaluate):
        with pytest.raises(tt.BadInput, match="nope: expected a run with a checkpoint, found none. Call fit first.$"):
            use()


def test_the_last_step_is_fixed_once_the_cooldown_has_begun(corpus, tmp_path, monkeypatch):
    """The learning rate would jump from 0 to its full value."""
    monkeypatch.setattr(tt.Trainer, "make_model", lambda *_: 1 / 0)
    recipe = dataclasses.replace(RECIPE, steps=20, cooldown_steps=7)

    def fit(step, **changes):
        monkeypatch.setattr(Run, "newest", lambda self: (self.path, {"step": step}))
        tt.Trainer(tmp_path, CONFIG, corpus, dataclasses.replace(recipe, **changes)).fit()

    with pytest.raises(ZeroDivisionError):
        fit(0)
    for step in (14, 20):
        with pytest.raises(tt.BadInput, match="steps: expected 20, since .* falls to 0 from step 13 on, got 40. Give"):
            fit(step, steps=40)
    with pytest.raises(ZeroDivisionError):
        fit(14)
    with pytest.raises(ZeroDivisionError):
        fit(13, steps=40)
    with pytest.raises(ZeroDivisionError):
        fit(20, steps=50)  # the run has 40 steps now, 33 of them with the full rate


def test_a_fit_that_raises_keeps_the_lock_of_another_run(corpus, tmp_path):
    """Otherwise a second process could train there."""
    run = Run(tmp_path)
    run.begin(tt.Trainer(tmp_path, CONFIG, corpus, RECIPE).settings)
    assert run.lock()
    with pytest.raises(tt.BadInput, match="recipe.seed was 1, now 7"):
        tt.Trainer(tmp_path, CONFIG, corpus, dataclasses.replace(RECIPE, seed=7)).fit()
    with open(tmp_path / ".lock") as file, pytest.raises(portalocker.LockException):
        portalocker.lock(file, portalocker.LOCK_EX | portalocker.LOCK_NB)
    run.unlock()


def test_fit_does_not_train_a_run_in_use(corpus, tmp_path):
    """The lock of this thread is like that of another process for another thread's `Run`."""
    trainer = tt.Trainer(tmp_path / "run", CONFIG, corpus, RECIPE)
    trainer.run.begin(trainer.settings)
    owner = f"process {os.getpid()} on {socket.gethostname()}"
    with locked(tmp_path / "run" / LOCK, "{owner}"), pytest.raises(tt.BadInput, match=f"run: .*; {owner} is training"):
        trainer.fit()
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"config.json", LOCK} and not Run._locks


def test_a_run_that_another_process_creates_is_not_overwritten(corpus, tmp_path):
    """A new run is locked late, since training its tokenizer takes a while."""

    class Slow(Corpus):
        def train_tokenizer(self, *args):
            other = tt.Trainer(tmp_path / "run", CONFIG, corpus, dataclasses.replace(RECIPE, seed=7))
            other.run.begin(other.settings)
            return super().train_tokenizer(*args)

    slow = Slow(corpus.train, corpus.dev)
    with pytest.raises(tt.BadInput, match="run: another process created this run. Call fit"):
        tt.Trainer(tmp_path / "run", CONFIG, slow, RECIPE).fit()
    assert Run(tmp_path / "run").settings()["recipe"]["seed"] == 7
    assert not (tmp_path / "run/tokenizer.model").exists() and not Run._locks


@pytest.fixture
def keras_settings():
    yield keras.config
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


def test_a_run_stores_the_settings_of_keras(corpus, tmp_path, keras_settings):
    """They are the dtypes of metrics and, unless the recipe has one, of the model."""

    def settings(**recipe):
        return tt.Trainer(tmp_path, CONFIG, corpus, dataclasses.replace(RECIPE, **recipe)).settings

    plain, mixed = settings(), settings(mixed_precision="float16")
    assert "keras" not in plain
    keras_settings.set_dtype_policy("mixed_bfloat16")
    assert settings(mixed_precision="float16") == mixed
    Run(tmp_path).begin(settings())
    assert Run(tmp_path).exists(settings())
    keras_settings.set_dtype_policy("float32")
    with pytest.raises(
        tt.BadInput, match='configuration: keras was {"dtype_policy": "mixed_bfloat16"}, now null; give'
    ):
        Run(tmp_path).exists(settings())
    Run(tmp_path).begin(plain)
    keras_settings.set_floatx("bfloat16")
    with pytest.raises(tt.BadInput, match='configuration: keras was null, now {"floatx": "bfloat16"}; give another'):
        Run(tmp_path).exists(settings())


def test_scores_of_lists(corpus, tmp_path):
    trainer = tt.Trainer(tmp_path, CONFIG, corpus, RECIPE)
    sides = ["A dog runs fast."], ["Ein Hund rennt schnell."]
    for texts in (sides, list(sides), tuple(map(np.array, sides))):
        scores = trainer.evaluate(texts, lambda sources: ["Ein Hund rennt schnell."] * len(sources))
        assert scores["BLEU"].value == pytest.approx(100)
    with pytest.raises(tt.BadInput, match=r"files: expected two lists, sources and references, got \(\['A"):
        trainer.evaluate((*sides, sides[0]))
    for wrong in (7, "test.en", (sides[0], "test.de")):
        with pytest.raises(tt.BadInput, match="files: expected .*list.*, got"):
            trainer.evaluate(wrong)
    with pytest.raises(tt.BadInput, match="got 1 translations and 2 references"):
        trainer.evaluate((sides[0], ["a", "b"]), lambda texts: texts)


@pytest.mark.parametrize("until", [None, 3])
def test_nothing_is_saved_after_a_step_that_is_not_finite(until, one_model, corpus, tmp_path):
    """`until` would save within an epoch."""

    def spoil(batch, logs):
        if batch == 1:
            trainer._model.embedding.embeddings.assign(np.full((350, 16), np.nan))

    spoiler = keras.callbacks.LambdaCallback(on_train_batch_begin=spoil)
    trainer = tt.Trainer(tmp_path, CONFIG, corpus, RECIPE, callbacks=[spoiler])
    with pytest.raises(tt.BadInput, match="step 2: the loss or a gradient is not finite, from lines "):
        trainer.fit(until)
    assert not trainer.run.checkpoints() and not Run._locks
