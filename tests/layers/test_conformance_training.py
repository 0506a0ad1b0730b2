"""Keras's contract of every layer: it trains like the stock layers."""

import keras
import numpy as np
import pytest
from conftest import array
from keras.callbacks import BackupAndRestore, Callback, ModelCheckpoint, SwapEMAWeights
from programs import run_python
from promises import assert_close, every_case, jax_only

import tf_transformer as tt


@every_case
def test_every_weight_gets_a_gradient(case):
    model = case.model()
    before = model.get_weights()
    assert len(model.trainable_weights) == len(before)
    model.compile(keras.optimizers.SGD(1.0), loss="mse", run_eagerly=True)
    target = np.random.default_rng(4).normal(size=case.output_shape)
    model.train_on_batch(case.arrays(), target)
    for weight, old in zip(model.weights, before, strict=True):
        change = array(weight) - old
        assert np.isfinite(change).all(), weight.path
        assert np.abs(change).max() > 0, weight.path


# Keras's callbacks

SOURCE, TARGET, LABELS, OTHERS = np.random.default_rng(6).integers(1, 31, (4, 6, 7))
TRAINING, VALIDATION = ((SOURCE, TARGET), LABELS), ((SOURCE, TARGET), OTHERS)


def train(*callbacks, **options):
    """Returns a new model after three epochs of one batch, and their history. It runs eagerly, to save tracing."""
    keras.utils.set_random_seed(5)
    model = tt.Transformer(tt.TransformerConfig(1, 6, 13, 3, dropout=0.0, vocab_size=31))
    model.compile(tt.Adam(0.05, **options), tt.SmoothedCrossEntropy(), metrics=[tt.Perplexity()], run_eagerly=True)
    return model, resume(model, *callbacks)


def resume(model, *callbacks, **options):
    steps = {"batch_size": 6, "epochs": 3, "shuffle": False, "verbose": 0}
    return model.fit(*TRAINING, validation_data=VALIDATION, callbacks=[*callbacks], **steps, **options).history


@pytest.fixture(scope="module")
def whole():
    return train()


def assert_same_weights(model, expected):
    for weight, other in zip(model.weights, expected, strict=True):
        assert_close(weight, other)


class Crash(Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise InterruptedError


@pytest.mark.slow
def test_backup_and_restore(whole, tmp_path):
    with pytest.raises(InterruptedError):
        train(BackupAndRestore(tmp_path), Crash())
    restored, resumed = train(BackupAndRestore(tmp_path))
    model, history = whole
    assert resumed["loss"] == pytest.approx(history["loss"][1:], rel=1e-5)
    assert_same_weights(restored, model.weights)


@pytest.mark.slow
def test_model_checkpoint(tmp_path):
    """The checkpoint is that of the worst epoch, since the last is the best. Training resumes from any checkpoint."""
    worst = ModelCheckpoint(
        tmp_path / "worst.weights.h5", "val_loss", mode="max", save_best_only=True, save_weights_only=True
    )
    model, history = train(worst, ModelCheckpoint(tmp_path / "{epoch}.keras"))
    loaded = keras.saving.load_model(tmp_path / "2.keras")
    assert_close(resume(loaded, initial_epoch=2)["loss"], history["loss"][2:])
    assert_same_weights(loaded, model.weights)
    loaded.load_weights(tmp_path / "worst.weights.h5")
    losses = history["val_loss"]
    assert max(losses) > losses[-1] + 0.01
    assert loaded.evaluate(*VALIDATION, verbose=0, return_dict=True)["loss"] == pytest.approx(max(losses), rel=1e-5)


@pytest.mark.slow
def test_swap_ema_weights():
    """Validation uses the moving average of the weights after each step. Training ends with it."""
    after_a_step, validated = [], []

    class Record(Callback):
        def on_train_batch_end(self, batch, logs=None):
            after_a_step.append(self.model.get_weights())

        def on_test_begin(self, logs=None):
            validated.append(self.model.get_weights())

    model, _ = train(SwapEMAWeights(), Record(), use_ema=True, ema_momentum=0.7)
    average = after_a_step[0]
    for weights, weights_at_test in zip(after_a_step, validated, strict=True):
        average = [0.7 * old + 0.3 * new for old, new in zip(average, weights, strict=True)]
        for weight, expected in zip(weights_at_test, average, strict=True):
            assert_close(weight, expected)
    assert_same_weights(model, average)


# Several devices

DISTRIBUTED = """
import sys
import jax, keras, numpy
import tf_transformer as tt
from keras.distribution import DataParallel, DeviceMesh, LayoutMap, ModelParallel

random = numpy.random.default_rng(5)
source, target = random.integers(1, 31, (4, 7)), random.integers(1, 31, (4, 12))
source[1:, 5:] = 0
target[1:, 8:] = 0

def train(distribution):
    keras.distribution.set_distribution(distribution)
    keras.utils.set_random_seed(6)
    model = tt.Transformer(tt.TransformerConfig(1, 12, 14, 4, dropout=0.0, vocab_size=31))
    model.compile(tt.Adam(0.05, epsilon=0.01), loss=tt.SmoothedCrossEntropy(0.1), metrics=[tt.Perplexity()])
    history = model.fit((source, target[:, :-1]), target[:, 1:], 4, 3, verbose=0, shuffle=False).history
    return model, [numpy.array([history["loss"], history["perplexity"]]), *model.get_weights()]

mesh = DeviceMesh((1, 2), ("batch", "model"), keras.distribution.list_devices("cpu"))
layout = LayoutMap(mesh)
layout[".*attention/(query|key|value)/kernel"] = (None, "model")  # heads
layout[".*attention/output/kernel"] = ("model", None)
layout[".*hidden/kernel"] = (None, "model")  # d_ff
layout[".*hidden/bias"] = ("model",)
layout[".*feed_forward/output/kernel"] = ("model", None)

_, one = train(None)
_, data = train(DataParallel(devices=keras.distribution.list_devices("cpu")))
model, split = train(ModelParallel(layout_map=layout, batch_dim_name="batch"))
halves = [weight for weight in model.weights if weight.value.addressable_shards[0].data.size == weight.value.size // 2]
assert len(halves) == 3 * 4 + 2 * 3, [weight.path for weight in halves]  # three attentions and two networks
for name, values in zip(("one", "data", "split"), (one, data, split)):
    numpy.savez(f"{sys.argv[1]}/{name}.npz", *values)
"""


@jax_only
@pytest.mark.parametrize("kind", ["data", "split"])
def test_keras_distribution_trains_as_one_device(kind, distributed):
    single, several = distributed("one"), distributed(kind)
    assert (np.diff(single["arr_0"]) < 0).all()
    assert single.files == several.files
    for name in single.files:
        assert_close(several[name], single[name])


@pytest.fixture(scope="module")
def distributed(tmp_path_factory):
    """Returns weights trained on one device, and on two that split batches, or heads and hidden units."""
    folder = tmp_path_factory.mktemp("distributed")
    run_python(DISTRIBUTED, folder, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    return lambda name: np.load(folder / f"{name}.npz")
