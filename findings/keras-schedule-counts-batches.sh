#!/usr/bin/env bash
# With gradient_accumulation_steps, Keras moves a schedule of the learning rate at every batch, not at every update.
#
# Expected: A schedule counts updates, as the optimizer's `iterations` does: a warmup of 4,000 steps takes 4,000 updates
# with or without accumulation.
# Seen: With 4 batches per update, the third update has the rate of step 11, while `iterations` is 3. Warmup and decay
# are four times as fast.
# Versions: keras 3.15.1 on TensorFlow 2.21.0.
# Source: `_get_current_learning_rate` in keras/src/optimizers/base_optimizer.py passes `_iterations`, which counts
# batches. The property `iterations` divides it by the steps.
# Met by: training with a warmup on a GPU that is too small for the batch.
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


class Step(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return tf.cast(step, tf.float32)


rates = {}
for steps in (None, 4):
    weight = keras.Variable([0.0])
    optimizer = keras.optimizers.SGD(Step(), gradient_accumulation_steps=steps)
    optimizer.build([weight])
    rates[steps] = []
    for _ in range(3):
        before = weight.numpy().item()
        for _ in range(steps or 1):
            optimizer.apply([tf.constant([1.0])], [weight])
        rates[steps].append(before - weight.numpy().item())
    print(f"accumulation {steps}: rates of 3 updates {rates[steps]}, iterations {int(optimizer.iterations)}")
    assert int(optimizer.iterations) == 3, "iterations counts something else now"
assert rates[None] == [0, 1, 2], "the schedule counts something else now"
assert rates[4] == [3, 7, 11], "the schedule counts updates now"
END
