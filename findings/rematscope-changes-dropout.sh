#!/usr/bin/env bash
# On TensorFlow, a layer in `keras.RematScope` has the gradient of another dropout mask, or of none.
#
# Expected: The backward pass computes the layer again with the same random numbers, so gradients are those of the
# forward pass.
# Seen: A dropout layer itself draws a new mask for the gradient. A dropout inside another layer is recomputed as in
# inference, so the gradient is that without dropout. There is no warning.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0. The same in keras-nightly 3.16.0.dev2026102704.
# Source: `remat` in keras/src/backend/tensorflow/core.py (`tf.recompute_grad`) with `Dropout.call` in
# keras/src/layers/regularization/dropout.py.
# Met by: custom training loops with rematerialization and dropout: the loss falls more slowly.
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


class Block(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5, seed=1)

    def call(self, x):
        return self.dropout(x)


def both_passes(make):
    x = tf.ones(64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = make()(x, training=True)
    return y.numpy(), tape.gradient(y, x).numpy()


def rematerialized(kind):
    def make():
        with keras.RematScope(mode="full"):
            return kind()

    return make


def share(kind):
    y, gradient = both_passes(kind)
    return np.mean(y == gradient)  # The derivative of dropout is its mask, 0 or 2.


def dropout():
    return keras.layers.Dropout(0.5, seed=1)


plain, single, inside = share(dropout), share(rematerialized(dropout)), share(rematerialized(Block))
print(f"positions with the gradient of their mask: {plain:.0%} as usual; in a scope {single:.0%}, inside {inside:.0%}")
assert plain == 1, "dropout has another derivative"
assert single < 0.9 and inside < 0.1, "rematerialization keeps the mask now"
END
