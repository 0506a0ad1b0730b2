#!/usr/bin/env bash
# Under a distribution strategy, Keras clips each replica's gradient, and then adds them up.
#
# Expected: Two replicas with half of a batch each make the update that one device makes with the whole batch.
# Seen: `global_clipnorm`, `clipnorm` and `clipvalue` apply to the gradient of each replica. With gradients -4 and +2
# of the halves and a limit of 1, one device makes a step of 1 and two replicas make none.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0. The same in keras-nightly 3.16.0.dev2026102704.
# Source: `BaseOptimizer.apply` in keras/src/optimizers/base_optimizer.py calls `_clip_gradients` before
# `_all_reduce_sum_gradients` of keras/src/backend/tensorflow/optimizer.py.
# Met by: training with clipped gradients on several GPUs.
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

two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)


def trained(strategy):
    """Returns the only weight after one step from 0, whose gradient is -2 times the mean of y, here -1."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(1.0, global_clipnorm=1.0), "mse")
    data = tf.data.Dataset.from_tensor_slices((np.ones((2, 1), "float32"), np.array([[4.0], [-2.0]], "float32")))
    model.fit(data.batch(2), verbose=0, shuffle=False)
    return model.get_weights()[0].item()


one, both = trained(tf.distribute.get_strategy()), trained(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
print(f"the weight after one step: {one} on one device, {both} on two replicas")
assert one == 1.0, "one device clips in another way"
assert both == 0.0, "two replicas clip the sum now" if both == 1.0 else "two replicas clip in another way"
END
