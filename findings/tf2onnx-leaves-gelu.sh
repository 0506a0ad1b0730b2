#!/usr/bin/env bash
# `model.export(format="onnx")` of a layer with "gelu" writes a file that no runtime can load, and returns as usual.
#
# Expected: GELU, the activation of most Transformers, is converted, as it consists of operations that ONNX has, or the
# export raises.
# Seen: TensorFlow computes GELU by Erfc, which tf2onnx does not know. It logs "not supported", leaves the operation in
# the file and reports success. onnxruntime refuses the file. The approximation by tanh is converted.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0, tf2onnx 1.17.0, onnxruntime 1.32.0.
# Source: `gelu` in tensorflow/python/ops/nn_ops.py, and onnx/tensorflow-onnx#2463, which would add it.
# Met by: exports of models with `activation="gelu"`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="tensorflow-cpu==2.21.0 keras==3.15.1 ai-edge-litert==2.3.0 tf2onnx==1.17.0 onnx==1.23.2 onnxruntime==1.32.0"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3
"$environment/bin/python" - 2>messages <<'END' || { cat messages; exit 1; }
import functools

import keras
import numpy as np
import onnxruntime

x, seen = np.linspace(-3, 3, 8, dtype="float32").reshape(2, 4), {}
for name, activation in (
    ("gelu", "gelu"),
    ("gelu by tanh", functools.partial(keras.activations.gelu, approximate=True)),
):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation=activation)])
    expected = np.asarray(model(x))
    model.export("model.onnx", format="onnx", verbose=False)
    try:
        session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
        (got,) = session.run(None, {session.get_inputs()[0].name: x})
        seen[name] = f"error {np.abs(got - expected).max():.0e}"
        assert np.allclose(got, expected, atol=1e-5), f"{name} is wrong in ONNX"
    except Exception as error:
        seen[name] = type(error).__name__
        assert "Erfc" in str(error), str(error)
print("the exported file in onnxruntime:", seen)
assert not seen["gelu"].startswith("error"), "GELU is converted now"
assert seen["gelu by tanh"].startswith("error"), "GELU by tanh is not converted now"
END
