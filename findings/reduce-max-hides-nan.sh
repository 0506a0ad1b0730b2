#!/usr/bin/env bash
# LiteRT, onnxruntime and XLA drop a NaN from a maximum over an axis, and two of them from one side of `maximum`.
#
# Expected: NaN, as in TensorFlow and NumPy: a NaN in any number makes the maximum NaN. The order of two numbers does
# not matter.
# Seen: 3 for [1, NaN, 3]. `maximum` of NaN and 1 is 1 in LiteRT and NaN in XLA (`jit_compile=True`), that of 1 and NaN
# is NaN in LiteRT and 1 in XLA. A check such as `reduce_max(abs(x)) < limit`, and a search that drops hypotheses by
# their best score, pass in the export or the compiled function and not in the model. relu keeps NaN.
# Versions: ai-edge-litert 2.3.0, tf2onnx 1.17.0 and onnxruntime 1.32.0, TensorFlow 2.21.0.
# Source: the REDUCE_MAX kernel in LiteRT (tflite/kernels/reduce.cc) and ReduceMax in onnxruntime's CPU provider,
# which compare and do not test for NaN. The flag `xla_cpu_enable_fast_min_max` in xla/debug_options_flags.cc.
# Met by: exports with health checks inside the graph, training steps with `jit_compile=True` on CPUs, and comparisons
# of exports on inputs that give NaN.
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
import warnings

import numpy as np
import onnxruntime
import tensorflow as tf
import tf2onnx
from ai_edge_litert.interpreter import Interpreter

warnings.simplefilter("ignore")


logging.disable(logging.ERROR)
NAN = float("nan")


def answers(function, *inputs):
    """Returns what TensorFlow, LiteRT, onnxruntime and XLA compute, by name."""
    inputs = [np.array(x, "float32") for x in inputs]
    specs = [tf.TensorSpec(x.shape, x.dtype, name=f"x{i}") for i, x in enumerate(inputs)]
    traced = tf.function(function, input_signature=specs, autograph=False)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([traced.get_concrete_function()], tf.Module())
    interpreter = Interpreter(model_content=converter.convert())
    interpreter.allocate_tensors()
    numbers = {each["name"]: each["index"] for each in interpreter.get_input_details()}
    for i, x in enumerate(inputs):
        interpreter.set_tensor(numbers[f"serving_default_x{i}:0"], x)
    interpreter.invoke()
    model, _ = tf2onnx.convert.from_function(traced, input_signature=specs, opset=18)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    compiled = tf.function(function, jit_compile=True, autograph=False)
    seen = {
        "TensorFlow": traced(*inputs).numpy(),
        "LiteRT": interpreter.get_tensor(interpreter.get_output_details()[0]["index"]),
        "onnxruntime": session.run(None, {f"x{i}": x for i, x in enumerate(inputs)})[0],
        "XLA": compiled(*map(tf.constant, inputs)).numpy(),
    }
    return {name: value.tolist() for name, value in seen.items()}


largest = answers(lambda x: tf.reduce_max(x, keepdims=True), [1, NAN, 3])
print("maximum of 1, NaN, 3:", largest)
of_two = answers(tf.maximum, [NAN, 1], [1, NAN])
print("maximum of NaN and 1, and of 1 and NaN:", of_two)
assert np.isnan(largest.pop("TensorFlow")).all() and np.isnan(of_two["TensorFlow"]).all(), "TensorFlow drops NaN as well"
assert all(value == [3.0] for value in largest.values()), "NaN is kept now"
assert np.isnan(of_two["LiteRT"]).tolist() == [False, True], "LiteRT's maximum is another one now"
assert np.isnan(of_two["XLA"]).tolist() == [True, False], "XLA's maximum is another one now"
END
