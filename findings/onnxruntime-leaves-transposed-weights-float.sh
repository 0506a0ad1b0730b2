#!/usr/bin/env bash
# quantize_dynamic quantizes nothing, and reports nothing, where a weight reaches MatMul through a Transpose.
#
# Expected: The weight is constant, so it is transposed and stored in 8 bits: the file shrinks to a quarter.
# Seen: The file keeps its size and its float product. Only initializers that are direct inputs of MatMul count, so
# logits of a tied embedding table, which are x @ transpose(table), stay float.
# Versions: onnxruntime 1.32.0, onnx 1.23.2.
# Source: `MatMulInteger` and `QOpMatMul.should_quantize` in onnxruntime/quantization/operators/matmul.py, with
# `MatMulConstBOnly` in quantize_dynamic.
# Met by: exports of models with tied embeddings, whose largest product is that of the vocabulary. Folding constants
# first (quant_pre_process) helps.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
"$environment/bin/python" - <<'END'
import logging
import os

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

logging.disable(logging.WARNING)
weights = np.random.default_rng(0).normal(size=(256, 256)).astype("float32")
ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", 256])] for name in "xy"]
sizes = {}
for name, nodes in {
    "direct": [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
    "transposed": [
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["y"], name="product"),
    ],
}.items():
    graph = helper.make_graph(nodes, name, *ports, [numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), "float.onnx")
    quantize_dynamic("float.onnx", "int8.onnx")
    sizes[name] = os.path.getsize("int8.onnx") / os.path.getsize("float.onnx")
    operations = [node.op_type for node in onnx.load("int8.onnx").graph.node]
    print(f"{name}: {sizes[name]:.2f} of the size, {' '.join(operations)}")
assert sizes["direct"] < 0.3, "a direct weight is not quantized"
assert sizes["transposed"] > 0.99, "transposed weights are quantized now"
END
