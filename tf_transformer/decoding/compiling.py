"""Compiles functions that read a model's weights, as each backend does.

TensorFlow traces a function once for all shapes, and PyTorch runs it as it is. JAX compiles it for each shape, which
takes seconds. So under JAX sizes are rounded up to few shapes.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from tf_transformer.decoding.primitives import BACKEND


def rounded(size: int, step: int, most: int | None = None) -> int:
    """Returns a power of `step`, or `most` if that is less, on JAX. On other backends returns the size itself."""
    if BACKEND != "jax":
        return size
    power = 1
    while power < size:
        power *= step
    return max(min(power, most or power), size)


def width_of(rows: Sequence[Sequence[int]], most: int) -> int:
    """Returns the number of ids that a batch gets for rows of at most `most`, on JAX at least 16."""
    return rounded(max([16 if BACKEND == "jax" else 1, *map(len, rows)]), 2, most)


def with_rows(texts: Sequence[str | bytes], batch_size: int) -> list[str | bytes]:
    """Appends empty texts to reach a number of rows for which JAX compiles."""
    return [*texts, *[""] * (rounded(len(texts), 4, batch_size) - len(texts))]


def compiled(function: Callable[..., Any], variables: Sequence[keras.Variable], **options: Any) -> Callable[..., Any]:
    """Compiles a function of nested tensors. It may read only these variables, and reads them at every call.

    `options` are those of `tf.function`, for TensorFlow.
    """
    if BACKEND == "tensorflow":
        import tensorflow as tf

        # TensorFlow identifies closures that share their code, and warns of retracing. A `partial` is distinct.
        return tf.function(functools.partial(function), autograph=False, **options)
    if BACKEND == "torch":
        import torch

        def without_gradients(*arguments: Any) -> Any:
            with torch.inference_mode():
                return function(*tree.map_structure(ops.convert_to_tensor, arguments))

        return without_gradients
    import jax

    def stateless(values: list[Any], *arguments: Any) -> Any:
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return function(*arguments)

    # JAX makes constants of variables that it reads while it compiles. As arguments, their values may change.
    jitted = jax.jit(stateless)
    return lambda *arguments: jitted([variable.value for variable in variables], *arguments)


def input_signature(columns: Sequence[np.ndarray], *others: Any) -> dict[str, Any]:
    """Returns TensorFlow's options for a function of columns [B, ...] and others. One trace serves all sizes."""
    if BACKEND != "tensorflow":
        return {}
    import tensorflow as tf

    specs = [tf.TensorSpec([None] * column.ndim, column.dtype) for column in columns]
    fixed = tree.map_structure(lambda value: tf.TensorSpec(value.shape, value.dtype), others)
    return {"input_signature": [specs, *fixed]}
