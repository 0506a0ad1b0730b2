#!/usr/bin/env bash
# `keras.layers.TimeDistributed` passes no mask to the layer after it.
#
# Expected: A wrapper with `supports_masking` passes on the masks that the layer inside computes.
# Seen: `TimeDistributed(Embedding(mask_zero=True))` returns vectors without a mask, and the next layer computes with
# padding. The same embedding without the wrapper sets the mask.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0.
# Source: `TimeDistributed` in keras/src/layers/rnn/time_distributed.py has no `compute_mask` of its own.
# Met by: models of documents as lists of sentences.
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


class Shown(keras.layers.Layer):
    """Notes whether its input has a mask."""

    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def call(self, x, mask=None):
        self.has_mask = mask is not None
        return x


ids = np.array([[[1, 2, 0], [3, 0, 0]]])


def has_mask(layer):
    shown = Shown()
    shown(layer(ids))
    return shown.has_mask


plain = has_mask(keras.layers.Embedding(5, 3, mask_zero=True))
wrapped = has_mask(keras.layers.TimeDistributed(keras.layers.Embedding(5, 3, mask_zero=True)))
print(f"the next layer gets a mask: {plain} after Embedding, {wrapped} after TimeDistributed(Embedding)")
assert plain, "an embedding sets no mask"
assert not wrapped, "TimeDistributed passes masks on now"
END
