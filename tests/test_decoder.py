"""The decoder's layer (section 3.1) and its cache."""

import numpy as np
import oracle
import pytest
from conftest import COMPILERS, array, close, draw_weights, normal, weights_of
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from tf_transformer.layers import DecoderCache, DecoderLayer, KeyValue

B, h, T, S, d, d_k, d_v, d_ff = 2, 3, 5, 7, 11, 13, 17, 19
MEMORY_MASK = np.arange(S) < np.array([[4], [7]])  # [B, S]
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def built(**options):
    layer = DecoderLayer(h, d_ff, d_k, d_v, **options)
    layer.build((None, None, d), (None, None, d))
    return draw_weights(layer)


LAYER = built()


@pytest.mark.parametrize("memory_mask", [None, MEMORY_MASK], ids=["whole", "padded"])
def test_decoder_layer(memory_mask):
    x, memory = normal(B, T, d), normal(B, S, d)
    output, *scores = LAYER(x, memory, memory_mask=memory_mask, return_attention_scores=True)
    for b in range(B):
        mask = None if memory_mask is None else memory_mask[b]
        expected, *expected_scores = oracle.decoder_layer(x[b], memory[b], weights_of(LAYER), h, mask)
        close(output[b], expected)
        for found, wanted in zip(scores, expected_scores, strict=True):
            close(found[b], wanted)


@given(B=st.integers(1, 3), T=st.integers(2, 6), S=st.integers(1, 5), seed=st.integers(0, 99), data=st.data())
def test_future_tokens_change_nothing_before_them(B, T, S, seed, data):
    x, memory, t = normal(B, T, d), normal(B, S, d), data.draw(st.integers(1, T - 1))
    changed = np.concatenate([x[:, :t], 100 * normal(B, T - t, d, seed=seed)], axis=1)
    found, scores, _ = LAYER(changed, memory, return_attention_scores=True)
    close(found[:, :t], LAYER(x, memory)[:, :t])
    assert np.all(np.triu(array(scores), 1) == 0)


def test_what_came_before_is_seen():
    """Every token depends on itself and on all before it: the mask hides no more than the future."""
    x, memory = normal(B, T, d), normal(B, S, d)
    before = array(LAYER(x, memory))
    for t in range(T):
        changed = x.copy()
        changed[:, t] += 1
        moved = np.abs(array(LAYER(changed, memory)) - before).max(axis=(0, 2)) > 1e-4
        assert np.array_equal(moved, np.arange(T) >= t)


@given(B=st.integers(1, 3), T=st.integers(1, 4), S=st.integers(1, 5), more=st.integers(1, 4), seed=st.integers(0, 99))
def test_padding_of_the_memory_its_amount_and_its_content_change_nothing(B, T, S, more, seed):
    x, memory = normal(B, T, d), normal(B, S, d)
    padded = np.concatenate([memory, 100 * normal(B, more, d, seed=seed)], axis=1)
    mask = np.broadcast_to(np.arange(S + more) < S, (B, S + more))
    found, _, scores = LAYER(x, padded, memory_mask=mask, return_attention_scores=True)
    close(found, LAYER(x, memory))
    assert np.all(array(scores)[..., S:] == 0)


def test_padding_anywhere_in_the_target_is_hidden_by_its_mask():
    """At the end causality hides it; elsewhere the mask does, and a token with nothing before it gives no NaN."""
    x, memory = normal(B, T, d), normal(B, S, d)
    padded = np.concatenate([100 * normal(B, 2, d, seed=1), x], axis=1)
    mask = np.broadcast_to(np.arange(T + 2) >= 2, (B, T + 2))
    found = LAYER(padded, memory, x_mask=mask)
    close(found[:, 2:], LAYER(x, memory))
    assert np.all(np.isfinite(array(found)))


@given(chunks=st.lists(st.integers(1, 3), min_size=1, max_size=4), B=st.integers(1, 3), more=st.integers(0, 3))
def test_cached_is_the_whole_sequence(chunks, B, more):
    """One or several tokens at a time; what lies in slots not yet written does not matter."""
    T = sum(chunks)
    x, memory = normal(B, T, d), normal(B, S, d)
    mask = np.arange(S) < np.array([[4], [7], [2]])[:B]
    expected, expected_scores, expected_cross = LAYER(x, memory, memory_mask=mask, return_attention_scores=True)
    empty = LAYER.init_cache(ops.array(memory), T + more)
    cache = DecoderCache(KeyValue(*(ops.ones_like(part) * 100 for part in empty.target)), empty.memory)
    slot = 0
    for size in chunks:
        now = slice(slot, slot + size)
        output, cache, scores, cross = LAYER(
            x[:, now], memory_mask=mask, cache=cache, slot=slot, return_attention_scores=True
        )
        close(output, expected[:, now])
        close(scores[..., :T], expected_scores[:, :, now])
        close(cross, expected_cross[:, :, now])
        assert np.all(array(scores)[..., T:] == 0)
        slot += size


def test_a_cache_holds_the_projected_memory_and_room_for_the_target():
    memory = ops.array(normal(B, S, d))
    cache = LAYER.init_cache(memory, 29)
    assert cache.target.key.shape == (B, h, 29, d_k) and cache.target.value.shape == (B, h, 29, d_v)
    close(cache.memory.key, LAYER.cross_attention.project(memory).key)
    _, after = LAYER(normal(B, 1, d), cache=cache)
    assert after.memory.key is cache.memory.key and after.memory.value is cache.memory.value  # not copied


def test_columns_may_be_beams_when_the_mask_says_so():
    """Two beams of one sentence as two columns; each sees its own ancestors alone."""
    x, memory = normal(B, 4, d), normal(B, S, d)  # first tokens of beams 0 and 1, then their second ones
    cache = LAYER.init_cache(ops.array(memory), 4)
    first = np.array([[[1, 0, 0, 0], [0, 1, 0, 0]]], bool)
    second = np.array([[[1, 0, 1, 0], [0, 1, 0, 1]]], bool)
    _, cache = LAYER(x[:, :2], attention_mask=first, cache=cache, slot=0)
    output, _ = LAYER(x[:, 2:], attention_mask=second, cache=cache, slot=2)
    for beam in range(2):
        close(output[:, beam], LAYER(x[:, beam::2], memory)[:, 1])


@pytest.mark.parametrize("mode", COMPILERS)
def test_graph_and_jit_compute_what_eager_does(mode):
    x, memory = ops.array(normal(B, T, d)), ops.array(normal(B, S, d))
    expected = LAYER(x, memory, memory_mask=MEMORY_MASK)

    @COMPILERS[mode]
    def whole(x, memory):
        return LAYER(x, memory, memory_mask=MEMORY_MASK)

    @COMPILERS[mode]
    def step(newest, cache, slot):
        return LAYER(newest, memory_mask=MEMORY_MASK, cache=cache, slot=slot)

    close(whole(x, memory), expected)
    cache = LAYER.init_cache(memory, T)
    for t in range(T):
        output, cache = step(x[:, t : t + 1], cache, ops.array(t))
        close(output[:, 0], expected[:, t])


@pytest.mark.parametrize("option", ["dropout", "attention_dropout"])
def test_dropouts_are_for_training_only(option):
    layer = built(**({"dropout": 0.0, "attention_dropout": 0.0} | {option: 0.5}))
    x, memory = normal(B, T, d), normal(B, S, d)
    close(layer(x, memory), LAYER(x, memory))
    assert np.abs(array(layer(x, memory, training=True)) - array(LAYER(x, memory))).max() > 0.1


@pytest.mark.parametrize("policy", POLICIES)
def test_the_policy_reaches_every_child_and_the_cache(policy):
    layer, x, memory = built(dtype=policy), normal(B, T, d), normal(B, S, d)
    output, scores, cross = layer(x, memory, memory_mask=MEMORY_MASK, return_attention_scores=True)
    assert ops.dtype(output) == layer.compute_dtype and ops.dtype(scores) == ops.dtype(cross) == "float32"
    close(output, LAYER(x, memory, memory_mask=MEMORY_MASK), rtol=0, atol=1e-5 if policy == "float32" else 0.1)
    close(array(cross).sum(-1), np.ones((B, h, T)))
    cache = layer.init_cache(ops.cast(memory, layer.compute_dtype), T)
    assert {ops.dtype(part) for kv in cache for part in kv} == {layer.compute_dtype}
