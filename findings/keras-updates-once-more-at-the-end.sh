#!/usr/bin/env bash
# At the end of a dataset of unknown size, Keras counts one more update and decays the weights once more.
#
# Expected: `fit` makes one update for each batch. The end of the data is not a batch.
# Seen: Keras finds the end by a step that has no batch. TensorFlow runs the operations of that step that need no batch:
# the optimizer's counter and weight decay. After 3 epochs of 10 batches, the counter is 33. A schedule is 3 steps
# ahead, weights have decayed 33 times, and with accumulation over 5 batches, a group of the second epoch has 4 batches
# and is divided by 5. None of it happens if the size is known, with `jit_compile=True` or `steps_per_execution=2`.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0.
# Source: `multi_step_on_iterator` in keras/src/backend/tensorflow/trainer.py and `Optimizer.apply` in
# keras/src/optimizers/base_optimizer.py.
# Met by: training on a CPU, or with a step that isn't compiled by XLA, with datasets from generators, filters or
# buckets of lengths, whose size is unknown.
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
"$environment/bin/python" -W ignore - <<'END'
import keras
import numpy as np
import tensorflow as tf

tf.get_logger().setLevel("ERROR")
BATCHES, EPOCHS = 10, 3


def trained(known, optimizer, loss, start, **settings):
    """Returns the optimizer's counter and the only weight after each batch."""
    ones = np.ones((BATCHES, 1), "float32")
    data = tf.data.Dataset.from_tensor_slices((ones, ones)).batch(1)
    if not known:
        data = data.filter(lambda x, y: True)
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer=start)
    model = keras.Sequential([keras.Input((1,)), layer])
    weights = []
    after = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: weights.append(float(layer.kernel.numpy()[0, 0]))
    )
    model.compile(optimizer, loss=loss, **settings)
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[after])
    return int(model.optimizer.iterations.numpy()), float(layer.kernel.numpy()[0, 0]), weights


counters, decayed = {}, {}
for name, known, settings in (
    ("known", True, {}),
    ("unknown", False, {}),
    ("unknown, jit_compile=True", False, {"jit_compile": True}),
    ("unknown, steps_per_execution=2", False, {"steps_per_execution": 2}),
):
    # The gradient is 0, so that only weight decay changes the weight: 1 % at a time.
    optimizer = keras.optimizers.SGD(0.1, weight_decay=0.1)
    counters[name], weight, _ = trained(known, optimizer, lambda y, p: 0.0 * p, "ones", **settings)
    decayed[name] = round(float(np.log(weight) / np.log(0.99)))
print(f"counter after {EPOCHS} epochs of {BATCHES} batches, by what is known of the data's size:", counters)
print("number of times the weight has decayed:", decayed)
# The gradient is 1 at each batch, and the rate is 1: each update should subtract 1.
weights = {
    known: trained(known, keras.optimizers.SGD(1.0, gradient_accumulation_steps=5), lambda y, p: p, "zeros")[2]
    for known in (True, False)
}
updates = {known: np.round(-np.diff([0.0, *w]), 3) for known, w in weights.items()}
updates = {known: [float(update) for update in u if update] for known, u in updates.items()}
print("updates with 5 accumulated batches, known:", updates[True], "unknown:", updates[False])
assert counters == {"known": 30, "unknown": 33, **{name: 30 for name in counters if "," in name}}, "other counters"
assert decayed == counters, "weight decay is not that of the counter"
assert set(updates[True]) == {1.0}, "accumulation is wrong with a known size"
assert 0.8 in updates[False], "groups of accumulated batches are whole"
END
