"""Layers of `test_conformance*.py`, and the law of caches."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np
import pytest
from conftest import array, close, draw_weights
from keras import ops

import tf_transformer as tt

# Different sizes reveal wrong axes. bfloat16 cannot represent all ids below V.
B, T, S, D, V = 2, 5, 4, 7, 307
SIZES = {"num_heads": 3, "d_k": 11, "d_v": 13}
RATES = {"dropout": 0.3, "attention_dropout": 0.2}
WINDOW = 3
OTHER = {"activation": "gelu", "norm_first": True, "use_bias": True, "epsilon": 1e-3}
CONFIG = tt.TransformerConfig(num_layers=1, d_model=D, d_ff=17, vocab_size=V, **SIZES, **RATES)

tensorflow_only = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a feature of TensorFlow")
jax_only = pytest.mark.skipif(keras.backend.backend() != "jax", reason="a feature of JAX")


# The list


@dataclass(frozen=True)
class Case:
    """A layer of the list and how to feed it."""

    name: str
    make: Callable[..., keras.layers.Layer]  # takes `name`, `dtype` and other arguments of Keras layers
    lengths: tuple[int, ...] = (T,)  # one per input
    of_ids: bool = False  # inputs are [B, length], not [B, length, D]
    mixes: bool = False  # one position changes the output at others
    scores: bool = False  # takes return_attention_scores
    slow: bool = False  # like another of the list
    output_shape: tuple[int, ...] = (B, T, D)

    @property
    def has_positions(self):
        return self.of_ids or self.make is learned_positions

    def call(self, layer, inputs, **kwargs):
        """Calls a layer with its inputs, or a model with a tuple of them."""
        return layer(tuple(inputs), **kwargs) if isinstance(layer, tt.Transformer) else layer(*inputs, **kwargs)

    def input_shapes(self, batch=B, longer=0):
        shapes = [(batch, length + longer, D) for length in self.lengths]
        return [shape[:2] for shape in shapes] if self.of_ids else shapes

    def arrays(self, *args, **kwargs):
        """Returns an array for each input: ids without padding, or normal numbers."""
        random = np.random.default_rng(1)
        shapes = self.input_shapes(*args, **kwargs)
        if self.of_ids:
            return [random.integers(1, V, shape, dtype="int32") for shape in shapes]
        return [random.normal(size=shape).astype("float32") for shape in shapes]

    def symbolic_inputs(self):
        """Returns a `keras.Input` for each input, of unknown batch and length."""
        dtype = "int32" if self.of_ids else "float32"
        return [keras.Input((None, *shape[2:]), dtype=dtype) for shape in self.input_shapes()]

    def built(self, **kwargs):
        """Returns the layer, built by a call, with weights that no initializer makes."""
        layer = self.make(**kwargs)
        self.call(layer, self.arrays())
        return draw_weights(layer)

    def model(self, layer=None):
        """Returns the layer, by default `built`, as a functional model."""
        inputs = self.symbolic_inputs()
        return keras.Model(inputs, self.call(layer or self.built(), inputs))

    @functools.cache  # noqa: B019 (the list lives as long as the process)
    def weights(self):
        """Returns the weights of the `built` layer."""
        return self.built().get_weights()

    @functools.cache  # noqa: B019
    def output(self):
        """Returns the output of the `built` layer for `arrays`."""
        return array(self.call(self.built(), self.arrays()))

    def __str__(self):
        return self.name


def self_or_cross(**kwargs):
    return tt.layers.MultiHeadAttention(**SIZES, dropout=0.2, use_bias=True, **kwargs)


def sinusoidal(**kwargs):
    return tt.layers.PositionalEmbedding(V, D, "sinusoidal", max_length=19, dropout=0.3, **kwargs)


def learned(**kwargs):
    return tt.layers.PositionalEmbedding(V, D, "learned", max_length=19, dropout=0.3, **kwargs)


def learned_positions(**kwargs):
    return tt.layers.PositionalEncoding("learned", max_length=19, dropout=0.3, **kwargs)


def feed_forward(**kwargs):
    return tt.layers.FeedForward(d_ff=17, activation="gelu", **kwargs)


def add_and_norm(**kwargs):
    return tt.layers.AddAndNorm(dropout=0.3, epsilon=1e-3, **kwargs)


def encoder(**kwargs):
    return tt.layers.EncoderLayer(d_ff=17, **SIZES, **RATES, **kwargs)


def decoder(**kwargs):
    return tt.layers.DecoderLayer(d_ff=17, **SIZES, **RATES, **kwargs)


def restricted_encoder(**kwargs):
    return tt.layers.RestrictedEncoderLayer(d_ff=17, window=WINDOW, **SIZES, **RATES, **OTHER, **kwargs)


def transformer(**kwargs):
    return tt.Transformer(CONFIG, **kwargs)


LAYERS = [
    Case("self_attention", self_or_cross, mixes=True, scores=True),
    Case("cross_attention", self_or_cross, (T, S), mixes=True, scores=True),
    Case("sinusoidal", sinusoidal, of_ids=True),
    Case("learned", learned, of_ids=True, slow=True),
    Case("learned_positions", learned_positions),
    Case("feed_forward", feed_forward),
    Case("add_and_norm", add_and_norm, (T, T)),
    Case("encoder", encoder, mixes=True, scores=True),
    Case("decoder", decoder, (T, S), mixes=True, scores=True),
    Case("decoder_only", decoder, mixes=True, scores=True, slow=True),
    Case("restricted_encoder", restricted_encoder, mixes=True, scores=True, slow=True),
]
MODELS = [Case("transformer", transformer, (S, T), of_ids=True, mixes=True, scores=True, output_shape=(B, T, V))]


def promise(cases, slow=()):
    """Parametrizes a test by cases. Those that resemble another, or take long, are slow."""
    return pytest.mark.parametrize(
        "case", [pytest.param(x, marks=[pytest.mark.slow] * (x.slow or x.name in slow)) for x in cases], ids=str
    )


every_case = promise(LAYERS + MODELS)
every_layer = promise(LAYERS)
every_layer_of_one_input = promise([case for case in LAYERS if len(case.lengths) == 1])

assert_close = functools.partial(close, atol=1e-5)


# Caches


def assert_cached_is_whole(model, source, target, compiled):
    """Checks that decoding token by token through a cache has the logits and attention weights of the whole target."""
    source, target = ops.array(source), ops.array(target)
    memory, memory_mask, _ = model.encode(source)
    logits, *attended = model.decode(target, memory, memory_mask, return_attention_scores=True)
    weights = model.softmax_weights()

    def step(ids, cache, t):
        newest = ids, cache, memory_mask, ops.reshape(t, [1]), t
        return model.decode_step(*newest, softmax_weights=weights, return_attention_scores=True)

    step, cache = compiled(step), model.init_cache(memory, target.shape[1])
    for t in range(target.shape[1]):
        step_logits, cache, *scores = step(target[:, t : t + 1], cache, ops.array(t))
        assert ops.dtype(step_logits) == "float32"
        assert_close(step_logits[:, 0], logits[:, t])
        for of_step, of_whole in zip(scores, attended, strict=True):
            for step_weights, whole_weights in zip(of_step, of_whole, strict=True):
                assert_close(step_weights[:, :, 0], whole_weights[:, :, t])
