"""Layer normalization (section 3.1; Ba et al. 2016) with a gradient of its own."""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable("tf_transformer")
class LayerNormalization(keras.layers.LayerNormalization):
    """Keras's layer, over the last axis. On TensorFlow, which has no kernel for it, training takes half the passes."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training or keras.backend.backend() != "tensorflow":
            return super().call(inputs)
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        given = (ops.cast(ops.convert_to_tensor(x), dtype) for x in (inputs, self.gamma, self.beta))
        return ops.cast(self._normalized(*given), self.compute_dtype)

    def _normalized(self, x: Any, gamma: Any, beta: Any) -> Any:  # [..., d], [d], [d]
        def mean(x: Any) -> Any:
            return ops.mean(x, axis=-1, keepdims=True)

        @ops.custom_gradient
        def normalized(x: Any, gamma: Any, beta: Any) -> Any:
            centred = x - mean(x)
            inverse = ops.rsqrt(mean(ops.square(centred)) + self.epsilon)  # [..., 1]
            unit = centred * inverse

            def gradient(upstream: Any) -> Any:
                rows = tuple(range(len(x.shape) - 1))
                of_unit = upstream * gamma
                of_x = inverse * (of_unit - mean(of_unit) - unit * mean(of_unit * unit))
                return of_x, ops.sum(upstream * unit, axis=rows), ops.sum(upstream, axis=rows)

            return unit * gamma + beta, gradient

        return normalized(x, gamma, beta)
