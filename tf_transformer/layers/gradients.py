"""Functions with a hand-written gradient."""

import functools
from collections.abc import Callable
from typing import Any

import keras

from tf_transformer.utils.type_names import Tensor


def traced_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function of tensors that calls `ops.custom_gradient`."""

    # TensorFlow registers a gradient for each trace of such a function and never frees it, nor its graph. So the
    # function has a graph of its own, traced once per dtype and rank of its arguments and not once per model.
    @functools.cache
    def traced(*kinds: Any) -> Any:
        import tensorflow as tf

        return tf.function(function, [tf.TensorSpec([None] * rank, dtype) for dtype, rank in kinds], autograph=False)

    @functools.wraps(function)
    def call(*args: Tensor) -> Any:
        if keras.backend.backend() != "tensorflow":
            return function(*args)
        return traced(*((arg.dtype, len(arg.shape)) for arg in args))(*args)

    return call
