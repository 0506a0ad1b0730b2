#!/usr/bin/env bash
# safetensors 0.8 silently writes a transposed NumPy array as if it were not transposed.
#
# Expected: save_file writes the values of an array, or raises. 0.7.0 did, and the module for PyTorch refuses such tensors.
# Seen: the file holds the array's memory under the transposed shape. Every weight is at a wrong place, and nothing
#       warns: names, shapes, dtype and sum are right.
# Versions: safetensors 0.8.0. 0.7.0, 0.6.2 and 0.5.3 write the values.
# Source: _flatten in safetensors/numpy.py passes the array's address and size, and no longer a contiguous copy.
#       safetensors/safetensors#825.
# Met by: every converter that transposes a kernel on its way to PyTorch's layout, as Keras's Dense needs.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="safetensors==0.8.0 numpy==2.4.6"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
"$environment/bin/python" - <<'END'
import numpy as np
from safetensors.numpy import load_file, save_file

kernel = np.arange(6, dtype=np.float32).reshape(2, 3)  # Keras: inputs, outputs
save_file({"view": kernel.T, "copy": np.ascontiguousarray(kernel.T)}, "weights.safetensors")
read = load_file("weights.safetensors")
print("saved", kernel.T.tolist(), "read", read["view"].tolist(), "from a copy", read["copy"].tolist())
assert read["view"].shape == kernel.T.shape and read["view"].sum() == kernel.sum()
assert np.array_equal(read["copy"], kernel.T)
assert not np.array_equal(read["view"], kernel.T), "safetensors writes transposed arrays as they are now"
END
