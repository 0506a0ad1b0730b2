"""Masks (section 3.2.3): booleans, True = may be attended. Made once, at the top, and passed by name."""

from typing import Any

from keras import ops

from tf_transformer.utils.type_names import Tensor

PAD_ID = 0


def padding_mask(ids: Tensor) -> Any:
    """Which of the ids [B, S] are real tokens: bool [B, S]."""
    return ops.not_equal(ids, PAD_ID)


def causal_mask(queries: Tensor, keys: Tensor = None, first: Tensor = 0) -> Any:
    """Each query may attend to its own position and to earlier ones: bool [1, T, S].

    Args:
        queries: T, their number.
        keys: S, their number; `None` means T.
        first: the position of the first query among the keys.
    """
    own = ops.expand_dims(first + ops.arange(queries, dtype="int32"), 1)
    return ops.expand_dims(ops.arange(queries if keys is None else keys, dtype="int32") <= own, 0)


def as_key_mask(mask: Tensor) -> Any:
    """A padding mask of the keys [B, S] as an attention mask [B, 1, S], the same for every query; None stays None."""
    return None if mask is None else ops.expand_dims(ops.cast(mask, "bool"), 1)


def intersect(first: Tensor, second: Tensor) -> Any:
    """The intersection of two attention masks; None allows everything."""
    if first is None or second is None:
        return second if first is None else first
    return ops.logical_and(first, second)
