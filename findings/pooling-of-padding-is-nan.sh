#!/usr/bin/env bash
# `keras.layers.GlobalAveragePooling1D` returns NaN for a row of padding, and one such row spoils the weights.
#
# Expected: A row without real tokens has a finite result, such as 0, or is left out by its mask.
# Seen: The mean divides by the number of real tokens, 0. The NaN enters loss and gradients, and after one step all
# weights are NaN.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0.
# Source: `GlobalAveragePooling1D.call` in keras/src/layers/pooling/global_average_pooling1d.py.
# Met by: classifiers of texts, for an empty text, or one of which a vocabulary has no word.
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

ids, labels = np.array([[1, 2, 3], [0, 0, 0]]), np.array([[1.0], [0.0]])
embedding = keras.layers.Embedding(10, 4, mask_zero=True)
model = keras.Sequential([embedding, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
before = np.isnan(keras.ops.convert_to_numpy(model(ids)))[:, 0]
model.compile("sgd", "mse")
model.fit(ids, labels, verbose=0)
weights = np.concatenate([weight.ravel() for weight in model.get_weights()])
print("outputs that are NaN:", before, "; weights that are NaN after one step:", f"{np.isnan(weights).mean():.0%}")
assert before.tolist() == [False, True], "a row of padding has a number now"
assert np.isnan(model.get_weights()[1]).all(), "the step leaves the weights finite now"
END
