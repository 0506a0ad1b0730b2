"""Custom schedules, optimizers, callbacks and models of a Trainer, and frozen weights of a start."""

import contextlib
import dataclasses

import h5py
import keras
import numpy as np
import pytest
from programs import same_weights
from test_trainer import CONFIG, MAKE_MODEL, RECIPE, fresh_model

import tf_transformer as tt
from tf_transformer.serving import saving
from tf_transformer.training.callbacks import Checkpoints
from tf_transformer.training.run import Run

pytestmark = pytest.mark.usefixtures("unscored")


@pytest.fixture
def eager(monkeypatch):
    """Trains without a graph. For few steps this is faster than tracing one."""

    def make_model(trainer, steps):
        model = MAKE_MODEL(trainer, steps)
        model.run_eagerly = True
        return model

    monkeypatch.setattr(tt.Trainer, "make_model", make_model)


class Halved(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule without `get_config`."""

    def __call__(self, step):
        return 0.25 * 0.5 ** keras.ops.cast(step, "float32")


@pytest.mark.program
def test_a_custom_schedule_and_callback(eager, corpus, tmp_path):
    """The run may be resumed with new objects."""
    recipe = tt.Recipe(steps=3, batch_tokens=512, eval_every=2, cooldown_steps=2, dev_sentences=3)
    for name, ends in (("whole", [None]), ("parts", [1, None])):
        for until in ends:
            callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(mine=epoch + 0.5))
            trainer = tt.Trainer(tmp_path / name, CONFIG, corpus, recipe, schedule=Halved(), callbacks=[callback])
            history = trainer.fit(until)
        rows = [(row["step"], row["learning_rate"], row["mine"]) for row in history]
        # Keras returns the rate of the next step: 0.25 / 2 ** 2, times 1 of 2 steps left, and 0 after the last one.
        assert rows == [(2, pytest.approx(0.25 / 4 / 2), 0.5), (3, 0.0, 1.5)]
    same_weights(tmp_path / "whole", tmp_path / "parts")
    assert trainer.run.settings()["schedule"] == "Halved"
    with pytest.raises(tt.BadInput, match='schedule was "Halved", now null'):
        tt.Trainer(tmp_path / "whole", CONFIG, corpus, recipe).fit()


SGD, AVERAGED = keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1, use_ema=True)
PLATEAU, EPOCHS = keras.callbacks.ReduceLROnPlateau(), keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)


@pytest.mark.parametrize(
    ("options", "recipe", "message"),
    [
        ({"optimizer": SGD, "schedule": Halved()}, {}, "^optimizer: cannot be combined with schedule"),
        ({"optimizer": SGD}, {"cooldown_steps": 3}, "^optimizer: cannot be combined with cooldown_steps"),
        ({"optimizer": SGD}, {"clip_norm": 1.0}, "^optimizer: cannot be combined with clip_norm"),
        ({"optimizer": SGD}, {"learning_rate": 5e-5}, "^optimizer: cannot be combined with learning_rate"),
        ({"schedule": Halved()}, {"learning_rate": 5e-5}, "^schedule: cannot be combined with learning_rate"),
        (
            {"optimizer": AVERAGED},
            {},
            r"^optimizer: .* got use_ema .* Give Recipe\(ema_momentum=...\) and no optimizer$",
        ),
        ({"optimizer": keras.optimizers.LossScaleOptimizer(AVERAGED)}, {}, "^optimizer: .* without moving averages"),
        ({"optimizer": SGD}, {"ema_momentum": 0.9}, "^optimizer: .* without moving averages"),
        ({"callbacks": [keras.callbacks.SwapEMAWeights()]}, {}, "^callbacks: .* SwapEMAWeights. Pass Recipe"),
        ({"callbacks": [PLATEAU]}, {}, "^callbacks: .* rate of a schedule, got ReduceLROnPlateau. Pass an optimizer"),
        ({"callbacks": [EPOCHS], "schedule": Halved()}, {}, "^callbacks: .* got LearningRateScheduler"),
        (
            {"callbacks": [EPOCHS], "optimizer": keras.optimizers.SGD(Halved())},
            {},
            "^callbacks: .* LearningRateScheduler",
        ),
        ({"callbacks": [PLATEAU, EPOCHS], "optimizer": SGD}, {}, None),
        ({"metric": max}, {"metric": "TER"}, "^metric: cannot be combined with the recipe's, TER"),
        ({}, {"metric": "F1"}, "^name of a metric: expected one of BLEU, .*, got 'F1'"),
    ],
)
def test_settings_without_effect_are_an_error(options, recipe, message, corpus, tmp_path):
    arguments = {"path": tmp_path, "config": CONFIG, "corpus": corpus, "recipe": tt.Recipe(**recipe)} | options
    with pytest.raises(tt.BadInput, match=message) if message else contextlib.nullcontext():
        tt.Trainer(**arguments)


def stored(run):
    """Returns the arrays of the newest checkpoint by name."""
    arrays = {}
    with h5py.File(run.checkpoints()[-1] / "model.weights.h5") as file:
        file.visititems(lambda name, item: arrays.update({name: item[()]} if isinstance(item, h5py.Dataset) else {}))
    return arrays


@pytest.mark.program
def test_moving_averages_are_scored_stored_and_resumed(corpus, tmp_path, monkeypatch):
    """They equal those of a loop in NumPy. A run that was stopped twice has the same weights."""
    monkeypatch.setattr(tt.Trainer, "make_model", fresh_model)
    raw, scored = [], []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raw.append([np.array(keras.ops.convert_to_numpy(weight)) for weight in self.model.trainable_weights])

        def on_epoch_end(self, epoch, logs=None):
            scored.append([np.array(keras.ops.convert_to_numpy(weight)) for weight in self.model.trainable_weights])

    recipe = dataclasses.replace(RECIPE, steps=6, ema_momentum=0.7)
    whole = tt.Trainer(tmp_path / "whole", CONFIG, corpus, recipe, callbacks=[Watch()])
    whole.fit()
    parts = tt.Trainer(tmp_path / "parts", CONFIG, corpus, recipe)
    parts.fit(until=2)
    parts.fit(until=5)  # calls Keras's `fit` twice
    tt.Trainer(tmp_path / "parts", CONFIG, corpus, recipe).fit()
    average = raw[0]
    for step, weights in enumerate(raw[1:], 2):
        average = [0.7 * old + 0.3 * new for old, new in zip(average, weights, strict=True)]
        if step % 3 == 0:
            for weight, expected in zip(scored.pop(0), average, strict=True):
                np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=1e-7)
    for weight, expected, last in zip(whole.translator().model.trainable_weights, average, raw[-1], strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=1e-7)  # only the last checkpoint
        assert np.abs(last - expected).max() > 1e-3
    arrays, others = stored(whole.run), stored(parts.run)
    assert arrays.keys() == others.keys() and len(arrays) > 4 * len(average)  # weights, averages and two moments
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name)


@pytest.mark.slow
def test_a_run_that_a_callback_stopped_resumes_on_request(corpus, tmp_path, capsys, monkeypatch):
    """Keras's EarlyStopping expects each loss to be better by 9 than the first."""
    monkeypatch.setattr(tt.Trainer, "make_model", fresh_model)
    recipe = dataclasses.replace(RECIPE, steps=12, eval_every=2)

    def fit(until=None, **changes):
        impatient = keras.callbacks.EarlyStopping("loss", min_delta=9, patience=2)
        trainer = tt.Trainer(tmp_path, CONFIG, corpus, dataclasses.replace(recipe, **changes), callbacks=[impatient])
        return [row["step"] for row in trainer.fit(until)], capsys.readouterr().out

    steps, printed = fit()
    assert steps == [2, 4, 6] and "stopped at step 6 by a callback" in printed
    for _ in range(2):
        steps, printed = fit()
        assert steps == [2, 4, 6] and "going on" not in printed
        assert (
            "a callback stopped this run at step 6 of 12. To resume, call fit(until=12) or pass more steps." in printed
        )
    steps, printed = fit(until=8)
    assert steps == [2, 4, 6, 8] and "going on from the checkpoint at step 6 of 12" in printed
    steps, printed = fit()  # patience restarts
    assert steps == [2, 4, 6, 8, 10, 12] and "stopped" not in printed
    steps, printed = fit(until=18, steps=20)
    assert steps[-1] == 18 and "stopped at step 18 by a callback" in printed
    assert "a callback stopped this run at step 18 of 20" in fit(steps=20)[1]
    assert fit(steps=22)[0][-1] == 22
    with pytest.raises(tt.BadInput, match="callbacks: cannot use restore_best_weights"):
        tt.Trainer(tmp_path, CONFIG, corpus, callbacks=[keras.callbacks.EarlyStopping(restore_best_weights=True)])


def test_other_settings_of_a_schedule_or_an_optimizer_are_an_error(corpus, tmp_path):
    cosine, sgd = keras.optimizers.schedules.CosineDecay, keras.optimizers.SGD

    recipe = dataclasses.replace(RECIPE, warmup_steps=4_000)

    def settings(**options):
        return tt.Trainer(tmp_path / "run", CONFIG, corpus, recipe, **options).settings

    run = Run(tmp_path / "run")
    for first, same, other, message in [
        (
            {"schedule": cosine(0.5, np.int64(7))},
            {"schedule": cosine(0.5, 7)},
            {"schedule": cosine(0.5, 8)},
            "configuration: schedule.config.decay_steps was 7, now 8; give",
        ),
        (
            {"optimizer": sgd(cosine(0.5, 7))},
            {"optimizer": sgd(cosine(0.5, 7))},
            {"optimizer": sgd(cosine(0.25, 7))},
            "configuration: optimizer.config.learning_rate.config.initial_learning_rate was 0.5, now 0.25; give",
        ),
        ({"optimizer": sgd(Halved())}, {"optimizer": sgd(Halved())}, {}, 'optimizer was "SGD", now null'),
    ]:
        run.begin(settings(**first))
        assert run.exists(settings(**same))
        with pytest.raises(tt.BadInput, match=message):
            run.exists(settings(**other))
    changed = tt.Trainer(tmp_path / "run", CONFIG, corpus, recipe, optimizer=sgd(0.5))
    before = changed.settings
    changed.optimizer.learning_rate = 0.1  # a callback may do this
    assert changed.settings == before


class Unnamed(tt.Transformer):
    """A model whose encoder layers have no names, so Keras numbers them."""

    def make_encoder_layers(self):
        return [tt.layers.EncoderLayer(**self.layer_options()) for _ in range(self.config.num_layers)]


@pytest.mark.program
def test_the_weights_of_a_start_without_names(eager, corpus, translator, tmp_path):
    start = tt.Translator(Unnamed(tt.TransformerConfig(1, 12, 17, 3, vocab_size=350)), translator.tokenizer)
    recipe, still = tt.Recipe(steps=1, batch_tokens=512, average_last=1), keras.optimizers.SGD(0.0)
    trainer = tt.Trainer(tmp_path / "run", start.model.config, corpus, recipe, start=start, optimizer=still)
    trainer.fit()
    assert trainer.run.keep == 2  # one may be damaged
    weights = tt.load(tmp_path / "run").model.get_weights()
    for weight, other in zip(weights, start.model.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, other)


class Deep(tt.Transformer):
    """A model of another depth than in its configuration."""

    def make_encoder_layers(self):
        return [tt.layers.EncoderLayer(**self.layer_options(), name=f"encoder_{i}") for i in range(2)]


def test_a_start_with_other_weights_is_an_error(corpus, translator, tmp_path, monkeypatch):
    """The run would have to rebuild it from its configuration, and so would `from_pretrained`."""
    config = tt.TransformerConfig(1, 12, 17, 3, vocab_size=350)
    deep = tt.Translator(Deep(config), translator.tokenizer)
    message = "expected the weights of a Transformer with this configuration, got shape .* instead of"
    with pytest.raises(tt.BadInput, match=f"^start: {message}"):
        tt.Trainer(tmp_path / "run", config, corpus, RECIPE, start=deep)
    assert not (tmp_path / "run").exists()
    stored = dict.fromkeys(saving.LIMITS, 1) | {"config": config.to_dict(), "dtype": "float32"}
    export = stored, translator.tokenizer.model, [np.array(weight) for weight in deep.model.weights], None
    monkeypatch.setattr(saving, "read_export", lambda path: export)
    with pytest.raises(tt.BadInput, match=f"^export: {message}"):
        saving.from_saved_model("export")


@pytest.mark.program
def test_layers_that_are_frozen_in_a_start_are_not_trained(eager, corpus, translator, tmp_path):
    """The run may resume without the start, but not with other frozen layers."""
    config = tt.TransformerConfig(1, 12, 17, 3, vocab_size=350)
    start = tt.Translator(tt.Transformer(config), translator.tokenizer)
    start.model.encoder_layers[0].trainable = start.model.embedding.trainable = False
    recipe = dataclasses.replace(RECIPE, steps=2, eval_every=2)
    tt.Trainer(tmp_path / "run", config, corpus, recipe, start=start).fit(until=1)
    later = tt.Trainer(tmp_path / "run", config, corpus, recipe)
    later.fit(until=1)
    assert all("decoder_0" in weight.path for weight in later._model.trainable_weights)
    assert Run(tmp_path / "run").settings()["frozen"] == ["embedding", "encoder_0"]
    moved = dict.fromkeys(("embedding", "encoder_0", "decoder_0"), 0.0)
    for weight, before in zip(later._model.weights, start.model.weights, strict=True):
        part = next(part for part in moved if part in weight.path)
        moved[part] = max(moved[part], np.abs(np.asarray(weight) - np.asarray(before)).max())
    assert moved["embedding"] == moved["encoder_0"] == 0 < moved["decoder_0"]
    start.model.encoder_layers[0].trainable = True
    with pytest.raises(tt.BadInput, match=r'frozen was \["embedding", "encoder_0"\], now \["embedding"\]'):
        tt.Trainer(tmp_path / "run", config, corpus, recipe, start=start).fit()
    start.model.trainable = False
    with pytest.raises(tt.BadInput, match="start: .* all frozen"):
        tt.Trainer(tmp_path / "new", config, corpus, recipe, start=start)


def restarts(model):
    """Returns a function that resets a compiled model, as if another process had made it."""
    model.optimizer.build(model.trainable_variables)
    values = [(variable, np.array(variable)) for variable in [*model.variables, *model.optimizer.variables]]
    return lambda: [variable.assign(value) for variable, value in values]


@pytest.mark.program
def test_epochs_of_a_fit_by_hand_resume_in_their_order(corpus, text, tmp_path):
    """Batches, weights and moving averages are those of an uninterrupted fit."""
    tokenizer = corpus.train_tokenizer(350, "bpe")
    files = text / "train.en", text / "train.de"
    model = tt.Transformer(CONFIG)
    model.build()
    model.compile(tt.Adam(0.01, use_ema=True, ema_momentum=0.7), tt.SmoothedCrossEntropy())
    restart = restarts(model)

    def fit(folder, epochs):
        restart()
        losses, checkpoints = [], Checkpoints(folder, tokenizer)
        batches = tt.data.text_pairs(*files, tokenizer, batch_tokens=4_096, first_epoch=checkpoints.epoch)
        dev = tt.data.text_pairs(text / "dev.en", text / "dev.de", tokenizer, batch_tokens=4_096)
        log = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
        model.fit(batches, epochs=epochs, validation_data=dev, callbacks=[log, checkpoints], verbose=0)
        return losses

    losses = fit(tmp_path / "whole", 2)
    assert fit(tmp_path / "parts", 1) + fit(tmp_path / "parts", 2) == losses
    arrays, others = (stored(Run(tmp_path / name)) for name in ("whole", "parts"))
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name)
    assert isinstance(tt.load(tmp_path / "parts"), tt.Translator)
    other = tt.Transformer(dataclasses.replace(CONFIG, d_ff=11))
    other.build()
    other.compile("adam", tt.SmoothedCrossEntropy())
    with pytest.raises(tt.BadInput, match="model.d_ff was 8, now 11"):
        ids = np.ones((2, 3), "int32")
        other.fit((ids, ids), ids, callbacks=[Checkpoints(tmp_path / "parts")], verbose=0)
    assert not Run._locks


def test_checkpoints_of_a_custom_model(tmp_path):
    """It has our layers and Keras's. Called again, `fit` makes the missing epochs."""
    ids = keras.Input((None,), dtype="int32")
    x = tt.layers.EncoderLayer(num_heads=2, d_ff=5)(tt.layers.PositionalEmbedding(19, 4)(ids))
    model = keras.Model(ids, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(x)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    checkpoints = Checkpoints(tmp_path / "run")
    for epochs, steps in ((1, [2]), (3, [2, 4, 6]), (3, [2, 4, 6])):
        model.fit(np.ones((4, 7)), np.ones(4), 2, epochs, verbose=0, callbacks=[checkpoints])
        assert [row["step"] for row in checkpoints.run.history] == steps
    assert int(model.optimizer.iterations) == 6 and not Run._locks


class Focal(tt.SmoothedCrossEntropy):
    """A loss of a user's own."""

    def __init__(self, gamma=2.0, **kwargs):
        super().__init__(**kwargs)
        self.gamma = gamma

    def call(self, y_true, y_pred):
        return self.gamma * super().call(y_true, y_pred)

    def get_config(self):
        return super().get_config() | {"gamma": self.gamma}


def test_a_loss_of_ones_own(tmp_path, corpus):
    recipe = tt.Recipe(steps=2, batch_tokens=256, eval_every=1)
    losses = []
    for name, loss in (("usual", None), ("own", Focal(2.0, label_smoothing=CONFIG.label_smoothing))):
        trainer = tt.Trainer(tmp_path / name, CONFIG, corpus, recipe, loss=loss)
        trainer.fit()
        losses.append(trainer.run.history[0]["loss"])
    assert losses[1] == pytest.approx(2 * losses[0], rel=1e-4)
    with pytest.raises(tt.BadInput, match=r"loss\.config\.gamma"):
        tt.Trainer(
            tmp_path / "own", CONFIG, corpus, recipe, loss=Focal(3.0, label_smoothing=CONFIG.label_smoothing)
        ).fit()


def test_a_loss_must_fit_the_batches(tmp_path, corpus):
    with pytest.raises(tt.BadInput, match="loss: expected one with ignore_class=0, the padding of batches, got None"):
        tt.Trainer(tmp_path, CONFIG, corpus, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    smooth = dataclasses.replace(CONFIG, label_smoothing=0.3)
    with pytest.raises(tt.BadInput, match="loss: cannot be combined with label_smoothing=0.3, which is not read"):
        tt.Trainer(tmp_path, smooth, corpus, loss=Focal())
