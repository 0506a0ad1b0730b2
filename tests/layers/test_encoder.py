"""The encoder's layer (section 3.1)."""

import keras
import numpy as np
import oracle
import pytest
from conftest import close, draw_weights, normal, weights_of
from promises import tensorflow_only

import tf_transformer as tt
from tf_transformer.config import BadInput
from tf_transformer.layers import DecoderLayer, EncoderLayer

B, h, S, d, d_k, d_v, d_ff = 2, 3, 7, 11, 13, 17, 19
MASK = np.arange(S) < np.array([[5], [7]])  # [B, S]


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


def test_a_causal_mask_hides_later_positions():
    x, below = normal(B, S, d), np.tri(S, dtype=bool)[None]
    causal = LAYER(x, mask=MASK, use_causal_mask=True)
    close(causal, LAYER(x, mask=MASK, attention_mask=below))
    for length in range(1, S + 1):  # a prefix has no later positions
        expected = oracle.encoder_layer(x[1, :length], weights_of(LAYER), h)[0]
        close(causal[1, length - 1], expected[-1])


def test_a_decoder_layer_without_memory_is_a_causal_encoder_layer():
    x, layer = normal(B, S, d), DecoderLayer(h, d_ff, d_k, d_v)
    layer(x)
    for name in ("self_attention", "self_attention_norm", "feed_forward", "feed_forward_norm"):
        getattr(layer, name).set_weights(getattr(LAYER, name).get_weights())
    output, scores = layer(x, return_attention_scores=True)
    expected = LAYER(x, use_causal_mask=True, return_attention_scores=True)
    close(output, expected[0])
    close(scores, expected[1])
    with pytest.raises(BadInput, match="^decoder_layer.*: expected memory none"):
        layer(x, normal(B, 3, d))


def test_the_order_of_other_packages_is_refused():
    """KerasHub's layers take the width before the heads."""
    for kind in (tt.layers.EncoderLayer, tt.layers.DecoderLayer):
        with pytest.raises(
            tt.BadInput, match="expected num_heads=64 of at most d_ff=4. The order is num_heads, d_ff.$"
        ):
            kind(64, 4)


@tensorflow_only  # elsewhere Keras computes in float32
def test_the_gradient_in_float64_is_that_of_differences():
    """With a softmax in float32, it would be off by a tenth."""
    layer = tt.layers.EncoderLayer(num_heads=2, d_ff=7, dropout=0.0, activation="gelu", dtype="float64")
    x, direction = np.random.default_rng(0).normal(size=(2, 1, 5, 6))
    layer(x)
    value = lambda t: float(np.sum(np.asarray(keras.ops.convert_to_numpy(layer(x + t * direction))) ** 3))  # noqa: E731
    fine, coarse = ((value(h) - value(-h)) / (2 * h) for h in (1e-6, 1e-4))
    assert fine == pytest.approx(coarse, rel=1e-6) and abs(fine) > 0.1
