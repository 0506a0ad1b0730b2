"""What the layers of both stacks have in common."""

from typing import Any

from tf_transformer.layers.attention import MultiHeadAttention
from tf_transformer.layers.layer import Layer
from tf_transformer.layers.sublayers import AddAndNorm, FeedForward
from tf_transformer.utils.values import Count, Positive, Rate, checked


class TransformerLayer(Layer):
    """The base of `EncoderLayer`, which documents their arguments, and of `DecoderLayer`: what both are made of."""

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

    def make_attention(self, name: str) -> MultiHeadAttention:
        options = self.num_heads, self.d_k, self.d_v, self.attention_dropout, self.use_bias
        return MultiHeadAttention(*options, name=name, dtype=self.dtype_policy)

    def make_feed_forward(self, name: str) -> FeedForward:
        return FeedForward(self.d_ff, self.activation, name=name, dtype=self.dtype_policy)

    def make_norm(self, name: str) -> AddAndNorm:
        return AddAndNorm(self.dropout, self.epsilon, self.norm_first, name=name, dtype=self.dtype_policy)
