#!/usr/bin/env bash
# LiteRT's `CompiledModel` holds Python's lock while it runs, so threads that have a model each wait for each other.
#
# Expected: the lock is released during the call of the C++ runtime, as by `Interpreter.invoke` of the same package,
# by TensorFlow, onnxruntime and CTranslate2. So a thread pool uses all cores.
# Seen: while a model runs for a fifth of a second, no other Python thread runs. `Interpreter` lets them run.
# Versions: ai-edge-litert 2.3.0, tensorflow-cpu 2.21.0 (to write the model).
# Source: `run_by_name` and `run_by_index` in ai_edge_litert/compiled_model.py.
# Met by: servers with a pool of threads, whose requests and health checks stop during each call.
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
cat > write.py <<'END'
import tensorflow as tf

weights = tf.constant(tf.random.stateless_normal((256, 256), (1, 2)) / 16)


@tf.function(input_signature=[tf.TensorSpec([64, 256])])
def work(x):
    condition = lambda i, x: i < 400
    return {"y": tf.while_loop(condition, lambda i, x: (i + 1, tf.tanh(x @ weights)), (0, x))[1]}


module = tf.Module()
module.work = work
tf.saved_model.save(module, "saved", signatures={"work": work})
open("model.tflite", "wb").write(tf.lite.TFLiteConverter.from_saved_model("saved", signature_keys=["work"]).convert())
END
cat > run.py <<'END'
import threading
import time

import numpy as np
from ai_edge_litert.compiled_model import CompiledModel
from ai_edge_litert.interpreter import Interpreter

x = np.ones((64, 256), np.float32)
compiled = CompiledModel.from_file("model.tflite")
inputs = {"x": compiled.create_input_buffer_by_name("work", "x")}
outputs = {"y": compiled.create_output_buffer_by_name("work", "y")}
inputs["x"].write(x)
interpreter = Interpreter(model_path="model.tflite", num_threads=1)
runner = interpreter.get_signature_runner("work")
calls = {"CompiledModel": lambda: compiled.run_by_name("work", inputs, outputs), "Interpreter": lambda: runner(x=x)}


def share(call):
    """Returns the seconds of a call, and the longest time in it in which another thread did not run, as a share."""
    stamps, end = [], threading.Event()

    def other():
        while not end.is_set():
            stamps.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=other)
    thread.start()
    time.sleep(0.05)
    began = time.perf_counter()
    call()
    ended = time.perf_counter()
    end.set()
    thread.join()
    inside = [began, *(stamp for stamp in stamps if began < stamp < ended), ended]
    return ended - began, max(after - before for before, after in zip(inside, inside[1:])) / (ended - began)


seen = {}
for name, call in calls.items():
    call()
    rounds = sorted(share(call) for _ in range(5))
    seen[name] = sorted(one[1] for one in rounds)[2]
    print(f"{name}: a call of {1e3 * rounds[2][0]:.0f} ms, another thread stood still for {seen[name]:.0%} of it")
assert seen["CompiledModel"] > 0.9, "CompiledModel lets other threads run now"
assert seen["Interpreter"] < 0.7, "Interpreter holds the lock now"
END
TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=-1 "$environment/bin/python" write.py 2> /dev/null
"$environment/bin/python" run.py 2> log || { tail -3 log; exit 1; }
