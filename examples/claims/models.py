"""Baselines of the experiments: an LSTM encoder-decoder with attention, and ConvS2S (Gehring et al. 2017).

Both are models of token ids like `tt.Transformer`, whose embedding, softmax, training step, translator and parser they
use. So they differ from it only between the embedding and the softmax.

Axes: B sentences, K hypotheses, S source tokens, T target tokens, L tokens of a prefix, d model.
"""

from typing import Any

import keras
from keras import ops

from tf_transformer import Transformer, TransformerConfig
from tf_transformer.decoding.primitives import gather, sorted_top_k
from tf_transformer.layers import DecoderCache, KeyValue, PositionalEmbedding
from tf_transformer.layers.dropout import Dropout
from tf_transformer.masks import padding_mask
from tf_transformer.utils.type_names import Shape, Tensor

WIDTH = 3  # of ConvS2S's kernels
HALF = 0.5**0.5  # factor of a sum of two terms, which keeps its variance


class WithoutPositions(PositionalEmbedding):
    """Token embeddings without positions."""

    def encoding(self, position: Tensor) -> Any:
        return ops.zeros((1, self.d_model))

    def encoding_of(self, x: Tensor) -> Any:
        return ops.zeros((1, self.d_model))


class Baseline(Transformer):
    """Base of models whose decoder has no cache: each step of a search decodes all prefixes again."""

    def make_encoder_layers(self) -> list[Any]:
        return []

    def make_decoder_layers(self) -> list[Any]:
        return []

    def make_dropout(self, name: str) -> Dropout:
        return Dropout(self.config.dropout, name=name)

    def outputs(self, target: Tensor, memory: Tensor, memory_mask: Tensor, training: bool | None) -> tuple[Any, Any]:
        """Returns the decoder's outputs [B, T, d], and the weights of its attention [B, T, S]."""
        raise NotImplementedError

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        memory_mask: Tensor,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> tuple[Any, list[Any], list[Any]]:
        x, scores = self.outputs(target, memory, memory_mask, training)
        return self.logits(x), [], [scores[:, None]]

    def init_cache(self, memory: Tensor, slots: int = 0) -> list[DecoderCache]:
        """Returns a cache of target ids, as floats, and memory."""
        ids = ops.zeros((ops.shape(memory)[0], 1, slots, 1))
        return [DecoderCache(KeyValue(ids, ids), KeyValue(memory[:, None], memory[:, None]))]

    def decode_step(
        self,
        target: Tensor,
        cache: list[DecoderCache],
        memory_mask: Tensor,
        position: Tensor,
        slot: Tensor,
        attention_mask: Tensor = None,
        softmax_weights: Tensor = None,
        return_attention_scores: bool = False,
    ) -> tuple[Any, ...]:
        (layer,) = cache
        B, K = ops.shape(target)
        new = ops.cast(target, "float32")[:, None, :, None]
        slots = layer.target.write(slot, KeyValue(new, new))
        ids = ops.cast(slots.key[:, 0, :, 0], "int32")
        # A hypothesis sees as many slots as it has tokens. Top-k of 0 and 1 returns them in order.
        _, chosen = sorted_top_k(ops.cast(attention_mask, "int32"), ops.reshape(position, ()) + 1)
        prefixes = ops.reshape(gather(ids, chosen, batch_dims=1), (B * K, -1))

        def by_beam(part: Tensor) -> Any:
            """Repeats a tensor [B, ...] for each of the K hypotheses: [B * K, ...]."""
            sizes = ops.shape(part)[1:]
            return ops.reshape(ops.broadcast_to(part[:, None], (B, K, *sizes)), (B * K, *sizes))

        x, scores = self.outputs(prefixes, by_beam(layer.memory.key[:, 0]), by_beam(memory_mask), False)
        logits = self.logits(ops.reshape(x[:, -1], (B, K, x.shape[-1])), softmax_weights)
        cache = [DecoderCache(slots, layer.memory)]
        scores = ops.reshape(scores[:, -1], (B, 1, K, -1))
        return (logits, cache, [], [scores]) if return_attention_scores else (logits, cache)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> tuple[Any, Any]:
    """Attends from query [B, T, d] to key and value [B, S, d] under a mask [B, S]. Returns values and weights."""
    logits = ops.matmul(query, ops.swapaxes(key, 1, 2))
    scores = ops.softmax(ops.where(mask[:, None], logits, -1e9))
    return ops.matmul(scores, value), scores


class Recurrent(Baseline):
    """LSTM encoder-decoder: a bidirectional encoder, and attention by Luong et al. (2015) from the first decoder layer.

    As in GNMT (Wu et al. 2016), the context is an input of the other layers, so all target tokens attend at once.
    `config.num_layers` is the number of layers in each stack, `config.d_model` the width of all.
    """

    def make_embedding(self) -> PositionalEmbedding:
        config = self.config
        return WithoutPositions(config.vocab_size, config.d_model, dropout=config.dropout, name="embedding")

    def build(self, input_shape: Shape = None) -> None:
        d, names = self.config.d_model, range(self.config.num_layers)
        lstm = lambda units, name: keras.layers.LSTM(units, return_sequences=True, name=name)  # noqa: E731
        self.encoder = [keras.layers.Bidirectional(lstm(d // 2, f"encoder_{i}"), name=f"both_{i}") for i in names]
        self.decoder = [lstm(d, f"decoder_{i}") for i in names]
        self.start, self.query, self.output_projection = (
            keras.layers.Dense(d, activation, use_bias, name=name)
            for name, activation, use_bias in (("start", "tanh", True), ("query", None, False), ("out", "tanh", True))
        )
        self.drop = self.make_dropout("drop")
        self.embedding.build((None, None))
        for layer in self.encoder:
            layer.build((None, None, d))
        for i, layer in enumerate(self.decoder):
            layer.build((None, None, 2 * d if i else d))
        for layer, width in ((self.start, d), (self.query, d), (self.output_projection, 2 * d)):
            layer.build((None, width))

    def encode(
        self, source: Tensor, mask: Tensor = None, return_attention_scores: bool = False, training: bool | None = None
    ) -> tuple[Any, Any, list[Any]]:
        mask = padding_mask(source) if mask is None else mask
        x = self.embed_source(source, training)
        for layer in self.encoder:
            x = self.drop(layer(x, mask=mask, training=training), training=training)
        return x, mask, []

    def outputs(self, target: Tensor, memory: Tensor, memory_mask: Tensor, training: bool | None) -> tuple[Any, Any]:
        # The backward half of the first position has read the whole source.
        h = self.start(memory[:, 0])
        state = [h, ops.zeros_like(h)]
        first, *others = self.decoder
        x = first(self.embedding.embed(target, training=training), initial_state=state, training=training)
        context, scores = attend(self.query(x), memory, memory, memory_mask)
        for layer in others:
            x = self.drop(ops.concatenate([x, context], -1), training=training)
            x = layer(x, initial_state=state, training=training)
        x = self.output_projection(ops.concatenate([x, context], -1))
        return self.drop(x, training=training), scores


class GatedConvolution(keras.layers.Layer):
    """Convolution of width k and a gated linear unit, with weight normalization: [B, T, d] -> [B, T, d]."""

    def __init__(self, before: int, dropout: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.padding = (before, WIDTH - 1 - before)
        self.drop = Dropout(dropout, name="drop")

    def build(self, x_shape: Shape) -> None:
        d = x_shape[-1]
        stddev = (4 * (1 - self.drop.rate) / (WIDTH * d)) ** 0.5
        initializer = keras.initializers.RandomNormal(stddev=stddev)
        self.direction = self.add_weight((WIDTH * d, 2 * d), initializer, name="direction")
        # The norm of a column of random numbers
        self.norm = self.add_weight((2 * d,), keras.initializers.Constant(stddev * (WIDTH * d) ** 0.5), name="norm")
        self.bias = self.add_weight((2 * d,), "zeros", name="bias")

    def call(self, x: Tensor, training: bool | None = None) -> Any:
        T, d = ops.shape(x)[1], x.shape[-1]
        x = ops.pad(self.drop(x, training=training), ((0, 0), self.padding, (0, 0)))
        windows = ops.concatenate([x[:, i : i + T] for i in range(WIDTH)], axis=-1)
        kernel = self.direction * (self.norm / ops.sqrt(ops.sum(self.direction**2, axis=0)))
        linear, gate = ops.split(ops.matmul(ops.reshape(windows, (-1, WIDTH * d)), kernel) + self.bias, 2, axis=-1)
        return ops.reshape(linear * ops.sigmoid(gate), (-1, T, d))


class Convolutional(Baseline):
    """ConvS2S: stacks of gated convolutions, with attention in each decoder layer."""

    def build(self, input_shape: Shape = None) -> None:
        d, dropout, names = self.config.d_model, self.config.dropout, range(self.config.num_layers)
        self.encoder = [GatedConvolution(WIDTH // 2, dropout, name=f"encoder_{i}") for i in names]
        self.decoder = [GatedConvolution(WIDTH - 1, dropout, name=f"decoder_{i}") for i in names]
        self.queries = [keras.layers.Dense(d, name=f"query_{i}") for i in names]
        self.contexts = [keras.layers.Dense(d, name=f"context_{i}") for i in names]
        self.drop = self.make_dropout("drop")
        self.embedding.build((None, None))
        for layer in (*self.encoder, *self.decoder, *self.queries, *self.contexts):
            layer.build((None, None, d))

    def encode(
        self, source: Tensor, mask: Tensor = None, return_attention_scores: bool = False, training: bool | None = None
    ) -> tuple[Any, Any, list[Any]]:
        """Returns memory [B, S, 2 d], keys and values of the decoder's attention."""
        mask = padding_mask(source) if mask is None else mask
        is_token = ops.cast(mask, "float32")[:, :, None]
        x = embedded = self.embed_source(source, training) * is_token
        for layer in self.encoder:
            x = HALF * (x + layer(x, training=training)) * is_token
        return ops.concatenate([x, HALF * (x + embedded)], -1), mask, []

    def outputs(self, target: Tensor, memory: Tensor, memory_mask: Tensor, training: bool | None) -> tuple[Any, Any]:
        key, value = ops.split(memory, 2, axis=-1)
        # Keeps the variance of a mean over the source's tokens.
        scale = ops.sqrt(ops.sum(ops.cast(memory_mask, "float32"), axis=1))[:, None, None]
        x = embedded = self.embedding.embed(target, training=training)
        for layer, query, context in zip(self.decoder, self.queries, self.contexts, strict=True):
            y = layer(x, training=training)
            attended, scores = attend(HALF * (query(y) + embedded), key, value, memory_mask)
            x = HALF * (x + HALF * (y + context(scale * attended)))
        return self.drop(x, training=training), scores


def recurrent_flops(config: TransformerConfig, source: int, target: int) -> int:
    """Returns floating point operations of a forward pass, as `costs.forward_flops` counts them."""
    d, N = config.d_model, config.num_layers
    encoder = source * 6 * N * d * d
    decoder = target * (8 + 12 * (N - 1) + 1 + 2) * d * d + d * d + 2 * target * source * d
    return 2 * (encoder + decoder + target * d * config.vocab_size)


def convolutional_flops(config: TransformerConfig, source: int, target: int) -> int:
    """Returns floating point operations of a forward pass, as `costs.forward_flops` counts them."""
    d, N = config.d_model, config.num_layers
    layer = 2 * WIDTH * d * d
    encoder, decoder = source * layer, target * (layer + 2 * d * d) + 2 * target * source * d
    return 2 * (N * (encoder + decoder) + target * d * config.vocab_size)
