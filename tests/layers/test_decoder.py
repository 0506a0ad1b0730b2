"""The decoder's layer (section 3.1) and its cache."""

import numpy as np
import oracle
import pytest
from conftest import array, close, draw_weights, normal, weights_of
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from tf_transformer.layers import DecoderCache, DecoderLayer, KeyValue
from tf_transformer.utils.values import BadInput

B, h, T, S, d, d_k, d_v, d_ff = 2, 3, 5, 7, 11, 13, 17, 19
MEMORY_MASK = np.arange(S) < np.array([[4], [7]])  # [B, S]


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
        for weights, expected_weights in zip(scores, expected_scores, strict=True):
            close(weights[b], expected_weights)


@given(chunks=st.lists(st.integers(1, 3), min_size=1, max_size=4), B=st.integers(1, 3), more=st.integers(0, 3))
def test_cached_is_the_whole_sequence(chunks, B, more):
    """Calls append one or several tokens. Contents of unwritten slots do not matter."""
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
    half = built(dtype="mixed_bfloat16").init_cache(ops.cast(memory, "bfloat16"), 29)
    assert {ops.dtype(part) for kv in half for part in kv} == {"bfloat16"}


def test_a_cache_of_another_layer_or_without_room_raises_bad_input():
    """JAX would drop what is written behind the last slot."""
    memory, only = normal(B, S, d), DecoderLayer(h, d_ff, d_k, d_v, name="only")
    for arguments, message in (
        ({"slot": 3}, "slots 3 to 4 in a cache of 4 slots"),
        ({"slot": -1}, "slots -1 to 0 in a cache of 4 slots"),
        ({"attention_mask": np.ones((B, 2, 3), bool)}, r".* with C = 4 as in the cache, got bool \(2, 2, 3\)"),
        ({"memory_mask": np.ones((B, 1), bool)}, r".* with S = 7 as in the cache, got bool \(2, 1\)"),
        ({"x": normal(1, 2, d)}, r".* with B = 2 as in the cache, got float.. \(1, 2, 11\)"),
        ({"cache": (1, 2)}, "cache a DecoderCache of init_cache, got tuple"),
    ):
        with pytest.raises(BadInput, match=f": expected {message}$"):
            LAYER(**{"x": normal(B, 2, d), "cache": LAYER.init_cache(ops.array(memory), 4)} | arguments)
    with pytest.raises(BadInput, match=r": expected memory \[B, S, d\] for a cache, got shape \(\)$"):
        LAYER.init_cache(2, 5)
    with pytest.raises(BadInput, match="^only: expected a built layer for a cache, got none. Call it first$"):
        only.init_cache(memory, 5)
    only(normal(B, T, d))
    with pytest.raises(BadInput, match=r"^only: expected x \[B, T, d\] for a cache, got none$"):
        only.init_cache(memory, 5)
