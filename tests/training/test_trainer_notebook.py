"""A Trainer in a notebook: cells that are run again, changed fields, runs that are gone, callbacks that raise."""

import dataclasses
import shutil

import keras
import numpy as np
import pytest
from test_trainer import CONFIG, RECIPE, one_model  # noqa: F401 (a fixture)

import tf_transformer as tt
from tf_transformer.training.run import Run

pytestmark = pytest.mark.usefixtures("unscored")
SHORT = dataclasses.replace(RECIPE, steps=4, eval_every=2)


def trainer_of(folder, corpus, recipe=SHORT, **options):
    return tt.Trainer(folder, CONFIG, corpus, recipe, **options)


CHANGES = {
    "path": "elsewhere",
    "config": dataclasses.replace(CONFIG, d_ff=16),
    "recipe": dataclasses.replace(SHORT, steps=8),
    "metric": "chrF",
    "max_length": 16,
    "schedule": tt.WarmupSchedule(16),
    "optimizer": keras.optimizers.SGD(0.1),
    "loss": tt.SmoothedCrossEntropy(),
    "tokenizer": None,
    "strategy": None,
    "start": None,
    "corpus": None,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_trainer_cannot_be_changed(name, corpus, tmp_path):
    trainer = trainer_of(tmp_path / "run", corpus)
    before = getattr(trainer, name)
    with pytest.raises(tt.BadInput, match=f"^{name}: cannot be changed in a Trainer. Make a new one, with {name}=...$"):
        setattr(trainer, name, CHANGES[name])
    assert getattr(trainer, name) is before
    assert {field.name for field in dataclasses.fields(trainer)} == {*CHANGES, "callbacks"}


def test_callbacks_are_checked_when_they_are_changed(corpus, tmp_path):
    trainer, mine = trainer_of(tmp_path / "run", corpus), keras.callbacks.TerminateOnNaN()
    trainer.callbacks = [mine]
    for wrong in (7, [keras.callbacks.ReduceLROnPlateau()], [keras.callbacks.EarlyStopping(restore_best_weights=True)]):
        with pytest.raises(tt.BadInput, match="^callbacks: "):
            trainer.callbacks = wrong
    assert trainer.callbacks == [mine]


@pytest.mark.program
def test_a_run_that_is_gone_takes_the_model_with_it(one_model, corpus, tmp_path):  # noqa: F811
    """Training begins again as in a new trainer: the same losses, and a history of these steps only."""
    trainer = trainer_of(tmp_path / "run", corpus)
    first = trainer.fit()
    shutil.rmtree(tmp_path / "run")
    again = trainer.fit()
    assert again.history["loss"] == first.history["loss"] and again.history["step"] == [2, 4]
    # Its ids are stored again, also by a trainer that read them, and are those of the tokenizer in the directory.
    trainer = trainer_of(tmp_path / "run", corpus)
    trainer.fit()  # nothing to train
    shutil.rmtree(tmp_path / "run")
    assert trainer.fit().history["loss"] == first.history["loss"]
    ids = corpus.ids(dataclasses.replace(batching_of(trainer), folder=trainer.run.path / "ids"))
    assert isinstance(ids.lines, np.memmap)
    shutil.rmtree(tmp_path / "run" / "checkpoints")  # the model alone
    assert trainer.fit().history["loss"] == first.history["loss"]


def batching_of(trainer):
    from tf_transformer.data.corpus import Batching
    from tf_transformer.models.families import load_tokenizer

    return Batching(load_tokenizer(trainer.run.path / "tokenizer.model"), RECIPE.batch_tokens, 1)


@pytest.mark.program
def test_an_optimizer_trains_one_model(corpus, tmp_path):
    recipe, optimizer = tt.Recipe(steps=1, batch_tokens=512, average_last=1), keras.optimizers.SGD(0.1)
    first, second = (trainer_of(tmp_path / name, corpus, recipe, optimizer=optimizer) for name in ("a", "b"))
    first.fit()
    one, other = "^optimizer: expected a new one", "expected a checkpoint of the optimizer's model, found none"
    for make in (second.fit, lambda: trainer_of(tmp_path / "c", corpus, recipe, optimizer=optimizer)):
        with pytest.raises(tt.BadInput, match=one):
            make()
    assert not (tmp_path / "b").exists()
    first.fit()  # the same run
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(tt.BadInput, match=other):
        first.fit()
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"warmup_steps": 77}, {"schedule": True}, "schedule: cannot be combined with warmup_steps=77"),
        ({"learning_rate": 0.1}, {"schedule": True}, "schedule: cannot be combined with learning_rate=0.1"),
        ({"learning_rate_factor": 3}, {"schedule": True}, "schedule: cannot be combined with learning_rate_factor=3.0"),
        ({"warmup_steps": 77}, {"optimizer": True}, "optimizer: cannot be combined with warmup_steps=77"),
        ({"cooldown_steps": 7}, {"optimizer": True}, "optimizer: cannot be combined with cooldown_steps=7"),
        ({"clip_norm": 1}, {"optimizer": True}, "optimizer: cannot be combined with clip_norm=1.0"),
        (
            {"learning_rate": 0.1, "learning_rate_factor": 2},
            {},
            "learning_rate: cannot be combined with learning_rate_f",
        ),
        ({}, {"optimizer": True, "schedule": True}, "optimizer: cannot be combined with schedule"),
    ],
)
def test_settings_that_nothing_reads_raise(settings, options, message, corpus, tmp_path):
    made = {"schedule": tt.WarmupSchedule(16), "optimizer": keras.optimizers.SGD(0.1)}
    with pytest.raises(tt.BadInput, match=f"^{message}"):
        trainer_of(tmp_path, corpus, tt.Recipe(steps=1, **settings), **{name: made[name] for name in options})


def test_a_run_of_an_earlier_version_with_such_settings_resumes(corpus, tmp_path):
    """They were stored, and nothing read them."""
    made = trainer_of(tmp_path, corpus, tt.Recipe(steps=1), schedule=tt.WarmupSchedule(16))
    settings = made.settings
    Run(tmp_path).begin(settings | {"recipe": settings["recipe"] | {"warmup_steps": 77, "learning_rate_factor": 3.0}})
    assert made.run.exists(settings)


class Raising(keras.callbacks.Callback):
    """Raises in step 5 at one of Keras's hooks, or from a metric."""

    def __init__(self, hook):
        super().__init__()
        self.raises = True
        setattr(self, hook, self.hook)

    def hook(self, *args, **kwargs):
        step = int(self.model.optimizer.iterations) if self.model else 0
        if self.raises and step == 5:
            raise RuntimeError("out of memory")


@pytest.mark.program
@pytest.mark.parametrize("hook", ["on_epoch_end", "on_train_batch_end", "on_test_begin", "on_train_batch_begin"])
def test_an_error_in_a_callback_loses_no_step(hook, one_model, corpus, tmp_path):  # noqa: F811
    """The next `fit` resumes after step 5, and ends like an uninterrupted one."""
    recipe = dataclasses.replace(RECIPE, eval_every=5 if hook in ("on_epoch_end", "on_test_begin") else 6, steps=10)
    if hook not in ("on_epoch_end", "on_test_begin"):
        recipe = dataclasses.replace(recipe, steps=6)
    want = trainer_of(tmp_path / "whole", corpus, recipe).fit()
    raising = Raising(hook)
    trainer = trainer_of(tmp_path / "run", corpus, recipe, callbacks=[raising])
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.fit()
    raising.raises = False
    assert [int(path.name.split("-")[1]) for path in Run(tmp_path / "run").checkpoints()] == [5]
    got = trainer_of(tmp_path / "run", corpus, recipe).fit()
    assert trainer.run.path == tmp_path / "run" and got.history["step"] == want.history["step"]
    np.testing.assert_allclose(got.history["loss"], want.history["loss"], rtol=1e-6)


@pytest.mark.program
def test_a_metric_that_raises_loses_no_step(one_model, corpus, tmp_path):  # noqa: F811
    """Its score is added when it works again, and the loss of the dev set, which the error had lost."""
    broken = [True]

    def length(outputs, sources, references):
        if broken[0]:
            raise MemoryError("no memory")
        return 1.0

    trainer = trainer_of(tmp_path / "run", corpus, metric=length)
    with pytest.raises(MemoryError):
        trainer.fit()
    assert [path.name for path in trainer.run.checkpoints()] == ["step-00000002"]
    broken.clear()
    broken.append(False)
    history = trainer.fit().history
    assert history["step"] == [2, 4] and history["dev_length"] == [1.0, 1.0]
    expected = trainer_of(tmp_path / "other", corpus).fit().history["val_loss"]
    assert history["val_loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.program
def test_a_step_that_is_not_finite_is_not_saved(one_model, corpus, tmp_path):  # noqa: F811
    class Spoiled(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == 3:
                self.model.weights[0].assign(np.full(self.model.weights[0].shape, np.nan))

    trainer = trainer_of(tmp_path / "run", corpus, callbacks=[Spoiled()])
    with pytest.raises(tt.BadInput, match="step 4: the loss or a gradient is not finite"):
        trainer.fit()
    assert [path.name for path in trainer.run.checkpoints()] == ["step-00000002"]
