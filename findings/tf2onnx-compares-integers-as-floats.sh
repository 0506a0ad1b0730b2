#!/usr/bin/env bash
# tf2onnx compares int32 numbers in float32: 16777216 < 16777217 becomes False.
#
# Expected: True. ONNX compares integers of 32 and 64 bits since opset 9.
# Seen: The converter inserts casts to float32, which has 24 bits, before Less and Greater, so neighbors above 2 ** 24
# compare as equal. Equal and Maximum are exact.
# Versions: tf2onnx 1.17.0 with opset 18, onnxruntime 1.32.0, TensorFlow 2.21.0.
# Source: `GreaterLess` in tf2onnx/onnx_opset/logical.py.
# Met by: exports that compare time stamps, hashes, or offsets into large buffers.
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
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
"$environment/bin/python" - <<'END'
import logging

import numpy as np
import onnxruntime
import tensorflow as tf
import tf2onnx

logging.disable(logging.ERROR)


def both(function, x):
    """Returns what TensorFlow computes, and what onnxruntime computes from the converted function."""
    specs = [tf.TensorSpec(x.shape, x.dtype, name="x")]
    model, _ = tf2onnx.convert.from_function(tf.function(function, autograph=False), input_signature=specs, opset=18)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return function(tf.constant(x)).numpy().tolist(), session.run(None, {"x": x})[0].tolist()


x = np.array([2**24, 2**24 + 1], "int32")
less, greater = both(lambda x: x < 2**24 + 1, x), both(lambda x: tf.where(x > 2**24, x, 0), x)
print("x < 16777217, TensorFlow and ONNX:", *less)
print("x if x > 16777216 else 0, TensorFlow and ONNX:", *greater)
assert less == ([True, False], [False, False]), "integers are compared otherwise now"
assert greater == ([0, 2**24 + 1], [0, 0]), "integers are compared otherwise now"
END
