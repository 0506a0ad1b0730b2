"""Texts in batches of similar length; warnings about texts that are too long."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_transformer.config import BadInput
from tf_transformer.text.sampling import seeds_of
from tf_transformer.text.tokenizer import text_tensor


def by_batch(
    function: Callable[..., Sequence[Any]],
    columns: Sequence[Sequence[str | bytes]],
    batch_size: int,
    seed: int | None = None,
) -> list[tuple[Any, ...]]:
    """Call `function`, columns of strings [B] -> tensors [B, ...], on batches of similar length.

    Args:
        function: see above.
        columns: lists of equal length.
        batch_size: B, rows of a batch; the last may have fewer.
        seed: for a further column, a seed of each row, as `sampling.seeds_of` makes them; `None` for none.

    Returns:
        the values of each row, as lists and numbers, in the order of the rows.
    """
    columns = check_columns(columns)
    rows: list[tuple[Any, ...]] = [()] * len(columns[0])
    seeds = None if seed is None else seeds_of(seed, len(rows))
    by_length = sorted(range(len(rows)), key=lambda i: len(columns[0][i]))
    for start in range(0, len(rows), batch_size):
        places = by_length[start : start + batch_size]
        batch = [text_tensor([column[i] for i in places]) for column in columns]
        batch += [] if seeds is None else [tf.constant(seeds[places])]
        parts = [part.numpy().tolist() for part in function(*batch)]
        for i, row in zip(places, zip(*parts, strict=True), strict=True):
            rows[i] = row
    return rows


def check_columns(columns: Sequence[Sequence[str | bytes]]) -> list[list[Any]]:
    """Columns of strings as lists: texts and, if there are any, prefixes.

    Raises:
        BadInput: they are something else, or not of equal length.
    """
    lists = [list(column) for column in columns]
    for column in lists:
        if len(column) != len(lists[0]):
            raise BadInput(f"expected a prefix for each of {len(lists[0])} texts, got {len(column)}")
        for i, text in enumerate(column):
            if not isinstance(text, str | bytes):
                raise BadInput(f"texts: expected strings, got {type(text).__name__} at place {i}")
    return lists


def check_length(name: str, tokens: int, most: int) -> None:
    """Check that a text, `name` in the message, has 1 to `most` tokens.

    Raises:
        BadInput: it has not.
    """
    if tokens < 1:
        raise BadInput(f"expected a {name}, got an empty text")
    if tokens > most:
        raise BadInput(f"expected a {name} of at most {most} tokens, got {tokens}")


def warn_of_truncated(texts: Sequence[str | bytes], truncated: list[bool]) -> None:
    """Warn about truncated texts, and quote their beginnings."""
    long = [text for text, is_truncated in zip(texts, truncated, strict=True) if is_truncated]
    if long:
        starts = [text[:40].decode("utf-8", "replace") if isinstance(text, bytes) else text[:40] for text in long[:3]]
        shown = ", ".join(f"{start!r}..." for start in starts) + (" and others" if len(long) > 3 else "")
        where = f"in {len(long):,} of {len(truncated):,} texts; only their beginnings are read: {shown}"
        warnings.warn(f"more tokens than the model reads {where}", stacklevel=3)
