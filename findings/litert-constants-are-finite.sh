#!/usr/bin/env bash
# The LiteRT converter replaces infinities in constants and weights by the largest float, so `is_inf` is never true.
#
# Expected: A file holds the numbers of the graph. An infinity in a mask, a fill value or a comparison stays one.
# Seen: -inf is -3.4e38 in the file, in constants and in variables. `tf.math.is_inf` compares with such a constant, and
# is False for infinities, which still arrive as inputs and from operations. No warning appears.
# Versions: tensorflow-cpu 2.21.0 (`tf.lite`), ai-edge-litert 2.3.0.
# Source: the constants of the file, read with `flatbuffer_utils`. tensorflow/tensorflow#124150 met the same number in a
# division by a constant 0.
# Met by: models that find their masked or unreached positions by `is_inf` or by comparing with -inf, and tests that
# expect -inf in an output.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="tensorflow-cpu==2.21.0 keras==3.15.1 ai-edge-litert==2.3.0"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3
"$environment/bin/python" - <<'END'
import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from tensorflow.lite.tools import flatbuffer_utils

INF = float("inf")
module = tf.Module()
module.mask = tf.Variable([0.0, -INF, -INF])


@tf.function(input_signature=[tf.TensorSpec([3])], autograph=False)
def function(x):
    return {
        "with a mask added": x + module.mask,
        "filled": tf.where(x > 1.0, x, -INF),
        "is infinite": tf.math.is_inf(x),
        "equals -inf": x == -INF,
    }


tf.saved_model.save(module, "model", signatures=function)
content = tf.lite.TFLiteConverter.from_saved_model("model").convert()
model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
floats = [
    np.frombuffer(bytes(data), "float32")
    for tensor in model.subgraphs[0].tensors
    if tensor.type == 0 and (data := model.buffers[tensor.buffer].data) is not None
]
constants = np.unique(np.concatenate(floats))
x = np.float32([3.0, 2.0, -INF])
lite = Interpreter(model_content=content).get_signature_runner()(x=x)
base = {name: value.numpy() for name, value in function(x).items()}
print("numbers in the file:", constants)
for name in base:
    print(f"{name}: TensorFlow {base[name]}, LiteRT {lite[name]}")
assert np.isinf(base["with a mask added"][1]) and base["is infinite"][2] and base["equals -inf"][2], "TensorFlow differs"
assert np.isfinite(constants).all(), "the file holds infinities now"
assert not lite["is infinite"].any() and not lite["equals -inf"].any(), "infinities are found now"
assert np.isfinite(lite["with a mask added"][:2]).all() and np.isfinite(lite["filled"]).all(), "the mask is infinite now"
END
