"""The encoder's layer: the left half of Figure 1 (section 3.1)."""

import functools
from typing import Any

import keras
from keras import ops

from tf_transformer.base.type_names import Shape, Tensor
from tf_transformer.base.values import Count, Rate, checked
from tf_transformer.layers.attention import MultiHeadAttention, attention, restricted_attention
from tf_transformer.layers.quantization import KeepsQuantized
from tf_transformer.layers.rematerialization import Rematerialized
from tf_transformer.layers.sublayers import AddAndNorm, FeedForward
from tf_transformer.masks import as_key_mask, intersect, near_mask


@keras.saving.register_keras_serializable("tf_transformer")
class EncoderLayer(KeepsQuantized, Rematerialized):
    """Self-attention, then feed-forward, each inside Add & Norm. d_model comes from the input.

    Args:
        num_heads: h.
        d_ff: width of the feed-forward hidden layer.
        d_k: width of a head's keys and queries; `None` means d_model / num_heads.
        d_v: width of a head's values; `None` means d_model / num_heads.
        dropout: P_drop, on each sub-layer's output.
        attention_dropout: on attention weights (the paper has none).
        attention_window: r; a position attends to positions at most r // 2 away (section 4); `None` means to all.

    Examples:
        >>> ids = keras.Input((None,), dtype="int32")
        >>> x = tt.layers.PositionalEmbedding(vocab_size=500, d_model=32)(ids)
        >>> x = tt.layers.EncoderLayer(num_heads=4, d_ff=64)(x)
        >>> x = keras.layers.GlobalAveragePooling1D()(x)  # over tokens, without padding
        >>> classifier = keras.Model(ids, keras.layers.Dense(3, activation="softmax")(x))
        >>> classifier.output_shape
        (None, 3)
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

    def build(self, x_shape: Shape) -> None:
        self.self_attention = self.make_attention("self_attention")
        self.self_attention_norm = self.make_norm("self_attention_norm")
        self.feed_forward = self.make_feed_forward("feed_forward")
        self.feed_forward_norm = self.make_norm("feed_forward_norm")
        for layer in (self.self_attention, self.self_attention_norm, self.feed_forward, self.feed_forward_norm):
            layer.build(x_shape)

    # A variant overrides these methods to use other parts.

    def make_attention(self, name: str) -> keras.layers.Layer:
        heads = (self.num_heads, self.d_k, self.d_v, self.attention_dropout)
        return MultiHeadAttention(*heads, name=name, dtype=self.dtype_policy)

    def make_feed_forward(self, name: str) -> keras.layers.Layer:
        return FeedForward(self.d_ff, name=name, dtype=self.dtype_policy)

    def make_norm(self, name: str) -> keras.layers.Layer:
        return AddAndNorm(self.dropout, name=name, dtype=self.dtype_policy)

    def call(self, x: Tensor, mask: Tensor = None, return_attention_scores: bool = False) -> Any:
        """Encode x [B, S, d] under its padding mask [B, S].

        Returns:
            [B, S, d]; with `return_attention_scores` also the attention weights [B, h, S, S].
        """
        inputs = self.self_attention_norm.sublayer_input(x)
        kv = self.self_attention.project(inputs)
        mask, attend = as_key_mask(mask), attention
        if (
            self.attention_window and return_attention_scores
        ):  # the scores take n * n anyway, so blocks would save nothing
            mask = intersect(mask, near_mask(ops.shape(x)[1], self.attention_window))
        elif self.attention_window:
            attend = functools.partial(restricted_attention, window=self.attention_window)
        attended, scores = self.self_attention.attend(inputs, kv, mask, attend)
        x = self.self_attention_norm(x, attended)
        x = self.feed_forward_norm(x, self.feed_forward(self.feed_forward_norm.sublayer_input(x)))
        return (x, scores) if return_attention_scores else x

    def compute_output_shape(self, x_shape: Shape) -> Any:
        return x_shape

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        return keras.Operation.compute_output_spec(self, *args, **kwargs)  # traced: outputs and dtypes vary

    def get_config(self) -> dict[str, Any]:
        names = ("num_heads", "d_ff", "d_k", "d_v", "dropout", "attention_dropout", "attention_window")
        return super().get_config() | {name: getattr(self, name) for name in names}
