"""Several models that decode as one: the mean of the probabilities that the oracle computes from each one's weights."""

import dataclasses

import numpy as np
import oracle
import pytest
from conftest import array, close, draw_weights, weights_of
from keras import ops

from tf_transformer import BadInput, Ensemble, Transformer, TransformerConfig

B, h, T, S, d, d_k, d_v, d_ff, V, N, MODELS = 2, 3, 5, 7, 11, 13, 17, 19, 23, 2, 3
CONFIG = TransformerConfig(N, d, d_ff, h, d_k=d_k, d_v=d_v, vocab_size=V)
SOURCE = np.array([[3, 9, 22, 4, 0, 0, 0], [8, 1, 5, 5, 17, 6, 2]])  # [B, S]
TARGET = np.array([[1, 7, 21, 0, 0], [1, 4, 12, 4, 19]])  # [B, T]


def built(seed, config=CONFIG, **options):
    model = Transformer(config, **options)
    model.build()
    return draw_weights(model, seed)


ENSEMBLE = Ensemble([built(seed) for seed in range(MODELS)])


def test_probabilities_are_the_mean_and_attention_is_that_of_all_heads():
    logits, scores = ENSEMBLE((ops.array(SOURCE), ops.array(TARGET)), return_attention_scores=True)
    assert ops.dtype(logits) == "float32"
    for b in range(B):
        outputs = [oracle.transformer(SOURCE[b], TARGET[b], weights_of(model), N, h) for model in ENSEMBLE.models]
        probabilities = [[oracle.softmax(row) for row in rows] for rows, _ in outputs]
        close(logits[b], np.log(np.mean(probabilities, axis=0)), atol=1e-5)
        for kind, weights in scores._asdict().items():
            for i in range(N):
                close(weights[i][b], np.concatenate([attended[kind][i] for _, attended in outputs]), atol=1e-5)


def test_no_chance_is_so_small_that_its_logarithm_is_not_finite():
    sharp = [built(seed, dataclasses.replace(CONFIG, num_layers=1)) for seed in range(2)]
    for model in sharp:
        model.embedding.embeddings.assign(model.embedding.embeddings * 1e3)
    logits = array(Ensemble(sharp)((ops.array(SOURCE), ops.array(TARGET))))
    assert logits.min() < -200 and np.isfinite(logits).all()  # exp(-200) is 0 in float32


def test_in_another_dtype():
    restored = ENSEMBLE.astype("bfloat16").astype("float32")
    assert restored.dtype_policy.name == "float32" and len(restored.models) == MODELS
    for weight, expected in zip(restored.get_weights(), ENSEMBLE.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, array(ops.cast(ops.cast(expected, "bfloat16"), "float32")))


def test_models_that_differ_are_refused():
    wide = TransformerConfig(N, d + 1, d_ff, h, d_k=d_k, d_v=d_v, vocab_size=V)
    for other in (built(1, wide), built(1, dtype="bfloat16")):
        with pytest.raises(BadInput, match="one configuration and one dtype, got .*d_model=11.*float32; .*d_model=1"):
            Ensemble([ENSEMBLE.models[0], other])
    with pytest.raises(BadInput, match="one configuration and one dtype, got none"):
        Ensemble([])
