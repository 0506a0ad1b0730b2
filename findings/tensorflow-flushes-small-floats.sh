#!/usr/bin/env bash
# TensorFlow treats float32 numbers below 1.2e-38 as 0: tf.exp(-90.0) is 0, and 1e-39 > 0 is False.
#
# Expected: NumPy's result, 8.2e-40, as without any GPU or XLA flag. Such numbers (subnormal ones) reach down to
# 1.4e-45.
# Seen: Results and inputs of operations are flushed to 0, in eager mode and in graphs, on CPUs. So log(softmax(x)) is
# -inf from a gap of 88 on, not 104. onnxruntime keeps subnormal numbers, so an exported model gives finite scores
# where TensorFlow gives -inf.
# Versions: TensorFlow 2.21.0, onnxruntime 1.32.0.
# Source: `ScopedFlushDenormal` in tsl/platform/denormal.h, set around the executor's kernels and in threads.
# Met by: comparisons of tails of distributions, or of exports, with NumPy or another engine.
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
import numpy as np
import onnx
import onnxruntime
import tensorflow as tf

x = np.float32(-90)
nodes = [onnx.helper.make_node("Exp", ["x"], ["y"])]
ports = [[onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1])] for name in "xy"]
graph = onnx.helper.make_graph(nodes, "exp", *ports)
model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
session = onnxruntime.InferenceSession(model.SerializeToString())
values = {
    "NumPy": np.exp(x),
    "onnxruntime": session.run(None, {"x": np.array([x])})[0][0],
    "eager": tf.exp(x).numpy(),
    "graph": tf.function(tf.exp)(tf.constant(x)).numpy(),
}
print("exp(-90):", values, " 1e-39 > 0:", bool(tf.constant(1e-39) > 0))
assert values["NumPy"] > 0 and values["onnxruntime"] > 0, "they flush subnormal numbers, too"
assert values["eager"] == values["graph"] == 0 and not bool(tf.constant(1e-39) > 0), "TensorFlow keeps them now"
END
