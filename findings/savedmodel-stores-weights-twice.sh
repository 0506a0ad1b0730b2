#!/usr/bin/env bash
# A SavedModel of a `tf.Module` that holds a Keras model and its variables has each weight twice.
#
# Expected: A checkpoint stores each variable once, whatever the number of its names.
# Seen: Keras's variable is found by `model`, and its `tf.Variable` by the list. They are two objects in the
# checkpoint with a tensor each, so the file is twice as large.
# Versions: tensorflow-cpu 2.21.0, keras 3.15.1.
# Source: `Variable` in keras/src/backend/tensorflow/core.py, a trackable that holds the `tf.Variable`.
# Met by: exports with custom signatures around a Keras model.
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


class Export(tf.Module):
    def __init__(self, hold_model):
        super().__init__()
        model = keras.Sequential([keras.Input((100,)), keras.layers.Dense(100, use_bias=False)])
        self.weights = [weight.value for weight in model.weights]  # what the function reads
        if hold_model:
            self.model = model
        self.function = tf.function(lambda x: model(x), input_signature=[tf.TensorSpec([None, 100])], autograph=False)


def stored(hold_model, path):
    module = Export(hold_model)
    tf.saved_model.save(module, path)
    return [np.prod(shape) for _, shape in tf.train.list_variables(f"{path}/variables/variables") if shape]


without, held = stored(False, "without"), stored(True, "held")
print(f"numbers in the checkpoint for 10,000 weights: {sum(without):,} without the model, {sum(held):,} with it")
assert sum(without) == 10_000, "the variables of the list are stored in another way"
assert sum(held) == 20_000, "each weight is stored once now"
END
