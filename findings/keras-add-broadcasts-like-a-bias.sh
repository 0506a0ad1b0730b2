#!/usr/bin/env bash
# On TensorFlow, keras.ops.add adds a column [5, 1] to a matrix [5, 5] as if it were a row.
#
# Expected: NumPy's broadcasting: row i of the sum is row i of the matrix plus element i of the column.
# Seen: If the sizes of y other than 1 are a single one that equals the last size of x, Keras squeezes y to a vector
# and adds it along the last axis (or along axis 1, where NumPy raises an error). `+` and `keras.layers.Add` in a
# functional model do the same, so a model of x [B, 5] and y [B, 1] returns wrong numbers for batches of 5 rows only.
# Versions: keras 3.15.1 on TensorFlow 2.21.0. Keras 3.6.0 and JAX's backend broadcast like NumPy.
# Source: `add` in keras/src/backend/tensorflow/numpy.py, which calls tf.nn.bias_add. Since keras-team/keras#20386.
# Met by: models that add a value per row or per position, such as a score, a relative position or a residual of width
# 1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="tensorflow-cpu==2.21.0 keras==3.15.1"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
"$environment/bin/python" - <<'END'
import keras
import numpy as np

x, y = np.zeros((5, 5), "float32"), np.arange(5, dtype="float32")[:, None]
found = keras.ops.convert_to_numpy(keras.ops.add(x, y))
print("NumPy:", (x + y)[1], " keras.ops.add:", found[1])
a, b = keras.Input((5,)), keras.Input((1,))
model = keras.Model([a, b], a + b)
rows = {size: model([np.zeros((size, 5), "float32"), np.arange(size, dtype="float32")[:, None]]) for size in (4, 5)}
print("second row of a model, batch of 4:", rows[4][1].numpy(), " batch of 5:", rows[5][1].numpy())
assert found[1].tolist() == [0, 1, 2, 3, 4], "keras.ops.add broadcasts otherwise now"
assert rows[4][1].numpy().tolist() == [1] * 5, "batches of 4 differ"
assert rows[5][1].numpy().tolist() == [0, 1, 2, 3, 4], "batches of 5 broadcast like NumPy now"
END
