#!/usr/bin/env bash
# In a function compiled by XLA, an id outside of the vocabulary reads the first or last row of the table.
#
# Expected: `tf.gather` on a CPU raises InvalidArgumentError for an index out of range, compiled or not.
# Seen: With `jit_compile=True`, index 7 of 3 rows reads row 2, and index -1 reads row 0. So a vocabulary that does
# not fit the model trains without an error.
# Versions: tensorflow-cpu 2.21.0.
# Source: `XlaGather` in tensorflow/compiler/tf2xla/kernels/gather_op.cc: XLA's Gather clamps its start indices.
# Met by: training with `jit_compile=True`, which Keras also chooses on a GPU.
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
import tensorflow as tf

table = tf.constant([[10.0], [11.0], [12.0]])


def row(index, jit_compile):
    function = tf.function(lambda i: tf.gather(table, i), jit_compile=jit_compile, autograph=False)
    try:
        return float(function(tf.constant([index]))[0, 0])
    except tf.errors.InvalidArgumentError:
        return "InvalidArgumentError"


got = {(index, jit): row(index, jit) for index in (7, -1) for jit in (False, True)}
print("of the rows 10, 11 and 12, (index, jit_compile) reads", got)
assert got[7, False] == got[-1, False] == "InvalidArgumentError", "graphs on a CPU accept such an index"
assert (got[7, True], got[-1, True]) == (12.0, 10.0), "XLA treats such an index in another way"
END
