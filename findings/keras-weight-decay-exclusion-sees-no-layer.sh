#!/usr/bin/env bash
# exclude_from_weight_decay(var_names=["layer_normalization"]) excludes nothing.
#
# Expected: The names are patterns for a variable's path, such as `encoder/layer_normalization/gamma`, as in Keras 2,
# where a variable's name held the layer's.
# Seen: Patterns are searched in `variable.name`, which is only `gamma`, `beta`, `kernel` or `bias`. A pattern of a
# layer's name matches nothing, without an error or a warning.
# Versions: keras 3.15.1 on TensorFlow 2.21.0.
# Source: `_use_weight_decay` in keras/src/optimizers/base_optimizer.py.
# Met by: recipes for BERT and other Transformers that exclude LayerNorm from AdamW's weight decay by name.
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

model = keras.Sequential([keras.Input((4,)), keras.layers.LayerNormalization(), keras.layers.Dense(3)])
decayed = {}
for pattern in ("layer_normalization", "gamma|beta"):
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=[pattern])
    optimizer.build(model.trainable_variables)
    decayed[pattern] = [one.path for one in model.trainable_variables if optimizer._use_weight_decay(one)]
    print(f"excluded {pattern!r}, still decayed: {', '.join(decayed[pattern])}")
assert len(decayed["layer_normalization"]) == 4, "names of layers are matched now"
assert len(decayed["gamma|beta"]) == 2, "names of variables are not matched"
END
