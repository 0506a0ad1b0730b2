#!/usr/bin/env bash
# `fit` with a `PyDataset` infers one shape from two batches, and a longer batch raises later.
#
# Expected: A `PyDataset` returns NumPy arrays, so each batch may have its own length, as on JAX and PyTorch.
# Seen: On TensorFlow, Keras reads two batches and makes an axis variable only if they differ in it. With two batches
# of one length first, the first batch of another length ends the training.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0. The same in keras-nightly 3.16.0.dev2026102704.
# Source: `PyDatasetAdapter.get_tf_dataset` in keras/src/trainers/data_adapters/py_dataset_adapter.py and
# `NUM_BATCHES_FOR_TENSOR_SPEC` in data_adapter_utils.py.
# Met by: training on batches of sentences of similar length, hours after the start if such batches are rare.
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


class Batches(keras.utils.PyDataset):
    def __init__(self, lengths):
        super().__init__()
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return np.ones((2, self.lengths[index]), "int32"), np.ones((2, 1), "float32")


def fits(lengths):
    layers = [keras.layers.Embedding(10, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    try:
        model.fit(Batches(lengths), verbose=0, shuffle=False)
    except tf.errors.InvalidArgumentError as error:
        assert "expected" in str(error), error
        return False
    return True


different, equal = fits([3, 5, 7, 5]), fits([3, 3, 3, 5])
print(f"fit trains on lengths 3, 5, 7, 5: {different}; on lengths 3, 3, 3, 5: {equal}")
assert different, "batches of different lengths fail from the start"
assert not equal, "a length that comes after two equal ones is accepted now"
END
