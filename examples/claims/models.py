"""The models of the experiments: the Transformer, also without a part of it, an LSTM with attention, and ConvS2S.

The baselines take embedding, softmax, training step, translator and parser from `tt.Transformer`.
Axes: B sentences, K hypotheses, S source tokens, T target tokens, d model.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from examples.rotary import NoPositions
from tf_transformer import Transformer, TransformerConfig
from tf_transformer.decoding.primitives import sorted_top_k
from tf_transformer.layers import DecoderCache, KeyValue, MultiHeadAttention
from tf_transformer.layers.attention import attention
from tf_transformer.layers.sublayers import Dropout
from tf_transformer.masks import padding_mask
from tf_transformer.utils.type_names import Shape, Tensor
from trainers.costs import forward_flops

Scored = tuple[Any, Any]  # outputs [B, T, d], and the weights of their attention [B, T, S]
Training = bool | None
WIDTH = 3  # of ConvS2S's kernels
HALF = 0.5**0.5  # factor of a sum of two terms, which keeps its variance
INITIAL = 0.1  # standard deviation of ConvS2S's embeddings. Larger ones saturate its attention, which has no scaling.


class Unordered(Transformer):
    """Transformer without positions."""

    def embedding_options(self) -> dict[str, Any]:
        return super().embedding_options() | {"positions": NoPositions()}


def unscaled_attention(query: Tensor, *args: Any) -> tuple[Any, Any]:
    """Computes softmax(Q K^T) V, equation (1) without its division by sqrt(d_k)."""
    return attention(query * query.shape[-1] ** 0.5, *args)


class Unscaled(Transformer):
    """Transformer without the division by sqrt(d_k)."""

    def build(self, input_shape: Shape = None) -> None:
        super().build(input_shape)
        for layer in self._flatten_layers():
            if isinstance(layer, MultiHeadAttention):
                layer.attend = functools.partial(layer.attend, attention=unscaled_attention)  # type: ignore[method-assign]


class Baseline(Transformer):
    """Base of models whose decoder has no cache: each step of a search decodes all prefixes again.

    A subclass defines `memory` and `outputs`.
    """

    def make_encoder_layers(self) -> list[Any]:
        return []

    make_decoder_layers = make_encoder_layers

    def encode(self, source: Tensor, mask: Tensor = None, *_: Any, **options: Any) -> tuple[Any, Any, list[Any]]:
        mask, training = padding_mask(source) if mask is None else mask, options.get("training")
        return self.memory(self.embed_source(source, training), mask, training), mask, []

    def decode(self, target: Tensor, memory: Tensor, memory_mask: Tensor, *_: Any, **options: Any) -> tuple[Any, ...]:
        training = options.get("training")
        x, weights = self.outputs(self.embedding.embed(target, training=training), memory, memory_mask, training)
        return self.logits(x), [], [weights[:, None]]

    def init_cache(self, memory: Tensor, slots: int = 0) -> list[DecoderCache]:
        """Returns a cache of target ids, as floats, and memory."""
        ids = ops.zeros((ops.shape(memory)[0], 1, slots, 1))
        return [DecoderCache(KeyValue(ids, ids), KeyValue(memory[:, None], memory[:, None]))]

    def decode_step(self, target: Tensor, cache: list[DecoderCache], *inputs: Tensor, **_: Any) -> tuple[Any, ...]:
        memory_mask, position, slot, attention_mask, softmax_weights = inputs
        ((slots, encoded),), (B, K) = cache, ops.shape(target)
        assert encoded
        new = ops.cast(target, "float32")[:, None, :, None]
        slots = slots.write(slot, KeyValue(new, new))
        # A hypothesis sees one slot for each of its tokens. Top-k of 0 and 1 returns them in order. Others follow in a
        # search of fixed shapes, which JAX needs. A causal decoder does not see them.
        newest = ops.reshape(position, (1,))
        fixed = keras.backend.backend() != "tensorflow"
        length = ops.shape(attention_mask)[-1] // K if fixed else newest[0] + 1
        _, chosen = sorted_top_k(ops.cast(attention_mask, "int32"), length)
        ids = ops.broadcast_to(ops.cast(slots.key[:, 0, :, 0], "int32")[:, None], ops.shape(attention_mask))
        ids = ops.reshape(ops.take_along_axis(ids, chosen, axis=2), (B * K, -1))

        def by_beam(part: Tensor) -> Any:
            """Repeats a tensor [B, ...] for each of the K hypotheses: [B * K, ...]."""
            sizes = ops.shape(part)[1:]
            return ops.reshape(ops.broadcast_to(part[:, None], (B, K, *sizes)), (B * K, *sizes))

        memory, mask = by_beam(encoded.key[:, 0]), by_beam(memory_mask)
        x, weights = self.outputs(self.embedding.embed(ids), memory, mask, False)
        x, weights = ops.take(x, newest, axis=1), ops.take(weights, newest, axis=1)
        logits = self.logits(ops.reshape(x, (B, K, x.shape[-1])), softmax_weights)
        return logits, [DecoderCache(slots, encoded)], [], [ops.reshape(weights, (B, 1, K, -1))]


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Scored:
    """Attends from query [B, T, d] to key and value [B, S, d] under a mask [B, S]."""
    weights = ops.softmax(ops.where(mask[:, None], ops.matmul(query, ops.swapaxes(key, 1, 2)), -1e9))
    return ops.matmul(weights, value), weights


class Recurrent(Baseline):
    """LSTM with a bidirectional encoder, and attention (Luong et al. 2015) from the first layer of the decoder.

    As in GNMT (Wu et al. 2016), the context is an input of the other layers. So all target tokens attend at once.
    """

    make_embedding = Unordered.make_embedding

    def build(self, input_shape: Shape = None) -> None:
        d, numbers = self.config.d_model, range(self.config.num_layers)
        lstm = lambda units, name: keras.layers.LSTM(units, return_sequences=True, name=name)  # noqa: E731
        self.encoder = [keras.layers.Bidirectional(lstm(d // 2, f"encoder_{i}"), name=f"both_{i}") for i in numbers]
        self.decoder = [lstm(d, f"decoder_{i}") for i in numbers]
        self.start = keras.layers.Dense(d, "tanh", name="start")
        self.query = keras.layers.Dense(d, use_bias=False, name="query")
        self.joined = keras.layers.Dense(d, "tanh", name="joined")
        self.drop = Dropout(self.config.dropout, name="drop")
        self.embedding.build((None, None))
        for layer in (*self.encoder, self.decoder[0], self.start, self.query):
            layer.build((None, None, d))
        for layer in (*self.decoder[1:], self.joined):
            layer.build((None, None, 2 * d))

    def memory(self, x: Tensor, mask: Tensor, training: Training) -> Any:
        for layer in self.encoder:
            x = self.drop(layer(x, mask=mask, training=training), training=training)
        return x

    def outputs(self, x: Tensor, memory: Tensor, memory_mask: Tensor, training: Training) -> Scored:
        # The backward half of the first position has read the whole source.
        h = self.start(memory[:, 0])
        state = [h, ops.zeros_like(h)]
        first, *others = self.decoder
        x = first(x, initial_state=state, training=training)
        context, weights = attend(self.query(x), memory, memory, memory_mask)
        for layer in others:
            x = self.drop(ops.concatenate([x, context], -1), training=training)
            x = layer(x, initial_state=state, training=training)
        return self.drop(self.joined(ops.concatenate([x, context], -1)), training=training), weights


class GatedConvolution(keras.layers.Layer):
    """Convolution and a gated linear unit, with weight normalization: [B, T, d] -> [B, T, d].

    An output sees `before` positions before it, so it is causal if they are WIDTH - 1.
    """

    def __init__(self, before: int, dropout: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.padding = (before, WIDTH - 1 - before)
        self.drop = Dropout(dropout, name="drop")

    def build(self, x_shape: Shape) -> None:
        size, d = WIDTH * x_shape[-1], x_shape[-1]
        stddev = (4 * (1 - self.drop.rate) / size) ** 0.5
        self.direction = self.add_weight(
            (size, 2 * d), keras.initializers.RandomNormal(stddev=stddev), name="direction"
        )
        self.norm = self.add_weight((2 * d,), keras.initializers.Constant(stddev * size**0.5), name="norm")
        self.bias = self.add_weight((2 * d,), "zeros", name="bias")

    def call(self, x: Tensor, training: Training = None) -> Any:
        T, d = ops.shape(x)[1], x.shape[-1]
        x = ops.pad(self.drop(x, training=training), ((0, 0), self.padding, (0, 0)))
        windows = ops.concatenate([x[:, i : i + T] for i in range(WIDTH)], axis=-1)
        kernel = self.direction * (self.norm / ops.sqrt(ops.sum(self.direction**2, axis=0)))
        linear, gate = ops.split(ops.matmul(ops.reshape(windows, (-1, WIDTH * d)), kernel) + self.bias, 2, axis=-1)
        return ops.reshape(linear * ops.sigmoid(gate), (-1, T, d))


class Convolutional(Baseline):
    """ConvS2S: stacks of gated convolutions, with attention in each decoder layer."""

    def build(self, input_shape: Shape = None) -> None:
        d, dropout, numbers = self.config.d_model, self.config.dropout, range(self.config.num_layers)
        self.encoder = [GatedConvolution(WIDTH // 2, dropout, name=f"encoder_{i}") for i in numbers]
        self.decoder = [GatedConvolution(WIDTH - 1, dropout, name=f"decoder_{i}") for i in numbers]
        self.queries = [keras.layers.Dense(d, name=f"query_{i}") for i in numbers]
        self.contexts = [keras.layers.Dense(d, name=f"context_{i}") for i in numbers]
        self.drop = Dropout(dropout, name="drop")
        self.embedding.build((None, None))
        for layer in (*self.encoder, *self.decoder, *self.queries, *self.contexts):
            layer.build((None, None, d))

    def memory(self, x: Tensor, mask: Tensor, training: Training) -> Any:
        """Returns keys and values of the decoder's attention [B, S, 2 d]."""
        is_token = ops.cast(mask, "float32")[:, :, None]
        embedded = x = INITIAL * x * is_token
        for layer in self.encoder:
            x = HALF * (x + layer(x, training=training)) * is_token
        return ops.concatenate([x, HALF * (x + embedded)], -1)

    def outputs(self, x: Tensor, memory: Tensor, memory_mask: Tensor, training: Training) -> Scored:
        embedded = x = INITIAL * x
        key, value = ops.split(memory, 2, axis=-1)
        # Keeps the variance of a mean over the source's tokens.
        scale = ops.sqrt(ops.sum(ops.cast(memory_mask, "float32"), axis=1))[:, None, None]
        for layer, query, context in zip(self.decoder, self.queries, self.contexts, strict=True):
            y = layer(x, training=training)
            attended, weights = attend(HALF * (query(y) + embedded), key, value, memory_mask)
            x = HALF * (x + HALF * (y + context(scale * attended)))
        return self.drop(x, training=training), weights


def recurrent_flops(config: TransformerConfig, source: int, target: int) -> int:
    """Counts a forward pass of `Recurrent` as `costs.forward_flops` does."""
    d, N = config.d_model, config.num_layers
    decoder = target * (12 * N - 4 + 3) * d * d + d * d + 2 * target * source * d
    return 2 * (source * 6 * N * d * d + decoder + target * d * config.vocab_size)


def convolutional_flops(config: TransformerConfig, source: int, target: int) -> int:
    """Counts a forward pass of `Convolutional` as `costs.forward_flops` does."""
    d, N = config.d_model, config.num_layers
    layers = (source + target) * 2 * WIDTH * d * d + target * 2 * d * d + 2 * target * source * d
    return 2 * (N * layers + target * d * config.vocab_size)


class Kind(NamedTuple):
    """A kind of model, a function that counts its forward pass, and its measured FLOP/s in training on one core."""

    model: type[Transformer]
    forward_flops: Callable[[TransformerConfig, int, int], int]
    flops_per_second: float


KINDS = {
    "transformer": Kind(Transformer, forward_flops, 50e9),
    "unscaled": Kind(Unscaled, forward_flops, 50e9),
    "unordered": Kind(Unordered, forward_flops, 50e9),
    "lstm": Kind(Recurrent, recurrent_flops, 28e9),
    "conv": Kind(Convolutional, convolutional_flops, 42e9),
}


class Ramp(keras.optimizers.schedules.LearningRateSchedule):
    """Equation (3) with a given `peak`, which decays after step `decay_after` also with another warm-up."""

    def __init__(self, peak: float, warmup_steps: int, decay_after: int) -> None:
        self.peak, self.warmup_steps, self.decay_after = peak, warmup_steps, decay_after

    def __call__(self, step: Tensor) -> Any:
        step = ops.cast(step, "float32") + 1.0
        decay = ops.minimum(1.0, (self.decay_after / step) ** 0.5)
        return self.peak * decay * (ops.minimum(1.0, step / self.warmup_steps) if self.warmup_steps else 1.0)

    def get_config(self) -> dict[str, Any]:
        return dict(vars(self))
