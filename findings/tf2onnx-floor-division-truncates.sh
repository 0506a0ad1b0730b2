#!/usr/bin/env bash
# Integer `//` and `%` of negative numbers have other values after a conversion by tf2onnx.
#
# Expected: `-7 // 2` is -4 and `-7 % 2` is 1, in TensorFlow as in Python.
# Seen: FloorDiv becomes ONNX's Div, which onnxruntime rounds towards 0: -3, and a remainder of -1. There is no
# warning. For floats, the converter adds Floor, and values are right.
# Versions: tf2onnx 1.17.0, onnxruntime 1.32.0, tensorflow-cpu 2.21.0.
# Source: `FloorDiv` and `FloorMod` in tf2onnx/onnx_opset/math.py; onnx/tensorflow-onnx#2174.
# Met by: models that compute positions or lengths, such as a ceiling by `-(-n // k)`.
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


def both(dtype):
    signature = [tf.TensorSpec([None], dtype)] * 2
    function = tf.function(lambda a, b: (a // b, a % b), signature, autograph=False)
    model, _ = tf2onnx.convert.from_function(function, signature, opset=17)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    values = [np.array([-7, 7, 7], dtype), np.array([2, -2, 2], dtype)]
    got = session.run(None, {port.name: value for port, value in zip(session.get_inputs(), values)})
    return [each.tolist() for each in got], [each.numpy().tolist() for each in function(*values)]


integers, expected = both("int32")
floats, expected_floats = both("float32")
print("(-7, 7, 7) // and % (2, -2, 2): TensorFlow", expected, ", onnxruntime", integers, ", with floats", floats)
assert floats == expected_floats == expected, "floats are also wrong"
assert integers == [[-3, -3, 3], [-1, 1, 1]], "integers are right now" if integers == expected else "other values"
END
