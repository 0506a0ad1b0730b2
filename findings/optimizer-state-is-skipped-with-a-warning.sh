#!/usr/bin/env bash
# `load_weights` of a Keras model leaves the optimizer as it is if its number of variables differs, and only warns.
#
# Expected: A file that does not fit raises an error, as it does for the weights of layers.
# Seen: The weights load, the optimizer keeps its own step and moments, and the method returns. So a resumed training
# starts its schedule again.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0.
# Source: `BaseOptimizer.load_own_variables` in keras/src/optimizers/base_optimizer.py.
# Met by: training that resumes with another optimizer or option, such as `use_ema` or a momentum.
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
import warnings

import keras
import numpy as np

x, y = np.ones((2, 2), "float32"), np.ones((2, 1), "float32")


def trained(optimizer, epochs):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    model.fit(x, y, epochs=epochs, verbose=0)
    return model


trained(keras.optimizers.Adam(), 7).save_weights("saved.weights.h5")
model = trained(keras.optimizers.Adam(amsgrad=True), 1)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model.load_weights("saved.weights.h5")
steps = int(model.optimizer.iterations)
print(f"{len(caught)} warning: {str(caught[0].message)[:70]}...; the optimizer's step is {steps}, in the file 7")
assert len(caught) == 1 and steps == 1, "another optimizer's state is loaded or refused now"
END
