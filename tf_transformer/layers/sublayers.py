"""The feed-forward network (section 3.3) and Add & Norm (sections 3.1, 5.4)."""

from typing import Any

import keras
from keras import ops

from tf_transformer.layers.dropout import Dropout
from tf_transformer.layers.int8 import dense
from tf_transformer.layers.layer import Layer, resolved_policy
from tf_transformer.layers.normalization import LayerNormalization
from tf_transformer.layers.products import by_row
from tf_transformer.utils.type_names import Shape, Tensor
from tf_transformer.utils.values import Count, Positive, Rate, checked


@keras.saving.register_keras_serializable("tf_transformer")
class FeedForward(Layer):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, equation (2), at each position alike. [B, T, d] -> [B, T, d].

    Args:
        d_ff: width of the hidden layer.
        activation: of the hidden layer, for `keras.activations.get`; equation (2) has "relu", max(0, x).

    Examples:
        >>> layer = tt.layers.FeedForward(d_ff=64)
        >>> keras.ops.shape(layer(keras.random.normal((2, 5, 32))))
        (2, 5, 32)
    """

    @checked
    def __init__(self, d_ff: Count = 2048, activation: Any = "relu", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.d_ff = d_ff
        self.activation = activation

    def build(self, x_shape: Shape) -> None:
        self.hidden = dense(self.d_ff, self.activation, dtype=resolved_policy(self, "hidden"), name="hidden")
        self.hidden.build(x_shape)
        self.output_projection = dense(x_shape[-1], dtype=resolved_policy(self, "output"), name="output")
        self.output_projection.build((*x_shape[:-1], self.d_ff))

    def call(self, x: Tensor) -> Any:
        return by_row(lambda rows: self.output_projection(self.hidden(rows)), x)


@keras.saving.register_keras_serializable("tf_transformer")
class AddAndNorm(Layer):
    """The residual connection around a sub-layer: LayerNorm(x + Dropout(Sublayer(x))).

    It takes x and the sub-layer's output, both [B, T, d], and gives [B, T, d]. With `norm_first` it is
    x + Dropout(Sublayer(LayerNorm(x))), where `sublayer_input` gives LayerNorm(x).

    Args:
        dropout: P_drop, on the sub-layer's output (section 5.4).
        epsilon: added to the variance.
        norm_first: whether the sub-layer's input is normalized, and not the sum as in the paper.

    Examples:
        >>> x = keras.random.normal((2, 5, 32))
        >>> feed_forward, norm = tt.layers.FeedForward(d_ff=64), tt.layers.AddAndNorm()
        >>> keras.ops.shape(norm(x, feed_forward(x)))
        (2, 5, 32)
    """

    @checked
    def __init__(self, dropout: Rate = 0.1, epsilon: Positive = 1e-6, norm_first: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = dropout
        self.epsilon = epsilon
        self.norm_first = norm_first

    def build(self, x_shape: Shape, sublayer_output_shape: Shape = None) -> None:
        self.output_dropout = Dropout(self.dropout, dtype=self.dtype_policy, name="output_dropout")
        self.norm = LayerNormalization(epsilon=self.epsilon, dtype=self.dtype_policy, name="norm")
        self.norm.build(x_shape)

    def sublayer_input(self, x: Tensor) -> Any:
        """Returns what the sub-layer reads of x [B, T, d]: x itself, or x normalized."""
        return self(x) if self.norm_first else x

    def call(self, x: Tensor, sublayer_output: Tensor = None, training: bool | None = None) -> Any:
        """Adds x [B, T, d] and the sub-layer's output [B, T, d]. With `norm_first`, x without an output is the
        sub-layer's input."""
        if sublayer_output is None and self.norm_first:
            return self.norm(x)
        x = ops.add(x, self.output_dropout(sublayer_output, training=training))
        return x if self.norm_first else self.norm(x)
