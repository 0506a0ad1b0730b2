#!/usr/bin/env bash
# After tf2onnx, tf.scatter_nd keeps one of the values for a repeated index. TensorFlow adds them.
#
# Expected: The sum, which TensorFlow documents: counts and histograms depend on it. tf.tensor_scatter_nd_add is
# converted right.
# Seen: The converter writes ONNX's ScatterND without a reduction, although opset 16 has one.
# Versions: tf2onnx 1.17.0 with opset 18, onnxruntime 1.32.0, TensorFlow 2.21.0. LiteRT adds.
# Source: `ScatterND.version_11` in tf2onnx/onnx_opset/tensor.py.
# Met by: exports that count tokens or sum probabilities by id, as copy mechanisms and n-gram blocking do.
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

import numpy as np
import onnxruntime
import tensorflow as tf
import tf2onnx

logging.disable(logging.ERROR)


def both(function, x):
    """Returns what TensorFlow computes, and what onnxruntime computes from the converted function."""
    specs = [tf.TensorSpec(x.shape, x.dtype, name="x")]
    model, _ = tf2onnx.convert.from_function(tf.function(function, autograph=False), input_signature=specs, opset=18)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return function(tf.constant(x)).numpy().tolist(), session.run(None, {"x": x})[0].tolist()


found = both(lambda x: tf.scatter_nd([[1], [1], [2]], x, [4]), np.array([3, 5, 7], "float32"))
print("TensorFlow and ONNX:", *found)
assert found[0] == [0, 8, 7, 0], "TensorFlow does not add"
assert found[1] == [0, 5, 7, 0], "scatter_nd is converted otherwise now"
END
