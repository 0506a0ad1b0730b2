"""Dropout (section 5.4) with few random bits."""

from typing import Any

import keras
from keras import ops

from tf_transformer.layers.layer import Rematerialized
from tf_transformer.utils.type_names import Tensor


@keras.saving.register_keras_serializable("tf_transformer")
class Dropout(Rematerialized, keras.layers.Dropout):
    """Dropout with 16 random bits per component, so the rate is rounded to a multiple of 2^-16.

    Keras's layer draws a float per component, which takes two to four times as long on a CPU. Its replicas of a
    `tf.distribute` strategy also drop the same components, while each of these draws other numbers.
    """

    def call(self, inputs: Tensor, training: bool = False) -> Any:
        if training and self.rate == 1:
            return ops.zeros_like(inputs)  # Keras 3.12 raises for rate 1 on TensorFlow.
        dropped = round(self.rate * 2**16)
        width = inputs.shape[-1]
        if not training or self.rate == 0 or self.noise_shape:
            return super().call(inputs, training)
        on_tensorflow = keras.backend.backend() == "tensorflow"
        seed = _ReplicaSeed(self.seed_generator) if on_tensorflow else self.seed_generator
        if not 0 < dropped < 2**16 or width is None or width % 2:
            return keras.random.dropout(inputs, self.rate, seed=seed)
        shape = (*ops.shape(inputs)[:-1], width // 2)
        pairs = keras.random.randint(shape, -(2**31), 2**31 - 1, seed=seed)  # Two components' bits in each int32.
        keep_mask = ops.cast(ops.view(pairs, "int16") >= dropped - 2**15, inputs.dtype)
        return inputs * (keep_mask * ops.cast(2**16 / (2**16 - dropped), inputs.dtype))


class _ReplicaSeed(keras.random.SeedGenerator):
    """Seeds of another generator, whose state all replicas share, made different in each replica."""

    def __init__(self, generator: keras.random.SeedGenerator) -> None:
        self.generator = generator  # Without `super().__init__`, which would make another state.

    def next(self, ordered: bool = True) -> Any:
        from tf_transformer.distribution import replica

        seed = self.generator.next(ordered)
        return seed + ops.cast([replica(), 0], seed.dtype)
