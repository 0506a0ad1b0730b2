#!/usr/bin/env bash
# Keras trains the layers of an attention that was made with trainable=False.
#
# Expected: `MultiHeadAttention(trainable=False)` is frozen in a model, as `Dense(trainable=False)` is.
# Seen: A layer that is made frozen marks its own weights. The layers that its `build` makes, such as query and key, are
# trainable, and a model around asks each of them. `layer.trainable_weights` is empty, while `fit` trains all of them.
# `layer.trainable = False` after the first call does nothing, since it is False already. True, then False freezes them.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0.
# Source: `Layer.trainable`, `_track_variable` and `trainable_variables` in keras/src/layers/layer.py, and
# `AutoTrackable.__setattr__` in tensorflow/python/trackable/autotrackable.py.
# Met by: fine-tuning with frozen layers, in a layer or model that makes layers in `build`.
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

x = keras.Input((4, 8))
attention = keras.layers.MultiHeadAttention(2, 4, trainable=False)
dense = keras.layers.Dense(8, trainable=False)
model = keras.Model(x, keras.layers.Dense(1)(dense(attention(x, x))))
before = [np.array(weight) for weight in attention.weights]
model.compile("sgd", "mse")
rows = np.random.default_rng(0).normal(size=(32, 4, 8))
model.fit(rows, np.ones((32, 4, 1)), verbose=0)
changed = sum(bool(np.any(np.array(now) != was)) for now, was in zip(attention.weights, before))
print("trainable weights by the layer:", len(attention.trainable_weights))
print("by the model:", [weight.path for weight in model.trainable_weights])
print("changed by fit:", changed, "of", len(before))
assert not attention.trainable_weights and not dense.trainable_weights
assert len(model.trainable_weights) == 10 and changed >= 7, "a frozen attention is frozen now"
attention.trainable = False
print("by the model after attention.trainable = False:", len(model.trainable_weights))
assert len(model.trainable_weights) == 10, "setting it again freezes them now"
attention.trainable = True
attention.trainable = False
assert len(model.trainable_weights) == 2, "setting it again freezes other layers"
END
