#!/usr/bin/env bash
# LiteRT's and onnxruntime's maximum over an axis drops a NaN that TensorFlow's reports.
#
# Expected: NaN, as in TensorFlow and NumPy: a NaN in any number makes the maximum NaN.
# Seen: 3 for [1, NaN, 3]. A check such as `reduce_max(abs(x)) < limit`, and a search that drops hypotheses by their
# best score, pass in the export and not in the model. Elementwise maximum and relu keep NaN.
# Versions: ai-edge-litert 2.3.0, tf2onnx 1.17.0 and onnxruntime 1.32.0, TensorFlow 2.21.0.
# Source: the REDUCE_MAX kernel in LiteRT (tflite/kernels/reduce.cc) and ReduceMax in onnxruntime's CPU provider,
# which compare and do not test for NaN.
# Met by: exports with health checks inside the graph, and comparisons of exports on inputs that give NaN.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="tensorflow-cpu==2.21.0 ai-edge-litert==2.3.0 tf2onnx==1.17.0 onnx==1.23.2 onnxruntime==1.32.0"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
"$environment/bin/python" - <<'END'
import warnings

import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

warnings.simplefilter("ignore")


def both(function, x):
    """Returns what TensorFlow computes, and what LiteRT computes from the converted function."""
    traced = tf.function(function, input_signature=[tf.TensorSpec(x.shape, x.dtype)], autograph=False)
    interpreter = Interpreter(
        model_content=tf.lite.TFLiteConverter.from_concrete_functions([traced.get_concrete_function()]).convert()
    )
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return traced(x).numpy(), interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


import logging

import onnxruntime
import tf2onnx

logging.disable(logging.ERROR)
x = np.array([1, np.nan, 3], "float32")


def largest(x):
    return tf.reduce_max(x, keepdims=True)


specs = [tf.TensorSpec(x.shape, x.dtype, name="x")]
model, _ = tf2onnx.convert.from_function(tf.function(largest, autograph=False), input_signature=specs, opset=18)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
expected, lite = both(largest, x)
ort = session.run(None, {"x": x})[0]
print("maximum of 1, NaN, 3: TensorFlow", expected, "LiteRT", lite, "onnxruntime", ort)
assert np.isnan(expected).all(), "TensorFlow drops NaN, too"
assert lite == 3 and ort == 3, "NaN is kept now"
END
