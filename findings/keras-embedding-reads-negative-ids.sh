#!/usr/bin/env bash
# `keras.layers.Embedding` returns the row V - 1 for the id -1. TensorFlow's lookup raises.
#
# Expected: An id outside 0 .. V - 1 raises, as V does, and as -1 does in `tf.nn.embedding_lookup` and
# `torch.nn.Embedding`.
# Seen: -1 to -V count from the end of the table, as Python's indices do, so a padding id of -1 is trained as the last
# token. Ids below -V and from V up raise.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0.
# Source: `take` in keras/src/backend/tensorflow/numpy.py, which adds V to negative indices.
# Met by: tables of categories where -1 is a missing value, and ids padded with -1.
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
export CUDA_VISIBLE_DEVICES=
"$environment/bin/python" - <<'END'
import keras
import numpy as np
import tensorflow as tf

layer = keras.layers.Embedding(10, 4)
layer.build()
table = np.asarray(layer.embeddings)


def raises(function, id):
    try:
        function(np.array([[id]]))
    except tf.errors.InvalidArgumentError:
        return True
    return False


seen = {id: raises(layer, id) for id in (-11, -1, 10)}
lookup = raises(lambda ids: tf.nn.embedding_lookup(table, ids), -1)
is_last = np.array_equal(np.asarray(layer(np.array([[-1]])))[0, 0], table[9])
print("ids that raise in Embedding(10, 4):", seen, "; in tf.nn.embedding_lookup -1 raises:", lookup)
print("Embedding of -1 is row 9:", is_last)
assert lookup and seen == {-11: True, -1: False, 10: True}, "other ids raise now"
assert is_last, "-1 is another row now"
END
