#!/usr/bin/env bash
# After tf2onnx, tf.one_hot(-1, 4) is the last class, not a row of zeros.
#
# Expected: Zeros: TensorFlow documents that an index out of range gives no class, and -1 marks ignored labels.
# Seen: ONNX's OneHot counts negative indices from the end. Indices above the depth stay rows of zeros. tf.gather with
# -1, an error in TensorFlow on CPUs, also reads the last row.
# Versions: tf2onnx 1.17.0, onnxruntime 1.32.0, TensorFlow 2.21.0. LiteRT gives zeros.
# Source: `OneHot` in tf2onnx/onnx_opset/tensor.py passes the indices as they are. onnx/onnx#4154 asks about the
# difference.
# Met by: exports in which -1 means "nothing": padding, no parent, no match, an ignored label.
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


found = both(lambda x: tf.one_hot(x, 4), np.array([-1, 4], "int32"))
print("one_hot of -1 and 4, TensorFlow and ONNX:", *found)
assert found[0] == [[0.0] * 4] * 2, "TensorFlow's one_hot of -1 is not zeros"
assert found[1] == [[0.0, 0.0, 0.0, 1.0], [0.0] * 4], "one_hot of -1 is converted otherwise now"
END
