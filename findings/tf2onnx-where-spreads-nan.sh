#!/usr/bin/env bash
# tf2onnx converts `tf.where` to a sum of products, in which a NaN or infinity that is not selected spoils the result.
#
# Expected: ONNX has the operator Where, and the converter uses it: what is not selected has no influence.
# Seen: The converter multiplies both values by the condition as 0 or 1 and adds them. 0 times NaN or infinity is NaN.
# It uses Where only if it sees a NaN or infinity among the constants.
# Versions: tf2onnx 1.17.0, onnxruntime 1.32.0, tensorflow-cpu 2.21.0.
# Source: `Select.version_9` in tf2onnx/onnx_opset/controlflow.py; onnx/tensorflow-onnx#1988.
# Met by: models that mask scores by -inf, or guard a division by `tf.where`.
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
import numpy as np
import onnxruntime
import tensorflow as tf
import tf2onnx

signature = [tf.TensorSpec([None], tf.bool), tf.TensorSpec([None]), tf.TensorSpec([None])]
function = tf.function(lambda condition, a, b: tf.where(condition, a, b), signature, autograph=False)
model, _ = tf2onnx.convert.from_function(function, signature, opset=17)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
values = [np.array([True, False, True]), np.array([1, np.nan, 2], "float32"), np.array([np.inf, 5, 7], "float32")]
(got,) = session.run(None, {port.name: value for port, value in zip(session.get_inputs(), values)})
expected = function(*values).numpy()
print("nodes:", *(node.op_type for node in model.graph.node), "; TensorFlow", expected, ", onnxruntime", got)
assert expected.tolist() == [1, 5, 2]
assert np.isnan(got).tolist() == [True, True, False], "tf.where converts to Where now"
END
