"""Products of a sequence's vectors with a matrix."""

from keras import ops


def by_row(function, x):
    """`function` of the rows of x [B, T, d], all as one matrix [B * T, d] -> [B * T, e]: [B, T, e].

    Of a `Dense` on three axes Keras makes TensorFlow's tensordot, a dozen small operations.
    """
    rows = function(ops.reshape(x, (-1, x.shape[-1])))
    return ops.reshape(rows, (*ops.shape(x)[:-1], rows.shape[-1]))
