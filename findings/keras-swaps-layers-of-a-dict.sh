#!/usr/bin/env bash
# load_weights swaps the weights of equal layers in a dict if the dict was filled in another order.
#
# Expected: Keys of a dict are part of the weights' paths, so `heads["de"]` receives the weights that were saved for
# "de".
# Seen: A file of weights numbers the layers of a container by class, in order of insertion (`heads/dense`,
# `heads/dense_1`). If shapes agree, load_weights gives the weights of "de" to "fr" without an error.
# Versions: keras 3.15.1 on TensorFlow 2.21.0.
# Source: `_save_container_state` and `_load_container_state` in keras/src/saving/saving_lib.py, which take
# `list(container.values())`.
# Met by: models with a head, an adapter or an embedding per language or task, built from a set, a sorted or a
# reordered configuration.
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
import numpy as np


class Heads(keras.Model):
    def __init__(self, names):
        super().__init__()
        self.heads = {name: keras.layers.Dense(2) for name in names}

    def call(self, x):
        return {name: head(x) for name, head in self.heads.items()}


x = np.ones((1, 3), "float32")
saved, loaded = Heads(["de", "fr"]), Heads(["fr", "de"])
expected = saved(x)
saved.save_weights("model.weights.h5")
loaded(x)
loaded.load_weights("model.weights.h5")
found = loaded(x)
for name in ("de", "fr"):
    print(name, "saved:", expected[name].numpy()[0], "loaded:", found[name].numpy()[0])
assert np.array_equal(found["de"], expected["fr"]), "layers of a dict are loaded by key now"
END
