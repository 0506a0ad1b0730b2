#!/usr/bin/env bash
# Glorot initialization of a weight with three axes is six times too small for attention.
#
# Expected: A weight (512, 8, 64), from d_model to 8 heads of 64, is initialized like the matrix 512 x 512 that it is.
# Seen: An initializer that gets only a shape counts all axes but the last two as positions of a convolution. The
# standard deviation is 0.0074 instead of 0.0442. `EinsumDense` of Keras 3.15 passes the input and output axes and
# gets 0.0442.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0. In keras 3.12.4, `EinsumDense` has 0.0074 as well, and so has
# `keras.layers.MultiHeadAttention`.
# Source: `compute_fans` in keras/src/initializers/random_initializers.py.
# Met by: custom layers that call `add_weight` with an axis for heads. Their first weights are too small, without an
# error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="tensorflow-cpu==2.21.0 keras==3.15.1"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3
"$environment/bin/python" - <<'END'
import keras
import numpy as np

shape = (512, 8, 64)
raw = np.std(keras.initializers.GlorotUniform(seed=1)(shape))
flat = np.std(keras.initializers.GlorotUniform(seed=1)((512, 512)))
einsum = keras.layers.EinsumDense("abc,cde->abde", (None, 8, 64))
einsum.build((None, None, 512))
layer = np.std(einsum.kernel)
print(f"standard deviation: shape {shape} {raw:.4f}, as a matrix {flat:.4f}, in EinsumDense {layer:.4f}")
assert abs(flat / raw - 6) < 0.1, "an initializer treats three axes in another way"
assert abs(layer / flat - 1) < 0.05, "EinsumDense no longer passes its axes"
END
