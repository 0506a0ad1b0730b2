#!/usr/bin/env bash
# Keras replaces the `lora_alpha` that a layer is made with by its rank.
#
# Expected: `Dense(3, lora_rank=2, lora_alpha=16)` scales its adapter by 16 / 2. A layer that is made again from its
# config, as in a `.keras` file, has the scale that it had.
# Seen: `build` calls `enable_lora(rank)` without alpha, so the scale is 1. The config has the right alpha, and a layer
# from it does not. A resumed fine-tuning takes other steps without an error.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0.
# Source: `Dense.build` and `Dense.enable_lora` in keras/src/layers/core/dense.py. `Embedding` and `EinsumDense` are alike.
# Met by: LoRA with an alpha, by a constructor or after a model is loaded.
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

made = keras.layers.Dense(3, lora_rank=2, lora_alpha=16)
made.build((None, 4))
adapted = keras.layers.Dense(3)
adapted.build((None, 4))
adapted.enable_lora(2, lora_alpha=16)
again = keras.layers.Dense.from_config(adapted.get_config())
again.build((None, 4))
table = keras.layers.Embedding(5, 3, lora_rank=2, lora_alpha=16)
table.build()
alphas = {"constructor": made.lora_alpha, "enable_lora": adapted.lora_alpha, "from its config": again.lora_alpha}
alphas["embedding"] = table.lora_alpha
print("lora_alpha, which is 16:", alphas)
assert alphas == {"constructor": 2, "enable_lora": 16, "from its config": 2, "embedding": 2}, "alpha is kept now"
END
