#!/usr/bin/env bash
# A functional Keras model that uses another layer's weight stores the weight's value as a constant.
#
# Expected: `ops.matmul(x, ops.transpose(embedding.embeddings))` ties the output to the embedding table, as in a
# subclassed model.
# Seen: The transposed table is computed when the model is built, and stays in it as a constant. The table trains, and
# the outputs use the initial values. There is no warning.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0.
# Source: `any_symbolic_tensors` in keras/src/backend/common/keras_tensor.py: `ops.transpose` of a variable has no
# symbolic argument, so it is computed at once.
# Met by: language models with tied embeddings.
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
from keras import ops

embedding = keras.layers.Embedding(5, 4)
ids = keras.Input((None,), dtype="int32")
model = keras.Model(ids, ops.matmul(embedding(ids), ops.transpose(embedding.embeddings)))
row = np.array([[1, 2]])
before = ops.convert_to_numpy(model(row))
embedding.embeddings.assign(3 * embedding.embeddings)
after = ops.convert_to_numpy(model(row))
factor = float(np.median(after / before))
print(f"with a table three times as large, the products of its rows are {factor:.2f} times as large")
assert abs(factor - 3) < 1e-3, "the output follows the table now" if abs(factor - 9) < 1e-3 else "another factor"
END
