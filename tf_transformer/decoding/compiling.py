"""How each backend compiles a function that reads a model's weights, and for which shapes.

TensorFlow traces a function once for all shapes, and PyTorch runs it as it stands. JAX compiles it for each shape anew,
in seconds, so that few shapes serve all texts: sizes are rounded up.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from tf_transformer.decoding.primitives import BACKEND
from tf_transformer.utils.values import Count, checked

FEWEST = 16  # tokens of the shortest shape


@checked
def rounded(size: Count, step: Count, most: Count | None = None) -> int:
    """A size for which JAX compiles: a power of `step`, or `most` if that is less; elsewhere the size itself."""
    if BACKEND != "jax":
        return size
    power = 1
    while power < size:
        power *= step
    return max(min(power, most or power), size)


def width_of(rows: Sequence[Sequence[int]], most: int) -> int:
    """How many ids a batch gets for rows of at most `most`."""
    longest = max([1, *map(len, rows)])
    return rounded(max(longest, FEWEST), 2, most) if BACKEND == "jax" else longest


def with_rows(texts: Sequence[str | bytes], batch_size: int) -> list[str | bytes]:
    """Texts, and empty ones that fill the batch to a number of rows for which JAX compiles."""
    return [*texts, *[""] * (rounded(len(texts), 4, batch_size) - len(texts))]


def compiled(function: Callable[..., Any], variables: Sequence[keras.Variable], **options: Any) -> Callable[..., Any]:
    """A function of nested tensors, compiled. The variables are read at every call, so that they may change.

    Args:
        function: it reads no other variables.
        variables: of a model.
        options: of `tf.function`, for TensorFlow.
    """
    if BACKEND == "tensorflow":
        import tensorflow as tf

        # A `partial` is a function of its own. TensorFlow takes all that share their code for one, traced again.
        traced: Callable[..., Any] = tf.function(functools.partial(function), autograph=False, **options)
        return traced
    if BACKEND == "torch":
        import torch

        def without_gradients(*arguments: Any) -> Any:
            with torch.inference_mode():
                return function(*tree.map_structure(ops.convert_to_tensor, arguments))

        return without_gradients
    import jax

    variables = list(variables)

    def stateless(values: list[Any], *arguments: Any) -> Any:
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return function(*arguments)

    jitted = jax.jit(stateless)
    return lambda *arguments: jitted([variable.value for variable in variables], *arguments)


def input_signature(columns: Sequence[np.ndarray], *others: Any) -> dict[str, Any]:
    """TensorFlow's options of a function of columns [B, ...] and others, so that one trace serves all sizes."""
    if BACKEND != "tensorflow":
        return {}
    import tensorflow as tf

    specs = [tf.TensorSpec([None] * column.ndim, column.dtype) for column in columns]
    fixed = tree.map_structure(lambda value: tf.TensorSpec(value.shape, value.dtype), others)
    return {"input_signature": [specs, *fixed]}
