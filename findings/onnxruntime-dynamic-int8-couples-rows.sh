#!/usr/bin/env bash
# After quantize_dynamic, a row's result depends on the other rows of its batch: next to a row 100 times as large, its
# error grows from 1 % to more than 50 %.
#
# Expected: The scale of activations belongs to a row, as in CTranslate2, PyTorch's per-token and LiteRT's dynamic
# quantization, so batching changes nothing but speed.
# Seen: DynamicQuantizeLinear has one scale for the whole tensor. One row, even one of padding, with large activations
# takes the 8 bits from all others.
# Versions: onnxruntime 1.32.0, onnx 1.23.2.
# Source: `MatMulInteger.quantize` in onnxruntime/quantization/operators/matmul.py, which calls `quantize_activation`;
# DynamicQuantizeLinear in ONNX has one scale.
# Met by: servers that merge requests into batches of an int8 model, and evaluations whose scores change with the
# batch size.
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

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

logging.disable(logging.WARNING)
generator = np.random.default_rng(0)
weights, x = (generator.normal(size=size).astype("float32") for size in ((256, 256), (4, 256)))
ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", 256])] for name in "xy"]
nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
graph = helper.make_graph(nodes, "product", *ports, [numpy_helper.from_array(weights, "w")])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), "float.onnx")
quantize_dynamic("float.onnx", "int8.onnx")
session = onnxruntime.InferenceSession("int8.onnx")
errors = {}
for factor in (1, 10, 100):
    found = session.run(None, {"x": np.concatenate([x, factor * x[:1]])})[0][:4]
    errors[factor] = np.abs(found - x @ weights).mean() / np.abs(x @ weights).mean()
    print(f"next to a row {factor} times as large: error {errors[factor]:.1%}")
assert errors[1] < 0.05, "int8 is off by itself"
assert errors[100] > 0.3, "rows have scales of their own now"
END
