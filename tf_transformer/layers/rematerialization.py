"""Layers under `keras.RematScope`, which saves memory in training."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops


class Rematerialized(keras.layers.Layer):
    """The base of our layers: a `keras.RematScope` computes them again in the backward pass, as a whole.

    Keras's own way fails in a compiled step on TensorFlow, where a function with a gradient of its own takes no
    keywords. The second time, it computes as in inference, without dropout.
    """

    def rematerialized_call(self, layer_call: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """`layer_call` for these arguments, as Keras asks for it at each call of a layer that was made in a scope."""
        training = getattr(self._get_call_context(), "training", None)
        if not training or self._remat_mode.mode == "activations":  # those are of Keras's own layers inside
            return layer_call
        leaves = keras.tree.flatten((args, kwargs))
        differentiable = [_is_float(leaf) for leaf in leaves]
        seeds = [variable for variable in self.variables if not any(variable is weight for weight in self.weights)]
        read = self.variables if keras.backend.backend() == "jax" else seeds  # a scope on JAX knows only its own values
        state = [(variable, variable.value * 1) for variable in read]

        def once_more(*tensors: Any) -> Any:
            given = iter(tensors)
            of_call = [next(given) if changes else leaf for leaf, changes in zip(leaves, differentiable, strict=True)]
            args_, kwargs_ = keras.tree.pack_sequence_as((args, kwargs), of_call)
            with keras.RematScope(mode=None), keras.StatelessScope(state):
                # In the backward pass nothing around it tells the layers inside that they train.
                context = keras.layers.Lambda(lambda _: layer_call(*args_, **kwargs_), dtype=self.dtype_policy)
                return context(ops.zeros(()), training=True)

        computed = super().rematerialized_call(once_more, *args, **kwargs)
        if computed is once_more:  # the scope is for other layers
            return layer_call
        for layer in self._flatten_layers(include_self=False):
            layer._remat_mode = None  # it would be computed a third time

        def call(*_: Any, **__: Any) -> Any:
            outputs = computed(*(leaf for leaf, changes in zip(leaves, differentiable, strict=True) if changes))
            for variable, value in state:
                if any(variable is seed for seed in seeds):
                    variable.assign(ops.add(value, np.array([0, 1], variable.dtype)))  # as a dropout that has drawn
            return outputs

        return call

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        return keras.Operation.compute_output_spec(self, *args, **kwargs)  # traced: outputs and dtypes vary


def _is_float(leaf: Any) -> bool:
    return ops.is_tensor(leaf) and keras.backend.is_float_dtype(keras.backend.standardize_dtype(leaf.dtype))
