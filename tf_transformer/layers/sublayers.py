"""The feed-forward network (section 3.3), and Add & Norm with its dropout (sections 3.1, 5.4)."""

from typing import Any

import keras
from keras import ops

from tf_transformer.layers.layer import (
    Layer,
    Rematerialized,
    at_least_float32,
    by_row,
    dense,
    resolved_policy,
    traced_once,
)
from tf_transformer.utils.type_names import Shape, Tensor
from tf_transformer.utils.values import Count, Positive, Rate, checked


@keras.saving.register_keras_serializable("tf_transformer")
class FeedForward(Layer):
    """Position-wise feed-forward network.

    Computes `activation(x W_1 + b_1) W_2 + b_2` independently at each position (section 3.3, equation 2).

    Args:
        d_ff: Width of the hidden layer.
        activation: Activation of the hidden layer, as accepted by `keras.activations.get`. The paper's is "relu".

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
        # "applied to each position separately and identically": positions are rows like any other.
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
        # "We apply dropout to the output of each sub-layer, before it is added to the sub-layer input and normalized."
        x = ops.add(x, self.output_dropout(sublayer_output, training=training))
        return x if self.norm_first else self.norm(x)


@keras.saving.register_keras_serializable("tf_transformer")
class Dropout(Rematerialized, keras.layers.Dropout):
    """Dropout with 16 random bits per component, so the rate is rounded to a multiple of 2^-16.

    Keras's layer draws a float per component, which takes two to four times as long on a CPU. Its replicas of a
    `tf.distribute` strategy also drop the same components, while each of these draws other numbers.
    """

    def call(self, inputs: Tensor, training: bool = False) -> Any:
        # Keras's layer serves if nothing is dropped or a mask is shared, its function if pairs of bits do not fit.
        if training and self.rate == 1:
            return ops.zeros_like(inputs)  # Keras 3.12 raises for rate 1 on TensorFlow.
        dropped = round(self.rate * 2**16)  # of 2^16 equally likely values
        width = inputs.shape[-1]
        if not training or self.rate == 0 or self.noise_shape:
            return super().call(inputs, training)
        on_tensorflow = keras.backend.backend() == "tensorflow"
        seed = _ReplicaSeed(self.seed_generator) if on_tensorflow else self.seed_generator
        if not 0 < dropped < 2**16 or width is None or width % 2:
            return keras.random.dropout(inputs, self.rate, seed=seed)
        shape = (*ops.shape(inputs)[:-1], width // 2)
        pairs = keras.random.randint(shape, -(2**31), 2**31 - 1, seed=seed)  # two components' bits in each int32
        # An int16 is uniform from -2^15, so this drops `dropped` of its 2^16 values.
        keep_mask = ops.cast(ops.view(pairs, "int16") >= dropped - 2**15, inputs.dtype)  # the shape of `inputs`
        # The scale is that of the rounded rate, so that the mean stays the same.
        return inputs * (keep_mask * ops.cast(2**16 / (2**16 - dropped), inputs.dtype))


class _ReplicaSeed(keras.random.SeedGenerator):
    """Seeds of another generator, whose state all replicas share, made different in each replica."""

    def __init__(self, generator: keras.random.SeedGenerator) -> None:
        self.generator = generator  # Without `super().__init__`, which would make another state.

    def next(self, ordered: bool = True) -> Any:
        from tf_transformer.distribution import replica

        seed = self.generator.next(ordered)
        return seed + ops.cast([replica(), 0], seed.dtype)


@keras.saving.register_keras_serializable("tf_transformer")
class LayerNormalization(Rematerialized, keras.layers.LayerNormalization):
    """Keras's layer over the last axis, in fewer passes on TensorFlow, which has no kernel for it."""

    def call(self, inputs: Tensor, training: bool = False) -> Any:
        axes = self.axis if isinstance(self.axis, list | tuple) else [self.axis]  # `build` makes a list of it
        is_usual = self.center and self.scale and [*axes] in ([-1], [len(inputs.shape) - 1])
        if keras.backend.backend() != "tensorflow" or not is_usual:
            return super().call(inputs)
        # Like Keras's layer: a mean over 16-bit components would be rounded.
        dtype = at_least_float32(inputs.dtype)
        x, gamma, beta = (ops.cast(ops.convert_to_tensor(x), dtype) for x in (inputs, self.gamma, self.beta))
        if training:
            output = _normalized(x, gamma, beta, ops.convert_to_tensor(self.epsilon, dtype))
            # The function was traced for any shape of this rank. The reshape restores the static shape.
            return ops.cast(ops.reshape(output, ops.shape(x)), self.compute_dtype)
        # Outside training, TensorFlow registers no gradient (see `traced_once`). An automatic one still exists.
        unit, _ = _unit(x, self.epsilon)
        return ops.cast(unit * gamma + beta, self.compute_dtype)


def _mean(x: Tensor) -> Any:
    return ops.mean(x, axis=-1, keepdims=True)


def _unit(x: Tensor, epsilon: Tensor) -> tuple[Any, Any]:
    """Returns x [..., d] with mean 0 and variance 1, and the inverse deviation [..., 1] that scaled it."""
    centered = x - _mean(x)
    inverse = ops.rsqrt(_mean(ops.square(centered)) + epsilon)
    return centered * inverse, inverse


@traced_once
def _normalized(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: Tensor) -> Any:  # [..., d], [d], [d], []
    @ops.custom_gradient
    def normalized(x: Tensor, gamma: Tensor, beta: Tensor) -> Any:
        unit, inverse = _unit(x, epsilon)

        def gradient(upstream: Tensor) -> Any:
            rows = tuple(range(len(x.shape) - 1))
            of_unit = upstream * gamma
            # Moving x along the ones changes only its mean, and along `unit` only its deviation. The output has
            # neither, so both parts of the gradient are removed. Only `unit` and `inverse` are kept for this.
            of_x = inverse * (of_unit - _mean(of_unit) - unit * _mean(of_unit * unit))
            return of_x, ops.sum(upstream * unit, axis=rows), ops.sum(upstream, axis=rows)

        return unit * gamma + beta, gradient

    return normalized(x, gamma, beta)
