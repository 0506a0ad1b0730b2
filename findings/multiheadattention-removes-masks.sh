#!/usr/bin/env bash
# `keras.layers.MultiHeadAttention` removes the mask from the tensors of its caller.
#
# Expected: A layer reads the mask of its inputs. The next layer that gets the same tensors also sees it.
# Seen: The layer sets the Keras mask of query, value and key to None, so a second attention over the same memory, as
# in a decoder of two layers, attends to padding.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0.
# Source: `MultiHeadAttention.call` in keras/src/layers/attention/multi_head_attention.py.
# Met by: Transformers of stock layers with `Embedding(mask_zero=True)`, among them tutorials.
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

inside = keras.layers.Embedding(10, 8, mask_zero=True)
ids = np.array([[3, 4, 5, 0, 0, 0]])
query = keras.random.normal((1, 2, 8), seed=1)


def weight_on_padding(memory):
    layer = keras.layers.MultiHeadAttention(num_heads=2, key_dim=4)
    scores = keras.ops.convert_to_numpy(layer(query, memory, return_attention_scores=True)[1])
    return scores[..., 3:].sum(-1).max()


memory = inside(ids)
first, second = weight_on_padding(memory), weight_on_padding(memory)
print(f"largest attention weight on padding: {first:.3f} in the first layer, {second:.3f} in the second")
assert first == 0, "the first layer ignores the mask"
assert second > 0.1, "the mask stays on the memory now"
END
