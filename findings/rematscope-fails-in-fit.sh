#!/usr/bin/env bash
# On TensorFlow, layers that were created in `keras.RematScope` fail in `fit`, although they work when called.
#
# Expected: Rematerialization is for training, so `fit` computes these layers again in the backward pass.
# Seen: The call works eagerly. Compiled, it raises that a custom gradient takes no keyword arguments, since Keras
# passes `training` as one.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0. The same in keras-nightly 3.16.0.dev2026102704.
# Source: `remat` in keras/src/backend/tensorflow/core.py and `_graph_mode_decorator` in
# tensorflow/python/ops/custom_gradient.py; keras-team/keras#21207.
# Met by: training that should save memory.
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

x, y = np.ones((2, 3), "float32"), np.ones((2, 1), "float32")
with keras.RematScope(mode="full"):
    model = keras.Sequential([keras.layers.Dropout(0.5, seed=1), keras.layers.Dense(1)])
print("a call in training returns", tuple(model(x, training=True).shape))
model.compile("sgd", "mse")
try:
    model.fit(x, y, verbose=0)
except ValueError as error:
    message = next(line for line in str(error).splitlines() if "custom_gradient" in line)
    print("fit raises ValueError:", message)
else:
    raise SystemExit("fit works now")
END
