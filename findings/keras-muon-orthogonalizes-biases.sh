#!/usr/bin/env bash
# Keras's Muon makes AdamW's updates of the kernels of `MultiHeadAttention`, and Muon's updates of its biases.
#
# Expected: Muon orthogonalizes the updates of matrices in hidden layers. Queries, keys, values and outputs of attention
# are products with matrices, as those of `Dense`. Biases are for AdamW.
# Seen: Muon is for variables of two axes. A kernel of attention has three axes, (d, h, k), and its bias has two, (h, k).
# So all four kernels have AdamW's update, whose first is the rate times the sign of the gradient, and the biases of
# queries, keys and values are orthogonalized over the heads.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0.
# Source: `_should_use_adamw` in keras/src/optimizers/muon.py, since keras-team/keras#21885.
# Met by: Transformers from stock layers. `exclude_layers` can exclude the biases, but no argument includes the kernels.
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

RATE = 0.5
x = keras.Input((4, 16))
attended = keras.layers.MultiHeadAttention(2, 8, name="attention")(x, x)
model = keras.Model(x, keras.layers.Dense(16, name="dense")(attended))
variables = model.trainable_variables
before = [keras.ops.convert_to_numpy(variable.value) for variable in variables]
generator = np.random.default_rng(0)
signs = [generator.choice([-1.0, 1.0], variable.shape) for variable in variables]
gradients = [(sign * generator.uniform(0.5, 1.5, sign.shape)).astype("float32") for sign in signs]
keras.optimizers.Muon(RATE, weight_decay=0.0, adam_weight_decay=0.0).apply(gradients, variables)

kinds = {}
for variable, old, sign in zip(variables, before, signs):
    update = keras.ops.convert_to_numpy(variable.value) - old
    # The first update of Adam is the rate for each element, with the sign of the gradient.
    by_adam = np.allclose(update, -RATE * sign, rtol=1e-3)
    kinds[variable.path] = "AdamW" if by_adam else "Muon"
    print(f"{variable.path} {tuple(variable.shape)}: {kinds[variable.path]}")
assert kinds["dense/kernel"] == "Muon" and kinds["dense/bias"] == "AdamW", "Dense differs"
parts = ("query", "key", "value")
assert all(kinds[f"attention/{part}/kernel"] == "AdamW" for part in (*parts, "attention_output")), "kernels have Muon"
assert all(kinds[f"attention/{part}/bias"] == "Muon" for part in parts), "biases have AdamW"
END
