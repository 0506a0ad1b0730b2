#!/usr/bin/env bash
# On TensorFlow, clipnorm, global_clipnorm and clipvalue measure each row of a sparse gradient by itself, so an id
# that occurs often is not clipped.
#
# Expected: An Embedding's gradient is clipped like the dense matrix that it stands for: with clipnorm=1 and a rate of
# 1, the table moves by a vector of norm 1.
# Seen: Rows of the same id are squared and clipped before they are summed. An id that occurs 100 times moves the
# table by a vector of norm 10.
# Versions: keras 3.15.1 on TensorFlow 2.21.0. tf_keras summed rows of equal ids first. Other backends have dense
# gradients.
# Source: `_clip_gradients` and `global_norm` in keras/src/optimizers/base_optimizer.py, whose `ops.square` maps over
# the values of tf.IndexedSlices (`elementwise_unary` in keras/src/backend/tensorflow/sparse.py).
# Met by: models with an Embedding on sequences, where padding and frequent words repeat in every batch.
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
import tensorflow as tf

moved = {}
for count in (1, 4, 100):
    for dense in (False, True):
        table = keras.Variable(np.zeros((3, 1), "float32"))
        optimizer = keras.optimizers.SGD(1.0, global_clipnorm=1.0)
        optimizer.build([table])
        gradient = tf.IndexedSlices(tf.fill([count, 1], 7.0), tf.fill([count], 1), tf.constant([3, 1]))
        optimizer.apply([tf.convert_to_tensor(gradient) if dense else gradient], [table])
        moved[count, dense] = float(np.linalg.norm(table.numpy()))
    print(f"id {count} times, norm of the step: sparse {moved[count, False]:.2f}, dense {moved[count, True]:.2f}")
assert abs(moved[100, True] - 1) < 1e-3, "the dense step is not clipped"
assert abs(moved[100, False] - 10) < 1e-2, "sparse gradients are clipped otherwise now"
END
