"""The encoder's layer (section 3.1)."""

import numpy as np
import oracle
import pytest
from conftest import close, draw_weights, normal, weights_of

from tf_transformer.layers import EncoderLayer

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
