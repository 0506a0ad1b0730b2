"""Beam search with length penalty (section 6.1); greedy search is beam search with one beam.

This is the loop: what it is asked for, which sentences still run, and the cache. `text.beams` is its step.

Axes: B sentences, K beams, L the longest output, C cache slots, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tf_transformer.base.values import Count, checked
from tf_transformer.text.beams import BeamState, Finished, Hypotheses, Rows, Step, Symbols, extend, penalty, results_of
from tf_transformer.text.logits import IMPOSSIBLE, RULES
from tf_transformer.text.search_options import SEARCH_OPTIONS, Beams

STEPS = 16  # a full cache gets slots for this many more steps
ROUND = 16  # the number of kept slots is a multiple of this, so that products have few shapes


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
    # If `steps` is set, all shapes are static, and a row still running after the last step gets no output.
    steps: int | None = None


class SearchProblem(NamedTuple):
    """What is searched, or sampled, for B sentences."""

    decoder: Decoder
    start_ids: Any  # int32 [B], the symbol before the first
    max_length: Any  # int32 [B], the greatest number of symbols, the end symbol included; 0 gives the empty output
    end_id: int  # the symbol that ends an output


OPTIONS = tuple(name for name, option in SEARCH_OPTIONS.items() if option.search)


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
    max_length = tf.cast(problem.max_length, tf.int32)
    if "min_length" in by_row:
        by_row["min_length"] = tf.minimum(by_row["min_length"], max_length)
    enough = tf.maximum(tf.round(by_row.pop("patience") * tf.cast(by_row["beam_size"], tf.float32)), 1.0)
    rows = Rows(tf.range(B), max_length, enough, penalty(max_length, by_row["length_penalty"]), by_row)
    K = tf.maximum(tf.reduce_max(by_row["beam_size"]), 1)  # 1 in an empty batch
    steps = problem.decoder.steps
    L = steps or tf.maximum(tf.reduce_max(max_length), 0)

    def advance(state: BeamState) -> tuple[BeamState]:
        position, slot = state.position, state.slot
        own = tf.one_hot(slot + tf.range(K), tf.shape(state.ancestry)[2], True, False)  # [K, C]
        ancestry = state.ancestry | own
        logits, cache, *attended = problem.decoder.step(state.newest, position, slot, ancestry, state.cache)
        may_follow = allowed and allowed(state.alive_ids, position, state.rows.number)
        state = state._replace(slot=slot + K, ancestry=ancestry, cache=cache)
        step = Step(tf.cast(logits, tf.float32), may_follow, attended[0] if detailed else None)
        return (extend(state, step, problem.end_id, exact_n),)

    def may_advance(state: BeamState) -> tf.Tensor:
        has_room = state.slot < tf.shape(state.ancestry)[2]
        going_on = tf.reduce_sum(tf.cast(state.running, tf.int32))
        return has_room & (2 * going_on > tf.shape(state.running)[0])

    def advance_far(state: BeamState, results: Any) -> tuple[BeamState, Any]:
        state = _make_room(_running_only(state), problem.decoder.keep, L)
        (state,) = tf.while_loop(may_advance, advance, [state], [_invariants(state)])
        return state, _put_rows(results, state.rows.number, results_of(state, n_best, problem.end_id))

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
        running=max_length > 0,
        cache=problem.decoder.cache,
    )
    if steps:
        first = tf.minimum(rows.max_length, 0)  # of the slots; as a constant, its copies would go into an exported file
        slots = tf.broadcast_to(first[:, tf.newaxis], [B, K * steps])
        ancestry = tf.zeros([B, K, K * steps], tf.bool)
        state = state._replace(ancestry=ancestry, cache=problem.decoder.keep(state.cache, slots))
        in_time = lambda state: tf.reduce_any(state.running) & (state.position < steps)  # noqa: E731
        (state,) = tf.while_loop(in_time, advance, [state])
        return results_of(state, n_best, problem.end_id)
    loop = [state, results_of(state, n_best, problem.end_id)]
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
