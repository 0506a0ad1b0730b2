#!/usr/bin/env bash
# `BackupAndRestore(save_freq=5)` restores weights from the middle of an epoch and trains on the whole epoch again.
#
# Expected: A backup every 5 batches exists so that a stopped training continues behind its last 5 batches. The file
# next to the weights has the number of the batch.
# Seen: Only the epoch is read. 2 epochs of 10 batches that stop in the second one make 25 updates instead of 20, the
# first 5 batches of the epoch count twice, and a schedule ends early. If a backup is at the last batch of an epoch, as
# with `save_freq` of an epoch's batches, it has the epoch's number before it was raised, and the whole epoch is
# trained twice. `save_freq="epoch"` is right.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0.
# Source: `_load_model` and `_save_model` in keras/src/callbacks/backup_and_restore.py.
# Met by: training on machines that may be stopped at any time, with epochs of hours.
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
import json
import os

import keras
import numpy as np
import tensorflow as tf

tf.get_logger().setLevel("ERROR")
DATA = np.arange(10, dtype="float32")[:, None]


class Watch(keras.callbacks.Callback):
    """Records each batch, and stops the training at one."""

    def __init__(self, stop=None):
        super().__init__()
        self.batches, self.stop = [], stop

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append((self.epoch, batch))
        if self.batches[-1] == self.stop:
            raise KeyboardInterrupt


def resumed(save_freq, stop):
    """Returns the backup's data, the first batch after it, and the number of updates of 2 epochs."""
    for watch in (Watch(stop), Watch()):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        backup = keras.callbacks.BackupAndRestore(f"backup-{save_freq}", save_freq=save_freq)
        try:
            model.fit(DATA, DATA, batch_size=1, epochs=2, verbose=0, callbacks=[backup, watch])
        except KeyboardInterrupt:
            with open(os.path.join(f"backup-{save_freq}", "training_metadata.json")) as file:
                stored = json.load(file)
    return stored, watch.batches[0], int(model.optimizer.iterations.numpy())


for save_freq, stop, expected in (
    (5, (1, 7), ((1, 0), 25)),
    (10, (1, 3), ((0, 0), 30)),
    ("epoch", (1, 3), ((1, 0), 20)),
):
    stored, first, updates = resumed(save_freq, stop)
    print(f"save_freq={save_freq!r}, stopped at {stop}, backup {stored}: resumed at {first}, {updates} updates")
    assert (first, updates) == expected, "it resumes at another batch"
END
