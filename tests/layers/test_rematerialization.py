"""Layers under `keras.RematScope`: they are computed once more in the backward pass, and nothing else changes."""

import contextlib

import keras
import numpy as np
import pytest

import tf_transformer as tt

IDS = np.random.default_rng(0).integers(1, 37, (5, 7))
IDS[1, 4:] = 0


def of_layers():
    """A functional model; Keras's own layers in it are made outside the scope."""
    layers = [tt.layers.PositionalEmbedding(37, 12, dropout=0.3), tt.layers.EncoderLayer(2, 23, dropout=0.3)]

    def finish():
        ids = keras.Input((None,), dtype="int32")
        return keras.Model(ids, keras.layers.Dense(37)(layers[1](layers[0](ids))))

    return finish


def of_transformer():
    config = tt.TransformerConfig(1, 12, 23, 2, dropout=0.3, attention_dropout=0.2, vocab_size=37)
    model = tt.Transformer(config)
    model.build()
    return lambda: model


def trained(make, scope, **options):
    """Losses and weights after training, and how often the encoder's layer was called or traced."""
    keras.utils.set_random_seed(3)
    with scope:
        finish = make()
    model, calls = finish(), []
    (layer,) = (layer for layer in model._flatten_layers() if isinstance(layer, tt.layers.EncoderLayer))
    call = layer.call
    layer.call = lambda *args, **kwargs: calls.append(1) or call(*args, **kwargs)
    model.compile(keras.optimizers.SGD(0.1), tt.SmoothedCrossEntropy(), **options)
    x = (IDS[:, :6], IDS) if isinstance(model, tt.Transformer) else IDS
    history = model.fit(x, np.roll(IDS, -1, 1), 5, 3, verbose=0).history
    return history["loss"], model.get_weights(), len(calls)


SCOPES = {
    "full": {"mode": "full"},
    "some layers": {"mode": "list_of_layers", "layer_names": ["encoder_0"]},
    "not this layer": {"mode": "list_of_layers", "layer_names": ["decoder_0"]},
}


@pytest.mark.parametrize(
    ("make", "scope", "options", "more"),
    [
        (of_layers, "full", {}, 1),
        (of_transformer, "some layers", {"run_eagerly": True}, 3),
        pytest.param(of_layers, "full", {"jit_compile": True}, 1, marks=pytest.mark.slow),
        pytest.param(of_transformer, "full", {"jit_compile": True}, 1, marks=pytest.mark.slow),
        pytest.param(of_transformer, "not this layer", {}, 0, marks=pytest.mark.slow),
    ],
)
def test_a_layer_is_computed_once_more_and_trains_alike(make, scope, options, more):
    """Recomputation drops the same components. The next step drops others."""
    losses, weights, calls = trained(make, contextlib.nullcontext(), **options)
    remat_losses, remat_weights, remat_calls = trained(make, keras.RematScope(**SCOPES[scope]), **options)
    assert remat_calls == calls + more  # one more per step if eager, or per trace
    np.testing.assert_allclose(remat_losses, losses, rtol=1e-5)
    for weight, remat_weight in zip(weights, remat_weights, strict=True):
        np.testing.assert_allclose(remat_weight, weight, atol=1e-6)


MODES = [
    "full",
    *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("activations", "larger_than", "list_of_layers")),
]


@pytest.mark.parametrize("mode", MODES)
def test_a_model_decodes_before_it_has_trained(mode):
    """A search compiles calls of inner layers."""
    tf = pytest.importorskip("tensorflow")
    names = ["encoder_0", "decoder_0", "key", "query", "hidden", "output"]
    with keras.RematScope(mode=mode, output_size_threshold=1, layer_names=names):
        model = of_transformer()()

    def decode(source, target):
        memory, memory_mask, _ = model.encode(source)
        cache = model.init_cache(memory, 3)
        return model((source, target)), model.decode_step(target[:, :1], cache, memory_mask, [0], 0)[0]

    x = IDS[:, :6], IDS
    for output, expected in zip(tf.function(decode)(*map(tf.constant, x)), decode(*x), strict=True):
        np.testing.assert_allclose(output, expected, atol=1e-5)


def test_inference_ignores_the_scope(monkeypatch):
    with keras.RematScope():
        layer = tt.layers.EncoderLayer(2, 23)
    wrapped = []
    monkeypatch.setattr(
        keras.layers.Layer, "rematerialized_call", lambda _, call, *__, **___: wrapped.append(1) or call
    )
    layer(np.ones((1, 3, 8)))
    layer(np.ones((1, 3, 8)), training=False)
    assert not wrapped
    layer(np.ones((1, 3, 8)), training=True)
    assert wrapped
