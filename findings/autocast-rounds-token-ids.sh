#!/usr/bin/env bash
# Under a 16-bit policy, a Keras model rounds token ids that arrive as floats.
#
# Expected: Ids are whole numbers, and float32 represents them exactly up to 2^24. A layer for ids leaves them as they
# are.
# Seen: Keras casts each float argument of a layer or model to the compute dtype. In bfloat16, id 4001 becomes 4000,
# and the model embeds another word without an error.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0.
# Source: `Layer.__call__` in keras/src/layers/layer.py and `DTypePolicy.convert_input` in
# keras/src/dtype_policies/dtype_policy.py.
# Met by: mixed precision with ids from pandas, JSON or `keras.Input` without a dtype, which are floats.
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
from keras import ops


class Model(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.embedding = keras.layers.Embedding(5000, 1, embeddings_initializer="zeros", dtype="float32")

    def call(self, ids):
        return self.embedding(ids)


def embedded(ids, policy):
    model = Model(dtype=policy)
    model(ids)
    model.embedding.embeddings.assign(ops.reshape(ops.arange(5000, dtype="float32"), (5000, 1)))  # its own number
    return int(ops.convert_to_numpy(model(ids))[0, 0, 0])


floats, integers = np.array([[4001.0]], "float32"), np.array([[4001]], "int32")
got = {
    (ids.dtype.name, policy): embedded(ids, policy)
    for ids in (floats, integers)
    for policy in ("float32", "mixed_bfloat16")
}
print("row of the table that id 4001 reads:", got)
assert got.pop(("float32", "mixed_bfloat16")) == 4000, "float ids are no longer rounded"
assert set(got.values()) == {4001}, "other ids are rounded"
END
