#!/usr/bin/env bash
# In a loop compiled by XLA, `x[:, i : i + 1]` can be the whole axis instead of one column.
#
# Expected: The slice has one column in every step, as it has without `jit_compile`.
# Seen: XLA has to know the size of a slice. It does not see that the end minus the loop's counter is 1, takes the
# axis's size, and the result broadcasts: other numbers, without an error. `tf.slice` with size 1 is right.
# Versions: tensorflow-cpu 2.21.0.
# Source: `StridedSliceOp` in tensorflow/compiler/tf2xla/kernels/strided_slice_op.cc.
# Met by: searches and recurrent layers with a custom loop, under `jit_compile=True`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="tensorflow-cpu==2.21.0 keras==3.15.1"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3
"$environment/bin/python" - <<'END'
import numpy as np
import tensorflow as tf

x = tf.constant(np.arange(12.0).reshape(2, 6), tf.float32)


def sums(column, jit_compile):
    """Adds columns 0 to 3 of x to each column of zeros."""

    def run(x):
        def body(i, total):
            return i + 1, tf.ensure_shape(total + column(x, i), (2, 6))

        return tf.while_loop(lambda i, _: i < 4, body, (tf.constant(0), tf.zeros((2, 6))))[1]

    return tf.function(run, jit_compile=jit_compile, autograph=False)(x).numpy()


def strided(x, i):
    return x[:, i : i + 1]


def sliced(x, i):
    return tf.slice(x, (0, i), (2, 1))


expected = x.numpy()[:, :4].sum(1, keepdims=True) + np.zeros((2, 6))
for column, jit_compile in ((strided, False), (sliced, True), (strided, True)):
    print(f"{column.__name__}, jit_compile={jit_compile}:", sums(column, jit_compile)[0], "expected", expected[0])
assert (sums(strided, False) == expected).all() and (sums(sliced, True) == expected).all(), "another form is also wrong"
assert (sums(strided, True) != expected).any(), "the strided slice is right now"
END
