"""Layers under `keras.RematScope`, which saves memory in training.

Keras's own way fails in a compiled step on TensorFlow, where a function with a custom gradient takes no keyword
arguments, and its second computation is that of inference, without dropout.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops


def rematerialized(
    layer: keras.layers.Layer, layer_call: Callable[..., Any], *args: Any, **kwargs: Any
) -> Callable[..., Any]:
    """Wraps `layer_call` for these arguments. Keras asks for it at each call of a layer made in a scope."""
    training = getattr(layer._get_call_context(), "training", None)
    # Mode "activations" concerns only Keras's own layers inside this one.
    if not training or layer._remat_mode.mode == "activations":
        return layer_call
    leaves = keras.tree.flatten((args, kwargs))
    differentiable = [
        ops.is_tensor(leaf) and keras.backend.is_float_dtype(keras.backend.standardize_dtype(leaf.dtype))
        for leaf in leaves
    ]
    seeds = [variable for variable in layer.variables if not any(variable is weight for weight in layer.weights)]
    # A stateless scope on JAX has only the values that it was given, so it needs those of all variables.
    state_variables = layer.variables if keras.backend.backend() == "jax" else seeds
    state = [(variable, variable.value * 1) for variable in state_variables]

    def compute_again(*tensors: Any) -> Any:
        values = iter(tensors)
        inputs = [next(values) if is_input else leaf for leaf, is_input in zip(leaves, differentiable, strict=True)]
        args_, kwargs_ = keras.tree.pack_sequence_as((args, kwargs), inputs)
        with keras.RematScope(mode=None), keras.StatelessScope(state):
            # The backward pass has no call context, so the layers inside would not see that they train.
            context = keras.layers.Lambda(lambda _: layer_call(*args_, **kwargs_), dtype=layer.dtype_policy)
            return context(ops.zeros(()), training=True)

    # Keras 3.16 would wrap the function for `training`, which this call has from its context.
    options = {name: value for name, value in kwargs.items() if name != "training"}
    computed = keras.layers.Layer.rematerialized_call(layer, compute_again, *args, **options)
    if computed is compute_again:  # The scope is for other layers.
        return layer_call
    for inner in layer._flatten_layers(include_self=False):
        inner._remat_mode = None  # Otherwise it would be computed a third time.

    def call(*_: Any, **__: Any) -> Any:
        outputs = computed(*(leaf for leaf, is_input in zip(leaves, differentiable, strict=True) if is_input))
        # The stateless scope has dropped the updates of the dropouts' seeds.
        for variable, value in state:
            if any(variable is seed for seed in seeds):
                variable.assign(ops.add(value, np.array([0, 1], variable.dtype)))
        return outputs

    return call
