"""One step of a beam search (section 6.1): each sentence's K beams get a symbol, some end, and the best go on.

Axes: B sentences, N or K hypotheses, L the longest output, V vocabulary.
"""

from typing import Any, NamedTuple

from keras import ops, tree

from tf_transformer.decoding.logits import Prefixes, restricted, top_k
from tf_transformer.decoding.primitives import (
    IMPOSSIBLE,
    gather,
    greatest,
    least,
    log_sum_exp,
    size,
    sorted_top_k,
    with_width,
)
from tf_transformer.utils.type_names import Tensor


class Hypotheses(NamedTuple):
    """The N best outputs of each sentence, best first; unused places have score and log-probability -1e9."""

    ids: Any  # int32 [B, N, L], the end symbol included, then zeros
    scores: Any  # float32 [B, N], log-probability / length penalty
    log_probs: Any  # float32 [B, N]
    lengths: Any  # int32 [B, N], the end symbol included
    finished: Any  # bool [B, N], the end symbol was reached


class Symbols(NamedTuple):
    """What a search keeps of each symbol of its hypotheses; zeros follow the last one."""

    ids: Any  # int32 [B, N, L]
    # `()` in a search that is not detailed:
    log_probs: Any = ()  # float32 [B, N, L]
    attended: Any = ()  # int32 [B, N, L], the source position of greatest attention when the symbol was chosen


class Finished(NamedTuple):
    """The K best hypotheses of each sentence that have finished, best first; unused places have score -1e9."""

    scores: Any  # float32 [B, K]
    log_probs: Any  # float32 [B, K]


class Step(NamedTuple):
    """What a decoder says of the symbols that follow K beams."""

    logits: Any  # float32 [B, K, V]
    may_follow: Any  # bool [B, K or 1, V]; `None` means all
    attended: Any  # int32 [B, K]; `None` in a search that is not detailed


class Rows(NamedTuple):
    """The settings of each row."""

    number: Any  # int32 [B], the row's place in the whole batch
    max_length: Any  # int32 [B]
    enough: Any  # float32 [B], how many finished outputs end the search
    greatest_penalty: Any  # float32 [B], of an output of the maximum length
    options: dict[str, Any]  # the others by name, [B]


class BeamState(NamedTuple):
    """What a step of the search passes to the next. Alive and finished hypotheses are kept apart."""

    position: Any  # int32, the number of symbols in an alive hypothesis
    slot: Any  # int32, the first free slot of the cache
    rows: Rows
    newest: Any  # int32 [B, K], the last symbol of each alive hypothesis
    symbols: Symbols  # of the K best finished hypotheses, then of the K alive ones, N = 2K
    alive_log_probs: Any  # float32 [B, K], descending
    ancestry: Any  # bool [B, K, C], the cache slots that belong to each alive hypothesis
    lengths: Any  # int32 [B], the number of symbols in the sentence's alive hypotheses
    best: Finished
    finished: Any  # int32 [B], how many have finished, also those that are no longer among the best
    running: Any  # bool [B], the sentence's search goes on
    cache: Any

    @property
    def alive_ids(self) -> Any:
        """int32 [B, K, L]."""
        return ops.split(self.symbols.ids, 2, axis=1)[1]


def penalty(length: Tensor, exponent: Tensor) -> Any:
    """((5 + n) / 6)^exponent, where n counts the end symbol (Wu et al. 2016, equation 14)."""
    return ((5.0 + ops.cast(length, "float32")) / 6.0) ** exponent


def extend(state: BeamState, step: Step, end_id: int, exact_n: Tensor) -> BeamState:
    """Extend alive hypotheses by one symbol. Some end and join the finished ones; the best of the rest stay alive."""
    beam_size, K = state.rows.options["beam_size"], size(step.logits, 1)
    log_probs, parents, added = _candidates(state, step, end_id)
    ends = added.ids == end_id
    length = state.position + 1

    # An end symbol counts only among a row's beam_size best; with one beam, only where greedy search would choose it.
    finishes = ends & _first(beam_size, 2 * K) & _possible(log_probs) & ops.expand_dims(state.running, 1)
    best, kept = _keep_best(state.best, log_probs, finishes, length, state.rows)

    alive_log_probs, chosen = sorted_top_k(ops.where(ends, IMPOSSIBLE, log_probs), K)
    alive_log_probs = ops.where(_first(beam_size, K), alive_log_probs, IMPOSSIBLE)
    newest, symbols = _append(state, ops.concatenate([kept, K + chosen], axis=1), parents, added)
    ancestry = gather(state.ancestry, gather(parents, chosen, batch_dims=1), batch_dims=1)

    # A row that has ended stays as it is, whatever the others do; it has nothing that finishes.
    state = state._replace(
        position=length,
        ancestry=ancestry,
        newest=newest,
        symbols=symbols,
        alive_log_probs=_where_rows(state.running, alive_log_probs, state.alive_log_probs),
        lengths=ops.where(state.running, length, state.lengths),
        finished=state.finished + ops.sum(ops.cast(finishes, "int32"), axis=1),
        best=best,
    )
    return state._replace(running=state.running & ~_has_ended(state, exact_n))


def _candidates(state: BeamState, step: Step, end_id: int) -> tuple[Any, Any, Symbols]:
    """The 2K best extensions of a sentence's beams: log-probabilities, parent beams and symbols, each [B, 2K].

    Two stages avoid a log-softmax over the vocabulary, and a sort over the logits of all beams. A row with k < K beams
    gets 2k candidates, as in a search with k beams.
    """
    alive_log_probs, beam_size = state.alive_log_probs, state.rows.options["beam_size"]
    logits, may_follow, attended = step
    B, K = size(logits, 0), size(logits, 1)
    per_beam = least(2 * K, size(logits, -1))
    possible = logits if may_follow is None else ops.where(may_follow, logits, IMPOSSIBLE)
    possible = restricted(possible, Prefixes(state.alive_ids, state.position, end_id), state.rows.options)
    top_logits, top_symbols = top_k(possible, per_beam)  # [B, K, P]
    log_denominator = log_sum_exp(logits, top_symbols[:, :, :1], possible is logits)
    symbol_log_probs = top_logits - log_denominator
    log_probs = ops.expand_dims(alive_log_probs, 2) + symbol_log_probs
    flat = ops.reshape(ops.maximum(log_probs, IMPOSSIBLE), [B, K * per_beam])
    lacking = greatest(2 * K - K * per_beam, 0)  # a vocabulary of one symbol
    flat = ops.pad(flat, [[0, 0], [0, lacking]], constant_values=IMPOSSIBLE)
    log_probs, chosen = sorted_top_k(flat, 2 * K)
    log_probs = ops.where(_first(2 * beam_size, 2 * K), log_probs, IMPOSSIBLE)
    chosen = ops.minimum(chosen, K * per_beam - 1)
    parents = chosen // per_beam

    def of_chosen(part: Tensor) -> Any:
        return gather(ops.reshape(part, [B, K * per_beam]), chosen, batch_dims=1)

    added = Symbols(of_chosen(top_symbols))
    if attended is not None:
        added = Symbols(added.ids, of_chosen(symbol_log_probs), gather(attended, parents, batch_dims=1))
    return log_probs, parents, added


def _keep_best(best: Finished, log_probs: Tensor, finishes: Tensor, length: Tensor, rows: Rows) -> tuple[Finished, Any]:
    """Merge candidates [B, 2K] that have just finished into the finished ones [B, K].

    Returns:
        the K best, and their places among the K finished ones and the 2K candidates, int32 [B, K].
    """
    K = size(best.scores, 1)
    scores = log_probs / penalty(length, ops.expand_dims(rows.options["length_penalty"], 1))
    scores = ops.concatenate([best.scores, ops.where(finishes, scores, IMPOSSIBLE)], axis=1)
    scores, places = sorted_top_k(scores, K)  # equal scores keep their order
    log_probs = gather(ops.concatenate([best.log_probs, log_probs], axis=1), places, batch_dims=1)
    return Finished(ops.where(_first(rows.options["beam_size"], K), scores, IMPOSSIBLE), log_probs), places


def _append(state: BeamState, places: Tensor, parents: Tensor, added: Symbols) -> tuple[Any, Symbols]:
    """The newest symbol of each alive hypothesis, and all symbols. A row that has ended stays as it is.

    Args:
        state: before the step.
        places: int32 [B, 2K], of the finished hypotheses and the alive ones that are kept, among the K finished before
            and the 2K candidates.
        parents: int32 [B, 2K], the beams that the candidates extend.
        added: by which symbols, [B, 2K].
    """
    K = size(places, 1) // 2
    nothing = ops.zeros_like(places)
    same = nothing + ops.arange(2 * K, dtype="int32")
    origins = gather(ops.concatenate([same[:, :K], K + parents], axis=1), places, batch_dims=1)
    origins = _where_rows(state.running, origins, same)
    places = _where_rows(state.running, places, nothing)
    # Finished hypotheses get a zero, which they have behind their end already.
    new = tree.map_structure(lambda part: gather(ops.pad(part, [[0, 0], [K, 0]]), places, batch_dims=1), added)
    here = ops.arange(size(state.symbols.ids, 2), dtype="int32") == state.position

    def extended(old: Tensor, new: Tensor) -> Any:
        return ops.where(here, ops.expand_dims(new, 2), gather(old, origins, batch_dims=1))

    return ops.split(new.ids, 2, axis=1)[1], tree.map_structure(extended, state.symbols, new)


def _has_ended(state: BeamState, exact_n: Tensor) -> Any:
    """Which rows' searches end: bool [B].

    Log-probabilities only fall, and the penalty that divides them grows with length. So no alive hypothesis can score
    more than its log-probability now, divided by the penalty at the maximum length.
    """
    rows, alive = state.rows, state.alive_log_probs[:, 0]
    beam_size = rows.options["beam_size"]
    reachable = ops.where(_possible(alive), alive / rows.greatest_penalty, 2 * IMPOSSIBLE)
    last = ops.minimum(exact_n, beam_size) - 1
    worst = gather(state.best.scores, last, batch_dims=1)  # of those that must be certain
    enough = ops.cast(state.finished, "float32") >= rows.enough
    greedy = (beam_size == 1) & _possible(state.best.scores[:, 0])
    return (worst >= reachable) | enough | greedy | (state.lengths >= rows.max_length)


def results_of(state: BeamState, n_best: int, end_id: int) -> tuple[Hypotheses, Symbols]:
    """The n_best finished outputs; the alive ones in a row without any. A row that goes on has none yet."""
    scores = state.alive_log_probs / penalty(state.lengths, state.rows.options["length_penalty"])[:, None]
    scores = ops.where(_possible(state.alive_log_probs), scores, IMPOSSIBLE)
    any_finished = _possible(state.best.scores[:, 0])

    def chosen(finished: Tensor, alive: Tensor) -> Any:
        return _places(_where_rows(any_finished, finished, alive), n_best)

    scores, log_probs = chosen(state.best.scores, scores), chosen(state.best.log_probs, state.alive_log_probs)
    used = (
        (ops.arange(n_best, dtype="int32") < size(state.newest, 1))
        & _possible(scores)
        & ~ops.expand_dims(state.running, 1)
    )

    def of_used(part: Tensor) -> Any:
        part = chosen(*ops.split(part, 2, axis=1))
        return ops.where(used[:, :, None], part, ops.zeros_like(part))

    symbols = tree.map_structure(of_used, state.symbols)
    # A finished output has one end symbol, its last.
    count = ops.arange(1, size(symbols.ids, 2) + 1, dtype="int32")
    lengths = ops.sum(ops.where(symbols.ids == end_id, count, 0), axis=2)
    finished = used & any_finished[:, None]
    hypotheses = Hypotheses(
        ids=symbols.ids,
        scores=ops.where(used, scores, IMPOSSIBLE),
        log_probs=ops.where(used, log_probs, IMPOSSIBLE),
        lengths=ops.where(finished, lengths, ops.where(used, state.lengths[:, None], 0)),
        finished=finished,
    )
    return hypotheses, symbols


def _places(part: Tensor, n_best: int) -> Any:
    """The first n_best of K hypotheses, padded if there are fewer: [B, n_best, ...]."""
    rank = len(part.shape)
    lacking = greatest(n_best - size(part, 1), 0)
    part = ops.pad(part, [[0, 0], [0, lacking]] + [[0, 0]] * (rank - 2))[:, :n_best]
    return with_width(part, n_best)


def _possible(log_probs: Tensor) -> Any:
    return log_probs > IMPOSSIBLE / 2


def _first(count: Tensor, width: Tensor) -> Any:
    """Which of `width` places are among a row's first `count` [B]: bool [B, width]."""
    return ops.arange(width, dtype="int32") < ops.expand_dims(count, 1)


def _where_rows(condition: Tensor, new: Tensor, old: Tensor) -> Any:
    """`new` in the rows where condition [B] holds, `old` in the others."""
    return ops.where(ops.reshape(condition, [-1] + [1] * (len(new.shape) - 1)), new, old)
