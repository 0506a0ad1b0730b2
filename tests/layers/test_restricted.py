"""Restricted self-attention (section 4): each position attends to its neighbourhood."""

import keras
import numpy as np
import oracle
import pytest
from conftest import BACKEND, array, close, draw_weights, normal, value_and_gradients, weights_of
from keras import ops
from programs import run_python

from tf_transformer.layers import (
    EncoderLayer,
    RestrictedEncoderLayer,
    attention,
    restricted_attention,
)
from tf_transformer.layers.restricted import near_mask
from tf_transformer.masks import as_key_mask, intersect

B, h, d, d_k, d_v, d_ff = 2, 3, 11, 13, 17, 19


def built(kind, **options):
    layer = kind(num_heads=h, d_ff=d_ff, d_k=d_k, d_v=d_v, **options)
    layer.build((None, None, d))
    return draw_weights(layer)


# Masks


@pytest.mark.parametrize("T, window", [(1, 1), (7, 1), (7, 4), (7, 5), (7, 50)])
def test_a_neighbourhood_is_centered(T, window):
    mask = array(near_mask(T, window))
    assert mask.dtype == bool and np.array_equal(mask[0], oracle.near(T, window))


# Attention. Blocks are of 16 positions, or of window // 2 if that is more.


def padding(T):
    """Returns a mask with padding inside and at the end of one sentence, and an all-padding sentence."""
    return np.stack([(np.arange(T) % 5 != 3) & (np.arange(T) < T - 4), np.zeros(T, bool)])


WINDOWS = [(1, 3), (7, 200), (16, 1), (17, 2), (33, 5), (33, 32), (47, 35), (53, 34), (32, 33), (0, 3)]  # T, r


@pytest.mark.parametrize("T, window", WINDOWS)
def test_restricted_attention_is_attention_under_a_banded_mask(T, window):
    query, key, value = normal(B, h, T, d_k), normal(B, h, T, d_k), normal(B, h, T, d_v)
    arguments = [ops.array(x) for x in (query, key, value)]
    for mask in (None, padding(T)):
        key_mask = as_key_mask(mask)
        output, scores = restricted_attention(*arguments, key_mask, window=window)
        assert output.shape == value.shape and ops.dtype(scores) == "float32"
        for b, i in np.ndindex(B, h):
            allowed = np.array(oracle.near(T, window), bool).reshape(T, T) & (True if mask is None else mask[b])
            expected, weights = oracle.attention(query[b, i], key[b, i], value[b, i], allowed)
            close(output[b, i], expected)
            close(array(scores[b, i]).sum(-1).reshape(-1)[:T], weights.sum(-1))


def test_restricted_attention_has_the_gradients_of_the_banded_mask():
    T, window = 37, 11
    inputs = [keras.Variable(normal(B, h, T, width, seed=width)) for width in (d_k, d_k, d_v)]
    direction, mask = ops.array(normal(B, h, T, d_v, seed=1)), as_key_mask(padding(T))
    band = intersect(near_mask(T, window), mask)

    def restricted(*inputs):
        return restricted_attention(*inputs, mask, window=window)[0]

    def gradients(function):
        def scalar():
            return ops.sum(function(*map(ops.convert_to_tensor, inputs)) * direction)

        return value_and_gradients(scalar, inputs)[1]

    result = gradients(restricted)
    for gradient, expected in zip(result, gradients(lambda *inputs: attention(*inputs, band)[0]), strict=True):
        close(gradient, expected)
        assert np.abs(array(expected)).max() > 0.1


def test_dropout_works_on_the_weights_of_restricted_attention():
    inputs = [ops.array(normal(B, h, 37, width)) for width in (d_k, d_k, d_v)]
    output, scores = restricted_attention(*inputs, window=9)
    doubled, same_scores = restricted_attention(*inputs, dropout=lambda weights: 2 * weights, window=9)
    close(doubled, 2 * output)
    close(same_scores, scores)


# The encoder's layer

WINDOW, LENGTH = 5, 37  # three blocks of 16
RESTRICTED = built(RestrictedEncoderLayer, window=WINDOW)
INSIDE = np.arange(LENGTH) % 7 != np.array([[3], [4]])  # [B, LENGTH]


@pytest.mark.parametrize("mask", [None, INSIDE & (np.arange(LENGTH) < 31)], ids=["whole", "padded"])
def test_an_encoder_layer(mask):
    x = normal(B, LENGTH, d)
    output, scores = RESTRICTED(x, mask=mask, return_attention_scores=True)
    close(RESTRICTED(x, mask=mask), output)  # computed in blocks
    for b in range(B):
        of_row = None if mask is None else mask[b]
        expected = oracle.encoder_layer(x[b], weights_of(RESTRICTED), h, of_row, WINDOW)
        close(output[b], expected[0])
        close(scores[b], expected[1])


def test_an_encoder_layer_under_a_mask_by_query():
    x, mask = normal(B, LENGTH, d), np.random.default_rng(3).random((B, LENGTH, LENGTH)) < 0.7
    plain = built(EncoderLayer)
    plain.set_weights(RESTRICTED.get_weights())
    near = array(near_mask(LENGTH, WINDOW))
    close(RESTRICTED(x, attention_mask=mask), plain(x, attention_mask=mask & near))
    close(RESTRICTED(x, use_causal_mask=True), plain(x, attention_mask=near & np.tri(LENGTH, dtype=bool)))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="lengths are known when others compile")
@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["graph", "jit"])
def test_a_restricted_layer_of_lengths_unknown_until_it_runs(jit):
    import tensorflow as tf

    specs = [tf.TensorSpec([None, None, d]), tf.TensorSpec([None, None], tf.bool)]
    compiled = tf.function(lambda x, mask: RESTRICTED(x, mask=mask), specs, jit_compile=jit)
    for S in (1, 16, LENGTH):
        x, mask = normal(B, S, d), INSIDE[:, :S]
        close(compiled(x, mask), RESTRICTED(x, mask=mask))


LONG = r"""
import pathlib, re, sys
import keras
from tf_transformer.layers import RestrictedEncoderLayer

def peak():  # getrusage's begins with that of the process which started this one
    return int(re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) * 1024

n, h, d = 16_384, 8, 32
layer = RestrictedEncoderLayer(num_heads=h, d_ff=64, window=64)
layer(keras.random.normal((1, 160, d)))
before = peak()
output = keras.ops.convert_to_numpy(layer(keras.random.normal((1, n, d), seed=1)))
assert output.shape == (1, n, d)
print(peak() - before, h * n * n * 4)
"""


@pytest.mark.slow
def test_long_sequences_fit_in_a_fraction_of_the_memory_of_all_weights():
    """16,384 positions and 8 heads: 8 GiB for one copy of float32 weights [h, n, n]."""
    peak, all_weights = map(int, run_python(LONG).split())
    assert all_weights == 8 * 2**30 and 0 < peak < all_weights / 16
