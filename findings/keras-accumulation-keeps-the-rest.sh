#!/usr/bin/env bash
# With gradient accumulation, the last batches of a `fit` train nothing, and the next `fit` adds their gradients to its
# first update.
#
# Expected: `fit` has used all its batches when it ends. A group that is not full is applied, or dropped.
# Seen: With 10 batches and groups of 4, the gradients of the last two batches stay in the optimizer. They are added to
# those of the first two batches of the next `fit`, of whatever data, also after weights were restored. A `fit` of 3
# batches changes nothing. Files of the optimizer contain the rest.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0.
# Source: `_backend_apply_gradients` in keras/src/optimizers/base_optimizer.py.
# Met by: fine-tuning in several calls of `fit`, the best weights of `EarlyStopping` trained further, and small data
# with large groups.
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
import tensorflow as tf

tf.get_logger().setLevel("ERROR")
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
# The loss is the output, so that the gradient of a batch is its input.
model.compile(keras.optimizers.SGD(1.0, gradient_accumulation_steps=4), loss=lambda y, p: p)


def fit(*values):
    """Returns the change of the weight."""
    data = np.array(values, "float32")[:, None]
    before = float(model.get_weights()[0][0, 0])
    model.fit(data, data, batch_size=1, verbose=0, shuffle=False)
    return float(model.get_weights()[0][0, 0]) - before


tried = fit(1.0, 1.0, 1.0)
print("fit of 3 batches with gradient 1:", tried)
rest = fit(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
print("fit of 7 batches, so 10 in all:", rest)
model.set_weights([np.zeros((1, 1))])
after = fit(100.0, 100.0)
print("weights restored, and fit of 2 batches with gradient 100:", after, "which is -(1 + 1 + 100 + 100) / 4")
assert tried == 0.0 and rest == -2.0, "the rest is applied"
assert after == -50.5, "the rest is not added to other data"
END
