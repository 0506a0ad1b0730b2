"""Layer normalization (section 3.1; Ba et al. 2016) with a hand-written gradient."""

from typing import Any

import keras
from keras import ops

from tf_transformer.layers.gradients import traced_once
from tf_transformer.layers.layer import Rematerialized
from tf_transformer.utils.type_names import Tensor


@keras.saving.register_keras_serializable("tf_transformer")
class LayerNormalization(Rematerialized, keras.layers.LayerNormalization):
    """Keras's layer over the last axis, in fewer passes on TensorFlow, which has no kernel for it."""

    def call(self, inputs: Tensor, training: bool = False) -> Any:
        if keras.backend.backend() != "tensorflow":
            return super().call(inputs)
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        x, gamma, beta = (ops.cast(ops.convert_to_tensor(x), dtype) for x in (inputs, self.gamma, self.beta))
        if training:
            output = _normalized(x, gamma, beta, ops.convert_to_tensor(self.epsilon, dtype))
            # The function was traced for any shape of this rank. The reshape restores the static shape.
            return ops.cast(ops.reshape(output, ops.shape(x)), self.compute_dtype)
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
            of_x = inverse * (of_unit - _mean(of_unit) - unit * _mean(of_unit * unit))
            return of_x, ops.sum(upstream * unit, axis=rows), ops.sum(upstream, axis=rows)

        return unit * gamma + beta, gradient

    return normalized(x, gamma, beta)
