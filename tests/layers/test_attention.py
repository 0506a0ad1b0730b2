"""Attention (section 3.2) against loops, and the laws of its masks."""

import keras
import numpy as np
import oracle
import pytest
from conftest import array, close, draw_weights, normal, value_and_gradients, weights_of
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from tf_transformer.layers import KeyValue, MultiHeadAttention, attention
from tf_transformer.utils.values import BadInput

B, h, T, S, d, d_k, d_v = 2, 3, 5, 7, 11, 13, 17


def random_mask(*shape, seed=0):
    return normal(*shape, seed=seed) > -0.3


def built(**options):
    layer = MultiHeadAttention(h, d_k, d_v, **options)
    layer.build((B, T, d), (B, S, d))
    return draw_weights(layer)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_equation_1(masked):
    query, key, value = normal(B, h, T, d_k), normal(B, h, S, d_k), normal(B, h, S, d_v)
    mask = random_mask(B, T, S) if masked else None
    output, scores = attention(ops.array(query), ops.array(key), ops.array(value), mask)
    for b, i in np.ndindex(B, h):
        expected = oracle.attention(query[b, i], key[b, i], value[b, i], None if mask is None else mask[b])
        close(output[b, i], expected[0])
        close(scores[b, i], expected[1])


@pytest.mark.filterwarnings("error:You are using a softmax over axis")
def test_one_position_has_all_attention():
    query, key, value = (keras.Variable(normal(B, h, *sizes)) for sizes in ((T, d_k), (1, d_k), (1, d_v)))
    direction = normal(B, h, T, d_v, seed=1)

    def attended():
        return attention(*map(ops.convert_to_tensor, (query, key, value)))

    def product():
        return ops.sum(ops.multiply(attended()[0], direction))

    close(attended()[1], np.ones((B, h, T, 1)))
    _, (of_query, of_key, of_value) = value_and_gradients(product, [query, key, value])
    close(of_value, direction.sum(2, keepdims=True))
    assert not array(of_query).any() and not array(of_key).any()


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the graph is TensorFlow's")
@pytest.mark.parametrize("rows, fused", [(1, False), (B, True)])
def test_the_product_with_a_mask_of_the_whole_batch_is_not_fused(rows, fused):
    """TensorFlow's kernel for product and sum is hundreds of times slower than both if the addend has no rows."""
    import tensorflow as tf

    query, key, value = (tf.constant(normal(B, h, *sizes)) for sizes in ((T, d_k), (S, d_k), (S, d_v)))
    mask = tf.constant(random_mask(rows, T, S))
    traced = tf.function(lambda: attention(query, key, value, mask), autograph=False).get_concrete_function()
    product = next(op for op in traced.graph.get_operations() if op.type == "BatchMatMulV2")
    assert [op.type for op in product.outputs[0].consumers()] == ["AddV2" if fused else "Sub"]


@given(data=st.data(), B=st.integers(1, 3), h=st.integers(1, 3), T=st.integers(1, 5), S=st.integers(1, 6))
def test_weights_sum_to_one_and_are_zero_on_masked_keys(data, B, h, T, S):
    """Logits may be of any size. A query whose keys are all masked gets zeros, not NaN."""
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=B * T * S, max_size=B * T * S))).reshape(B, T, S)
    size = data.draw(st.sampled_from([0.0, 1.0, 1e3]))
    query, key, value = normal(B, h, T, 2) * size, normal(B, h, S, 2) * size, normal(B, h, S, 3)
    output, scores = attention(ops.array(query), ops.array(key), ops.array(value), mask)
    output, scores = array(output), array(scores)
    close(scores.sum(-1), np.broadcast_to(mask.any(-1)[:, np.newaxis], (B, h, T)))
    assert np.all(scores[np.broadcast_to(~mask[:, np.newaxis], scores.shape)] == 0)
    assert np.all(np.isfinite(output))
    assert np.all(output[~np.broadcast_to(mask.any(-1)[:, np.newaxis], (B, h, T))] == 0)


def test_dropout_works_on_the_weights_and_not_on_the_reported_ones():
    query, key, value = (ops.array(normal(B, h, *shape)) for shape in ((T, d_k), (S, d_k), (S, d_v)))
    output, scores = attention(query, key, value)
    doubled, same_scores = attention(query, key, value, dropout=lambda weights: 2 * weights)
    close(doubled, 2 * output)
    close(same_scores, scores)


def test_multi_head_self_attention():
    layer, x, mask, attention_mask = built(), normal(B, T, d), random_mask(B, T), random_mask(B, T, T)
    output, scores = layer(x, mask=mask, attention_mask=attention_mask, return_attention_scores=True)
    for b in range(B):
        expected = oracle.multi_head_attention(x[b], x[b], weights_of(layer), h, mask[b] & attention_mask[b])
        close(output[b], expected[0])
        close(scores[b], expected[1])


def test_multi_head_attention_to_another_sequence():
    layer, x, memory = built(), normal(B, T, d), normal(B, S, d)
    value_mask, attention_mask = random_mask(B, S), random_mask(1, T, S)
    masks = {"mask": random_mask(B, T, seed=1), "value_mask": value_mask}  # the first, of the queries, hides no keys
    output, scores = layer(x, memory, **masks, attention_mask=attention_mask, return_attention_scores=True)
    for b in range(B):
        allowed = value_mask[b] & attention_mask[0]
        expected = oracle.multi_head_attention(x[b], memory[b], weights_of(layer), h, allowed)
        close(output[b], expected[0])
        close(scores[b], expected[1])


def test_head_widths_are_d_model_over_heads_unless_given():
    layer = MultiHeadAttention(num_heads=3)
    layer.build((None, None, 21))
    kv = layer.project(normal(B, T, 21))
    assert kv.key.shape == kv.value.shape == (B, 3, T, 7)
    with pytest.raises(ValueError, match="d_model=11, num_heads=3"):
        MultiHeadAttention(num_heads=3, d_k=5).build((None, None, 11))


def test_projections_are_initialised_as_one_kernel_of_query_key_and_value():
    """They are uniform with variance 2 / (d + 3d) = 1 / 2d. The output kernel has Glorot's, 1 / d."""
    d, layer = 128, MultiHeadAttention(8)
    layer.build((None, None, d))
    for path, kernel in weights_of(layer).items():
        variance = 1 / d if path == "output/kernel" else 1 / (2 * d)
        assert kernel.shape == (d, d)
        assert kernel.var() == pytest.approx(variance, rel=0.03), path
        assert 0.99 * (3 * variance) ** 0.5 < np.abs(kernel).max() <= (3 * variance) ** 0.5, path


@given(B=st.integers(1, 3), h=st.integers(1, 3), T=st.integers(1, 3), before=st.integers(0, 4), after=st.integers(0, 4))
def test_write_fills_its_slots_and_leaves_the_others(B, h, T, before, after):
    S = before + T + after
    old = KeyValue(ops.array(normal(B, h, S, 2)), ops.array(normal(B, h, S, 3)))
    new = KeyValue(ops.array(normal(B, h, T, 2, seed=1)), ops.array(normal(B, h, T, 3, seed=1)))
    for result, was, written in zip(old.write(before, new), old, new, strict=True):
        expected = array(was).copy()
        expected[:, :, before : before + T] = array(written)
        assert np.array_equal(array(result), expected)


def test_a_mask_of_another_rank_or_of_floats_raises_bad_input():
    """Four axes would add one to the output, and 0.0 of an additive mask would hide a position."""
    query, key, value = normal(B, h, T, d_k), normal(B, h, S, d_k), normal(B, h, S, d_v)
    for mask in (np.ones((T, S), bool), np.ones((B, h, T, S), bool), np.zeros((B, T, S), "float32")):
        with pytest.raises(BadInput, match="^mask: expected bools that broadcast to .B, T, S., got (bool|float32) .*$"):
            attention(query, key, value, mask)
