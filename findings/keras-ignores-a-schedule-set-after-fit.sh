#!/usr/bin/env bash
# After the first fit, model.optimizer.learning_rate = schedule has no effect on training, and reading it shows the
# schedule.
#
# Expected: The next fit uses the schedule, as it uses a float that is set, or an error says that the model must be
# compiled again. (A float in place of a schedule raises an error.)
# Seen: The traced step still reads the variable of the old rate. A schedule of rate 0 leaves training at the old
# rate.
# Versions: keras 3.15.1 on TensorFlow 2.21.0.
# Source: the setter of `learning_rate` in keras/src/optimizers/base_optimizer.py, which replaces the variable that
# `make_train_function` has traced.
# Met by: fine-tuning in stages, where a warmup or a decay begins in a later stage.
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

x, y = np.ones((8, 4), "float32"), np.ones((8, 3), "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
model.compile(keras.optimizers.SGD(0.1), "mse")
model.fit(x, y, verbose=0)
model.optimizer.learning_rate = keras.optimizers.schedules.ExponentialDecay(0.0, 10, 0.9)
before = model.layers[0].kernel.numpy()
model.fit(x, y, verbose=0)
moved = float(np.abs(model.layers[0].kernel.numpy() - before).max())
print(f"learning rate {float(model.optimizer.learning_rate)}, yet a weight moved by {moved:.5f}")
assert float(model.optimizer.learning_rate) == 0.0 and moved > 0, "the schedule is used now"
END
