"""The decoder's layer: the right half of Figure 1 (section 3.1)."""

from typing import Any, NamedTuple

import keras
from keras import ops

from tf_transformer.base.type_names import Shape, Tensor
from tf_transformer.base.values import Count, Rate, checked
from tf_transformer.layers.attention import KeyValue, MultiHeadAttention, attention, masked_attention
from tf_transformer.layers.quantization import KeepsQuantized
from tf_transformer.layers.rematerialization import Rematerialized
from tf_transformer.layers.sublayers import AddAndNorm, FeedForward
from tf_transformer.masks import as_key_mask, causal_mask, last_allowed


class DecoderCache(NamedTuple):
    """What one decoder layer remembers between steps."""

    target: KeyValue  # slots for the target's keys and values, filled from the left [B, h, C, ...]
    memory: KeyValue  # the encoder output's keys and values, projected once [B, h, S, ...]


@keras.saving.register_keras_serializable("tf_transformer")
class DecoderLayer(KeepsQuantized, Rematerialized):
    """Masked self-attention, attention over the encoder's output, feed-forward, each inside Add & Norm.

    Args:
        num_heads: h.
        d_ff: width of the feed-forward hidden layer.
        d_k: width of a head's keys and queries; `None` means d_model / num_heads.
        d_v: width of a head's values; `None` means d_model / num_heads.
        dropout: P_drop, on each sub-layer's output.
        attention_dropout: on attention weights (the paper has none).
        attention_window: r; a token attends to itself and the r // 2 tokens before it (section 4); `None` means to all
            before it.

    Examples:
        >>> x, memory = keras.random.normal((2, 5, 32)), keras.random.normal((2, 7, 32))
        >>> layer = tt.layers.DecoderLayer(num_heads=4, d_ff=64)
        >>> keras.ops.shape(layer(x, memory))
        (2, 5, 32)
    """

    @checked
    def __init__(
        self,
        num_heads: Count = 8,
        d_ff: Count = 2048,
        d_k: Count | None = None,
        d_v: Count | None = None,
        dropout: Rate = 0.1,
        attention_dropout: Rate = 0.0,
        attention_window: Count | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.d_k = d_k
        self.d_v = d_v
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.attention_window = attention_window
        self.supports_masking = True

    def build(self, x_shape: Shape, memory_shape: Shape = None) -> None:
        self.self_attention = self.make_attention("self_attention")
        self.cross_attention = self.make_attention("cross_attention")
        self.feed_forward = self.make_feed_forward("feed_forward")
        self.self_attention_norm = self.make_norm("self_attention_norm")
        self.cross_attention_norm = self.make_norm("cross_attention_norm")
        self.feed_forward_norm = self.make_norm("feed_forward_norm")
        self.cross_attention.build(x_shape, memory_shape)
        for layer in (
            self.self_attention,
            self.self_attention_norm,
            self.cross_attention_norm,
            self.feed_forward,
            self.feed_forward_norm,
        ):
            layer.build(x_shape)

    # A variant overrides these methods to use other parts.

    def make_attention(self, name: str) -> keras.layers.Layer:
        heads = (self.num_heads, self.d_k, self.d_v, self.attention_dropout)
        return MultiHeadAttention(*heads, name=name, dtype=self.dtype_policy)

    def make_feed_forward(self, name: str) -> keras.layers.Layer:
        return FeedForward(self.d_ff, name=name, dtype=self.dtype_policy)

    def make_norm(self, name: str) -> keras.layers.Layer:
        return AddAndNorm(self.dropout, name=name, dtype=self.dtype_policy)

    def init_cache(self, memory: Tensor, slots: int = 0) -> DecoderCache:
        """An empty cache with `slots` places for target tokens, and memory [B, S, d] projected once."""
        kv = self.cross_attention.project(memory)
        B, h = ops.shape(memory)[0], self.num_heads
        empty = (ops.zeros((B, h, slots, part.shape[-1]), part.dtype) for part in kv)
        return DecoderCache(KeyValue(*empty), kv)

    def call(
        self,
        x: Tensor,
        memory: Tensor = None,
        x_mask: Tensor = None,
        memory_mask: Tensor = None,
        attention_mask: Tensor = None,
        cache: DecoderCache | None = None,
        slot: Tensor = 0,
        return_attention_scores: bool = False,
    ) -> Any:
        """Decode x [B, T, d]: the whole target, or only its newest tokens if there is a cache.

        Args:
            x: [B, T, d].
            memory: the encoder's output [B, S, d]; not used with a cache, which holds its projection.
            x_mask: padding mask of x [B, T], for a whole target; not needed when padding stands at the end, where
                causality hides it.
            memory_mask: padding mask of memory [B, S].
            attention_mask: bool [B, T, C], which targets each token may attend to; `None` means itself and all before
                it. A window restricts it further, to positions at most r // 2 away. With a cache, whose slots need not
                be positions, the window keeps the newest r // 2 + 1 slots that the mask allows.
            cache: `DecoderCache` with C slots; x goes into the slots slot .. slot + T - 1.
            slot: the cache's slot for the first column of x.
            return_attention_scores: also return the weights of self-attention [B, h, T, C] and of cross-attention
                [B, h, T, S].

        Returns:
            x [B, T, d]; then the cache if one was given; then both attention weights if requested.
        """
        inputs = self.self_attention_norm.sublayer_input(x)
        T, target, attend = ops.shape(x)[1], self.self_attention.project(inputs), attention
        if cache is None:
            kv = self.cross_attention.project(memory)
            masks = attention_mask, as_key_mask(x_mask)
            attention_mask, attend = masked_attention(T, *masks, self.attention_window, return_attention_scores)
        else:
            target, kv = cache.target.write(slot, target), cache.memory
            cache = DecoderCache(target, kv)
            if attention_mask is None:
                attention_mask = causal_mask(T, ops.shape(target.key)[2], slot)
            if self.attention_window:
                attention_mask = last_allowed(attention_mask, self.attention_window // 2 + 1)

        attended, self_scores = self.self_attention.attend(inputs, target, attention_mask, attend)
        x = self.self_attention_norm(x, attended)
        inputs = self.cross_attention_norm.sublayer_input(x)
        attended, cross_scores = self.cross_attention.attend(inputs, kv, as_key_mask(memory_mask))
        x = self.cross_attention_norm(x, attended)
        x = self.feed_forward_norm(x, self.feed_forward(self.feed_forward_norm.sublayer_input(x)))

        outputs: tuple[Any, ...] = (x,) if cache is None else (x, cache)
        if return_attention_scores:
            outputs += (self_scores, cross_scores)
        return outputs if len(outputs) > 1 else x

    def compute_output_shape(self, x_shape: Shape, memory_shape: Shape = None) -> Any:
        return x_shape

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        return keras.Operation.compute_output_spec(self, *args, **kwargs)  # traced: outputs and dtypes vary

    def get_config(self) -> dict[str, Any]:
        names = ("num_heads", "d_ff", "d_k", "d_v", "dropout", "attention_dropout", "attention_window")
        return super().get_config() | {name: getattr(self, name) for name in names}
