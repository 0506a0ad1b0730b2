"""TensorFlow's search loop: finished sentences leave the batch, and the cache grows.

Axes: B sentences, K beams, L the longest output, C cache slots.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_transformer.decoding.beams import BeamState
from tf_transformer.utils.type_names import Tensor

STEPS = 16  # steps for which a full cache gets slots
ROUND = 16  # divides the number of kept slots, so that matmuls have few shapes


def searched(
    state: BeamState,
    advance: Callable[[BeamState], tuple[BeamState]],
    results_of: Callable[[BeamState], Any],
    keep: Callable[[Any, Tensor], Any],
    L: Tensor,
) -> Any:
    """Returns the results of a search. XLA cannot compile it, since shapes change.

    The state has a cache of one free slot. `advance` takes it a step further, `results_of` returns nested results
    [B, ...] of a state, and `keep` is that of `search.Decoder`.
    """

    # Two loops: the inner one has fixed rows and slots. Dropping rows copies the whole cache, so it waits until half of
    # them have ended, which limits it to about log2(B) times. A fourth or three fourths took 2 to 9 % more processor
    # time on real text. Slots are added for several steps at once.
    def may_advance(state: BeamState) -> Any:
        has_room = state.slot < tf.shape(state.ancestry)[2]
        still_running = tf.reduce_sum(tf.cast(state.running, tf.int32))
        return has_room & (2 * still_running > tf.shape(state.running)[0])

    def advance_far(state: BeamState, results: Any) -> tuple[BeamState, Any]:
        state = _make_room(_running_only(state), keep, L)
        (state,) = tf.while_loop(may_advance, advance, [state], [_invariants(state)])
        # Rows leave in any order, so each writes its results at its index in the whole batch.
        rows = state.rows.row_index[:, tf.newaxis]
        put = lambda old, new: tf.tensor_scatter_nd_update(old, rows, new)  # noqa: E731
        return state, tf.nest.map_structure(put, results, results_of(state))

    loop = [state, results_of(state)]
    shapes = [_invariants(part) for part in loop]
    return tf.while_loop(lambda state, _: tf.reduce_any(state.running), advance_far, loop, shapes)[1]


def _invariants(structure: Any) -> Any:
    """Returns shapes that hold throughout a search, in which the numbers of rows and slots change.

    A single row never leaves, so its size is static. Converters to other engines need static shapes of matmuls.
    """

    def invariant(tensor: tf.Tensor, slots: range = range(0)) -> tf.TensorShape:
        sizes = tensor.shape.as_list()
        rows_change = sizes[:1] != [1]
        free = [
            (axis == 0 and rows_change) or size == 0 or (size == 1 and axis in slots) for axis, size in enumerate(sizes)
        ]
        return tf.TensorShape([None if is_free else size for is_free, size in zip(free, sizes, strict=True)])

    if not isinstance(structure, BeamState):
        return tf.nest.map_structure(invariant, structure)
    shapes = tf.nest.map_structure(invariant, structure._replace(cache=()))
    of_cache = lambda part: invariant(part, range(1, len(part.shape) - 1))  # noqa: E731
    return shapes._replace(cache=tf.nest.map_structure(of_cache, structure.cache))


def _running_only(state: BeamState) -> BeamState:
    """Drops ended rows, but never the only row."""
    if state.running.shape[0] == 1:
        return state

    def gather() -> BeamState:
        running = tf.where(state.running)[:, 0]
        by_row = state._replace(position=(), slot=())  # these two have no axis of rows
        gathered = tf.nest.map_structure(lambda part: tf.gather(part, running), by_row)
        return gathered._replace(position=state.position, slot=state.slot)

    return tf.cond(tf.reduce_all(state.running), lambda: state, gather)


def _make_room(state: BeamState, keep: Callable[[Any, tf.Tensor], Any], L: tf.Tensor) -> BeamState:
    """Drops the slots of a full cache that are masked for all alive hypotheses, and adds slots for more steps."""
    K, slots = (tf.shape(state.ancestry)[axis] for axis in (1, 2))

    def with_room() -> BeamState:
        visible = tf.cast(tf.reduce_any(state.ancestry, axis=1), tf.int32)  # [B, C]
        # Beams share most of their history: after 16 steps of 4 beams, about 23 of 64 slots are visible. One number for
        # all rows, since the cache is one array. Rows with fewer keep some that no beam sees.
        most = tf.reduce_max(tf.reduce_sum(visible, axis=1))
        most = tf.minimum(-(-most // ROUND) * ROUND, slots)
        # Top-k of 0 and 1 is stable, so it returns the visible slots in order, then the others.
        _, kept = tf.math.top_k(visible, most)  # [B, most]
        free = K * tf.minimum(STEPS, L - state.position)
        ancestry = tf.gather(state.ancestry, kept, axis=2, batch_dims=1)
        ancestry = tf.pad(ancestry, [[0, 0], [0, 0], [0, free]])
        # Until they are written, the free slots hold copies of the first slot.
        return state._replace(slot=most, ancestry=ancestry, cache=keep(state.cache, tf.pad(kept, [[0, 0], [0, free]])))

    return tf.cond(state.slot < slots, lambda: state, with_room)
