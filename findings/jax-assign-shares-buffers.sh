#!/usr/bin/env bash
# On JAX, a Keras variable that was assigned from another one loses its value when that one trains.
#
# Expected: `variable.assign(other)` copies the value, as on TensorFlow and PyTorch.
# Seen: Both variables hold the same JAX array. The compiled step donates the buffers of the model that trains, and
# the other model's array is deleted: RuntimeError at its next use. `set_weights(get_weights())` copies through NumPy.
# Versions: keras 3.15.1, jax 0.10.2.
# Source: `Variable.assign` and `_direct_assign` in keras/src/backend/common/variables.py; `donate_argnums` in
# keras/src/backend/jax/trainer.py.
# Met by: averages, teachers and other copies of a model that trains.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="keras==3.15.1 jax==0.10.2"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
KERAS_BACKEND=jax "$environment/bin/python" - <<'END'
import keras
import numpy as np

x, y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")


def copied(assign):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    copy = keras.models.clone_model(model)
    if assign:
        for mine, other in zip(copy.variables, model.variables):
            mine.assign(other)
    else:
        copy.set_weights(model.get_weights())
    model.compile("sgd", "mse")
    model.fit(x, y, verbose=0)
    try:
        return copy.predict(x, verbose=0).shape
    except RuntimeError as error:
        return f"RuntimeError: {error}"


by_numpy, by_assign = copied(False), copied(True)
print(f"after the model has trained, its copy predicts {by_numpy} if set by set_weights; by assign: {by_assign}")
assert by_numpy == (4, 1), "set_weights also shares buffers"
assert "deleted" in str(by_assign), "assign copies now"
END
