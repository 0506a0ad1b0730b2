"""The feed-forward network (section 3.3) and Add & Norm (sections 3.1, 5.4)."""

import keras
import numpy as np
import oracle
import pytest
from conftest import array, close, draw_weights, normal, weights_of

from tf_transformer.layers import AddAndNorm, FeedForward

B, T, d, d_ff = 2, 5, 11, 19


def built(layer):
    layer.build((B, T, d))
    return draw_weights(layer)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_feed_forward_is_equation_2(activation):
    layer, x = built(FeedForward(d_ff, activation)), normal(B, T, d)
    result = layer(x)
    for b in range(B):
        close(result[b], oracle.feed_forward(x[b], weights_of(layer), activation))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a gradient of TensorFlow")
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_gradients_of_biases_in_16_bits(policy):
    """The gradient of the output's bias is a sum of ones over 4,096 rows. TensorFlow's BiasAdd counts up to 256."""
    import tensorflow as tf

    layer, x = FeedForward(7, dtype=policy), normal(64, 64, 5)
    layer.build(x.shape)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(tf.cast(layer(x, training=True), "float32"))
    close(tape.gradient(total, layer.output_projection.bias.value), np.full(5, 4096))


def test_add_and_norm():
    layer, x, output = built(AddAndNorm()), normal(B, T, d), normal(B, T, d, seed=1)
    result = layer(x, output)
    for b in range(B):
        close(result[b], oracle.add_and_norm(x[b], output[b], weights_of(layer)))


def test_epsilon_is_added_to_the_variance():
    layer, x = AddAndNorm(), normal(1, 1, d) * 1e-3
    layer.build((1, 1, d))
    expected = (x - x.mean()) / np.sqrt(x.var() + 1e-6)
    close(layer(x, np.zeros((1, 1, d))), expected, rtol=1e-4)


def test_dropout_applies_only_to_the_sublayer_and_in_training():
    layer = built(AddAndNorm(dropout=0.5))
    x, output = normal(B, T, d), normal(B, T, d, seed=1)
    weights = weights_of(layer)
    for training in (None, False):
        close(layer(x, output, training=training)[0], oracle.add_and_norm(x[0], output[0], weights))
    nothing = np.zeros((B, T, d), "float32")
    close(layer(x, nothing, training=True)[0], oracle.add_and_norm(x[0], nothing[0], weights))
    assert np.abs(array(layer(x, output, training=True)) - array(layer(x, output))).max() > 0.1


def test_a_norm_that_comes_first_is_built_by_the_input_of_its_sublayer(tmp_path):
    """It is one layer of a functional model, saved once."""
    layer, x = AddAndNorm(norm_first=True), normal(B, T, d)
    unit = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    close(layer.sublayer_input(x), unit, atol=1e-5)
    inputs, layer = keras.Input((None, d)), built(AddAndNorm(norm_first=True))
    model = keras.Model(inputs, layer(inputs, keras.layers.Activation("tanh")(layer.sublayer_input(inputs))))
    weights = weights_of(layer)
    expected = x + np.tanh(unit * weights["norm/gamma"] + weights["norm/beta"])
    model.save(tmp_path / "model.keras")
    for again in (model, keras.models.load_model(tmp_path / "model.keras")):
        close(again(x), expected, atol=1e-5)
        assert len(again.weights) == 2
