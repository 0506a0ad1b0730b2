#!/usr/bin/env bash
# With gradient_accumulation_steps, an optimizer's moving average of weights moves at every batch, not at every
# update.
#
# Expected: The average has one term per update: ema_momentum=0.9 covers about 10 updates with or without
# accumulation.
# Seen: It moves after each batch, although the weights did not change. With 4 batches per update, momentum 0.9 acts
# like 0.9 ** 4 = 0.656 per update, so the average covers about 3 updates. Weight decay does count updates.
# Versions: keras 3.15.1 on TensorFlow 2.21.0.
# Source: `_backend_apply_gradients` in keras/src/optimizers/base_optimizer.py calls
# `_update_model_variables_moving_average` outside the branch of an update.
# Met by: training with use_ema or SwapEMAWeights on a GPU that is too small for the batch.
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
import tensorflow as tf

averages = {}
for steps in (None, 4):
    weight = keras.Variable([1.0])
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9, gradient_accumulation_steps=steps)
    optimizer.build([weight])
    for _ in range(5 * (steps or 1)):
        optimizer.apply([tf.constant([1.0])], [weight])
    averages[steps] = optimizer._model_variables_moving_average[0].numpy().item()
    print(f"accumulation {steps}: weight {weight.numpy().item():.4f} after 5 updates, average {averages[steps]:.4f}")
expected = 1.0
for update in range(1, 6):
    expected = 0.9**4 * expected + (1 - 0.9**4) * (1 - 0.1 * update)
print(f"momentum 0.9 ** 4 per update would give about {expected:.4f}")
assert abs(averages[4] - averages[None]) > 0.02, "the average moves once per update now"
END
