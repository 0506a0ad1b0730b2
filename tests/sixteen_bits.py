"""Skips tests that multiply in 16 bits where TensorFlow cannot.

If the processor has instructions for bfloat16 or float16 that ONEDNN_MAX_CPU_ISA forbids, TensorFlow 2.21 asks oneDNN
for products in 16 bits all the same. Then a softmax raises an error, but a product ends the process.
"""

import contextlib
from unittest import mock

import keras
import pytest

VARIABLE = "ONEDNN_MAX_CPU_ISA"
REASON = f"TensorFlow does not multiply in 16 bits under this {VARIABLE}"
DTYPES = "bfloat16", "float16"
OPERATIONS = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv2D", "Softmax", "LogSoftmax"}


def missing():
    """Returns the dtypes of 16 bits in which TensorFlow cannot multiply."""
    import tensorflow as tf

    def fails(dtype):
        try:
            tf.nn.softmax(tf.ones((1, 2), dtype))
        except tf.errors.AbortedError:
            return True
        return False

    return {dtype for dtype in DTYPES if fails(dtype)}


@contextlib.contextmanager
def skipping(dtypes):
    """Skips a test that multiplies in one of the dtypes, at once or in a graph."""
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.framework import ops

    execute, create = pywrap_tfe.TFE_Py_FastPathExecute, ops._create_c_op

    def check(operation, inputs):
        if operation in OPERATIONS:
            found = [x.dtype for x in keras.tree.flatten(inputs) if hasattr(x, "dtype")]
            if not dtypes.isdisjoint(map(keras.backend.standardize_dtype, found)):
                pytest.skip(REASON)

    def checked_execute(context, operation, name, *inputs):
        check(operation, inputs)
        return execute(context, operation, name, *inputs)

    def checked_create(graph, node, inputs, *arguments, **options):
        check(node.op, inputs)
        return create(graph, node, inputs, *arguments, **options)

    with (
        mock.patch.object(pywrap_tfe, "TFE_Py_FastPathExecute", checked_execute),
        mock.patch.object(ops, "_create_c_op", checked_create),
    ):
        yield
