"""TensorFlow's loop of a search: sentences that have ended leave the batch, and the cache grows.

Axes: B sentences, K beams, L the longest output, C cache slots.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_transformer.decoding.beams import BeamState
from tf_transformer.layers import KeyValue
from tf_transformer.utils.type_names import Tensor

STEPS = 16  # a full cache gets slots for this many more steps
ROUND = 16  # the number of kept slots is a multiple of this, so that products have few shapes


def searched(
    state: BeamState,
    advance: Callable[[BeamState], tuple[BeamState]],
    results_of: Callable[[BeamState], Any],
    keep: Callable[[Any, Tensor], Any],
    L: Tensor,
) -> Any:
    """The results of a search.

    When half of the sentences have ended, they leave the batch, so XLA cannot compile a search.

    Args:
        state: the first, with a cache of one free slot.
        advance: from a state to the next one.
        results_of: from a state to nested tensors [B, ...].
        keep: as in `search.Decoder`.
        L: the longest output.
    """

    def may_advance(state: BeamState) -> Any:
        has_room = state.slot < tf.shape(state.ancestry)[2]
        going_on = tf.reduce_sum(tf.cast(state.running, tf.int32))
        return has_room & (2 * going_on > tf.shape(state.running)[0])

    def advance_far(state: BeamState, results: Any) -> tuple[BeamState, Any]:
        state = _make_room(_running_only(state), keep, L)
        (state,) = tf.while_loop(may_advance, advance, [state], [_invariants(state)])
        return state, _put_rows(results, state.rows.number, results_of(state))

    loop = [state, results_of(state)]
    going_on = lambda state, _: tf.reduce_any(state.running)  # noqa: E731
    _, results = tf.while_loop(going_on, advance_far, loop, [_invariants(part) for part in loop])
    return results


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


class InPlaceKeyValue(KeyValue):
    """Keys and values that a TensorFlow loop writes in place. On a CPU, TensorFlow's scatter copies every slot."""

    def write(self, slot: Tensor, new: KeyValue) -> KeyValue:
        shape = tf.shape(new.key)
        B, h, T = shape[0], new.key.shape[1], shape[2]

        def written(old: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
            word = _word(old)
            each = word.size // old.dtype.size
            width = old.shape[-1] // each
            rows = [B * h, -1, each]
            words = tf.raw_ops.TensorStridedSliceUpdate(  # over two axes it is twice as fast as over four
                input=tf.bitcast(tf.reshape(old, rows), word),
                begin=[0, slot * width],
                end=[0, (slot + T) * width],
                strides=[1, 1],
                value=tf.bitcast(tf.reshape(part, rows), word),
                begin_mask=1,  # all of the first axis
                end_mask=1,
            )
            return tf.reshape(tf.bitcast(words, old.dtype), [B, h, -1, old.shape[-1]])

        return InPlaceKeyValue(*(written(*pair) for pair in zip(self, new, strict=True)))


def _word(x: tf.Tensor) -> tf.DType:
    """The widest numbers that fit the last axis of x exactly: the operation copies one number at a time."""
    size = x.shape[-1] * x.dtype.size
    return next((word for word in (tf.complex128, tf.complex64) if size % word.size == 0), x.dtype)
