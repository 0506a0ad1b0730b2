#!/usr/bin/env bash
# Under a distribution strategy, all replicas of a Keras model drop the same positions.
#
# Expected: Replicas draw separate dropout masks, as the rows of one batch do.
# Seen: The state of a seed generator is one value that each replica reads, so N replicas of a batch of B rows have B
# different masks instead of N * B.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0. The same in keras-nightly 3.16.0.dev2026102704.
# Source: `SeedGenerator.__init__` and `next` in keras/src/random/seed_generator.py.
# Met by: training with dropout on several GPUs: regularization is weaker than on one device with the same batch.
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
import tensorflow as tf

two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    dropout = keras.layers.Dropout(0.5, seed=1)
step = tf.function(lambda: strategy.run(lambda: dropout(tf.ones([32]), training=True)))
for number in (1, 2):
    first, second = (mask.numpy() for mask in strategy.experimental_local_results(step()))
    print(f"step {number}: kept {(first > 0).astype(int)} and {(second > 0).astype(int)}")
    assert (first == second).all(), "replicas draw separate masks now"
END
