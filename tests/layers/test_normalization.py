"""Layer normalization (section 3.1), whose gradient is written out on TensorFlow."""

import keras
import numpy as np
import pytest
from conftest import COMPILERS, array, close, draw_weights, normal, value_and_gradients
from keras import ops

from tf_transformer.layers.sublayers import LayerNormalization

EPSILON = 1e-6
SHAPES = [(7, 11), (3, 5, 13), (1, 1, 3)]


def built(kind, shape, **options):
    layer = kind(epsilon=EPSILON, **options)
    layer.build((None,) * (len(shape) - 1) + shape[-1:])
    return draw_weights(layer)


def of_training(layer, x, upstream):
    """Returns the output, and the gradients of sum(output * upstream) by input and weights."""
    x = keras.Variable(x)
    call = {"training": True} if type(layer) is LayerNormalization else {}

    def product():
        output = ops.cast(layer(x.value, **call), "float32")
        return ops.sum(output * upstream)

    _, gradients = value_and_gradients(product, [x, layer.gamma, layer.beta])
    return layer(x.value, **call), gradients


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_output_and_gradient_are_kerass(shape, policy):
    layers = [built(kind, shape, dtype=policy) for kind in (LayerNormalization, keras.layers.LayerNormalization)]
    x = ops.cast(3 * normal(*shape) + 1, layers[0].compute_dtype)
    (output, gradients), (expected, of_keras) = (of_training(layer, x, normal(*shape, seed=1)) for layer in layers)
    assert ops.dtype(output) == layers[0].compute_dtype
    exact = {"float32": 1e-4, "mixed_bfloat16": 2**-7, "mixed_float16": 2**-9, "float64": 1e-4}[policy]
    for ours, theirs in zip([output, *gradients], [expected, *of_keras], strict=True):
        size = np.abs(array(ops.cast(theirs, "float32"))).max()
        close(ops.cast(ours, "float32"), ops.cast(theirs, "float32"), rtol=exact, atol=exact * size)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_it_computes_in_float32_whatever_the_policy(policy, training):
    """bfloat16 would round the mean, and squares would overflow float16."""
    layer = LayerNormalization(epsilon=EPSILON, dtype=policy)
    layer.build((2, 4))
    x = ops.cast([[1024.0, 1024.0, 1024.0, 1048.0], [0.0, 0.0, 0.0, 1024.0]], layer.compute_dtype)
    output = layer(x, training=training)
    close(ops.cast(output, "float32"), [np.array([-1, -1, -1, 3]) / 3**0.5] * 2, rtol=2**-7)


@pytest.mark.parametrize("mode", COMPILERS)
def test_graph_and_jit_compute_what_eager_does(mode):
    shape = SHAPES[1]
    layer, x = built(LayerNormalization, shape), keras.Variable(normal(*shape))
    variables, upstream = [x, layer.gamma, layer.beta], normal(*shape, seed=1)

    def step():
        return value_and_gradients(lambda: ops.sum(layer(x.value, training=True) * upstream), variables)

    value, gradients = COMPILERS[mode](step)()
    expected, of_eager = step()
    close(value, expected, rtol=1e-4)
    for gradient, expected_gradient in zip(gradients, of_eager, strict=True):
        close(gradient, expected_gradient, rtol=1e-4, atol=1e-5)


def test_training_changes_nothing_and_it_survives_saving():
    layer, x = built(LayerNormalization, SHAPES[0]), normal(*SHAPES[0])
    for size in (1, 1e-3):  # the variance, and epsilon as much as the variance
        close(layer(size * x, training=True), layer(size * x), atol=1e-5)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(again) is LayerNormalization and again.epsilon == EPSILON
