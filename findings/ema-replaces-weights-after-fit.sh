#!/usr/bin/env bash
# With `use_ema=True`, a second `fit` of a Keras model starts from the averages, not from the trained weights.
#
# Expected: An optimizer keeps averages in addition to the weights. Calling `fit` twice for one epoch is like calling
# it once for two.
# Seen: At the end of each `fit`, the averages overwrite the weights, and the weights are lost.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0.
# Source: `BaseOptimizer.finalize_variable_values` in keras/src/optimizers/base_optimizer.py, called at the end of
# `fit` in keras/src/backend/tensorflow/trainer.py.
# Met by: training in parts, such as one `fit` per checkpoint or per evaluation.
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

x = np.ones((4, 1), "float32")


def trained(*epochs):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9), "mse")
    weights = []
    log = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: weights.append(model.get_weights()[0].item())
    )
    for each in epochs:
        model.fit(x, 3 * x, epochs=each, verbose=0, callbacks=[log])
    return weights


once, twice = trained(4), trained(2, 2)
print("the weight after each step, in one fit:", np.round(once, 3), "in two:", np.round(twice, 3))
assert once[:2] == twice[:2], "the first steps differ"
assert twice[2] < 0.9 * once[2], "the second fit starts from the trained weights now"
END
