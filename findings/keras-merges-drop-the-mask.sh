#!/usr/bin/env bash
# A sum or a concatenation of a masked and an unmasked tensor has no padding in Keras, and nothing warns.
#
# Expected: Padding of the tokens' embeddings is padding of their sum with embeddings without a mask, such as those of
# segments. Layers that remove a mask warn.
# Seen: `Add` has no mask, and `Concatenate` over features one of ones. So a mean over tokens changes with the number of
# padding tokens, and no warning appears. With a mask in both inputs, it does not change.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0.
# Source: `Merge.compute_mask` in keras/src/layers/merging/base_merge.py, which returns None if any mask is None, and
# `Concatenate.compute_mask` in concatenate.py, which takes ones for a missing mask, and then any of the two.
# Met by: encoders in the style of BERT, with one table for tokens and others for segments or positions.
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
import warnings

import keras
import numpy as np

warnings.simplefilter("error")
ids = np.array([[3, 4, 5]])
longer = np.pad(ids, ((0, 0), (0, 5)))
tokens, pool = keras.layers.Embedding(9, 4, mask_zero=True), keras.layers.GlobalAveragePooling1D()
changes = {}
for merge in (keras.layers.Add(), keras.layers.Concatenate()):
    for masked in (True, False):
        others = keras.layers.Embedding(9, 4, mask_zero=masked)
        alone, padded = (pool(merge([tokens(rows), others(rows)])) for rows in (ids, longer))
        changes[type(merge).__name__, masked] = float(np.abs(np.subtract(alone, padded)).max())
print("change by five tokens of padding, by layer and whether both inputs have a mask:", changes)
for (name, masked), change in changes.items():
    assert change < 1e-6 if masked else change > 1e-3, f"{name} treats masks in another way now"
END
