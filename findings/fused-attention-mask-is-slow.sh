#!/usr/bin/env bash
# TensorFlow fuses product, scale and mask of attention into a kernel that is a hundred times slower for a mask of one
# row.
#
# Expected: `matmul(q, k) * scale + mask` takes about as long as `matmul(q, k) * scale - (-mask)`, since fusing
# removes two passes over the scores.
# Seen: The graph optimizer fuses matmul, multiplication and addition if the mask has the shape [1, 1, T, S]. oneDNN
# then computes with a broadcast post-operation in a reference kernel: 0.5 s instead of 1 ms for 64 products of 64 x
# 64. A subtraction, or a mask by row of the batch, is not fused.
# Versions: tensorflow-cpu 2.21.0. Needs x86-64.
# Source: `FindFusedBatchMatMul` (BatchMatMulV2, Mul, Add) in tensorflow/core/grappler/optimizers/remapper.cc, which
# makes `_MklFusedBatchMatMulV2`.
# Met by: attention with a causal mask in a `tf.function` or a SavedModel.
set -euo pipefail
[ "$(uname -m)" = x86_64 ] || { echo "skipped: needs an x86-64 processor, got $(uname -m)"; exit 0; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="tensorflow-cpu==2.21.0 keras==3.15.1"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3
TF_ENABLE_ONEDNN_OPTS=1 "$environment/bin/python" - <<'END'
import time

import tensorflow as tf

q, k = tf.random.normal([8, 8, 64, 64]), tf.random.normal([8, 8, 64, 64])


@tf.function(autograph=False)
def added(mask):
    return tf.matmul(q, k, transpose_b=True) * 0.125 + mask


@tf.function(autograph=False)
def subtracted(mask):
    return tf.matmul(q, k, transpose_b=True) * 0.125 - mask


def milliseconds(function, mask):
    function(mask)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        function(mask).numpy()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


causal, by_row = tf.zeros([1, 1, 64, 64]), tf.zeros([8, 1, 64, 64])
got = {
    "+ mask [1, 1, T, S]": milliseconds(added, causal),
    "- mask [1, 1, T, S]": milliseconds(subtracted, causal),
    "+ mask [B, 1, T, S]": milliseconds(added, by_row),
}
print("milliseconds:", {name: round(time, 2) for name, time in got.items()})
slow, *others = got.values()
assert slow > 10 * max(others), "the fused kernel is fast now, or nothing is fused"
END
