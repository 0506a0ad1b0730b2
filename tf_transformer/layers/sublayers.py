"""The feed-forward network (section 3.3) and Add & Norm (sections 3.1, 5.4)."""

from typing import Any

import keras
from keras import ops

from tf_transformer.layers.dropout import Dropout
from tf_transformer.layers.layer import Layer, by_row, dense, resolved_policy
from tf_transformer.layers.normalization import LayerNormalization
from tf_transformer.utils.type_names import Shape, Tensor
from tf_transformer.utils.values import Count, Positive, Rate, checked


@keras.saving.register_keras_serializable("tf_transformer")
class FeedForward(Layer):
    """Position-wise feed-forward network.

    Computes `activation(x W_1 + b_1) W_2 + b_2` independently at each position (section 3.3, equation 2).

    Args:
        d_ff: Width of the hidden layer.
        activation: Activation of the hidden layer, as accepted by `keras.activations.get`. Defaults to "relu", as in
            the paper.

    Call arguments:
        x: Tensor of shape `(B, T, d)`.

    Returns:
        Tensor of shape `(B, T, d)`.

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
    """Residual connection around a sub-layer.

    Computes `LayerNorm(x + Dropout(Sublayer(x)))` (section 3.1). With `norm_first` it computes
    `x + Dropout(Sublayer(LayerNorm(x)))`, where `sublayer_input` returns `LayerNorm(x)`.

    Args:
        dropout: P_drop, the rate on the sub-layer's output (section 5.4).
        epsilon: Added to the variance.
        norm_first: Whether to normalize the sub-layer's input, and not the sum as in the paper.

    Call arguments:
        x: The sub-layer's input, of shape `(B, T, d)`.
        sublayer_output: The sub-layer's output, of the same shape. Omitted by `sublayer_input`.
        training: Whether to apply dropout.

    Returns:
        Tensor of shape `(B, T, d)`.

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
        """Returns the sub-layer's input: x [B, T, d] itself, or normalized if `norm_first`."""
        # A call of this layer and not of `norm`, so that a functional model and its file have one layer and not two.
        return self(x) if self.norm_first else x

    def call(self, x: Tensor, sublayer_output: Tensor = None, training: bool | None = None) -> Any:
        if sublayer_output is None and self.norm_first:
            return self.norm(x)
        x = ops.add(x, self.output_dropout(sublayer_output, training=training))
        return x if self.norm_first else self.norm(x)
