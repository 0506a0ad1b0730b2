"""Products of a sequence's vectors with a matrix: as one matrix of rows.

Of a `Dense` on three axes Keras makes TensorFlow's tensordot, a dozen small operations; and the converter to ONNX
mistakes two reshapes in a row where the second takes its shape from the first one's result.
"""

from keras import ops


def as_rows(x):
    """[B, T, d] -> [B * T, d]."""
    return ops.reshape(x, (-1, x.shape[-1]))


def by_row(function, x):
    """`function` of the rows of x [B, T, d], [B * T, d] -> [B * T, e]: [B, T, e]."""
    rows = function(as_rows(x))
    return ops.reshape(rows, (*ops.shape(x)[:-1], rows.shape[-1]))
