"""What the layers of both stacks have in common."""

from typing import Any

from tf_transformer.base.type_names import Shape
from tf_transformer.base.values import Count, Positive, Rate, checked
from tf_transformer.layers.attention import MultiHeadAttention
from tf_transformer.layers.rematerialization import Rematerialized
from tf_transformer.layers.sublayers import AddAndNorm, FeedForward


class TransformerLayer(Rematerialized):
    """The base of `EncoderLayer` and `DecoderLayer`: their arguments and their parts. d_model comes from the input.

    Args:
        num_heads: h.
        d_ff: width of the feed-forward hidden layer.
        d_k: width of a head's keys and queries; `None` means d_model / num_heads.
        d_v: width of a head's values; `None` means d_model / num_heads.
        dropout: P_drop, on each sub-layer's output.
        attention_dropout: on attention weights (the paper has none).
        activation: of the feed-forward hidden layer, for `keras.activations.get`; the paper has "relu".
        norm_first: whether normalization comes before each sub-layer; in the paper it comes after.
        use_bias: whether attention's projections have biases; the paper's have none.
        epsilon: of layer normalization.
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
        self.supports_masking = True

    def make_attention(self, name: str) -> MultiHeadAttention:
        options = self.num_heads, self.d_k, self.d_v, self.attention_dropout, self.use_bias
        return MultiHeadAttention(*options, name=name, dtype=self.dtype_policy)

    def make_feed_forward(self, name: str) -> FeedForward:
        return FeedForward(self.d_ff, self.activation, name=name, dtype=self.dtype_policy)

    def make_norm(self, name: str) -> AddAndNorm:
        return AddAndNorm(self.dropout, self.epsilon, self.norm_first, name=name, dtype=self.dtype_policy)

    def compute_output_shape(self, x_shape: Shape, memory_shape: Shape = None) -> Any:
        return x_shape

    def get_config(self) -> dict[str, Any]:
        names = ["num_heads", "d_ff", "d_k", "d_v", "dropout", "attention_dropout"]
        names += ["activation", "norm_first", "use_bias", "epsilon"]
        return super().get_config() | {name: getattr(self, name) for name in names}
