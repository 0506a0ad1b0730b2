#!/usr/bin/env bash
# Under MirroredStrategy, a last batch that leaves one of two replicas without rows trains with half of its gradient,
# while the loss shows nothing.
#
# Expected: The update of a batch does not depend on the number of replicas: the gradient is a mean over all of its
# rows.
# Seen: Keras divides each replica's mean by the number of replicas, so a replica without rows halves the gradient of
# the others. Rows of uneven shares, such as 3 and 2, weigh differently for the same reason. The reported loss is
# right.
# Versions: keras 3.15.1 on TensorFlow 2.21.0, two logical CPUs.
# Source: `scale_loss_for_distribution` in keras/src/losses/loss.py.
# Met by: multi-GPU training on data whose size is not a multiple of the batch.
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
import contextlib

import keras
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
x, y = np.arange(1, 6, dtype="float32")[:, None], np.zeros((5, 1), "float32")
weights = {}
for name, strategy in {"one": None, "two": tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])}.items():
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.001), "mse")
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)  # 4 rows, then 1
    loss = model.fit(batches, verbose=0).history["loss"][0]
    weights[name] = float(model.layers[0].kernel.numpy().item())
    print(f"{name} device(s): loss {loss:.5f}, weight {weights[name]:.5f}")
first = 1 - 0.001 * 2 * 7.5
assert abs(weights["one"] - first * (1 - 0.001 * 2 * 25)) < 1e-5, "one device trains otherwise now"
assert abs(weights["two"] - first * (1 - 0.001 * 25)) < 1e-5, "two replicas weigh the last batch otherwise now"
END
