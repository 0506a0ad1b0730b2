#!/usr/bin/env bash
# NumPy's sum of 4,096 bfloat16 ones is 256, and their mean 0.0625.
#
# Expected: 4,096 and 1: np.mean computes in float32 for float16, and np.sum adds in pairs.
# Seen: For ml_dtypes' bfloat16, np.sum, np.mean, np.var and np.cumsum add one after the other in bfloat16, whose
# integers end at 256. np.matmul and np.dot are exact.
# Versions: numpy 2.4.6, ml_dtypes 0.6.0.
# Source: the reductions over ml_dtypes' registered `add` loop; `_mean` in numpy/_core/_methods.py asks for float32
# only if the dtype is float16.
# Met by: whoever measures weights or activations of a bfloat16 model by np.asarray(tensor).mean().
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="numpy==2.4.6 ml_dtypes==0.6.0"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
"$environment/bin/python" - <<'END'
import ml_dtypes
import numpy as np

for dtype in (np.float16, ml_dtypes.bfloat16):
    x = np.ones(4096, dtype)
    print(f"{np.dtype(dtype)}: sum {x.sum()}, mean {x.mean()}, dot {np.dot(x, x)}")
x = np.ones(4096, ml_dtypes.bfloat16)
assert float(x.sum()) == 256 and float(x.mean()) == 0.0625, "sums of bfloat16 are computed otherwise now"
assert float(np.ones(4096, np.float16).mean()) == 1, "the mean of float16 is not 1"
END
