"""Top-k over large vocabularies, and rules for which tokens may not follow."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from keras import ops

from tf_transformer.decoding.primitives import NEG_INF, gather, least, size, sorted_top_k, without_tokens
from tf_transformer.utils.type_names import Tensor


def top_k(logits: Tensor, k: Tensor) -> tuple[Any, Any]:
    """Returns the k highest logits [..., V] and their tokens. Equal logits keep their order."""
    # The k best are in the k blocks with the highest maxima, so only these blocks are sorted.
    *sizes, V = (size(logits, axis) for axis in range(len(logits.shape)))
    block = next((width for width in range(64, 15, -1) if V % width == 0), None)
    if block is None:
        return sorted_top_k(logits, k)
    blocks = ops.reshape(logits, (*sizes, V // block, block))
    M = least(k, V // block)
    _, chosen = sorted_top_k(ops.max(blocks, axis=-1), M)  # [..., M]
    chosen = -sorted_top_k(-chosen, M)[0]  # sorted by index, so that equal logits keep their order
    tokens = ops.expand_dims(chosen, -1) * block + ops.arange(block, dtype="int32")  # [..., M, block]
    flat = (*sizes, M * block)
    top_logits, indices = sorted_top_k(ops.reshape(gather(blocks, chosen, batch_dims=len(sizes)), flat), k)
    return top_logits, gather(ops.reshape(tokens, flat), indices, batch_dims=len(sizes))


class Prefixes(NamedTuple):
    """Hypotheses that the next tokens follow."""

    ids: Any  # int32 [B, K, L], followed by zeros
    position: Any  # int32 scalar, the number of tokens in each
    end_id: int


def without_end(logits: Tensor, prefixes: Prefixes, min_length: Tensor) -> Any:
    """Masks EOS in logits [B, K, V] while an output would have fewer than min_length [B] tokens."""
    too_short = prefixes.position + 1 < min_length

    def without() -> Any:
        is_end = ops.arange(size(logits, -1), dtype="int32") == prefixes.end_id
        return ops.where(too_short[:, None, None] & is_end, NEG_INF, logits)

    # After the first few steps the rule is idle. The condition saves a pass over the logits.
    return ops.cond(ops.any(too_short), without, lambda: logits)


def without_repeats(logits: Tensor, prefixes: Prefixes, n: Tensor) -> Any:
    """Masks tokens in logits [B, K, V] that would repeat an n-gram of the hypothesis. Where n [B] is 0, masks none.

    Logits are unchanged where it would mask all tokens, such as after a prefix that repeats itself.
    """
    ids, position, _ = prefixes

    def without() -> Any:
        index = ops.arange(size(ids, 2), dtype="int32")

        def compare(back: Tensor, alike: Tensor) -> Any:
            """Compares one more of the n - 1 tokens before each position with those at the end."""
            newest = ops.expand_dims(gather(ids, ops.maximum(position - back, 0), axis=2), 2)
            same = (gather(ids, ops.maximum(index - back, 0), axis=2) == newest) & (index >= back)
            return back + 1, alike & (same | (back >= n)[:, None, None])

        used = ops.broadcast_to((index < position) & (n > 0)[:, None, None], ops.shape(ids))
        _, repeats = ops.while_loop(lambda back, _: back < ops.max(n), compare, (ops.ones((), "int32"), used))
        remaining = without_tokens(logits, ids, repeats)
        none_left = ops.max(remaining, axis=2, keepdims=True) <= NEG_INF / 2
        return ops.where(none_left, logits, remaining)

    return ops.cond(ops.any((n > 0) & (n <= position)), without, lambda: logits)


RULES: dict[str, Callable[[Any, Prefixes, Any], Any]] = {  # rules by option, in order of application
    "min_length": without_end,
    "no_repeat_ngram_size": without_repeats,
}


def restricted(logits: Tensor, prefixes: Prefixes, options: Mapping[str, Any]) -> Any:
    """Masks logits [B, K, V] by the options [B] of a search. A missing option masks nothing.

    A masked token keeps its share of the probability, as in Hugging Face's beam search. So the log-probability of an
    output is the model's own.
    """
    for name, rule in RULES.items():
        if name in options:
            logits = rule(logits, prefixes, options[name])
    return logits


def begins_with(prefix: Tensor, vocab_size: int) -> Callable[..., Any]:
    """Returns an `allowed` for `beam_search` whose outputs begin with prefix, int32 [B, P], padded with zeros."""
    prefix = ops.pad(prefix, ((0, 0), (0, 1)))  # 0 allows all tokens

    def allowed(ids: Tensor, position: Tensor, row: Tensor) -> Any:
        required = gather(gather(prefix, row), ops.minimum(position, size(prefix, 1) - 1), axis=1)
        required = required[:, None, None]  # [B, 1, 1]
        return (required == 0) | (ops.arange(vocab_size, dtype="int32") == required)

    return allowed
