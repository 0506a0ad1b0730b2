"""The few operations of a search that Keras lacks, or that TensorFlow does faster in its own way.

Axes: B sentences, K hypotheses, L the longest output, N places, V vocabulary.
"""

from typing import Annotated, Any

import keras
from keras import ops

from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import BadInput, Kind

IMPOSSIBLE = -1e9  # instead of minus infinity, which is not legal JSON
BACKEND: str = keras.backend.backend()
ON_TENSORFLOW = BACKEND == "tensorflow"
AnyTensor = Annotated[object, Kind("a tensor", ops.is_tensor, lambda x: x)]  # beside the numbers of an option


def require_tensorflow(what: str) -> None:
    """Check that Keras runs on TensorFlow.

    Raises:
        BadInput: it does not, and `what` needs it.
    """
    if not ON_TENSORFLOW:
        raise BadInput(f"expected KERAS_BACKEND=tensorflow, since {what} needs it, got {BACKEND}")


def size(x: Tensor, axis: int) -> Any:
    """The size of an axis, a number if it is known."""
    known = x.shape[axis]
    return tf.shape(x)[axis] if known is None else known


def least(a: Tensor, b: Tensor) -> Any:
    """The lesser of two sizes, a number if both are known."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else ops.minimum(a, b)


def greatest(a: Tensor, b: Tensor) -> Any:
    """The greater of two sizes, a number if both are known."""
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else ops.maximum(a, b)


if ON_TENSORFLOW:
    import tensorflow as tf

    def gather(x: Tensor, places: Tensor, axis: int = 0, batch_dims: int = 0) -> Any:
        """As `tf.gather`: what stands at these places of an axis of x, behind `batch_dims` axes that both have."""
        return tf.gather(x, places, axis=max(axis, batch_dims), batch_dims=batch_dims)

    def sorted_top_k(x: Tensor, k: Tensor) -> tuple[Any, Any]:
        """The k greatest of the last axis and their places, int32; equal ones keep their order."""
        return tf.math.top_k(x, k)

    def log_sum_exp(logits: Tensor, symbol: Tensor, is_best: bool) -> Any:
        """The log-sum-exp of logits [B, K, V], from one symbol [B, K, 1] and its probability: float32 [B, K, 1].

        TensorFlow's softmax takes half as long as its log-sum-exp. If a probability is too small for float32, as it may
        be with a forced prefix unless `is_best` promises the symbol of the greatest logit, TensorFlow's log-sum-exp is
        used.
        """
        logit, probability = (tf.gather(each, symbol, batch_dims=2) for each in (logits, tf.nn.softmax(logits)))
        if is_best:
            return logit - tf.math.log(probability)
        return tf.cond(
            tf.reduce_all(probability > 1e-30),
            lambda: logit - tf.math.log(probability),
            lambda: tf.reduce_logsumexp(logits, axis=-1, keepdims=True),
        )

    def without_symbols(logits: Tensor, ids: Tensor, forbidden: Tensor) -> Any:
        """Logits [B, K, V], impossible for the symbols ids [B, K, L] that are forbidden, bool [B, K, L]."""
        where = tf.cast(tf.where(forbidden), tf.int32)  # [M, 3], row, beam and place
        index = tf.concat([where[:, :2], tf.gather_nd(ids, where)[:, tf.newaxis]], axis=1)
        return tf.tensor_scatter_nd_update(logits, index, tf.fill([tf.shape(index)[0]], IMPOSSIBLE))

    def write_slots(old: Tensor, slot: Tensor, new: Tensor) -> Any:
        """`old` [B, h, C, d] with `new` [B, h, T, d] in slots slot .. slot + T - 1; `old` is not used any more."""
        return ops.slice_update(old, (0, 0, slot, 0), new)

    def with_width(x: Tensor, width: int) -> Any:
        """x [B, N, ...], of which Keras and TensorFlow then know that N is `width`."""
        return tf.ensure_shape(x, [None, width] + [None] * (len(x.shape) - 2))

else:

    def gather(x: Tensor, places: Tensor, axis: int = 0, batch_dims: int = 0) -> Any:
        """As on TensorFlow. Places have at most one axis behind the `batch_dims`, if there are any."""
        if not batch_dims:
            return ops.take(x, places, axis=axis)
        if len(places.shape) == batch_dims:
            return ops.squeeze(gather(x, ops.expand_dims(places, -1), axis, batch_dims), max(axis, batch_dims))
        axis = max(axis, batch_dims)
        places = ops.reshape(places, (*places.shape[:-1], *(1,) * (axis - batch_dims), places.shape[-1]))
        return ops.take_along_axis(x, ops.reshape(places, (*places.shape, *(1,) * (len(x.shape) - axis - 1))), axis)

    def sorted_top_k(x: Tensor, k: Tensor) -> tuple[Any, Any]:
        """As on TensorFlow."""
        if BACKEND == "jax":
            return ops.top_k(x, k)
        places = ops.argsort(-x, axis=-1)[..., :k]  # PyTorch's own does not keep the order of equal ones
        return ops.take_along_axis(x, places, axis=-1), ops.cast(places, "int32")

    def log_sum_exp(logits: Tensor, symbol: Tensor, is_best: bool) -> Any:
        """As on TensorFlow."""
        return ops.logsumexp(logits, axis=-1, keepdims=True)

    def without_symbols(logits: Tensor, ids: Tensor, forbidden: Tensor) -> Any:
        """As on TensorFlow."""
        V = logits.shape[-1]
        wider = ops.reshape(ops.pad(logits, ((0, 0), (0, 0), (0, 1))), (-1,))  # a further symbol, which takes the rest
        symbols = ops.reshape(ops.where(forbidden, ids, V), (-1, ids.shape[-1]))
        index = ops.reshape(symbols + ops.expand_dims(ops.arange(symbols.shape[0]) * (V + 1), 1), (-1, 1))
        wider = ops.scatter_update(wider, index, ops.full((index.shape[0],), IMPOSSIBLE))
        return ops.reshape(wider, (*logits.shape[:-1], V + 1))[..., :V]

    def write_slots(old: Tensor, slot: Tensor, new: Tensor) -> Any:
        """As on TensorFlow."""
        if BACKEND == "jax":
            return ops.slice_update(old, (0, 0, slot, 0), new)
        old[:, :, slot : slot + new.shape[2]] = new  # Keras's update copies all slots under PyTorch
        return old

    def with_width(x: Tensor, width: int) -> Any:
        """As on TensorFlow; here all sizes are known."""
        return x
