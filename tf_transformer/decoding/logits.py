"""The best symbols of a vocabulary by their logits, fast in large vocabularies; and rules for what may not follow."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from keras import ops

from tf_transformer.decoding.primitives import IMPOSSIBLE, gather, least, size, sorted_top_k, without_symbols
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import Count, checked


def top_k(logits: Tensor, k: Tensor) -> tuple[Any, Any]:
    """The k greatest logits [..., V] and their symbols, fast for large V: it sorts only the k blocks with the greatest
    maxima. Equal logits keep their order."""
    *sizes, V = (size(logits, axis) for axis in range(len(logits.shape)))
    width = next((width for width in range(64, 15, -1) if V % width == 0), None)  # of a block
    if width is None:
        return sorted_top_k(logits, k)
    blocks = ops.reshape(logits, (*sizes, V // width, width))
    M = least(k, V // width)
    _, chosen = sorted_top_k(ops.max(blocks, axis=-1), M)  # [..., M]
    chosen = -sorted_top_k(-chosen, M)[0]  # in order, so that equal logits keep theirs
    symbols = ops.expand_dims(chosen, -1) * width + ops.arange(width, dtype="int32")  # [..., M, width]
    flat = (*sizes, M * width)
    top_logits, places = sorted_top_k(ops.reshape(gather(blocks, chosen, batch_dims=len(sizes)), flat), k)
    return top_logits, gather(ops.reshape(symbols, flat), places, batch_dims=len(sizes))


class Prefixes(NamedTuple):
    """The hypotheses that the next symbols follow."""

    ids: Any  # int32 [B, K, L], their symbols, then zeros
    position: Any  # int32 scalar, how many symbols each has
    end_id: int


def without_end(logits: Tensor, prefixes: Prefixes, min_length: Tensor) -> Any:
    """Logits [B, K, V], with an impossible end symbol where an output would have less than min_length [B] symbols."""
    too_short = prefixes.position + 1 < min_length

    def without() -> Any:
        is_end = ops.arange(size(logits, -1), dtype="int32") == prefixes.end_id
        return ops.where(too_short[:, None, None] & is_end, IMPOSSIBLE, logits)

    return ops.cond(ops.any(too_short), without, lambda: logits)


def without_repeats(logits: Tensor, prefixes: Prefixes, n: Tensor) -> Any:
    """Logits [B, K, V], with impossible symbols where they would complete an n-gram that the hypothesis has already.

    Where nothing else is possible, as in a forced prefix that repeats itself, the logits stay.

    Args:
        logits: [B, K, V].
        prefixes: the hypotheses.
        n: int32 [B], its length; 0 forbids nothing.
    """
    ids, position, _ = prefixes

    def without() -> Any:
        place = ops.arange(size(ids, 2), dtype="int32")

        def compare(back: Tensor, alike: Tensor) -> Any:
            """Compare one more of the n - 1 symbols before each place with those at the end."""
            newest = ops.expand_dims(gather(ids, ops.maximum(position - back, 0), axis=2), 2)
            same = (gather(ids, ops.maximum(place - back, 0), axis=2) == newest) & (place >= back)
            return back + 1, alike & (same | (back >= n)[:, None, None])

        used = ops.broadcast_to((place < position) & (n > 0)[:, None, None], ops.shape(ids))
        _, repeats = ops.while_loop(lambda back, _: back < ops.max(n), compare, (ops.ones((), "int32"), used))
        left = without_symbols(logits, ids, repeats)
        none_left = ops.max(left, axis=2, keepdims=True) <= IMPOSSIBLE / 2
        return ops.where(none_left, logits, left)

    return ops.cond(ops.any((n > 0) & (n <= position)), without, lambda: logits)


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
def begins_with(prefix: Tensor, vocab_size: Count) -> Callable[..., Any]:
    """For `beam_search(allowed=...)`: every output of a row begins with its prefix.

    Args:
        prefix: int32 [B, P]; zeros follow a shorter one.
        vocab_size: V.
    """
    prefix = ops.pad(prefix, ((0, 0), (0, 1)))  # after a prefix every symbol is allowed

    def allowed(ids: Tensor, position: Tensor, row: Tensor) -> Any:
        required = gather(gather(prefix, row), ops.minimum(position, size(prefix, 1) - 1), axis=1)
        required = required[:, None, None]  # [B, 1, 1]
        return (required == 0) | (ops.arange(vocab_size, dtype="int32") == required)

    return allowed
