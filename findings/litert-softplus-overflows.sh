#!/usr/bin/env bash
# In LiteRT, tf.nn.softplus(89) is inf and tf.math.log_sigmoid(-100) is -inf.
#
# Expected: 89 and -100: TensorFlow's softplus is written so that it never overflows.
# Seen: The converter expands softplus into log(1 + exp(x)), and exp overflows above 88.7. A loss or a score built
# from it is inf, or NaN.
# Versions: TensorFlow 2.21.0's converter, ai-edge-litert 2.3.0.
# Source: the converter of tf.lite, whose file has the operations EXP, ADD and LOG. LiteRT has no softplus.
# Met by: exports with softplus as an activation or a positive scale, and with log-probabilities of sigmoids.
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


expected, found = both(tf.nn.softplus, np.array([20, 88, 89, 100], "float32"))
print("softplus of 20, 88, 89, 100, TensorFlow:", expected, "LiteRT:", found)
_, log = both(tf.math.log_sigmoid, np.array([-100], "float32"))
print("log_sigmoid of -100, LiteRT:", log)
assert np.allclose(expected, [20, 88, 89, 100]) and np.allclose(found[:2], [20, 88])
assert np.isinf(found[2:]).all() and np.isinf(log).all(), "softplus does not overflow any more"
END
