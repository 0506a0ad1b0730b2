#!/usr/bin/env bash
# tf.reduce_mean of 1,000 float16 values of 100 is inf.
#
# Expected: 100, as in NumPy, JAX and keras.ops.mean, which sum float16 in float32: the sum of 100,000 exceeds
# float16's 65,504, the mean does not.
# Seen: inf, along any axis, and also for tf.math.reduce_variance and tf.nn.avg_pool1d. bfloat16 is right, and so is
# keras.layers.GlobalAveragePooling1D, which computes in float32.
# Versions: TensorFlow 2.21.0 and keras 3.15.1, on CPUs.
# Source: the CPU kernel of Mean (tensorflow/core/kernels/reduction_ops_mean.cc with `functor::MeanReducer`) rounds
# the sum to float16 before it divides.
# Met by: means of float16 losses, logits and activations in custom layers and training loops.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="tensorflow-cpu==2.21.0 keras==3.15.1"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
"$environment/bin/python" - <<'END'
import keras
import numpy as np
import tensorflow as tf

x = np.full((1, 1000, 1), 100, "float16")
found = {
    "NumPy": float(x.mean()),
    "keras.ops.mean": float(keras.ops.mean(x)),
    "tf.reduce_mean": float(tf.reduce_mean(x)),
}
print(found)
assert found["NumPy"] == found["keras.ops.mean"] == 100, "NumPy's or Keras's mean is not 100"
assert np.isinf(found["tf.reduce_mean"]), "the mean is computed otherwise now"
END
