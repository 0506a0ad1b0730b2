"""Operations of a search that are missing in Keras or faster in TensorFlow.

Axes: B sentences, K hypotheses, L the longest output, N slots, V vocabulary.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import keras
import numpy as np
from keras import ops, tree

from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import BadInput, Kind

NEG_INF = -1e9  # instead of minus infinity, which is not legal JSON
BACKEND: str = keras.backend.backend()
ON_TENSORFLOW = BACKEND == "tensorflow"
# A traced function takes some numbers as tensors, so that it need not be traced again for another one.
AnyTensor = Annotated[object, Kind("a tensor", ops.is_tensor, lambda x: x)]  # alternative to a number


def require_tensorflow(what: str) -> None:
    """Raises `BadInput` if `what` needs TensorFlow and Keras runs on another backend."""
    if not ON_TENSORFLOW:
        raise BadInput(f"expected KERAS_BACKEND=tensorflow, since {what} needs it, got {BACKEND}")


# Known sizes are Python integers. Static shapes compile to faster kernels, and converters to other engines need them.


def size(x: Tensor, axis: int) -> Any:
    """Returns the size of an axis, as an `int` if it is known."""
    static = x.shape[axis]
    return tf.shape(x)[axis] if static is None else static


def least(a: Tensor, b: Tensor) -> Any:
    """Returns the lesser of two sizes, as an `int` if both are known."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else ops.minimum(a, b)


def greatest(a: Tensor, b: Tensor) -> Any:
    """Returns the greater of two sizes, as an `int` if both are known."""
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else ops.maximum(a, b)


if ON_TENSORFLOW:
    import tensorflow as tf

    def gather(x: Tensor, indices: Tensor, axis: int = 0, batch_dims: int = 0) -> Any:
        """Like `tf.gather`: takes these indices of an axis of x, behind `batch_dims` axes that both have."""
        return tf.gather(x, indices, axis=max(axis, batch_dims), batch_dims=batch_dims)

    def sorted_top_k(x: Tensor, k: Tensor) -> tuple[Any, Any]:
        """Returns the k highest values of the last axis and their indices, int32. Equal values keep their order."""
        return tf.math.top_k(x, k)

    def log_sum_exp(logits: Tensor, token: Tensor, is_best: bool) -> Any:
        """Returns the log-sum-exp of logits [B, K, V], float32 [B, K, 1], by way of one token [B, K, 1].

        `is_best` promises that the token has the highest logit.
        """
        # TensorFlow's softmax takes half as long as its log-sum-exp. The probability of the best token is at least 1/V.
        # That of another one, as with a prefix, may be too small for float32.
        logit, probability = (tf.gather(part, token, batch_dims=2) for part in (logits, tf.nn.softmax(logits)))
        if is_best:
            return logit - tf.math.log(probability)
        return tf.cond(
            tf.reduce_all(probability > 1e-30),
            lambda: logit - tf.math.log(probability),
            lambda: tf.reduce_logsumexp(logits, axis=-1, keepdims=True),
        )

    def without_tokens(logits: Tensor, ids: Tensor, forbidden: Tensor) -> Any:
        """Masks in logits [B, K, V] the tokens ids [B, K, L] that are forbidden, bool [B, K, L]."""
        # Most steps forbid no token or a few, so this writes M numbers and not a mask of the logits' size.
        masked = tf.cast(tf.where(forbidden), tf.int32)  # [M, 3], row, beam and position
        index = tf.concat([masked[:, :2], tf.gather_nd(ids, masked)[:, tf.newaxis]], axis=1)
        return tf.tensor_scatter_nd_update(logits, index, tf.fill([tf.shape(index)[0]], NEG_INF))

    def write_slots(old: Tensor, slot: Tensor, new: Tensor) -> Any:
        """Writes `new` [B, h, T, d] to slots slot .. slot + T - 1 of `old` [B, h, C, d], which may be overwritten."""
        return ops.slice_update(old, (0, 0, slot, 0), new)

    def with_width(x: Tensor, width: int) -> Any:
        """Returns x [B, N, ...] with the static size N = `width`."""
        return tf.ensure_shape(x, [None, width] + [None] * (len(x.shape) - 2))

else:  # The same functions with `keras.ops`, for JAX and PyTorch.

    def gather(x: Tensor, indices: Tensor, axis: int = 0, batch_dims: int = 0) -> Any:
        # `ops.take` has no `batch_dims`.
        if not batch_dims:
            return ops.take(x, indices, axis=axis)
        if len(indices.shape) > batch_dims + 1:
            flat = ops.reshape(indices, (*indices.shape[:batch_dims], math.prod(indices.shape[batch_dims:])))
            axis, shape = max(axis, batch_dims), x.shape
            taken = gather(x, flat, axis, batch_dims)
            return ops.reshape(taken, (*shape[:axis], *indices.shape[batch_dims:], *shape[axis + 1 :]))
        if len(indices.shape) == batch_dims:
            return ops.squeeze(gather(x, ops.expand_dims(indices, -1), axis, batch_dims), max(axis, batch_dims))
        axis = max(axis, batch_dims)
        indices = ops.reshape(indices, (*indices.shape[:-1], *(1,) * (axis - batch_dims), indices.shape[-1]))
        return ops.take_along_axis(x, ops.reshape(indices, (*indices.shape, *(1,) * (len(x.shape) - axis - 1))), axis)

    def sorted_top_k(x: Tensor, k: Tensor) -> tuple[Any, Any]:
        if BACKEND == "jax":
            return ops.top_k(x, k)
        # PyTorch's top-k does not keep the order of equal values.
        indices = ops.argsort(-x, axis=-1)[..., :k]
        return ops.take_along_axis(x, indices, axis=-1), ops.cast(indices, "int32")

    def log_sum_exp(logits: Tensor, token: Tensor, is_best: bool) -> Any:
        return ops.logsumexp(logits, axis=-1, keepdims=True)

    def without_tokens(logits: Tensor, ids: Tensor, forbidden: Tensor) -> Any:
        # Shapes are static, so tokens that are not forbidden write into an extra column, which is dropped.
        V = logits.shape[-1]
        wider = ops.reshape(ops.pad(logits, ((0, 0), (0, 0), (0, 1))), (-1,))
        tokens = ops.reshape(ops.where(forbidden, ids, V), (-1, ids.shape[-1]))
        index = ops.reshape(tokens + ops.expand_dims(ops.arange(tokens.shape[0]) * (V + 1), 1), (-1, 1))
        wider = ops.scatter_update(wider, index, ops.full((index.shape[0],), NEG_INF))
        return ops.reshape(wider, (*logits.shape[:-1], V + 1))[..., :V]

    def write_slots(old: Tensor, slot: Tensor, new: Tensor) -> Any:
        # XLA updates slices in place in a jitted loop. On PyTorch, Keras's update copies all slots.
        if BACKEND == "jax":
            return ops.slice_update(old, (0, 0, slot, 0), new)
        old[:, :, slot : slot + new.shape[2]] = new
        return old

    def with_width(x: Tensor, width: int) -> Any:
        return x  # all sizes are known


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
