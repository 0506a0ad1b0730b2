"""The encoder's layer (section 3.1)."""

import numpy as np
import oracle
import pytest
from conftest import COMPILERS, array, close, draw_weights, normal, weights_of
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from tf_transformer.layers import EncoderLayer

B, h, S, d, d_k, d_v, d_ff = 2, 3, 7, 11, 13, 17, 19
MASK = np.arange(S) < np.array([[5], [7]])  # [B, S]
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def built(seed=0, **options):
    layer = EncoderLayer(h, d_ff, d_k, d_v, **options)
    layer.build((None, None, d))
    return draw_weights(layer, seed)


LAYER = built()


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "padded"])
def test_encoder_layer(mask):
    x = normal(B, S, d)
    output, scores = LAYER(x, mask=mask, return_attention_scores=True)
    for b in range(B):
        expected = oracle.encoder_layer(x[b], weights_of(LAYER), h, None if mask is None else mask[b])
        close(output[b], expected[0])
        close(scores[b], expected[1])


@given(B=st.integers(1, 3), S=st.integers(1, 6), more=st.integers(1, 4), seed=st.integers(0, 99))
def test_padding_its_amount_and_its_content_change_nothing(B, S, more, seed):
    x = normal(B, S, d)
    padded = np.concatenate([x, 100 * normal(B, more, d, seed=seed)], axis=1)
    mask = np.broadcast_to(np.arange(S + more) < S, (B, S + more))
    found, scores = LAYER(padded, mask=mask, return_attention_scores=True)
    close(found[:, :S], LAYER(x))
    assert np.all(array(scores)[..., S:] == 0)


def test_a_sentence_of_padding_alone_gives_no_nan():
    found, scores = LAYER(normal(B, S, d), mask=np.zeros((B, S), bool), return_attention_scores=True)
    assert np.all(np.isfinite(array(found))) and np.all(array(scores) == 0)


@given(data=st.data(), S=st.integers(2, 7))
def test_an_encoder_without_positions_commutes_with_permutation(data, S):
    order = data.draw(st.permutations(range(S)))
    layers = [LAYER, built(seed=1)]
    x, mask = normal(B, S, d), np.arange(S) < np.array([[S], [S - 1]])

    def encode(x, mask):
        for layer in layers:
            x = layer(x, mask=mask)
        return array(x)

    close(encode(x[:, order], mask[:, order]), encode(x, mask)[:, order])


@pytest.mark.parametrize("mode", COMPILERS)
def test_graph_and_jit_compute_what_eager_does(mode):
    x = normal(B, S, d)
    compiled = COMPILERS[mode](lambda x, mask: LAYER(x, mask=mask))
    close(compiled(x, MASK), LAYER(x, mask=MASK))


def test_dropouts_are_for_training_only():
    layer, x = built(dropout=0.5, attention_dropout=0.5), normal(B, S, d)
    close(layer(x), LAYER(x))
    assert np.abs(array(layer(x, training=True)) - array(LAYER(x))).max() > 0.1


@pytest.mark.parametrize("option", ["dropout", "attention_dropout"])
def test_each_dropout_works_by_itself(option):
    rates = {"dropout": 0.0, "attention_dropout": 0.0} | {option: 0.5}
    layer, x = built(**rates), normal(B, S, d)
    assert np.abs(array(layer(x, training=True)) - array(LAYER(x))).max() > 0.1


@pytest.mark.parametrize("policy", POLICIES)
def test_the_policy_reaches_every_child(policy):
    layer, x = built(dtype=policy), normal(B, S, d)
    output, scores = layer(x, mask=MASK, return_attention_scores=True)
    assert ops.dtype(output) == layer.compute_dtype and ops.dtype(scores) == "float32"
    close(output, LAYER(x, mask=MASK), rtol=0, atol=1e-5 if policy == "float32" else 0.1)
    close(array(scores).sum(-1), np.ones((B, h, S)))
