"""Any model as a search calls it: a function of each hypothesis's newest token and of a state of fixed size."""

import math
from collections.abc import Callable
from typing import Any

from keras import ops, tree

from tf_transformer.decoding.primitives import gather, write_slots
from tf_transformer.decoding.search import Decoder, FixedShapes
from tf_transformer.utils.type_names import Tensor


def recurrent_decoder(
    step: Callable[[Any, Any], tuple[Any, Any]], state: Any, fixed: FixedShapes | None = None
) -> Decoder:
    """Makes a `Decoder` for `beam_search` and `sample` from the step of a recurrent network, or of any other model.

        decoder = tt.recurrent_decoder(step, encoder(source))
        problem = tt.decoding.SearchProblem(decoder, start_ids, max_length, end_id=2)  # int32 (B,), int32 (B,)
        outputs = tt.decoding.beam_search(problem, n_best=4, beam_size=4).ids  # (B, 4, L)

    Args:
        step: Function of ids int32 `(N,)` and a state, nested tensors `(N, ...)`. It returns the logits of the next
            token `(N, V)` and the new state.
        state: First state, nested floats `(B, ...)`, such as an encoder's output.
        fixed: Fixed shapes of the search. Required on JAX and PyTorch.
    """

    # The search never re-orders its cache. Each step appends the states of its K hypotheses. A hypothesis reads the
    # state of its parent, the newest slot it may see. Slot 0 holds the first state.
    def stored(part: Tensor) -> Any:  # (B, 1, slots, size)
        return ops.reshape(part, (ops.shape(part)[0], 1, -1, math.prod(part.shape[1:])))

    def search_step(ids: Tensor, position: Tensor, slot: Tensor, ancestry: Tensor, cache: Any) -> tuple[Any, Any]:
        B, K, C = ops.shape(ancestry)
        slots = ops.arange(C, dtype="int32")
        parent = ops.max(ops.where(ancestry & (slots < slot), slots + 1, 0), axis=2)  # (B, K)
        rows = [gather(part[:, 0], parent, batch_dims=1) for part in cache]
        rows = [ops.reshape(row, (-1, *part.shape[1:])) for row, part in zip(rows, tree.flatten(state), strict=True)]
        logits, new = step(ops.reshape(ids, (-1,)), tree.pack_sequence_as(state, rows))
        new = [ops.reshape(part, (B, 1, K, math.prod(part.shape[1:]))) for part in tree.flatten(new)]
        cache = [write_slots(old, slot + 1, part) for old, part in zip(cache, new, strict=True)]
        return ops.reshape(logits, (B, K, logits.shape[-1])), cache

    def keep(cache: Any, slots: Tensor) -> Any:
        last = ops.shape(cache[0])[2] - 1  # at first there is only slot 0 to copy
        kept = ops.minimum(ops.pad(slots + 1, ((0, 0), (1, 0))), last)
        return [gather(part, kept, axis=2, batch_dims=1) for part in cache]

    return Decoder(search_step, [stored(part) for part in tree.flatten(state)], keep, fixed)
