"""Top-k and log-sum-exp, compared with TensorFlow and NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from conftest import normal
from hypothesis import given
from hypothesis import strategies as st

from tf_transformer.decoding.beams import top_k
from tf_transformer.decoding.primitives import log_sum_exp


@given(V=st.sampled_from([5, 64, 101, 127, 255, 330]), k=st.integers(1, 40), seed=st.integers(0, 99))
def test_top_k_in_blocks(V, k, seed):
    """With many equal values, of which the first counts."""
    logits = np.round(2 * normal(3, 2, V, seed=seed))
    for result, expected in zip(top_k(tf.constant(logits), min(k, V)), tf.math.top_k(logits, min(k, V)), strict=True):
        assert np.array_equal(result, expected)


@pytest.mark.parametrize("width", [1, 300])
def test_all_probabilities_by_that_of_one_symbol(width):
    """Even where that token's is too small for float32, which the best one's never is."""
    logits = (width * np.random.default_rng(11).normal(size=(3, 5, 7))).astype("float32")
    worst, best = logits.argmin(axis=-1)[..., np.newaxis], logits.argmax(axis=-1)[..., np.newaxis]
    highest = logits.max(axis=-1, keepdims=True).astype("float64")
    expected = np.log(np.exp(logits - highest).sum(axis=-1, keepdims=True)) + highest
    for token, is_best in ((worst, False), (best, False), (best, True)):
        result = log_sum_exp(tf.constant(logits), tf.constant(token), is_best)
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)
