"""The training step compiled by XLA, as on a GPU: the same losses, and one compilation per shape."""

import dataclasses
import os
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from programs import run_python
from promises import tensorflow_only

import tf_transformer as tt

HERE = Path(__file__).parents[1]
pytestmark = tensorflow_only
CONFIG = tt.TransformerConfig(1, 12, 17, 3, dropout=0.0, vocab_size=19)
OPTIMIZERS = {"tt": tt.Adam, "keras": keras.optimizers.Adam}


def batches(*shapes):
    """Yields a batch of each shape (rows, source tokens, target tokens). Rows end in padding."""
    rng = np.random.default_rng(2)
    for rows, S, T in shapes:
        source, target = rng.integers(3, 19, (rows, S), "int32"), rng.integers(3, 19, (rows, T + 1), "int32")
        source[::2, S // 2 :] = target[::2, T // 2 :] = 0
        yield (source, target[:, :-1]), target[:, 1:]


def train(data, kind="tt", dtype="float32", jit_compile=True, epochs=2, positions="sinusoidal", **options):
    """Returns a trained model and the losses of its epochs. `options` are attributes of the model."""
    keras.utils.set_random_seed(5)
    model = tt.Transformer(dataclasses.replace(CONFIG, positions=positions), dtype=dtype)
    model.build()
    rng = np.random.default_rng(3)  # Keras draws other weights in other dtypes
    model.set_weights([rng.normal(size=weight.shape, scale=0.3) for weight in model.weights])
    metrics = [tt.TokenAccuracy(), tt.Perplexity(), tt.TokenCount()]
    optimizer = OPTIMIZERS[kind](0.01, global_clipnorm=0.5)
    model.compile(optimizer, tt.SmoothedCrossEntropy(0.1), metrics=metrics, jit_compile=jit_compile)
    for name, value in options.items():
        setattr(model, name, value)
    return model, fit(model, data, epochs)


def fit(model, data, epochs=1):
    endless = of_unknown_size(data).repeat()
    return model.fit(endless, steps_per_epoch=len(data), epochs=epochs, shuffle=False, verbose=0).history["loss"]


def of_unknown_size(data):
    ids = tf.TensorSpec((None, None), tf.int32)
    return tf.data.Dataset.from_generator(lambda: iter(data), output_signature=((ids, ids), ids))


@pytest.mark.parametrize(
    ("kind", "dtype", "options"),
    [
        pytest.param("tt", "float32", {"skip_not_finite": True}, marks=pytest.mark.slow),
        pytest.param("tt", "float32", {}, marks=pytest.mark.slow),
        pytest.param("keras", "float32", {"num_microbatches": 2}, marks=pytest.mark.slow),
        pytest.param("tt", "mixed_bfloat16", {"num_microbatches": 2, "skip_not_finite": True}, marks=pytest.mark.slow),
        pytest.param("keras", "mixed_float16", {"skip_not_finite": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_compiled_by_xla_it_has_the_same_losses(kind, dtype, options):
    data = list(batches(*[(4, 5, 7)] * 3))
    model, losses = train(data, kind, dtype, **options)
    other, expected = train(data, kind, dtype, jit_compile=False, **options)
    assert losses == pytest.approx(expected, rel=1e-5 if dtype == "float32" else 2e-2)
    assert losses[1] < losses[0] - 0.01
    assert model.jit_compile and not other.jit_compile
    assert model.not_finite.numpy() == 0


@pytest.mark.slow
def test_the_end_of_data_of_unknown_size_is_no_update():
    """A stock model counts it, and decays its weights once more: findings/keras-updates-once-more-at-the-end.sh."""
    data = list(batches(*[(4, 5, 7)] * 3))
    model, _ = train(data, jit_compile=False, epochs=1)
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(of_unknown_size(data), epochs=2, verbose=0)
    assert model.optimizer.iterations.numpy() == model.steps_made.numpy() == 3 + 2 * 3


@pytest.fixture
def float64():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")  # set_floatx does not change a policy that was set
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@pytest.mark.program
def test_float64_trains():
    """Loss and metrics remain float32."""
    data = list(batches(*[(4, 5, 7)] * 3))
    _, expected = train(data, "keras", jit_compile=False)
    model, losses = train(data, "keras", "float64", jit_compile=False, num_microbatches=2, skip_not_finite=True)
    assert {str(variable.dtype) for variable in model.trainable_variables} == {"float64"}
    assert losses == pytest.approx(expected, rel=1e-4)


def test_float64_as_kerass_default_trains_with_learned_positions(float64):
    _, losses = train(list(batches((4, 5, 7))), jit_compile=False, positions="learned", run_eagerly=True)
    assert losses[1] < losses[0]


PROGRAM = """
import test_training_step as this
import tf_transformer as tt

traced = []

def step(model, data, train_step=tt.Transformer.train_step):
    traced.append(data)
    return train_step(model, data)

tt.Transformer.train_step = step
this.train([*this.batches((4, 5, 7), (2, 5, 7), (4, 6, 3))] * 2)
assert 1 <= len(traced) <= 3, traced
"""


@pytest.mark.slow
def test_each_shape_is_compiled_once(tmp_path):
    """Three shapes occur four times. XLA names its dump files after the compiled module."""
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*one_step_on_data.*"
    run_python(
        PROGRAM, XLA_FLAGS=flags, PYTHONPATH=os.pathsep.join(map(str, [Path(__file__).parent, HERE, HERE.parent]))
    )
    assert len({path.name.split(".")[0] for path in tmp_path.iterdir()}) == 3
