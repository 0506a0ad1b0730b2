#!/usr/bin/env bash
# load_weights accepts a file of a deeper model: a model of 2 layers takes the first 2 of 4, and neither names nor
# counts are compared.
#
# Expected: An error, since the file holds layers that the model lacks, or since the layers' names differ. Too few
# layers in the file are an error.
# Seen: Weights of layers that the model does not have are dropped in silence. Layers are matched by class and order,
# not by name, so a model that is built with a wrong number of layers loads, and gives other outputs.
# Versions: keras 3.15.1 on TensorFlow 2.21.0.
# Source: `load_weights_only` and `_load_state` in keras/src/saving/saving_lib.py, which walk the model and not the
# file.
# Met by: rebuilding a model in code from a wrong or default configuration and then loading a .weights.h5.
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


def model(*names):
    return keras.Sequential([keras.Input((3,)), *(keras.layers.Dense(3, name=name) for name in names)])


deep, shallow = model("a", "b", "c", "d"), model("d", "c")
deep.save_weights("deep.weights.h5")
shallow.load_weights("deep.weights.h5")
print("layers of the file: a b c d; of the model: d c; loaded without an error")
for ours, theirs in (("d", "a"), ("c", "b")):
    same = np.array_equal(shallow.get_layer(ours).kernel, deep.get_layer(theirs).kernel)
    print(f"layer {ours} has the weights of {theirs}: {same}")
    assert same, "layers are matched otherwise now"
END
