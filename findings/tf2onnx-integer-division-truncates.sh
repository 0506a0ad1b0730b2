#!/usr/bin/env bash
# tf2onnx turns integers' x // 2 and x % 3 into operations that round toward 0: -7 // 2 becomes -3, and -7 % 3 becomes
# -1.
#
# Expected: -4 and 2, as in TensorFlow, Python and LiteRT. Division of floats is converted right.
# Seen: ONNX's Div truncates integers. The converter adds Floor only for floats, and the graph runs without an error.
# Versions: tf2onnx 1.17.0, onnxruntime 1.32.0, TensorFlow 2.21.0.
# Source: `FloorDiv` and `FloorMod` in tf2onnx/onnx_opset/math.py. onnx/tensorflow-onnx#2174 is open for the division.
# Met by: exports with buckets of relative positions, circular buffers (`(i - n) % size`) or hashes, where numbers may
# be negative.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="tensorflow-cpu==2.21.0 tf2onnx==1.17.0 onnx==1.23.2 onnxruntime==1.32.0"
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


x = np.array([-7, 7, -8], "int32")
divided, modulo = both(lambda x: x // 2, x), both(lambda x: x % 3, x)
print("x // 2, TensorFlow and ONNX:", *divided)
print("x % 3, TensorFlow and ONNX:", *modulo)
assert divided == ([-4, 3, -4], [-3, 3, -4]), "integer division is converted otherwise now"
assert modulo == ([2, 1, 1], [-1, 1, -2]), "integer modulo is converted otherwise now"
END
