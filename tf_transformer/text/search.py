"""Beam search with length penalty (section 6.1); greedy search is beam search with one beam.

Axes: B sentences, K beams, L the longest output, C cache slots, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tf_transformer.text.logits import IMPOSSIBLE, RULES, Prefixes, log_sum_exp, restricted, top_k
from tf_transformer.text.search_options import SEARCH_OPTIONS, Beams
from tf_transformer.type_names import Tensor
from tf_transformer.values import Count, checked

STEPS = 16  # a full cache gets slots for this many more steps
ROUND = 16  # the number of kept slots is a multiple of this, so that products have few shapes


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


class Decoder(NamedTuple):
    """A model as a search, or sampling, calls it: step by step, with a cache.

    `step(ids [B, K], position, slot, ancestry [B, K, C], cache)` takes each beam's newest symbol. It returns the logits
    [B, K, V] of the next one, and the new cache; for a detailed search also the source position of greatest attention,
    int32 [B, K]. The cache is append-only: the K newest symbols take slots slot to slot + K - 1, and nothing is
    re-ordered. `ancestry` says which slots each beam may see, its own newest one included.

    `keep(cache, slots [B, M])` returns the cache with only these slots, in this order. Beams share most of their
    history, so after some steps they see few of the slots.
    """

    step: Callable[..., tuple[Any, ...]]
    cache: Any  # the first, with one free slot: nested tensors [B, ..., slots, d], or without slots
    keep: Callable[[Any, tf.Tensor], Any]
    steps: int | None = None  # at most so many, with fixed shapes; a search that takes more finds nothing


class SearchProblem(NamedTuple):
    """What is searched, or sampled, for B sentences."""

    decoder: Decoder
    start_ids: Any  # int32 [B], the symbol before the first
    max_length: Any  # int32 [B], the greatest number of symbols, the end symbol included; 0 gives the empty output
    end_id: int  # the symbol that ends an output


class Rows(NamedTuple):
    """What a search is asked for, by row."""

    number: tf.Tensor  # int32 [B], the row's place in the whole batch
    max_length: tf.Tensor  # int32 [B]
    options: dict[str, tf.Tensor]  # by name, [B]


OPTIONS = tuple(name for name, option in SEARCH_OPTIONS.items() if option.search)


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


@checked
def beam_search(
    problem: SearchProblem,
    *,
    n_best: Beams = 1,
    exact_n: Count | tf.Tensor | None = None,
    allowed: Callable[..., tf.Tensor] | None = None,
    **options: Any,
) -> Hypotheses:
    """Search for the outputs of highest score = log-probability / length penalty.

    A sentence's search ends when patience * beam_size outputs have finished (Kasai et al. 2022), when no alive
    hypothesis can beat the last of the `exact_n` best finished ones, or at the maximum length. With one beam it ends at
    the first end symbol: that is greedy search. When half of the sentences have ended, they leave the batch, so XLA
    cannot compile a search. A row's result does not depend on the other rows.

    Args:
        problem: the model's step, and what each row begins with.
        n_best: N, the outputs of each sentence; places beyond a row's beam size stay unused.
        exact_n: int32 scalar: the first exact_n outputs are certain, the others may be other than the best; `None`
            means N. It may be a tensor, so that one traced search serves requests for one output and for several.
        allowed: `allowed(ids [B, K, L], position, row [B])` gives the symbols that may follow, bool [B, K or 1, V];
            `None` allows all. `row` has the sentences' places in the batch at the start, which some may have left.
        options: each a number or [B], by the names and with the defaults of `search_options`. The widest beam_size is
            K; min_length is capped at max_length; patience infinity makes the search exact: it goes on until no other
            output can be better. `logits.RULES` says what min_length and no_repeat_ngram_size forbid.

    Returns:
        `Hypotheses` with N = n_best. A row without finished outputs has its unfinished ones.
    """
    found, _ = _search(problem, False, n_best, exact_n, allowed, **options)
    return found


@checked
def detailed_search(
    problem: SearchProblem, *, n_best: Beams = 1, exact_n: Count | tf.Tensor | None = None, **options: Any
) -> tuple[Hypotheses, Symbols]:
    """As `beam_search`; also each symbol's log-probability and its source position of greatest attention."""
    return _search(problem, True, n_best, exact_n, None, **options)


def _search(
    problem: SearchProblem,
    detailed: bool,
    n_best: int,
    exact_n: int | tf.Tensor | None,
    allowed: Callable[..., tf.Tensor] | None,
    **options: Any,
) -> tuple[Hypotheses, Symbols]:
    """`detailed_search`, or with less detail `beam_search`; their arguments."""
    exact_n = n_best if exact_n is None else exact_n
    B = tf.shape(problem.start_ids)[0]
    by_row = _broadcast(options, B)
    rows = Rows(tf.range(B), tf.cast(problem.max_length, tf.int32), by_row)
    if "min_length" in by_row:
        by_row["min_length"] = tf.minimum(by_row["min_length"], rows.max_length)
    K = tf.maximum(tf.reduce_max(by_row["beam_size"]), 1)  # 1 in an empty batch
    steps = problem.decoder.steps
    L = steps or tf.maximum(tf.reduce_max(rows.max_length), 0)

    def advance(state: BeamState) -> tuple[BeamState]:
        position, slot = state.position, state.slot
        own = tf.one_hot(slot + tf.range(K), tf.shape(state.ancestry)[2], True, False)  # [K, C]
        ancestry = state.ancestry | own
        logits, cache, *attended = problem.decoder.step(state.newest, position, slot, ancestry, state.cache)
        may_follow = allowed and allowed(state.alive_ids, position, state.rows.number)
        state = state._replace(slot=slot + K, ancestry=ancestry, cache=cache)
        step = Step(tf.cast(logits, tf.float32), may_follow, attended[0] if detailed else None)
        return (_extend(state, step, problem.end_id, exact_n),)

    def may_advance(state: BeamState) -> tf.Tensor:
        has_room = state.slot < tf.shape(state.ancestry)[2]
        going_on = tf.reduce_sum(tf.cast(state.running, tf.int32))
        return has_room & (2 * going_on > tf.shape(state.running)[0])

    def advance_far(state: BeamState, results: Any) -> tuple[BeamState, Any]:
        state = _make_room(_running_only(state), problem.decoder.keep, L)
        (state,) = tf.while_loop(may_advance, advance, [state], [_invariants(state)])
        return state, _put_rows(results, state.rows.number, _results(state, n_best, problem.end_id))

    kept = (tf.int32, tf.float32, tf.int32) if detailed else (tf.int32,)
    state = BeamState(
        position=tf.constant(0),
        slot=tf.constant(0),
        rows=rows,
        newest=tf.broadcast_to(problem.start_ids[:, tf.newaxis], [B, K]),
        symbols=Symbols(*(tf.zeros([B, 2 * K, L], dtype) for dtype in kept)),
        alive_log_probs=tf.broadcast_to(tf.where(tf.range(K) == 0, 0.0, IMPOSSIBLE), [B, K]),
        ancestry=tf.zeros([B, K, 0], tf.bool),
        lengths=tf.zeros([B], tf.int32),
        best=Finished(*[tf.fill([B, K], IMPOSSIBLE)] * 2),
        finished=tf.zeros([B], tf.int32),
        running=rows.max_length > 0,
        cache=problem.decoder.cache,
    )
    if steps:
        first = tf.minimum(rows.max_length, 0)  # of the slots; as a constant, its copies would go into an exported file
        slots = tf.broadcast_to(first[:, tf.newaxis], [B, K * steps])
        ancestry = tf.zeros([B, K, K * steps], tf.bool)
        state = state._replace(ancestry=ancestry, cache=problem.decoder.keep(state.cache, slots))
        in_time = lambda state: tf.reduce_any(state.running) & (state.position < steps)  # noqa: E731
        (state,) = tf.while_loop(in_time, advance, [state])
        return _results(state, n_best, problem.end_id)
    loop = [state, _results(state, n_best, problem.end_id)]
    going_on = lambda state, _: tf.reduce_any(state.running)  # noqa: E731
    _, results = tf.while_loop(going_on, advance_far, loop, [_invariants(part) for part in loop])
    return results


def _broadcast(options: dict[str, Any], B: tf.Tensor) -> dict[str, tf.Tensor]:
    """The options of a search, each [B]; a value below an option's lowest becomes the lowest.

    A number that asks nothing of a rule is left out, and the rule with it.
    """
    if unknown := options.keys() - set(OPTIONS):
        raise TypeError(f"options of a search: expected {', '.join(OPTIONS)}; got {', '.join(unknown)}")
    values = {name: options.get(name, SEARCH_OPTIONS[name].default) for name in OPTIONS}
    idle = [name for name in RULES if isinstance(values[name], int) and values[name] <= SEARCH_OPTIONS[name].lowest]
    own = {name: SEARCH_OPTIONS[name] for name in OPTIONS if name not in idle}
    return {
        name: tf.broadcast_to(tf.maximum(tf.cast(values[name], option.dtype), option.lowest), [B])
        for name, option in own.items()
    }


def _invariants(structure: Any) -> Any:
    """Shapes that hold throughout a search, in which the numbers of rows and of slots change. A single row stays."""

    def invariant(tensor: tf.Tensor, slots: range = range(0)) -> tf.TensorShape:
        sizes = tensor.shape.as_list()
        rows_change = sizes[:1] != [1]
        free = [
            (axis == 0 and rows_change) or size == 0 or (size == 1 and axis in slots) for axis, size in enumerate(sizes)
        ]
        return tf.TensorShape([None if is_free else size for is_free, size in zip(free, sizes, strict=True)])

    def of_cache(part: tf.Tensor) -> tf.TensorShape:
        return invariant(part, range(1, len(part.shape) - 1))

    if not isinstance(structure, BeamState):
        return tf.nest.map_structure(invariant, structure)
    shapes = tf.nest.map_structure(invariant, structure._replace(cache=()))
    return shapes._replace(cache=tf.nest.map_structure(of_cache, structure.cache))


def _running_only(state: BeamState) -> BeamState:
    """Drop the rows that have ended. A single row goes on until the search ends."""
    if state.running.shape[0] == 1:
        return state

    def gather() -> BeamState:
        running = tf.where(state.running)[:, 0]
        by_row = state._replace(position=(), slot=())
        gathered = tf.nest.map_structure(lambda part: tf.gather(part, running), by_row)
        return gathered._replace(position=state.position, slot=state.slot)

    return tf.cond(tf.reduce_all(state.running), lambda: state, gather)


def _make_room(state: BeamState, keep: Callable[[Any, tf.Tensor], Any], L: tf.Tensor) -> BeamState:
    """In a full cache, drop the slots that no alive hypothesis sees any more, and add slots for further steps."""
    K, slots = (tf.shape(state.ancestry)[axis] for axis in (1, 2))

    def with_room() -> BeamState:
        seen = tf.cast(tf.reduce_any(state.ancestry, axis=1), tf.int32)  # [B, C]
        most = tf.reduce_max(tf.reduce_sum(seen, axis=1))
        most = tf.minimum(-(-most // ROUND) * ROUND, slots)
        _, kept = tf.math.top_k(seen, most)  # equal values keep their order
        free = K * tf.minimum(STEPS, L - state.position)
        ancestry = tf.gather(state.ancestry, kept, axis=2, batch_dims=1)
        ancestry = tf.pad(ancestry, [[0, 0], [0, 0], [0, free]])
        # Until they are written, the free slots hold copies of the first slot.
        return state._replace(slot=most, ancestry=ancestry, cache=keep(state.cache, tf.pad(kept, [[0, 0], [0, free]])))

    return tf.cond(state.slot < slots, lambda: state, with_room)


def _put_rows(results: Any, number: tf.Tensor, new: Any) -> Any:
    """Write `new` into the rows `number` of `results`."""
    places = number[:, tf.newaxis]
    return tf.nest.map_structure(lambda old, rows: tf.tensor_scatter_nd_update(old, places, rows), results, new)


def _extend(state: BeamState, step: Step, end_id: int, exact_n: int | tf.Tensor) -> BeamState:
    """Extend alive hypotheses by one symbol. Some end and join the finished ones; the best of the rest stay alive."""
    beam_size, K = state.rows.options["beam_size"], tf.shape(step.logits)[1]
    log_probs, parents, added = _candidates(state, step, end_id)
    ends = added.ids == end_id
    length = state.position + 1

    # An end symbol counts only among a row's beam_size best; with one beam, only where greedy search would choose it.
    finishes = ends & _first(beam_size, 2 * K) & _possible(log_probs) & state.running[:, tf.newaxis]
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
    log_probs = alive_log_probs[:, :, tf.newaxis] + symbol_log_probs
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
    scores = log_probs / penalty(length, rows.options["length_penalty"][:, tf.newaxis])
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
        return tf.where(here, new[:, :, tf.newaxis], tf.gather(old, origins, batch_dims=1))

    return tf.split(new.ids, 2, axis=1)[1], tf.nest.map_structure(extended, state.symbols, new)


def _has_ended(state: BeamState, exact_n: int | tf.Tensor) -> tf.Tensor:
    """Which rows' searches end: bool [B].

    Log-probabilities only fall, and the penalty that divides them grows with length. So no alive hypothesis can score
    more than its log-probability now, divided by the penalty at the maximum length.
    """
    max_length, options, alive = state.rows.max_length, state.rows.options, state.alive_log_probs[:, 0]
    best_possible = alive / penalty(max_length, options["length_penalty"])
    reachable = tf.where(_possible(alive), best_possible, 2 * IMPOSSIBLE)
    last = tf.minimum(exact_n, options["beam_size"]) - 1
    worst = tf.gather(state.best.scores, last, batch_dims=1)  # of those that must be certain
    beam_size, finished = tf.cast(options["beam_size"], tf.float32), tf.cast(state.finished, tf.float32)
    enough = finished >= tf.maximum(tf.round(options["patience"] * beam_size), 1.0)
    greedy = (options["beam_size"] == 1) & _possible(state.best.scores[:, 0])
    return (worst >= reachable) | enough | greedy | (state.lengths >= max_length)


def _results(state: BeamState, n_best: int, end_id: int) -> tuple[Hypotheses, Symbols]:
    """The n_best finished outputs; the alive ones in a row without any. A row that goes on has none yet."""
    scores = state.alive_log_probs / penalty(state.lengths, state.rows.options["length_penalty"])[:, tf.newaxis]
    scores = tf.where(_possible(state.alive_log_probs), scores, IMPOSSIBLE)
    any_finished = _possible(state.best.scores[:, 0])

    def chosen(finished: tf.Tensor, alive: tf.Tensor) -> tf.Tensor:
        return _places(_where_rows(any_finished, finished, alive), n_best)

    scores, log_probs = chosen(state.best.scores, scores), chosen(state.best.log_probs, state.alive_log_probs)
    used = (tf.range(n_best) < tf.shape(state.newest)[1]) & _possible(scores) & ~state.running[:, tf.newaxis]

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
    return tf.range(width) < count[:, tf.newaxis]


def _where_rows(condition: tf.Tensor, new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
    """`new` in the rows where condition [B] holds, `old` in the others."""
    return tf.where(tf.reshape(condition, [-1] + [1] * (len(new.shape) - 1)), new, old)
