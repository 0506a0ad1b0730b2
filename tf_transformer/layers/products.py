"""Products of a sequence's vectors with a matrix, computed as one matrix of rows.

Keras computes a `Dense` on three axes with TensorFlow's tensordot, a dozen small operations. The converter to ONNX also
fails on tensordot's two reshapes in a row, where the second takes its shape from the result of the first.
"""

from collections.abc import Callable
from typing import Any

from keras import ops

from tf_transformer.utils.type_names import Tensor


def as_rows(x: Tensor) -> Any:
    """[B, T, d] -> [B * T, d]."""
    return ops.reshape(x, (-1, x.shape[-1]))


def by_row(function: Callable[[Any], Any], x: Tensor) -> Any:
    """Apply `function`, [B * T, d] -> [B * T, e], to the rows of x [B, T, d]: [B, T, e]."""
    rows = function(as_rows(x))
    return ops.reshape(rows, (*ops.shape(x)[:-1], rows.shape[-1]))
