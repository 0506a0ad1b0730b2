"""Dropout (section 5.4) by 16 random bits a component."""

import keras
import numpy as np
import pytest
from conftest import COMPILERS, array, close, normal, value_and_gradients
from keras import ops

from tf_transformer.layers.sublayers import Dropout

SHAPE = (37, 53, 22)
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def keep_mask(layer, shape=SHAPE):
    return array(ops.cast(layer(np.ones(shape, "float32"), training=True), "float32")) != 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
def test_drops_at_its_rate_and_keeps_the_expectation(rate, policy):
    x = np.abs(normal(*SHAPE)) + 1
    layer = Dropout(rate, seed=3, dtype=policy)
    output = array(ops.cast(layer(x, training=True), "float32"))
    is_kept = output != 0
    assert abs(is_kept.mean() - (1 - rate)) < 5 * np.sqrt(rate * (1 - rate) / is_kept.size)
    epsilon = {"float32": 1e-4, "mixed_bfloat16": 2**-6, "mixed_float16": 2**-9}[policy]
    np.testing.assert_allclose(output[is_kept], x[is_kept] / (1 - rate), rtol=epsilon)


def test_components_are_dropped_independently():
    """This includes pairs, which share 32 random bits, and consecutive steps."""
    layer = Dropout(0.3, seed=5)
    first, second = keep_mask(layer), keep_mask(layer)
    for mask, other in (
        (first[..., ::2], first[..., 1::2]),
        (first[..., :-1], first[..., 1:]),
        (first[:, :-1], first[:, 1:]),
        (first[:-1], first[1:]),
        (first, second),
    ):
        error = np.sqrt((0.49 * 0.51) / mask.size)
        assert abs((mask & other).mean() - 0.49) < 5 * error


@pytest.mark.parametrize(
    ("shape", "options"), [((7, 11), {}), ((3, 5, 13), {}), ((5, 7, 8), {"noise_shape": (5, 1, 8)})], ids=str
)
def test_an_odd_width_or_a_noise_shape_is_dropped_as_keras_does(shape, options):
    x, layers = normal(*shape), (kind(0.3, seed=7, **options) for kind in (Dropout, keras.layers.Dropout))
    close(*(layer(x, training=True) for layer in layers))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.distribute is TensorFlow's")
def test_a_replica_drops_its_own_components(monkeypatch):
    """The first replica drops the same as a single device. test_distribution.py runs two replicas."""
    from tf_transformer import distribution

    single, masks = keep_mask(Dropout(0.3, seed=7)), []
    for index in range(3):
        monkeypatch.setattr(distribution, "replica", lambda index=index: index)
        masks.append(keep_mask(Dropout(0.3, seed=7)))
    np.testing.assert_array_equal(masks[0], single)
    for mask, other in ((masks[0], masks[1]), (masks[0], masks[2]), (masks[1], masks[2])):
        assert abs((mask & other).mean() - 0.49) < 5 * np.sqrt(0.49 * 0.51 / mask.size)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="jax.jit changes no random state")
@pytest.mark.parametrize("mode", COMPILERS)
def test_each_compiled_step_drops_other_components(mode):
    layer = Dropout(0.5, seed=11)
    step = COMPILERS[mode](lambda x: layer(x, training=True))
    first, second = (array(step(ops.ones(SHAPE))) for _ in range(2))
    assert set(np.unique(first)) == set(np.unique(second)) == {0, 2}
    assert (first != second).any()


def test_without_training_or_rate_it_does_nothing():
    x = normal(*SHAPE)
    close(Dropout(0.3)(x), x)
    close(Dropout(0.0)(x, training=True), x)
    assert not array(Dropout(1.0)(x, training=True)).any()


def test_dropped_components_have_no_gradient():
    x = keras.Variable(np.ones((5, 6)))
    layer, copy = (Dropout(0.25, seed=13) for _ in range(2))
    _, (gradient,) = value_and_gradients(lambda: ops.sum(layer(x.value, training=True)), [x])
    is_kept = keep_mask(copy, (5, 6))
    assert 0 < is_kept.sum() < is_kept.size
    close(gradient, np.where(is_kept, 1 / 0.75, 0))


def test_the_same_seed_drops_the_same_and_survives_saving():
    layer = Dropout(0.3, seed=17)
    loaded = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(loaded) is Dropout
    np.testing.assert_array_equal(keep_mask(layer), keep_mask(loaded))
