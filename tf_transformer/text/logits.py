"""The best symbols of a vocabulary by their logits, fast in large vocabularies; and rules for what may not follow."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tf_transformer.base.type_names import Tensor
from tf_transformer.base.values import Count, checked

IMPOSSIBLE = -1e9  # instead of minus infinity, which is not legal JSON


def top_k(logits: Tensor, k: Tensor) -> tuple[Any, Any]:
    """tf.math.top_k(logits [..., V], k), faster for large V: it sorts only the k blocks with the greatest maxima."""
    V = logits.shape[-1]
    width = next((width for width in range(64, 15, -1) if V % width == 0), None)  # of a block
    if width is None:
        return tf.math.top_k(logits, k)
    blocks = tf.reshape(logits, tf.concat([tf.shape(logits)[:-1], [V // width, width]], axis=0))
    M = tf.minimum(k, V // width)
    _, chosen = tf.math.top_k(tf.reduce_max(blocks, axis=-1), M)  # [..., M]
    chosen = -tf.math.top_k(-chosen, M)[0]  # in order, so that equal logits keep theirs, as in tf.math.top_k
    symbols = tf.expand_dims(chosen, -1) * width + tf.range(width)  # [..., M, width]
    rank = len(logits.shape) - 1
    flat = tf.concat([tf.shape(logits)[:-1], [-1]], axis=0)
    top_logits, places = tf.math.top_k(tf.reshape(tf.gather(blocks, chosen, batch_dims=rank), flat), k)
    return top_logits, tf.gather(tf.reshape(symbols, flat), places, batch_dims=rank)


def log_sum_exp(logits: Tensor, symbol: Tensor, is_best: bool) -> Any:
    """The log-sum-exp of logits [B, K, V], from one symbol [B, K, 1] and its probability: float32 [B, K, 1].

    TensorFlow's softmax takes half as long as its log-sum-exp. If a probability is too small for float32, as it may be
    with a forced prefix unless `is_best` promises the symbol of the greatest logit, TensorFlow's log-sum-exp is used.
    """
    logit, probability = (tf.gather(each, symbol, batch_dims=2) for each in (logits, tf.nn.softmax(logits)))
    if is_best:
        return logit - tf.math.log(probability)
    return tf.cond(
        tf.reduce_all(probability > 1e-30),
        lambda: logit - tf.math.log(probability),
        lambda: tf.reduce_logsumexp(logits, axis=-1, keepdims=True),
    )


class Prefixes(NamedTuple):
    """The hypotheses that the next symbols follow."""

    ids: Any  # int32 [B, K, L], their symbols, then zeros
    position: Any  # int32 scalar, how many symbols each has
    end_id: int


def without_end(logits: Tensor, prefixes: Prefixes, min_length: Tensor) -> Any:
    """Logits [B, K, V], with an impossible end symbol where an output would have less than min_length [B] symbols."""
    too_short = prefixes.position + 1 < min_length

    def without() -> Any:
        is_end = tf.range(tf.shape(logits)[-1]) == prefixes.end_id
        return tf.where(too_short[:, tf.newaxis, tf.newaxis] & is_end, IMPOSSIBLE, logits)

    return tf.cond(tf.reduce_any(too_short), without, lambda: logits)


def without_repeats(logits: Tensor, prefixes: Prefixes, size: Tensor) -> Any:
    """Logits [B, K, V], with impossible symbols where they would complete an n-gram that the hypothesis has already.

    Where nothing else is possible, as in a forced prefix that repeats itself, the logits stay.

    Args:
        logits: [B, K, V].
        prefixes: the hypotheses.
        size: int32 [B], n; 0 forbids nothing.
    """
    ids, position, _ = prefixes

    def without() -> Any:
        place = tf.range(tf.shape(ids)[2])

        def compare(back: Tensor, alike: Tensor) -> Any:
            """Compare one more of the n - 1 symbols before each place with those at the end."""
            newest = tf.gather(ids, tf.maximum(position - back, 0), axis=2)[:, :, tf.newaxis]
            same = (tf.gather(ids, tf.maximum(place - back, 0), axis=2) == newest) & (place >= back)
            return back + 1, alike & (same | (back >= size)[:, tf.newaxis, tf.newaxis])

        used = tf.broadcast_to((place < position) & (size > 0)[:, tf.newaxis, tf.newaxis], tf.shape(ids))
        _, repeats = tf.while_loop(lambda back, _: back < tf.reduce_max(size), compare, [tf.constant(1), used])
        where = tf.cast(tf.where(repeats), tf.int32)  # [M, 3], row, beam and place
        index = tf.concat([where[:, :2], tf.gather_nd(ids, where)[:, tf.newaxis]], axis=1)
        left = tf.tensor_scatter_nd_update(logits, index, tf.fill([tf.shape(index)[0]], IMPOSSIBLE))
        none_left = tf.reduce_max(left, axis=2, keepdims=True) <= IMPOSSIBLE / 2
        return tf.where(none_left, logits, left)

    return tf.cond(tf.reduce_any((size > 0) & (size <= position)), without, lambda: logits)


RULES: dict[str, Callable[[Any, Prefixes, Any], Any]] = {  # by option, in the order in which they apply
    "min_length": without_end,
    "no_repeat_ngram_size": without_repeats,
}


def restricted(logits: Tensor, prefixes: Prefixes, options: Mapping[str, Any]) -> Any:
    """Logits [B, K, V], with impossible symbols where an option of a search, [B], forbids them. An option that is
    missing forbids nothing.

    A symbol that may not follow keeps its share of the probability, as in Hugging Face's beam search: the
    log-probability of an output is the model's own.
    """
    for name, rule in RULES.items():
        if name in options:
            logits = rule(logits, prefixes, options[name])
    return logits


@checked
def begins_with(prefix: Tensor, vocab_size: Count) -> Callable[..., tf.Tensor]:
    """For `beam_search(allowed=...)`: every output of a row begins with its prefix.

    Args:
        prefix: int32 [B, P]; zeros follow a shorter one.
        vocab_size: V.
    """
    prefix = tf.pad(prefix, [[0, 0], [0, 1]])  # after a prefix every symbol is allowed

    def allowed(ids: tf.Tensor, position: tf.Tensor, row: tf.Tensor) -> tf.Tensor:
        required = tf.gather(tf.gather(prefix, row), tf.minimum(position, tf.shape(prefix)[1] - 1), axis=1)
        required = required[:, tf.newaxis, tf.newaxis]  # [B, 1, 1]
        return (required == 0) | (tf.range(vocab_size) == required)

    return allowed
