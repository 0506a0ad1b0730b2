#!/usr/bin/env bash
# onnx.version_converter takes a Softmax from opset 13 down to 11 unchanged, where it means something else.
#
# Expected: An equivalent graph or an error. Up to opset 12, Softmax flattens all axes from `axis` on and normalizes
# over all of them together.
# Seen: Softmax(axis=1) on [2, 3, 4] keeps its attribute. Sums over axis 1 are 1 before, and about 0.25 after.
# Versions: onnx 1.23.2, onnxruntime 1.32.0.
# Source: `Softmax_13_12` in onnx/version_converter/adapters/softmax_13_12.h, which only makes a negative axis
# positive.
# Met by: whoever converts a model for an older runtime, such as one in a browser or a device.
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
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, version_converter

ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3, 4])] for name in "xy"]
graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"], axis=1)], "softmax", *ports)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
older = version_converter.convert_version(model, 11)
onnx.checker.check_model(older)
sums = []
for one in (model, older):
    found = onnxruntime.InferenceSession(one.SerializeToString()).run(None, {"x": np.zeros((2, 3, 4), "float32")})[0]
    sums.append(float(found.sum(axis=1).mean()))
    print(f"opset {one.opset_import[0].version}: sum over axis 1 is {sums[-1]:.3f}")
assert abs(sums[0] - 1) < 1e-5, "Softmax of opset 13 is off"
assert abs(sums[1] - 0.25) < 1e-5, "Softmax is converted otherwise now"
END
