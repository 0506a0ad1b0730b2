"""Masks (section 3.2.3): booleans, True = may be attended. A model computes them once and passes them by name."""

from typing import Any

from keras import ops

from tf_transformer.utils.type_names import Tensor

PAD_ID = 0  # Keras's own: `Embedding(mask_zero=True)` masks 0


def padding_mask(ids: Tensor) -> Any:
    """Returns a mask of the real tokens among ids [B, S]: bool [B, S]."""
    return ops.not_equal(ids, PAD_ID)


def causal_mask(queries: Tensor, keys: Tensor = None, first: Tensor = 0) -> Any:
    """Returns a mask under which queries attend to the same and earlier positions: bool [1, T, S].

    Args:
        queries: T, the number of queries.
        keys: S, the number of keys. Defaults to T.
        first: Position of the first query among the keys.
    """
    # One mask for all rows of a batch: attention treats a first axis of 1 apart.
    positions = ops.expand_dims(first + ops.arange(queries, dtype="int32"), 1)  # [T, 1]
    return ops.expand_dims(ops.arange(queries if keys is None else keys, dtype="int32") <= positions, 0)


def as_key_mask(mask: Tensor) -> Any:
    """Converts a padding mask of the keys [B, S] to an attention mask [B, 1, S]. `None` is returned unchanged."""
    return None if mask is None else ops.expand_dims(ops.cast(mask, "bool"), 1)


def intersect(first: Tensor, second: Tensor) -> Any:
    """Returns the intersection of two attention masks. `None` allows everything."""
    if first is None or second is None:
        return second if first is None else first
    return ops.logical_and(first, second)
