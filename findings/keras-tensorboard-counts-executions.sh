#!/usr/bin/env bash
# With steps_per_execution=4, TensorBoard's batch curves have 8 steps after 32 batches.
#
# Expected: The x axis counts batches, or optimizer steps, as it does without steps_per_execution: on_train_batch_end
# receives 3, 7, 11, ...
# Seen: The callback counts its calls. Curves of two runs that differ only in steps_per_execution do not lie over each
# other.
# Versions: keras 3.15.1, TensorFlow 2.21.0, tensorboard 2.20.0.
# Source: `on_train_batch_begin` in keras/src/callbacks/tensorboard.py adds 1 to `_global_train_batch`.
# Met by: comparing runs after a change of steps_per_execution, and logging the learning rate of a schedule by batch.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="tensorflow-cpu==2.21.0 keras==3.15.1 tensorboard==2.20.0"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
"$environment/bin/python" - <<'END'
import glob

import keras
import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

for steps in (1, 4):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=steps)
    board = keras.callbacks.TensorBoard(f"logs{steps}", update_freq=1)
    model.fit(np.ones((32, 3)), np.ones((32, 1)), batch_size=1, verbose=0, callbacks=[board])
    events = EventAccumulator(glob.glob(f"logs{steps}/train")[0])
    events.Reload()
    last = events.Tensors("batch_loss")[-1].step
    print(f"steps_per_execution {steps}: {int(model.optimizer.iterations)} steps, {last} in TensorBoard")
    assert last == 32 // steps, "TensorBoard's steps are counted otherwise now"
END
