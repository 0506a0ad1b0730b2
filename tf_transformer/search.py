"""Beam search with length penalty (section 6.1); greedy search is beam search with one beam.

Axes: B sentences, K beams, L the longest output, C = K * L cache slots, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

IMPOSSIBLE = -1e9  # instead of minus infinity, which is not legal JSON


class Hypotheses(NamedTuple):
    """The N best outputs of each sentence, best first; unused places have score and log-probability -1e9."""

    ids: tf.Tensor  # int32 [B, N, L], the end symbol included, then zeros
    scores: tf.Tensor  # float32 [B, N], log-probability / length penalty
    log_probs: tf.Tensor  # float32 [B, N]
    lengths: tf.Tensor  # int32 [B, N], the end symbol included
    finished: tf.Tensor  # bool [B, N], the end symbol was reached


class BeamState(NamedTuple):
    """What a step of the search passes to the next. Alive and finished hypotheses are kept apart."""

    position: tf.Tensor  # int32, the number of symbols in an alive hypothesis
    alive_ids: tf.Tensor  # int32 [B, K, L]
    alive_log_probs: tf.Tensor  # float32 [B, K], descending
    ancestry: tf.Tensor  # bool [B, K, C], the cache slots that belong to each alive hypothesis
    lengths: tf.Tensor  # int32 [B], the number of symbols in the sentence's alive hypotheses
    best: Hypotheses  # finished ones, N = K
    running: tf.Tensor  # bool [B], the sentence's search goes on
    cache: Any


def length_penalty(length, alpha):
    """((5 + n) / 6)^alpha, where n counts the end symbol (Wu et al. 2016, equation 14)."""
    return ((5.0 + tf.cast(length, tf.float32)) / 6.0) ** alpha


def beam_search(
    step: Callable,
    start_cache: Callable,
    start_ids,
    max_length,
    end_id: int,
    beam_size=4,
    alpha=0.6,
    n_best: int = 1,
) -> Hypotheses:
    """Search for the outputs of highest score = log-probability / length penalty.

    `step(ids [B, K], position, slot, ancestry [B, K, C], cache)` gives the logits [B, K, V] of what follows each beam's
    newest symbol, and the new cache; `start_cache(C)` gives the first cache. The cache is append-only: the K newest
    symbols take the slots slot .. slot + K - 1, and `ancestry` says which slots each beam may see, its own newest one
    included, so nothing is ever re-ordered.

    A sentence's search ends when no alive hypothesis can still beat its n_best-th finished one, or at its maximum
    length; with one beam, at its first end symbol: that is greedy search. A row's result is as if searched alone.

    Args:
        step: see above.
        start_cache: see above; a cache is any nested structure of tensors.
        start_ids: int32 [B], the symbol before the first.
        max_length: int32 [B], the greatest number of symbols a row, the end symbol included; 0 gives the empty output.
        end_id: the symbol that ends an output.
        beam_size: int32, one or [B]; the widest is K.
        alpha: float32, one or [B], the length penalty's exponent.
        n_best: how many outputs of each sentence; more than a row's beam size leaves places unused.

    Returns:
        `Hypotheses` with N = n_best. Where no output was finished, they are the unfinished ones.
    """
    B = tf.shape(start_ids)[0]
    beam_size = tf.maximum(tf.broadcast_to(tf.cast(beam_size, tf.int32), [B]), 1)
    alpha = tf.broadcast_to(tf.cast(alpha, tf.float32), [B])
    max_length = tf.cast(max_length, tf.int32)
    K = tf.maximum(tf.reduce_max(beam_size), 1)  # of an empty batch, too
    L = tf.maximum(tf.reduce_max(max_length), 0)

    rows = _Rows(beam_size, alpha, max_length, end_id, K, n_best)

    def advance(state: BeamState) -> tuple[BeamState]:
        position = state.position
        newest = tf.where(
            position == 0,
            tf.broadcast_to(start_ids[:, tf.newaxis], [B, K]),
            tf.gather(state.alive_ids, tf.maximum(position - 1, 0), axis=2),
        )
        slot = position * K
        own = tf.one_hot(slot + tf.range(K), L * K, True, False)  # [K, C]
        ancestry = state.ancestry | own
        logits, cache = step(newest, position, slot, ancestry, state.cache)
        new = _extend(state._replace(ancestry=ancestry, cache=cache), tf.cast(logits, tf.float32), rows)
        tf.nest.map_structure(lambda after, before: after.set_shape(before.shape), new, state)
        return (new,)

    state = BeamState(
        position=tf.constant(0),
        alive_ids=tf.zeros([B, K, L], tf.int32),
        alive_log_probs=tf.broadcast_to(tf.where(tf.range(K) == 0, 0.0, IMPOSSIBLE), [B, K]),
        ancestry=tf.zeros([B, K, L * K], tf.bool),
        lengths=tf.zeros([B], tf.int32),
        best=_no_hypotheses(B, K, L),
        running=max_length > 0,
        cache=start_cache(K * L),
    )
    (state,) = tf.while_loop(lambda state: tf.reduce_any(state.running), advance, [state])
    return _results(state, rows)


class _Rows(NamedTuple):
    """What does not change during a search."""

    beam_size: tf.Tensor  # int32 [B]
    alpha: tf.Tensor  # float32 [B]
    max_length: tf.Tensor  # int32 [B]
    end_id: int
    K: tf.Tensor  # int32
    n_best: int


def _no_hypotheses(B, K, L) -> Hypotheses:
    nothing = tf.fill([B, K], IMPOSSIBLE)
    return Hypotheses(
        tf.zeros([B, K, L], tf.int32), nothing, nothing, tf.zeros([B, K], tf.int32), tf.zeros([B, K], tf.bool)
    )


def _extend(state: BeamState, logits, rows: _Rows) -> BeamState:
    """Extend alive hypotheses by one symbol: those that end join the finished, the best others stay alive."""
    log_probs, parents, symbols = _candidates(state.alive_log_probs, logits, rows)
    ids = _append(tf.gather(state.alive_ids, parents, batch_dims=1), symbols, state.position)  # [B, 2K, L]
    ends = symbols == rows.end_id
    length = state.position + 1

    # An end symbol counts only among the beam's own best: with one beam, only where greedy search would choose it.
    finishes = ends & _first(rows.beam_size, 2 * rows.K) & _possible(log_probs)
    best = _keep_best(state.best, ids, log_probs, finishes, length, rows)

    alive_log_probs, chosen = tf.math.top_k(tf.where(ends, IMPOSSIBLE, log_probs), rows.K)
    alive_log_probs = tf.where(_first(rows.beam_size, rows.K), alive_log_probs, IMPOSSIBLE)
    alive_ids = tf.gather(ids, chosen, batch_dims=1)
    ancestry = tf.gather(state.ancestry, tf.gather(parents, chosen, batch_dims=1), batch_dims=1)

    # A row that has ended stays as it is, whatever the others do.
    state = state._replace(
        position=length,
        ancestry=ancestry,
        alive_ids=_where_rows(state.running, alive_ids, state.alive_ids),
        alive_log_probs=_where_rows(state.running, alive_log_probs, state.alive_log_probs),
        lengths=tf.where(state.running, length, state.lengths),
        best=Hypotheses(*(_where_rows(state.running, new, old) for new, old in zip(best, state.best, strict=True))),
    )
    return state._replace(running=state.running & ~_has_ended(state, rows))


def _candidates(alive_log_probs, logits, rows: _Rows):
    """The 2K best extensions of a sentence's beams: log-probabilities, parent beams and symbols, each [B, 2K].

    In two stages, so that no log-softmax over the vocabulary is made and the wide sort is over each beam alone. A row
    with k < K beams gets 2k of them, as if searched with k.
    """
    per_beam = tf.minimum(2 * rows.K, tf.shape(logits)[-1])
    top_logits, top_symbols = tf.math.top_k(logits, per_beam)  # [B, K, P]
    log_denominator = tf.reduce_logsumexp(logits, axis=-1, keepdims=True)
    log_probs = alive_log_probs[:, :, tf.newaxis] + (top_logits - log_denominator)
    B = tf.shape(logits)[0]
    flat = tf.reshape(tf.maximum(log_probs, IMPOSSIBLE), [B, rows.K * per_beam])
    lacking = tf.maximum(2 * rows.K - rows.K * per_beam, 0)  # a vocabulary of one symbol
    flat = tf.pad(flat, [[0, 0], [0, lacking]], constant_values=IMPOSSIBLE)
    log_probs, chosen = tf.math.top_k(flat, 2 * rows.K)
    log_probs = tf.where(_first(2 * rows.beam_size, 2 * rows.K), log_probs, IMPOSSIBLE)
    chosen = tf.minimum(chosen, rows.K * per_beam - 1)
    symbols = tf.gather(tf.reshape(top_symbols, [B, rows.K * per_beam]), chosen, batch_dims=1)
    return log_probs, chosen // per_beam, symbols


def _keep_best(best: Hypotheses, ids, log_probs, finishes, length, rows: _Rows) -> Hypotheses:
    """Merge candidates [B, 2K] that have just finished into the finished ones [B, K]."""
    scores = log_probs / length_penalty(length, rows.alpha[:, tf.newaxis])
    new = Hypotheses(
        ids,
        tf.where(finishes, scores, IMPOSSIBLE),
        tf.where(finishes, log_probs, IMPOSSIBLE),
        tf.where(finishes, length, 0),
        finishes,
    )
    merged = Hypotheses(*(tf.concat(pair, axis=1) for pair in zip(best, new, strict=True)))
    scores, order = tf.math.top_k(merged.scores, rows.K)
    best = Hypotheses(*(tf.gather(part, order, batch_dims=1) for part in merged))
    within = _first(rows.beam_size, rows.K)
    return best._replace(scores=tf.where(within, scores, IMPOSSIBLE), finished=best.finished & within)


def _has_ended(state: BeamState, rows: _Rows):
    """Which rows' results can no longer change: bool [B].

    Log-probabilities only fall, and a longer output's penalty divides them by more: no alive hypothesis can end with
    more than its log-probability now over the penalty at the greatest length.
    """
    alive = state.alive_log_probs[:, 0]
    reachable = tf.where(_possible(alive), alive / length_penalty(rows.max_length, rows.alpha), 2 * IMPOSSIBLE)
    wanted = tf.minimum(rows.n_best, rows.beam_size) - 1
    worst = tf.gather(state.best.scores, wanted, batch_dims=1)  # of those that are asked for
    greedy = (rows.beam_size == 1) & state.best.finished[:, 0]
    return (worst >= reachable) | greedy | (state.lengths >= rows.max_length)


def _results(state: BeamState, rows: _Rows) -> Hypotheses:
    """The n_best finished outputs; of a row with none, the alive ones."""
    scores = state.alive_log_probs / length_penalty(state.lengths, rows.alpha)[:, tf.newaxis]
    unfinished = Hypotheses(
        state.alive_ids,
        tf.where(_possible(state.alive_log_probs), scores, IMPOSSIBLE),
        state.alive_log_probs,
        tf.broadcast_to(state.lengths[:, tf.newaxis], tf.shape(scores)),
        tf.zeros_like(state.best.finished),
    )
    any_finished = tf.reduce_any(state.best.finished, axis=1)
    ids, scores, log_probs, lengths, finished = (
        _places(_where_rows(any_finished, *pair), rows) for pair in zip(state.best, unfinished, strict=True)
    )
    used = tf.range(rows.n_best) < rows.K
    used &= _possible(scores)
    return Hypotheses(
        ids=tf.where(used[:, :, tf.newaxis], ids, 0),
        scores=tf.where(used, scores, IMPOSSIBLE),
        log_probs=tf.where(used, log_probs, IMPOSSIBLE),
        lengths=tf.where(used, lengths, 0),
        finished=finished & used,
    )


def _places(part, rows: _Rows):
    """The first n_best of K hypotheses, padded if there are fewer: [B, n_best, ...]."""
    rank = len(part.shape)
    lacking = tf.maximum(rows.n_best - rows.K, 0)
    part = tf.pad(part, [[0, 0], [0, lacking]] + [[0, 0]] * (rank - 2))[:, : rows.n_best]
    return tf.ensure_shape(part, [None, rows.n_best] + [None] * (rank - 2))


def _possible(log_probs):
    return log_probs > IMPOSSIBLE / 2


def _first(count, width):
    """Which of `width` places are among a row's first `count` [B]: bool [B, width]."""
    return tf.range(width) < count[:, tf.newaxis]


def _where_rows(condition, new, old):
    """`new` in the rows where condition [B] holds, `old` in the others."""
    return tf.where(tf.reshape(condition, [-1] + [1] * (len(new.shape) - 1)), new, old)


def _append(ids, symbols, position):
    """Write symbols [B, M] at `position` of ids [B, M, L]."""
    here = tf.range(tf.shape(ids)[2]) == position
    return tf.where(here, symbols[:, :, tf.newaxis], ids)
