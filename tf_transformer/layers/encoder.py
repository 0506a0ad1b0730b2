"""The encoder's layer: the left half of Figure 1 (section 3.1)."""

from typing import Any

import keras
from keras import ops

from tf_transformer.layers.attention import KeyValue, MultiHeadAttention
from tf_transformer.layers.layer import Layer
from tf_transformer.layers.sublayers import AddAndNorm, FeedForward
from tf_transformer.masks import as_key_mask, causal_mask, intersect
from tf_transformer.utils.type_names import Shape, Tensor
from tf_transformer.utils.values import BadInput, Count, Positive, Rate, checked


class TransformerLayer(Layer):
    """Base of `EncoderLayer`, which documents the arguments, and of `DecoderLayer`."""

    @checked
    def __init__(
        self,
        num_heads: Count = 8,
        d_ff: Count = 2048,
        d_k: Count | None = None,
        d_v: Count | None = None,
        dropout: Rate = 0.1,
        attention_dropout: Rate = 0.0,
        activation: Any = "relu",
        norm_first: bool = False,
        use_bias: bool = False,
        epsilon: Positive = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if num_heads > d_ff:  # KerasHub's order
            raise BadInput(
                f"{self.name}: expected num_heads={num_heads} of at most d_ff={d_ff}. The order is num_heads, d_ff."
            )
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.d_k = d_k
        self.d_v = d_v
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation = activation
        self.norm_first = norm_first
        self.use_bias = use_bias
        self.epsilon = epsilon

    # Children get `dtype_policy`, since a layer made inside `build` would have Keras's default policy.

    def make_attention(self, name: str) -> MultiHeadAttention:
        options = self.num_heads, self.d_k, self.d_v, self.attention_dropout, self.use_bias
        return MultiHeadAttention(*options, name=name, dtype=self.dtype_policy)

    def make_feed_forward(self, name: str) -> FeedForward:
        return FeedForward(self.d_ff, self.activation, name=name, dtype=self.dtype_policy)

    def make_norm(self, name: str) -> AddAndNorm:
        return AddAndNorm(self.dropout, self.epsilon, self.norm_first, name=name, dtype=self.dtype_policy)


@keras.saving.register_keras_serializable("tf_transformer")
class EncoderLayer(TransformerLayer):
    """Self-attention, then feed-forward, each inside Add & Norm (section 3.1). The input's width is d_model.

    Args:
        num_heads: Number of heads h.
        d_ff: Width of the feed-forward network's hidden layer.
        d_k: Width of a head's keys and queries. Defaults to d_model / num_heads.
        d_v: Width of a head's values. Defaults to d_model / num_heads.
        dropout: P_drop, the dropout rate of each sub-layer's output.
        attention_dropout: Dropout rate of the attention weights. The paper has none.
        activation: Activation of the hidden layer, as accepted by `keras.activations.get`. The paper's is "relu".
        norm_first: Whether to normalize before each sub-layer, and not after it as in the paper.
        use_bias: Whether attention's projections have biases. The paper's have none.
        epsilon: Added to the variance in layer normalization.

    Call arguments:
        x: Tensor of shape `(B, S, d)`.
        mask: Padding mask of shape `(B, S)`.
        attention_mask: Booleans of shape `(B, S, S)` or `(1, S, S)`, True where a position may attend.
        use_causal_mask: Whether a position attends only to itself and to all before it.
        return_attention_scores: Whether to also return the attention weights.
        training: Whether to apply dropout.
        x_mask: Same as `mask`. Keras uses this name if `attention_mask` is a tensor.

    Returns:
        Tensor of shape `(B, S, d)`, and if requested the attention weights `(B, h, S, S)`.

    Examples:
        >>> ids = keras.Input((None,), dtype="int32")
        >>> x = tt.layers.PositionalEmbedding(vocab_size=500, d_model=32)(ids)
        >>> x = tt.layers.EncoderLayer(num_heads=4, d_ff=64)(x)
        >>> x = keras.layers.GlobalAveragePooling1D()(x)  # over tokens, without padding
        >>> classifier = keras.Model(ids, keras.layers.Dense(3, activation="softmax")(x))
        >>> classifier.output_shape
        (None, 3)
    """

    def build(self, x_shape: Shape) -> None:
        self.self_attention = self.make_attention("self_attention")
        self.self_attention_norm = self.make_norm("self_attention_norm")
        self.feed_forward = self.make_feed_forward("feed_forward")
        self.feed_forward_norm = self.make_norm("feed_forward_norm")
        for layer in (self.self_attention, self.self_attention_norm, self.feed_forward, self.feed_forward_norm):
            layer.build(x_shape)

    def call(
        self,
        x: Tensor,
        mask: Tensor = None,
        attention_mask: Tensor = None,
        use_causal_mask: bool = False,
        return_attention_scores: bool = False,
        training: bool | None = None,
        x_mask: Tensor = None,
    ) -> Any:
        # "Each layer has two sub-layers. The first is a multi-head self-attention mechanism, and the second is a
        # simple, position-wise fully connected feed-forward network."
        inputs = self.self_attention_norm.sublayer_input(x)  # x itself, unless norm_first
        kv = self.self_attention.project(inputs)  # [B, h, S, d_k], [B, h, S, d_v]
        # Padding is masked as a key, not as a query. Its outputs are computed too, and every later mask hides them.
        allowed = intersect(attention_mask, as_key_mask(x_mask if mask is None else mask))
        if use_causal_mask:
            allowed = intersect(allowed, causal_mask(ops.shape(x)[1]))
        attended, scores = self.attend_to_itself(inputs, kv, allowed, return_attention_scores, training)
        x = self.self_attention_norm(x, attended, training=training)  # LayerNorm(x + Sublayer(x))
        output = self.feed_forward(self.feed_forward_norm.sublayer_input(x))  # [B, S, d]
        x = self.feed_forward_norm(x, output, training=training)
        return (x, scores) if return_attention_scores else x

    def attend_to_itself(self, x: Tensor, kv: KeyValue, mask: Tensor, scores: bool, training: bool | None) -> Any:
        """Attends from x [B, S, d] to its own keys and values, under a mask that broadcasts to [B, S, S]. A variant may
        override this. `scores` is whether the attention weights are requested."""
        return self.self_attention.attend(x, kv, mask, training=training)
