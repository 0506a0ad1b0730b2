"""Tests of the guard that skips products of 16 bits where they would end the process."""

import os

import keras
import numpy as np
import pytest
import sixteen_bits
from conftest import BACKEND

pytestmark = pytest.mark.skipif(BACKEND != "tensorflow", reason="guards TensorFlow's operations")


def product(x):
    import tensorflow as tf

    return tf.matmul(x, x)


def graph(x):
    import tensorflow as tf

    return tf.function(product)(x)


def gradient(x):
    """Multiplies in 16 bits only backward."""
    import tensorflow as tf

    @tf.custom_gradient
    def same(x):
        return x, lambda upstream: product(upstream)

    with tf.GradientTape() as tape:
        tape.watch(x)
        y = same(x)
    return tape.gradient(y, x)


def layer(x):
    return keras.layers.Dense(3, dtype=x.dtype.name)(x)


@pytest.mark.parametrize("compute", [product, graph, gradient, layer, keras.ops.softmax])
@pytest.mark.parametrize("dtype", sixteen_bits.DTYPES)
def test_a_test_of_products_in_16_bits_is_skipped(compute, dtype):
    x = keras.ops.ones((2, 2))
    with sixteen_bits.skipping({dtype}):
        compute(x)
        y = keras.ops.cast(x, dtype) + 1
        with pytest.raises(pytest.skip.Exception, match=f"^{sixteen_bits.REASON}$"):
            compute(y)
    assert np.all(np.asarray(y, "float32") == 2)


def test_products_in_other_dtypes_are_made():
    import tensorflow as tf

    with sixteen_bits.skipping({"float16"}), tf.Graph().as_default():  # made, but not computed, which may be impossible
        assert product(tf.ones((2, 2), "bfloat16")).dtype == tf.bfloat16


@pytest.mark.skipif(sixteen_bits.VARIABLE in os.environ, reason="a limit is set")
def test_without_a_limit_nothing_is_missing():
    assert sixteen_bits.missing() == set()


def test_what_raises_is_missing(monkeypatch):
    import tensorflow as tf

    def softmax(x):
        if x.dtype == tf.float16:
            raise tf.errors.AbortedError(None, None, "no such primitive")

    monkeypatch.setattr(tf.nn, "softmax", softmax)
    assert sixteen_bits.missing() == {"float16"}
