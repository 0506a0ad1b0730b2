#!/usr/bin/env bash
# SparseCategoricalCrossentropy on probabilities [0.2, 0.2, 0.2] is -log(1/3), not -log(0.2).
#
# Expected: from_logits=False means -log p[label]: 1.609.
# Seen: 1.099. Keras divides the probabilities by their sum first. A model whose probabilities sum to less than 1 (a
# mixture, a vocabulary that is cut, a probability for "none of them") is not penalized for what it leaves out, and
# has another gradient.
# Versions: keras 3.15.1 on TensorFlow 2.21.0. JAX's backend does the same.
# Source: `sparse_categorical_crossentropy` in keras/src/backend/tensorflow/nn.py passes log p as logits to
# TensorFlow's softmax loss.
# Met by: mixtures of softmaxes, copy and pointer mechanisms, sampled or masked vocabularies.
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

loss = keras.losses.SparseCategoricalCrossentropy(from_logits=False)
found = float(loss(np.array([0]), np.array([[0.2, 0.2, 0.2]], "float32")))
print(f"-log(0.2) = {-np.log(0.2):.4f}, -log(1/3) = {-np.log(1 / 3):.4f}, Keras: {found:.4f}")
assert abs(found + np.log(1 / 3)) < 1e-4, "probabilities are not divided by their sum any more"
END
