"""One step of beam search (section 6.1): extends each sentence's K beams by a token, and keeps the best.

Axes: B sentences, N or K hypotheses, L the longest output, V vocabulary.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from keras import ops, tree

from tf_transformer.decoding.primitives import (
    NEG_INF,
    gather,
    greatest,
    least,
    log_sum_exp,
    size,
    sorted_top_k,
    with_width,
    without_tokens,
)
from tf_transformer.utils.type_names import Tensor


class Hypotheses(NamedTuple):
    """N best outputs of each sentence, best first. Unused slots have score and log-probability -1e9."""

    ids: Any  # int32 [B, N, L], including EOS, then zeros
    scores: Any  # float32 [B, N], log-probability / length penalty
    log_probs: Any  # float32 [B, N]
    lengths: Any  # int32 [B, N], including EOS
    finished: Any  # bool [B, N], whether EOS was reached


class Tokens(NamedTuple):
    """Values stored for each token of the hypotheses, followed by zeros."""

    ids: Any  # int32 [B, N, L]
    # The other fields are `()` unless the search is detailed.
    log_probs: Any = ()  # float32 [B, N, L]
    attended: Any = ()  # int32 [B, N, L], the source position with the highest attention when the token was chosen


class Finished(NamedTuple):
    """K best finished hypotheses of each sentence, best first. Unused slots have score -1e9."""

    scores: Any  # float32 [B, K]
    log_probs: Any  # float32 [B, K]


class Rows(NamedTuple):
    """Settings of each row."""

    row_index: Any  # int32 [B], the index in the whole batch
    max_length: Any  # int32 [B]
    max_finished: Any  # float32 [B], the number of finished outputs that ends the search
    max_penalty: Any  # float32 [B], the length penalty at the maximum length
    options: dict[str, Any]  # the other options by name, [B]


class BeamState(NamedTuple):
    """Loop state of the search. Alive and finished hypotheses are kept apart."""

    position: Any  # int32, the number of tokens in an alive hypothesis
    slot: Any  # int32, the first free cache slot
    rows: Rows
    newest: Any  # int32 [B, K], the last token of each alive hypothesis
    tokens: Tokens  # N = 2K: the K best finished hypotheses, then the K alive ones
    alive_log_probs: Any  # float32 [B, K], descending
    ancestry: Any  # bool [B, K, C], the cache slots that belong to each alive hypothesis
    lengths: Any  # int32 [B], the number of tokens in the sentence's alive hypotheses
    best: Finished
    finished: Any  # int32 [B], how many have finished, including those no longer among the best
    running: Any  # bool [B], whether the sentence's search continues
    cache: Any


def penalty(length: Tensor, exponent: Tensor) -> Any:
    """Returns ((5 + n) / 6)^exponent, where n includes EOS (Wu et al. 2016, equation 14)."""
    return ((5.0 + ops.cast(length, "float32")) / 6.0) ** exponent


def extend(
    state: BeamState, logits: Tensor, may_follow: Tensor, attended: Tensor, end_id: int, exact_n: Tensor
) -> BeamState:
    """Extends alive hypotheses by one token, then keeps the best finished and the best alive ones.

    The decoder returned logits, float32 [B, K, V], and for a detailed search `attended`, int32 [B, K]. `may_follow`,
    bool [B, K or 1, V], masks them, unless it is `None`.
    """
    # K is the batch's widest beam. A row that asked for fewer masks the others in every choice.
    options, K = state.rows.options, size(logits, 1)
    beam_size, length = options["beam_size"], state.position + 1
    log_probs, parents, new_tokens = _candidates(state, logits, may_follow, attended, end_id)
    ends = new_tokens.ids == end_id

    # EOS counts only among a row's beam_size best candidates. So with one beam, a hypothesis ends exactly where greedy
    # search would choose EOS.
    finishes = ends & _first(beam_size, 2 * K) & _possible(log_probs) & ops.expand_dims(state.running, 1)
    scores = log_probs / penalty(length, ops.expand_dims(options["length_penalty"], 1))  # [B, 2K]
    # Finished so far come first, so that of equal scores the shorter output is kept.
    scores = ops.concatenate([state.best.scores, ops.where(finishes, scores, NEG_INF)], axis=1)
    scores, kept = sorted_top_k(scores, K)  # equal scores keep their order
    best_log_probs = gather(ops.concatenate([state.best.log_probs, log_probs], axis=1), kept, batch_dims=1)
    best = Finished(ops.where(_first(beam_size, K), scores, NEG_INF), best_log_probs)

    # Each beam yields at most one EOS, so 2K candidates leave at least K alive.
    alive_log_probs, chosen = sorted_top_k(ops.where(ends, NEG_INF, log_probs), K)
    alive_log_probs = ops.where(_first(beam_size, K), alive_log_probs, NEG_INF)
    # Finished and alive hypotheses move in one gather.
    newest, tokens = _append(state, ops.concatenate([kept, K + chosen], axis=1), parents, new_tokens)
    # The cache is append-only: a hypothesis that changes beams takes its row of the ancestry mask with it. That copies
    # K * C flags instead of all keys and values.
    ancestry = gather(state.ancestry, gather(parents, chosen, batch_dims=1), batch_dims=1)

    # Ended rows are frozen until the loop drops them. None of their candidates finishes.
    state = state._replace(
        position=length,
        ancestry=ancestry,
        newest=newest,
        tokens=tokens,
        alive_log_probs=_where_rows(state.running, alive_log_probs, state.alive_log_probs),
        lengths=ops.where(state.running, length, state.lengths),
        finished=state.finished + ops.sum(ops.cast(finishes, "int32"), axis=1),
        best=best,
    )
    return state._replace(running=state.running & ~_has_ended(state, exact_n))


def _candidates(
    state: BeamState, logits: Tensor, may_follow: Tensor, attended: Tensor, end_id: int
) -> tuple[Any, Any, Tokens]:
    """Returns the 2K best extensions of a sentence's beams: log-probabilities, parent beams and tokens, each [B, 2K].

    A row with k < K beams gets 2k candidates, as in a search with k beams.
    """
    beam_size = state.rows.options["beam_size"]
    B, K = size(logits, 0), size(logits, 1)
    possible = logits if may_follow is None else ops.where(may_follow, logits, NEG_INF)
    prefixes = Prefixes(ops.split(state.tokens.ids, 2, axis=1)[1], state.position, end_id)
    possible = restricted(possible, prefixes, state.rows.options)

    # 1. The P best tokens of each beam. A log-softmax over the vocabulary and a sort over the logits of all beams would
    # take longer than the rest of the step.
    P = least(2 * K, size(logits, -1))
    top_logits, top_tokens = top_k(possible, P)  # [B, K, P]
    token_log_probs = top_logits - log_sum_exp(logits, top_tokens[:, :, :1], possible is logits)
    log_probs = ops.expand_dims(state.alive_log_probs, 2) + token_log_probs  # [B, K, P]

    # 2. The 2K best of all beams. In `flat`, index i is token i % P of beam i // P.
    # Sums of two masked values stay at NEG_INF, or they would fall at each step.
    flat = ops.reshape(ops.maximum(log_probs, NEG_INF), [B, K * P])
    missing = greatest(2 * K - K * P, 0)  # above 0 only for a vocabulary of one token
    flat = ops.pad(flat, [[0, 0], [0, missing]], constant_values=NEG_INF)
    log_probs, chosen = sorted_top_k(flat, 2 * K)
    log_probs = ops.where(_first(2 * beam_size, 2 * K), log_probs, NEG_INF)
    chosen = ops.minimum(chosen, K * P - 1)
    parents = chosen // P  # [B, 2K], the beams that the candidates extend

    def gathered(part: Tensor) -> Any:
        return gather(ops.reshape(part, [B, K * P]), chosen, batch_dims=1)

    new_tokens = Tokens(gathered(top_tokens))
    if attended is not None:
        new_tokens = Tokens(new_tokens.ids, gathered(token_log_probs), gather(attended, parents, batch_dims=1))
    return log_probs, parents, new_tokens


def _append(state: BeamState, indices: Tensor, parents: Tensor, new_tokens: Tokens) -> tuple[Any, Tokens]:
    """Returns the newest token of each alive hypothesis, and the tokens of all. Ended rows are unchanged.

    `indices` [B, 2K] selects the finished and alive hypotheses among the K finished so far and the 2K candidates, which
    extend the beams `parents` [B, 2K] by the tokens `new_tokens`.
    """
    K = size(indices, 1) // 2
    zeros = ops.zeros_like(indices)
    # A finished hypothesis is copied from its own index, a candidate from its parent's, after the K finished ones.
    same = zeros + ops.arange(2 * K, dtype="int32")
    origins = gather(ops.concatenate([same[:, :K], K + parents], axis=1), indices, batch_dims=1)
    origins = _where_rows(state.running, origins, same)
    indices = _where_rows(state.running, indices, zeros)
    # Finished hypotheses get a zero, which already follows their EOS.
    new = tree.map_structure(lambda part: gather(ops.pad(part, [[0, 0], [K, 0]]), indices, batch_dims=1), new_tokens)
    is_new = ops.arange(size(state.tokens.ids, 2), dtype="int32") == state.position

    def extended(old: Tensor, new: Tensor) -> Any:
        return ops.where(is_new, ops.expand_dims(new, 2), gather(old, origins, batch_dims=1))

    return ops.split(new.ids, 2, axis=1)[1], tree.map_structure(extended, state.tokens, new)


def _has_ended(state: BeamState, exact_n: Tensor) -> Any:
    """Returns whether each row's search ends, bool [B]."""
    rows, alive = state.rows, state.alive_log_probs[:, 0]
    beam_size = rows.options["beam_size"]
    # Log-probabilities only fall, and the penalty that divides them grows with length. So the current log-probability,
    # divided by the penalty at the maximum length, bounds the score of an alive hypothesis. The search ends when the
    # worst output that must be exact reaches this bound.
    reachable = ops.where(_possible(alive), alive / rows.max_penalty, 2 * NEG_INF)
    worst = gather(state.best.scores, ops.minimum(exact_n, beam_size) - 1, batch_dims=1)
    # Patience may end a search before that bound does (Kasai et al. 2022).
    is_full = ops.cast(state.finished, "float32") >= rows.max_finished
    greedy = (beam_size == 1) & _possible(state.best.scores[:, 0])
    return (worst >= reachable) | is_full | greedy | (state.lengths >= rows.max_length)


def results_of(state: BeamState, n_best: int, end_id: int) -> tuple[Hypotheses, Tokens]:
    """Returns the n_best finished outputs, or the alive ones in a row without any. A running row has none yet."""
    # A row that reached its maximum length without EOS returns its alive hypotheses rather than nothing.
    scores = state.alive_log_probs / penalty(state.lengths, state.rows.options["length_penalty"])[:, None]
    scores = ops.where(_possible(state.alive_log_probs), scores, NEG_INF)
    any_finished = _possible(state.best.scores[:, 0])

    def chosen(finished: Tensor, alive: Tensor) -> Any:
        """Returns [B, n_best, ...], padded if K is less."""
        part = _where_rows(any_finished, finished, alive)
        missing = greatest(n_best - size(part, 1), 0)
        part = ops.pad(part, [[0, 0], [0, missing]] + [[0, 0]] * (len(part.shape) - 2))[:, :n_best]
        return with_width(part, n_best)

    scores, log_probs = chosen(state.best.scores, scores), chosen(state.best.log_probs, state.alive_log_probs)
    exists = ops.arange(n_best, dtype="int32") < size(state.newest, 1)
    used = exists & _possible(scores) & ~ops.expand_dims(state.running, 1)

    def masked(part: Tensor) -> Any:
        part = chosen(*ops.split(part, 2, axis=1))
        return ops.where(used[:, :, None], part, ops.zeros_like(part))

    tokens = tree.map_structure(masked, state.tokens)
    # A finished output ends at its first EOS. If EOS is 0, so are the slots after it.
    L = size(tokens.ids, 2)
    slots_left = ops.where(tokens.ids == end_id, L - ops.arange(L, dtype="int32"), 0)  # from EOS on
    lengths = L + 1 - ops.max(slots_left, axis=2, initial=0)
    finished = used & any_finished[:, None]
    hypotheses = Hypotheses(
        ids=tokens.ids,
        scores=ops.where(used, scores, NEG_INF),
        log_probs=ops.where(used, log_probs, NEG_INF),
        lengths=ops.where(finished, lengths, ops.where(used, state.lengths[:, None], 0)),
        finished=finished,
    )
    return hypotheses, tokens


def _possible(log_probs: Tensor) -> Any:
    return log_probs > NEG_INF / 2


def _first(count: Tensor, width: Tensor) -> Any:
    """Returns a mask of each row's first `count` [B] positions: bool [B, width]."""
    return ops.arange(width, dtype="int32") < ops.expand_dims(count, 1)


def _where_rows(condition: Tensor, new: Tensor, old: Tensor) -> Any:
    """Returns `new` in the rows where condition [B] holds, `old` in the others."""
    return ops.where(ops.reshape(condition, [-1] + [1] * (len(new.shape) - 1)), new, old)


# Rules for which tokens may not follow, and the top-k, which a step begins with.
def top_k(logits: Tensor, k: Tensor) -> tuple[Any, Any]:
    """Returns the k highest logits [..., V] and their tokens. Equal logits keep their order."""
    # The k best are in the k blocks with the highest maxima, so only these blocks are sorted, and not all of V. That
    # needs blocks of one width.
    *sizes, V = (size(logits, axis) for axis in range(len(logits.shape)))
    # An unknown V is the number of candidates, a multiple of 64.
    block = next((width for width in range(64, 15, -1) if not isinstance(V, int) or V % width == 0), None)
    if block is None:
        return sorted_top_k(logits, k)
    blocks = ops.reshape(logits, (*sizes, V // block, block))  # [..., V / block, block]
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

        # Stays true where the n - 1 tokens before a position are the newest n - 1: its token would repeat the n-gram.
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


def begins_with(prefix: Tensor, vocab_size: int, candidates: Tensor = None) -> Callable[..., Any]:
    """Returns an `allowed` for `beam_search` whose outputs begin with prefix, int32 [B, P], padded with zeros.

    The tokens are all of the vocabulary, or candidates [B, M].
    """
    prefix = ops.pad(prefix, ((0, 0), (0, 1)))  # 0 allows all tokens

    def allowed(ids: Tensor, position: Tensor, row: Tensor) -> Any:
        required = gather(gather(prefix, row), ops.minimum(position, size(prefix, 1) - 1), axis=1)
        required = required[:, None, None]  # [B, 1, 1], for all beams, and 0 after the prefix
        tokens = ops.arange(vocab_size, dtype="int32") if candidates is None else gather(candidates, row)[:, None]
        return (required == 0) | (tokens == required)

    return allowed
