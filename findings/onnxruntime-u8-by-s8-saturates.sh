#!/usr/bin/env bash
# On processors with AVX2 and without VNNI, onnxruntime's `MatMulInteger` saturates for unsigned rows and signed
# weights.
#
# Expected: The operator is exact: ONNX defines it as a product in int32 that never overflows here.
# Seen: 512 products of 255 x 127 are 8,388,352 instead of 16,581,120. Signed by signed and unsigned by unsigned are
# exact. `quantize_dynamic` makes unsigned rows, and signed weights by default. A trained MarianMT model lost 9 BLEU.
# Versions: onnxruntime 1.32.0. Needs x86-64 with AVX2 and without VNNI, or qemu-x86_64 (Debian's qemu-user), which
# emulates one.
# Source: `MlasGemmU8S8KernelAvx2` in onnxruntime/core/mlas/lib/x86_64/QgemmU8S8KernelAvx2.asm (vpmaddubsw).
# Met by: 8-bit models on desktops and older servers, after a test on a newer one.
set -euo pipefail
[ "$(uname -m)" = x86_64 ] || { echo "skipped: needs an x86-64 processor, got $(uname -m)"; exit 0; }
grep -qw avx2 /proc/cpuinfo || { echo "skipped: needs AVX2"; exit 0; }
emulator=
if grep -qwE "avx512_vnni|avx_vnni|avx512f" /proc/cpuinfo; then
  if ! command -v qemu-x86_64 > /dev/null; then
    echo "skipped: needs a processor without AVX-512 and VNNI, or qemu-x86_64"
    exit 0
  fi
  emulator="qemu-x86_64 -cpu max"
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
site=$(echo "$environment"/lib/python3*/site-packages)
PYTHONPATH=$site $emulator "$(readlink -f "$environment/bin/python")" - <<'END'
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper


def product(rows, weights):
    types = {"uint8": onnx.TensorProto.UINT8, "int8": onnx.TensorProto.INT8}
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["rows", "weights"], ["sums"])],
        "product",
        [helper.make_tensor_value_info("rows", types[rows.dtype.name], rows.shape)],
        [helper.make_tensor_value_info("sums", onnx.TensorProto.INT32, None)],
        [numpy_helper.from_array(weights, "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return int(session.run(None, {"rows": rows})[0][0, 0])


got = {}
for left, right in (("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")):
    a, b = np.iinfo(left).max, np.iinfo(right).max
    got[left, right] = product(np.full((1, 512), a, left), np.full((512, 4), b, right)), 512 * a * b
    print(f"512 products of {a} x {b} ({left} x {right}): {got[left, right][0]:,}, exact {got[left, right][1]:,}")
wrong = [pair for pair, (value, exact) in got.items() if value != exact]
assert wrong, "all sums are exact now"
assert wrong == [("uint8", "int8")], f"other sums saturate: {wrong}"
END
