#!/usr/bin/env bash
# Under mixed_bfloat16, the gradient of a Dense layer's bias stops growing at 256 rows.
#
# Expected: 4,096: a sum over rows in at least float32, like the gradient of the kernel and like tf.reduce_sum of
# bfloat16.
# Seen: 256, in eager mode, in graphs and with XLA. The gradient of the kernel and of LayerNormalization's beta is
# right.
# Versions: keras 3.15.1 on TensorFlow 2.21.0, on CPUs. With Keras 3.6.0 it is 4,096.
# Source: `add` in keras/src/backend/tensorflow/numpy.py turns `x + bias` into BiasAdd. Its gradient, `BiasGradOp` in
# tensorflow/core/kernels/bias_op.cc, sums in bfloat16, whose integers end at 256. `y + bias` in plain TensorFlow sums
# by tf.reduce_sum.
# Met by: training in mixed_bfloat16 on CPUs with large batches or long sequences. The more rows, the smaller the
# bias's gradient.
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
import tensorflow as tf

keras.config.set_dtype_policy("mixed_bfloat16")
layer, x = keras.layers.Dense(2), tf.ones((4096, 1))
layer.build(x.shape)


def gradients():
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(tf.cast(layer(x), "float32"))
    return tape.gradient(total, [layer.kernel.value, layer.bias.value])


for name, function in {"eager": gradients, "graph": tf.function(gradients)}.items():
    kernel, bias = (gradient.numpy().ravel()[0].item() for gradient in function())
    print(f"{name}: gradient of the kernel {kernel}, of the bias {bias}")
    assert kernel == 4096, "the kernel's gradient is not exact"
    assert bias < 2048, "the bias's gradient is summed with more precision now"
END
