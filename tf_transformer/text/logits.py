"""The best symbols of a vocabulary by their logits, fast in large vocabularies."""

from typing import Any

import tensorflow as tf

IMPOSSIBLE = -1e9  # instead of minus infinity, which is not legal JSON


def top_k(logits: Any, k: Any) -> tuple[Any, Any]:
    """tf.math.top_k(logits [..., V], k), faster for large V: it sorts only the k blocks with the greatest maxima."""
    V = logits.shape[-1]
    width = next((width for width in range(64, 15, -1) if V % width == 0), None)  # of a block
    if width is None:
        return tf.math.top_k(logits, k)
    blocks = tf.reshape(logits, tf.concat([tf.shape(logits)[:-1], [V // width, width]], axis=0))
    _, chosen = tf.math.top_k(tf.reduce_max(blocks, axis=-1), tf.minimum(k, V // width))  # [..., M]
    chosen = tf.sort(chosen)  # equal logits keep their order, as in tf.math.top_k
    symbols = chosen[..., tf.newaxis] * width + tf.range(width)  # [..., M, width]
    rank = len(logits.shape) - 1
    flat = tf.concat([tf.shape(logits)[:-1], [-1]], axis=0)
    top_logits, places = tf.math.top_k(tf.reshape(tf.gather(blocks, chosen, batch_dims=rank), flat), k)
    return top_logits, tf.gather(tf.reshape(symbols, flat), places, batch_dims=rank)


def log_sum_exp(logits: Any, symbol: Any) -> Any:
    """The log-sum-exp of logits [B, K, V], from one symbol [B, K, 1] and its probability: float32 [B, K, 1].

    TensorFlow's softmax takes half as long as its log-sum-exp. If a probability is too small for float32, as it may be
    with a forced prefix, TensorFlow's log-sum-exp is used.
    """
    logit, probability = (tf.gather(each, symbol, batch_dims=2) for each in (logits, tf.nn.softmax(logits)))
    return tf.cond(
        tf.reduce_all(probability > 1e-30),
        lambda: logit - tf.math.log(probability),
        lambda: tf.reduce_logsumexp(logits, axis=-1, keepdims=True),
    )


def without_end(logits: Any, end_id: int, too_short: Any) -> Any:
    """Logits [B, K, V], with an impossible end symbol in rows that are `too_short`, bool [B]."""

    def without() -> Any:
        is_end = tf.range(tf.shape(logits)[-1]) == end_id
        return tf.where(too_short[:, tf.newaxis, tf.newaxis] & is_end, IMPOSSIBLE, logits)

    return tf.cond(tf.reduce_any(too_short), without, lambda: logits)
