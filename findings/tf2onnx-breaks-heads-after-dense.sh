#!/usr/bin/env bash
# tf2onnx converts a Keras `Dense` on three axes and a split into heads after it to an invalid reshape.
#
# Expected: A projection and a reshape to [B, T, heads, width], the beginning of each attention layer, convert for any
# B and T.
# Seen: `Dense` on three axes is TensorFlow's tensordot, which reshapes its result. The converter takes the shape for
# the second reshape from the first one's input, and onnxruntime raises. A `Dense` on rows, with reshapes of one's
# own, converts.
# Versions: tf2onnx 1.17.0, onnxruntime 1.32.0, tensorflow-cpu 2.21.0, keras 3.15.1.
# Source: `BackToBackOptimizer._optimize_reshape_reshape` in tf2onnx/optimizer/back_to_back_optimizer.py;
# `_tensordot_reshape` in tensorflow/python/ops/math_ops.py.
# Met by: exports of Transformers to ONNX.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
# One environment for all findings about converters.
packages="tensorflow-cpu==2.21.0 keras==3.15.1 ai-edge-litert==2.3.0 tf2onnx==1.17.0 onnx==1.23.2 onnxruntime==1.32.0"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3
"$environment/bin/python" - <<'END'
import keras
import numpy as np
import onnxruntime
import tensorflow as tf
import tf2onnx

dense = keras.layers.Dense(12)
dense.build((None, None, 8))


def on_three_axes(x):
    return tf.reshape(dense(x), [tf.shape(x)[0], tf.shape(x)[1], 3, 4])


def on_rows(x):
    return tf.reshape(dense(tf.reshape(x, [-1, 8])), [tf.shape(x)[0], tf.shape(x)[1], 3, 4])


def after_dense(x):
    h = dense(x)
    return tf.reshape(h, [tf.shape(h)[0], tf.shape(h)[1], 3, 4])


def difference(function, x):
    signature = [tf.TensorSpec([None, None, 8])]
    model, _ = tf2onnx.convert.from_function(tf.function(function, signature, autograph=False), signature, opset=17)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    try:
        (y,) = session.run(None, {session.get_inputs()[0].name: x})
    except onnxruntime.capi.onnxruntime_pybind11_state.Fail as error:
        return str(error).split("Status Message: ")[1][-90:]
    return float(np.abs(y - function(tf.constant(x)).numpy()).max())


x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
got = {function.__name__: difference(function, x) for function in (on_rows, on_three_axes, after_dense)}
for name, result in got.items():
    print(f"{name}: {result}")
assert isinstance(got["on_rows"], float) and got["on_rows"] < 1e-5, "a Dense on rows fails as well"
assert "requested shape" in str(got["after_dense"]), "a split into heads after Dense converts now"
END
