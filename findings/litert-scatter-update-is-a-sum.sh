#!/usr/bin/env bash
# In a LiteRT file, `tf.tensor_scatter_nd_update` is NaN where it replaces an infinity, and adds at repeated indices.
#
# Expected: The result has the new values at the indices and the old ones elsewhere, as in TensorFlow. Equal values at a
# repeated index are that value.
# Seen: The converter writes old * (1 - ones at the indices) + values at the indices, both made by ScatterNd, which adds.
# An infinity times 0 is NaN. Two ones at an index subtract the old value. No error is raised.
# Versions: tensorflow-cpu 2.21.0 (`tf.lite`), ai-edge-litert 2.3.0.
# Source: the converter's lowering of `TensorScatterUpdate`, whose file holds SCATTER_ND, SUB, MUL, SCATTER_ND and ADD.
# Met by: searches and samplers that fill logits with -inf and then write those of the allowed tokens.
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

INF = float("inf")
CASES = {
    "finite values": ([1.0, 2.0, 3.0, 4.0], [1, 3], [7.0, 8.0]),
    "logits in a row of -inf": ([-INF] * 4, [1, 3], [7.0, 8.0]),
    "-inf in a row of logits": ([1.0, 2.0, 3.0, 4.0], [1, 3], [-INF, -INF]),
    "one value twice": ([1.0, 2.0, 3.0, 4.0], [1, 1], [7.0, 7.0]),
}


@tf.function(input_signature=[tf.TensorSpec([4]), tf.TensorSpec([2, 1], tf.int32), tf.TensorSpec([2])], autograph=False)
def update(old, index, new):
    return tf.tensor_scatter_nd_update(old, index, new)


converter = tf.lite.TFLiteConverter.from_concrete_functions([update.get_concrete_function()], tf.Module())
interpreter = Interpreter(model_content=converter.convert())
interpreter.allocate_tensors()
inputs = {each["name"]: each["index"] for each in interpreter.get_input_details()}
seen = {}
for name, (old, index, new) in CASES.items():
    values = {"old": np.float32(old), "index": np.int32(index)[:, None], "new": np.float32(new)}
    for each, value in values.items():
        interpreter.set_tensor(inputs[f"serving_default_{each}:0"], value)
    interpreter.invoke()
    lite = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    base = update(*values.values()).numpy()
    seen[name] = np.array_equal(lite, base)
    print(f"{name}: TensorFlow {base}, LiteRT {lite}")
assert seen["finite values"] and seen["-inf in a row of logits"], "more is different than this finding describes"
assert not seen["logits in a row of -inf"], "an infinity is replaced now"
assert not seen["one value twice"], "a repeated index holds its value now"
END
