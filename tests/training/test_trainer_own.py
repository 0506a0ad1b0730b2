"""Schedules, optimizers, callbacks and models of one's own, and frozen weights of a start."""

import contextlib
import dataclasses

import h5py
import keras
import numpy as np
import pytest
from programs import same_weights
from test_trainer import CONFIG, RECIPE

import tf_transformer as tt
from tf_transformer.training.callbacks import Checkpoints
from tf_transformer.training.run import Run

pytestmark = pytest.mark.usefixtures("unscored")


@pytest.fixture(scope="module")
def corpus(text):
    return tt.TextCorpus((text / "train.en", text / "train.de"), (text / "dev.en", text / "dev.de"))


class Halved(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that Keras does not know."""

    def __call__(self, step):
        return 0.25 * 0.5 ** keras.ops.cast(step, "float32")


@pytest.mark.program
def test_another_schedule_and_callbacks_of_ones_own(corpus, tmp_path):
    rows = []
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(mine=epoch + 0.5))
    recipe = dataclasses.replace(RECIPE, steps=6, cooldown_steps=4)
    trainer = tt.Trainer(tmp_path / "a", CONFIG, corpus, recipe, schedule=Halved(), callbacks=[callback])
    for row in trainer.fit():
        rows.append((row["step"], row["learning_rate"], row["mine"]))
    # Keras gives the rate of the next step: 0.25 / 2 ** 3, times 3 of 4 steps left; 0 after the last.
    assert rows == [(3, pytest.approx(0.25 / 8 * 3 / 4), 0.5), (6, 0.0, 1.5)]
    assert trainer.run.settings()["schedule"] == "Halved"
    with pytest.raises(tt.BadInput, match='schedule was "Halved", now null'):
        tt.Trainer(tmp_path / "a", CONFIG, corpus, recipe).fit()


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
    ],
)
def test_settings_without_effect_are_refused(options, recipe, message, corpus, tmp_path):
    """Before anything is trained."""
    arguments = {"path": tmp_path, "config": CONFIG, "corpus": corpus, "recipe": tt.Recipe(**recipe)} | options
    with pytest.raises(tt.BadInput, match=message) if message else contextlib.nullcontext():
        tt.Trainer(**arguments)


def stored(run):
    """All arrays of the newest checkpoint, by their names."""
    arrays = {}
    with h5py.File(run.checkpoints()[-1] / "model.weights.h5") as file:
        file.visititems(lambda name, item: arrays.update({name: item[()]} if isinstance(item, h5py.Dataset) else {}))
    return arrays


@pytest.mark.program
def test_moving_averages_are_scored_stored_and_resumed(corpus, tmp_path):
    """Those of a loop in NumPy; and a run that was stopped twice has the same weights."""
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
    parts.fit(until=5)  # by two calls of Keras's `fit`
    tt.Trainer(tmp_path / "parts", CONFIG, corpus, recipe).fit()
    average = raw[0]
    for step, weights in enumerate(raw[1:], 2):
        average = [0.7 * old + 0.3 * new for old, new in zip(average, weights, strict=True)]
        if step % 3 == 0:
            for weight, expected in zip(scored.pop(0), average, strict=True):
                np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=1e-7)
    for found, expected, last in zip(whole.translator().model.trainable_weights, average, raw[-1], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)  # of the last checkpoint alone
        assert np.abs(last - expected).max() > 1e-3
    arrays, others = stored(whole.run), stored(parts.run)
    assert arrays.keys() == others.keys() and len(arrays) > 4 * len(average)  # weights, averages and two moments
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name)


@pytest.mark.slow
def test_a_run_that_a_callback_stopped_goes_on_if_asked(corpus, tmp_path, capsys):
    """Keras's EarlyStopping: no loss is better by 9 than the first."""
    recipe, models = dataclasses.replace(RECIPE, steps=12, eval_every=2), []

    def fit(until=None, **changes):
        impatient = keras.callbacks.EarlyStopping("loss", min_delta=9, patience=2)
        trainer = tt.Trainer(tmp_path, CONFIG, corpus, dataclasses.replace(recipe, **changes), callbacks=[impatient])
        trainer._model = models[0] if models else None  # whose step is traced; a run has what its checkpoint holds
        history = trainer.fit(until)
        models.append(trainer._model)
        return [row["step"] for row in history], capsys.readouterr().out

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
    steps, printed = fit()  # of that `until` was the end; patience begins anew
    assert steps == [2, 4, 6, 8, 10, 12] and "stopped" not in printed
    steps, printed = fit(until=18, steps=20)
    assert steps[-1] == 18 and "stopped at step 18 by a callback" in printed
    assert "a callback stopped this run at step 18 of 20" in fit(steps=20)[1]
    assert fit(steps=22)[0][-1] == 22
    with pytest.raises(tt.BadInput, match="callbacks: cannot use restore_best_weights"):
        tt.Trainer(tmp_path, CONFIG, corpus, callbacks=[keras.callbacks.EarlyStopping(restore_best_weights=True)])


DECAY = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)


@pytest.mark.program
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(lambda: {"optimizer": keras.optimizers.SGD(DECAY, momentum=0.9)}, marks=pytest.mark.slow),
        pytest.param(lambda: {"schedule": Halved()}, marks=pytest.mark.slow),
    ],
    ids=["optimizer", "schedule"],
)
def test_a_schedule_and_an_optimizer_of_ones_own_go_on(options, corpus, tmp_path):
    """In a new object, as in a new process."""
    recipe = dataclasses.replace(RECIPE, steps=6)
    tt.Trainer(tmp_path / "whole", CONFIG, corpus, recipe, **options()).fit()
    tt.Trainer(tmp_path / "parts", CONFIG, corpus, recipe, **options()).fit(until=2)
    tt.Trainer(tmp_path / "parts", CONFIG, corpus, recipe, **options()).fit()
    same_weights(tmp_path / "whole", tmp_path / "parts")


def test_other_settings_of_a_schedule_or_an_optimizer_are_refused(corpus, tmp_path):
    cosine, sgd = keras.optimizers.schedules.CosineDecay, keras.optimizers.SGD

    def settings(**options):
        return tt.Trainer(tmp_path / "run", CONFIG, corpus, RECIPE, **options).settings

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
        ({"optimizer": sgd(0.5)}, {"optimizer": sgd(0.5)}, {"optimizer": sgd(0.25)}, "learning_rate was 0.5, now 0.25"),
        (
            {"optimizer": sgd(0.5)},
            {"optimizer": sgd(0.5)},
            {"optimizer": keras.optimizers.RMSprop(0.5)},
            'optimizer.class_name was "SGD", now "RMSprop"',
        ),
        ({"optimizer": sgd(Halved())}, {"optimizer": sgd(Halved())}, {}, 'optimizer was "SGD", now null'),
    ]:
        run.begin(settings(**first))
        assert run.exists(settings(**same))
        with pytest.raises(tt.BadInput, match=message):
            run.exists(settings(**other))
    changed = tt.Trainer(tmp_path / "run", CONFIG, corpus, RECIPE, optimizer=sgd(0.5))
    before = changed.settings
    changed.optimizer.learning_rate = 0.1  # as a callback does
    assert changed.settings == before


class Unnamed(tt.Transformer):
    """Of encoder layers without names, which Keras numbers."""

    def make_encoder_layers(self):
        return [tt.layers.EncoderLayer(**self.layer_options()) for _ in range(self.config.num_layers)]


@pytest.mark.program
def test_a_start_without_names_gives_its_weights(unscored, corpus, translator, tmp_path):
    start = tt.Translator(Unnamed(tt.TransformerConfig(1, 12, 17, 3, vocab_size=350)), translator.tokenizer)
    recipe, still = dataclasses.replace(RECIPE, steps=1, average_last=1), keras.optimizers.SGD(0.0)
    trainer = tt.Trainer(tmp_path / "run", start.model.config, corpus, recipe, start=start, optimizer=still)
    trainer.fit()
    assert trainer.run.keep == 2  # so that one may be damaged
    weights = tt.load(tmp_path / "run").model.get_weights()
    for weight, other in zip(weights, start.model.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, other)


@pytest.mark.program
def test_what_is_frozen_in_a_start_stays_frozen(corpus, translator, tmp_path):
    """Also when the run goes on without it; and another choice is another run."""
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


@pytest.mark.program
def test_model_fit_by_hand_with_checkpoints(corpus, text, tmp_path):
    """Whole epochs, in three processes' worth of calls; then averaged and exported as any run."""

    def fit(folder, epochs):
        keras.utils.set_random_seed(3)
        model = tt.Transformer(CONFIG)
        model.build()
        model.compile(tt.Adam(tt.WarmupSchedule(16, 20)), tt.SmoothedCrossEntropy(), metrics=[tt.TokenCount()])
        checkpoints = Checkpoints(folder, tokenizer)
        data = endless.skip(checkpoints.step)
        model.fit(data, steps_per_epoch=3, epochs=epochs, callbacks=[checkpoints], shuffle=False, verbose=0)
        return model

    tokenizer = corpus.train_tokenizer(350, "bpe")
    files = text / "train.en", text / "train.de"
    endless = tt.data.text_pairs(*files, tokenizer, batch_tokens=512, repeat=True, seed=3)
    whole = fit(tmp_path / "whole", 3)
    for epochs in (1, 3, 3):
        model = fit(tmp_path / "parts", epochs)
    for weight, other in zip(model.variables, whole.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(weight), np.asarray(other), err_msg=weight.path)
    other = tt.Transformer(dataclasses.replace(CONFIG, d_ff=11))
    other.build()
    other.compile("adam", tt.SmoothedCrossEntropy())
    with pytest.raises(tt.BadInput, match="model.d_ff was 8, now 11"):
        other.fit(endless, steps_per_epoch=1, callbacks=[Checkpoints(tmp_path / "parts")], verbose=0)
    run = Run(tmp_path / "parts")
    assert [row["step"] for row in run.newest()[1]["history"]] == [3, 6, 9]
    embeddings = []
    for folder in run.checkpoints():
        with h5py.File(folder / "model.weights.h5") as file:
            embeddings.append(file["embedding/vars/0"][:])
    mean = np.mean(embeddings, axis=0)
    translator = tt.load(tmp_path / "parts")
    np.testing.assert_allclose(translator.model.embedding.embeddings, mean, rtol=1e-5, atol=1e-7)
    translator.save(tmp_path / "saved/1")
    assert not Run._locks


@pytest.mark.program
@pytest.mark.parametrize("averaged", [False, True])
def test_epochs_of_a_fit_by_hand_resume_in_their_order(averaged, corpus, text, tmp_path):
    """With the batches of a fit that was never stopped, and its weights; also with moving averages."""
    tokenizer = corpus.train_tokenizer(350, "bpe")
    files = text / "train.en", text / "train.de"

    def fit(folder, epochs):
        keras.utils.set_random_seed(3)
        model, losses = tt.Transformer(CONFIG), []
        model.build()
        model.compile(tt.Adam(0.01, use_ema=averaged, ema_momentum=0.7), tt.SmoothedCrossEntropy())
        checkpoints = Checkpoints(folder, tokenizer)
        batches = tt.data.text_pairs(*files, tokenizer, batch_tokens=4_096, first_epoch=checkpoints.epoch)
        dev = tt.data.text_pairs(text / "dev.en", text / "dev.de", tokenizer, batch_tokens=4_096)
        log = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
        model.fit(batches, epochs=epochs, validation_data=dev, callbacks=[log, checkpoints], verbose=0)
        return losses

    losses = fit(tmp_path / "whole", 3)
    assert fit(tmp_path / "parts", 1) + fit(tmp_path / "parts", 3) == losses
    arrays, others = (stored(Run(tmp_path / name)) for name in ("whole", "parts"))
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name)


def test_checkpoints_of_a_model_of_ones_own(tmp_path):
    """With our layers and somebody else's; called again, `fit` makes the epochs that are missing."""
    ids = keras.Input((None,), dtype="int32")
    x = tt.layers.EncoderLayer(num_heads=2, d_ff=5)(tt.layers.PositionalEmbedding(19, 4)(ids))
    model = keras.Model(ids, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(x)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    checkpoints = Checkpoints(tmp_path / "run")
    for epochs, steps in ((1, [2]), (3, [2, 4, 6]), (3, [2, 4, 6])):
        model.fit(np.ones((4, 7)), np.ones(4), 2, epochs, verbose=0, callbacks=[checkpoints])
        assert [row["step"] for row in checkpoints.run.history] == steps
    assert int(model.optimizer.iterations) == 6 and not Run._locks
