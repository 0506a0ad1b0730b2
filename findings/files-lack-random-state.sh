#!/usr/bin/env bash
# A Keras file has no random state, and a loaded model draws the dropout masks of its first steps again.
#
# Expected: A `.keras` file or `save_weights` has all variables, so a resumed training equals one without a break.
# Seen: The state of seed generators is a variable of the model, but not a weight, so it is in no file. `load_model`
# starts at the seed again, and `load_weights` leaves the state as it is.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0.
# Source: `Layer.save_own_variables` in keras/src/layers/layer.py stores weights; keras/src/random/seed_generator.py
# has no such method.
# Met by: training with checkpoints: after each restart, the same masks come again.
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

x = np.ones((1, 32), "float32")
model = keras.Sequential([keras.Input((32,)), keras.layers.Dropout(0.5, seed=3)])


def mask(model):
    return (keras.ops.convert_to_numpy(model(x, training=True))[0] > 0).astype(int)


first = mask(model)
model.save("saved.keras")
second = mask(model)
loaded = mask(keras.saving.load_model("saved.keras"))
for name, one in (("first", first), ("second", second), ("after a load", loaded)):
    print(f"{name:>12}: {''.join(map(str, one))}")
assert (first != second).any(), "masks repeat in one model"
assert (loaded == first).all(), "a loaded model continues with the next mask now"
END
