#!/usr/bin/env bash
# `fit` under a distribution strategy averages the first batch over the replicas, so replicas need batches of one
# shape.
#
# Expected: Each replica gets a batch of its own. As `strategy.run` does, `fit` accepts batches of different lengths
# on different replicas.
# Seen: To build the model, `fit` reduces the inputs of the first batch with MEAN, token ids included, and adding
# tensors of different shapes fails. With MultiWorkerMirroredStrategy, the same line fails for any batch.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0. The same in keras-nightly 3.16.0.dev2026102704.
# Source: `TensorFlowTrainer._maybe_symbolic_build` in keras/src/backend/tensorflow/trainer.py.
# Met by: training on several devices with batches by number of tokens.
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
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    layers = [keras.layers.Embedding(10, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")


def batches(_):
    def generate():
        for length in (3, 5) * 4:
            yield np.ones((2, length), "int32"), np.ones((2, 1), "float32")

    return tf.data.Dataset.from_generator(
        generate, output_signature=(tf.TensorSpec((2, None), tf.int32), tf.TensorSpec((2, 1)))
    )


data = strategy.distribute_datasets_from_function(batches)
step = tf.function(lambda batch: strategy.run(lambda x, y: tf.reduce_mean(model(x) - y), args=batch))
values = strategy.experimental_local_results(step(next(iter(data))))
print("strategy.run returns", len(values), "values for batches of lengths 3 and 5")
try:
    model.fit(data, steps_per_epoch=1, verbose=0, shuffle=False)
except tf.errors.InvalidArgumentError as error:
    message = str(error).splitlines()[0][-120:]
    print("fit raises", type(error).__name__, "...", message)
    assert "[2,3] != input 1: [2,5]" in message, "fit fails for another reason"
else:
    raise SystemExit("fit accepts batches of different lengths now")
END
