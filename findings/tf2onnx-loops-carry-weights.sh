#!/usr/bin/env bash
# tf2onnx makes the weights that a loop uses a part of the loop's state, and onnxruntime packs them at each step.
#
# Expected: What no step changes is a constant for the loop, and a runtime prepares it once.
# Seen: TensorFlow's While passes weights through its body, and so does the converted Loop. onnxruntime prepacks only
# initializers. The same loop with the weights as values of the outer graph is twice as fast for four rows.
# Versions: tf2onnx 1.17.0, onnxruntime 1.32.0, tensorflow-cpu 2.21.0.
# Source: `While` in tf2onnx/onnx_opset/controlflow.py; `SessionState::PrepackConstantInitializedTensors` in
# onnxruntime/core/framework/session_state.cc.
# Met by: exports with a search in the graph.
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
import time

import numpy as np
import onnxruntime
import tensorflow as tf
import tf2onnx

ROWS, WIDTH, STEPS = 4, 512, 60
generator = np.random.default_rng(0)
weights = [tf.Variable(generator.normal(size=(WIDTH, WIDTH)).astype("float32") / WIDTH**0.5) for _ in range(4)]


def search(x):
    def body(i, x):
        for weight in weights:
            x = tf.tanh(tf.matmul(x, weight))
        return i + 1, x

    return tf.while_loop(lambda i, _: i < STEPS, body, (tf.constant(0), x))[1]


signature = [tf.TensorSpec([ROWS, WIDTH])]
model, _ = tf2onnx.convert.from_function(tf.function(search, signature, autograph=False), signature, opset=17)
(loop,) = (node for node in model.graph.node if node.op_type == "Loop")
body = next(attribute.g for attribute in loop.attribute if attribute.name == "body")
initializers = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2}
# Inputs of a Loop are count, condition and state. Those of its body begin in the same way.
carried = [
    k
    for k, name in enumerate(loop.input)
    if name in initializers or body.input[k].name in {o.name for o in body.output}
]
state = len(loop.input) - 2


def milliseconds():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = {session.get_inputs()[0].name: np.ones((ROWS, WIDTH), "float32")}
    (result,), times = session.run(None, x), []
    for _ in range(20):
        start = time.thread_time()  # without the time of other programs
        session.run(None, x)
        times.append(time.thread_time() - start)
    return 1000 * min(times), result


before, result = milliseconds()
# Take the weights out of the state: the body then uses the initializers by name.
outer = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Identity"}
renamed = {body.input[k].name: outer.get(loop.input[k], loop.input[k]) for k in carried}
for ports, offset in ((loop.input, 0), (body.input, 0), (body.output, 1), (loop.output, 2)):
    kept = [port for k, port in enumerate(ports, offset) if k not in carried]
    del ports[:]
    ports.extend(kept)
for node in body.node:
    for k, name in enumerate(node.input):
        node.input[k] = renamed.get(name, name)
after, other = milliseconds()
print(f"values in the loop's state: {state}, of which {len(carried)} weights")
print(f"milliseconds for {STEPS} steps: {before:.1f}, with the weights outside of the state {after:.1f}")
assert np.allclose(result, other, atol=1e-4), "this program rewrites the loop wrongly"
assert len(carried) == len(weights), "weights are no longer in the state"
assert before > 1.3 * after, "weights in the state are as fast as others now"
END
