#!/usr/bin/env bash
# `LossScaleOptimizer.build` adds its variables again at each call.
#
# Expected: Building a built optimizer changes nothing, as with the other optimizers of Keras.
# Seen: A second `build` adds another step counter and another scale, so the optimizer has more variables than a
# checkpoint, whose state Keras then skips.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0. The same in keras-nightly 3.16.0.dev2026102704.
# Source: `LossScaleOptimizer.build` in keras/src/optimizers/loss_scale_optimizer.py.
# Met by: training in float16 that restores the optimizer's state before `fit`.
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


def counts(optimizer):
    """Returns the number of the optimizer's variables after one and two builds."""
    weight, sizes = keras.Variable([1.0]), []
    for _ in range(2):
        optimizer.build([weight])
        sizes.append(len(optimizer.variables))
    return sizes


plain, scaled = counts(keras.optimizers.Adam()), counts(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()))
print(f"variables after one and two builds: Adam {plain}, LossScaleOptimizer {scaled}")
assert plain[0] == plain[1], "Adam adds variables"
assert scaled[1] > scaled[0], "a second build adds nothing now"
END
