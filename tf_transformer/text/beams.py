"""One step of a beam search (section 6.1): each sentence's K beams get a symbol, some end, and the best go on.

Axes: B sentences, N or K hypotheses, L the longest output, V vocabulary.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from tf_transformer.base.type_names import Tensor
from tf_transformer.text.logits import IMPOSSIBLE, Prefixes, log_sum_exp, restricted, top_k


class Hypotheses(NamedTuple):
    """The N best outputs of each sentence, best first; unused places have score and log-probability -1e9."""

    ids: tf.Tensor  # int32 [B, N, L], the end symbol included, then zeros
    scores: tf.Tensor  # float32 [B, N], log-probability / length penalty
    log_probs: tf.Tensor  # float32 [B, N]
    lengths: tf.Tensor  # int32 [B, N], the end symbol included
    finished: tf.Tensor  # bool [B, N], the end symbol was reached


class Symbols(NamedTuple):
    """What a search keeps of each symbol of its hypotheses; zeros follow the last one."""

    ids: Any  # int32 [B, N, L]
    # `()` in a search that is not detailed:
    log_probs: Any = ()  # float32 [B, N, L]
    attended: Any = ()  # int32 [B, N, L], the source position of greatest attention when the symbol was chosen


class Finished(NamedTuple):
    """The K best hypotheses of each sentence that have finished, best first; unused places have score -1e9."""

    scores: tf.Tensor  # float32 [B, K]
    log_probs: tf.Tensor  # float32 [B, K]


class Step(NamedTuple):
    """What a decoder says of the symbols that follow K beams."""

    logits: tf.Tensor  # float32 [B, K, V]
    may_follow: tf.Tensor | None  # bool [B, K or 1, V]; `None` means all
    attended: tf.Tensor | None  # int32 [B, K]; `None` in a search that is not detailed


class Rows(NamedTuple):
    """The settings of each row."""

    number: tf.Tensor  # int32 [B], the row's place in the whole batch
    max_length: tf.Tensor  # int32 [B]
    enough: tf.Tensor  # float32 [B], how many finished outputs end the search
    greatest_penalty: tf.Tensor  # float32 [B], of an output of the maximum length
    options: dict[str, tf.Tensor]  # the others by name, [B]


class BeamState(NamedTuple):
    """What a step of the search passes to the next. Alive and finished hypotheses are kept apart."""

    position: tf.Tensor  # int32, the number of symbols in an alive hypothesis
    slot: tf.Tensor  # int32, the first free slot of the cache
    rows: Rows
    newest: tf.Tensor  # int32 [B, K], the last symbol of each alive hypothesis
    symbols: Symbols  # of the K best finished hypotheses, then of the K alive ones, N = 2K
    alive_log_probs: tf.Tensor  # float32 [B, K], descending
    ancestry: tf.Tensor  # bool [B, K, C], the cache slots that belong to each alive hypothesis
    lengths: tf.Tensor  # int32 [B], the number of symbols in the sentence's alive hypotheses
    best: Finished
    finished: tf.Tensor  # int32 [B], how many have finished, also those that are no longer among the best
    running: tf.Tensor  # bool [B], the sentence's search goes on
    cache: Any

    @property
    def alive_ids(self) -> tf.Tensor:
        """int32 [B, K, L]."""
        return tf.split(self.symbols.ids, 2, axis=1)[1]


def penalty(length: Tensor, exponent: Tensor) -> Any:
    """((5 + n) / 6)^exponent, where n counts the end symbol (Wu et al. 2016, equation 14)."""
    return ((5.0 + tf.cast(length, tf.float32)) / 6.0) ** exponent


def extend(state: BeamState, step: Step, end_id: int, exact_n: int | tf.Tensor) -> BeamState:
    """Extend alive hypotheses by one symbol. Some end and join the finished ones; the best of the rest stay alive."""
    beam_size, K = state.rows.options["beam_size"], tf.shape(step.logits)[1]
    log_probs, parents, added = _candidates(state, step, end_id)
    ends = added.ids == end_id
    length = state.position + 1

    # An end symbol counts only among a row's beam_size best; with one beam, only where greedy search would choose it.
    finishes = ends & _first(beam_size, 2 * K) & _possible(log_probs) & tf.expand_dims(state.running, 1)
    best, kept = _keep_best(state.best, log_probs, finishes, length, state.rows)

    alive_log_probs, chosen = tf.math.top_k(tf.where(ends, IMPOSSIBLE, log_probs), K)
    alive_log_probs = tf.where(_first(beam_size, K), alive_log_probs, IMPOSSIBLE)
    newest, symbols = _append(state, tf.concat([kept, K + chosen], axis=1), parents, added)
    ancestry = tf.gather(state.ancestry, tf.gather(parents, chosen, batch_dims=1), batch_dims=1)

    # A row that has ended stays as it is, whatever the others do; it has nothing that finishes.
    state = state._replace(
        position=length,
        ancestry=ancestry,
        newest=newest,
        symbols=symbols,
        alive_log_probs=_where_rows(state.running, alive_log_probs, state.alive_log_probs),
        lengths=tf.where(state.running, length, state.lengths),
        finished=state.finished + tf.reduce_sum(tf.cast(finishes, tf.int32), axis=1),
        best=best,
    )
    return state._replace(running=state.running & ~_has_ended(state, exact_n))


def _candidates(state: BeamState, step: Step, end_id: int) -> tuple[tf.Tensor, tf.Tensor, Symbols]:
    """The 2K best extensions of a sentence's beams: log-probabilities, parent beams and symbols, each [B, 2K].

    Two stages avoid a log-softmax over the vocabulary, and a sort over the logits of all beams. A row with k < K beams
    gets 2k candidates, as in a search with k beams.
    """
    alive_log_probs, beam_size = state.alive_log_probs, state.rows.options["beam_size"]
    logits, may_follow, attended = step
    B, K = tf.shape(logits)[0], tf.shape(logits)[1]
    per_beam = tf.minimum(2 * K, tf.shape(logits)[-1])
    possible = logits if may_follow is None else tf.where(may_follow, logits, IMPOSSIBLE)
    possible = restricted(possible, Prefixes(state.alive_ids, state.position, end_id), state.rows.options)
    top_logits, top_symbols = top_k(possible, per_beam)  # [B, K, P]
    log_denominator = log_sum_exp(logits, top_symbols[:, :, :1], possible is logits)
    symbol_log_probs = top_logits - log_denominator
    log_probs = tf.expand_dims(alive_log_probs, 2) + symbol_log_probs
    flat = tf.reshape(tf.maximum(log_probs, IMPOSSIBLE), [B, K * per_beam])
    lacking = tf.maximum(2 * K - K * per_beam, 0)  # a vocabulary of one symbol
    flat = tf.pad(flat, [[0, 0], [0, lacking]], constant_values=IMPOSSIBLE)
    log_probs, chosen = tf.math.top_k(flat, 2 * K)
    log_probs = tf.where(_first(2 * beam_size, 2 * K), log_probs, IMPOSSIBLE)
    chosen = tf.minimum(chosen, K * per_beam - 1)
    parents = chosen // per_beam

    def of_chosen(part: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.reshape(part, [B, K * per_beam]), chosen, batch_dims=1)

    added = Symbols(of_chosen(top_symbols))
    if attended is not None:
        added = Symbols(added.ids, of_chosen(symbol_log_probs), tf.gather(attended, parents, batch_dims=1))
    return log_probs, parents, added


def _keep_best(
    best: Finished, log_probs: tf.Tensor, finishes: tf.Tensor, length: tf.Tensor, rows: Rows
) -> tuple[Finished, tf.Tensor]:
    """Merge candidates [B, 2K] that have just finished into the finished ones [B, K].

    Returns:
        the K best, and their places among the K finished ones and the 2K candidates, int32 [B, K].
    """
    K = tf.shape(best.scores)[1]
    scores = log_probs / penalty(length, tf.expand_dims(rows.options["length_penalty"], 1))
    scores = tf.concat([best.scores, tf.where(finishes, scores, IMPOSSIBLE)], axis=1)
    scores, places = tf.math.top_k(scores, K)  # equal scores keep their order
    log_probs = tf.gather(tf.concat([best.log_probs, log_probs], axis=1), places, batch_dims=1)
    return Finished(tf.where(_first(rows.options["beam_size"], K), scores, IMPOSSIBLE), log_probs), places


def _append(state: BeamState, places: tf.Tensor, parents: tf.Tensor, added: Symbols) -> tuple[tf.Tensor, Symbols]:
    """The newest symbol of each alive hypothesis, and all symbols. A row that has ended stays as it is.

    Args:
        state: before the step.
        places: int32 [B, 2K], of the finished hypotheses and the alive ones that are kept, among the K finished before
            and the 2K candidates.
        parents: int32 [B, 2K], the beams that the candidates extend.
        added: by which symbols, [B, 2K].
    """
    K = tf.shape(places)[1] // 2
    nothing = tf.zeros_like(places)
    same = nothing + tf.range(2 * K)
    origins = tf.gather(tf.concat([same[:, :K], K + parents], axis=1), places, batch_dims=1)
    origins = _where_rows(state.running, origins, same)
    places = _where_rows(state.running, places, nothing)
    # Finished hypotheses get a zero, which they have behind their end already.
    new = tf.nest.map_structure(lambda part: tf.gather(tf.pad(part, [[0, 0], [K, 0]]), places, batch_dims=1), added)
    here = tf.range(tf.shape(state.symbols.ids)[2]) == state.position

    def extended(old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        return tf.where(here, tf.expand_dims(new, 2), tf.gather(old, origins, batch_dims=1))

    return tf.split(new.ids, 2, axis=1)[1], tf.nest.map_structure(extended, state.symbols, new)


def _has_ended(state: BeamState, exact_n: int | tf.Tensor) -> tf.Tensor:
    """Which rows' searches end: bool [B].

    Log-probabilities only fall, and the penalty that divides them grows with length. So no alive hypothesis can score
    more than its log-probability now, divided by the penalty at the maximum length.
    """
    rows, alive = state.rows, state.alive_log_probs[:, 0]
    beam_size = rows.options["beam_size"]
    reachable = tf.where(_possible(alive), alive / rows.greatest_penalty, 2 * IMPOSSIBLE)
    last = tf.minimum(exact_n, beam_size) - 1
    worst = tf.gather(state.best.scores, last, batch_dims=1)  # of those that must be certain
    enough = tf.cast(state.finished, tf.float32) >= rows.enough
    greedy = (beam_size == 1) & _possible(state.best.scores[:, 0])
    return (worst >= reachable) | enough | greedy | (state.lengths >= rows.max_length)


def results_of(state: BeamState, n_best: int, end_id: int) -> tuple[Hypotheses, Symbols]:
    """The n_best finished outputs; the alive ones in a row without any. A row that goes on has none yet."""
    scores = state.alive_log_probs / penalty(state.lengths, state.rows.options["length_penalty"])[:, tf.newaxis]
    scores = tf.where(_possible(state.alive_log_probs), scores, IMPOSSIBLE)
    any_finished = _possible(state.best.scores[:, 0])

    def chosen(finished: tf.Tensor, alive: tf.Tensor) -> tf.Tensor:
        return _places(_where_rows(any_finished, finished, alive), n_best)

    scores, log_probs = chosen(state.best.scores, scores), chosen(state.best.log_probs, state.alive_log_probs)
    used = (tf.range(n_best) < tf.shape(state.newest)[1]) & _possible(scores) & ~tf.expand_dims(state.running, 1)

    def of_used(part: tf.Tensor) -> tf.Tensor:
        part = chosen(*tf.split(part, 2, axis=1))
        return tf.where(used[:, :, tf.newaxis], part, tf.zeros_like(part))

    symbols = tf.nest.map_structure(of_used, state.symbols)
    # A finished output has one end symbol, its last.
    count = tf.range(1, tf.shape(symbols.ids)[2] + 1)
    lengths = tf.reduce_sum(tf.where(symbols.ids == end_id, count, 0), axis=2)
    finished = used & any_finished[:, tf.newaxis]
    hypotheses = Hypotheses(
        ids=symbols.ids,
        scores=tf.where(used, scores, IMPOSSIBLE),
        log_probs=tf.where(used, log_probs, IMPOSSIBLE),
        lengths=tf.where(finished, lengths, tf.where(used, state.lengths[:, tf.newaxis], 0)),
        finished=finished,
    )
    return hypotheses, symbols


def _places(part: tf.Tensor, n_best: int) -> tf.Tensor:
    """The first n_best of K hypotheses, padded if there are fewer: [B, n_best, ...]."""
    rank = len(part.shape)
    lacking = tf.maximum(n_best - tf.shape(part)[1], 0)
    part = tf.pad(part, [[0, 0], [0, lacking]] + [[0, 0]] * (rank - 2))[:, :n_best]
    return tf.ensure_shape(part, [None, n_best] + [None] * (rank - 2))


def _possible(log_probs: tf.Tensor) -> tf.Tensor:
    return log_probs > IMPOSSIBLE / 2


def _first(count: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Which of `width` places are among a row's first `count` [B]: bool [B, width]."""
    return tf.range(width) < tf.expand_dims(count, 1)


def _where_rows(condition: tf.Tensor, new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
    """`new` in the rows where condition [B] holds, `old` in the others."""
    return tf.where(tf.reshape(condition, [-1] + [1] * (len(new.shape) - 1)), new, old)
