#!/usr/bin/env bash
# Keras's loss of an epoch is a mean over rows, not over the tokens that count.
#
# Expected: The loss is masked, so `evaluate` returns the mean over all real tokens, for every batch size.
# Seen: A batch's loss is the mean over its real tokens. The epoch's is the mean of these, weighed by rows. So short
# sentences weigh more, and the value depends on how rows are batched.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0.
# Source: `TensorFlowTrainer.test_step` and `train_step` in keras/src/backend/tensorflow/trainer.py: `_loss_tracker`
# takes the length of x's first axis as the batch's weight.
# Met by: perplexities of language models and translation models, compared between batch sizes.
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

ids = np.array([[1, 0, 0, 0, 0, 0], [1, 2, 3, 4, 3, 2]])
table = np.random.default_rng(0).normal(size=(5, 5)).astype("float32")  # logits of the next token by token
model = keras.Sequential([keras.Input((None,), dtype="int32"), keras.layers.Embedding(5, 5, mask_zero=True)])
model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.layers[-1].embeddings.assign(table)
losses = np.log(np.exp(table).sum(-1)) - table.diagonal()  # by token
expected = losses[ids[ids > 0]].mean()
got = {size: model.evaluate(ids, ids, batch_size=size, verbose=0) for size in (1, 2)}
print(f"mean over 7 tokens {expected:.4f}; evaluate in batches of 1: {got[1]:.4f}, of 2: {got[2]:.4f}")
assert abs(got[2] - expected) < 1e-5, "one batch has another loss"
assert abs(got[1] - np.mean([losses[row[row > 0]].mean() for row in ids])) < 1e-5, "rows are weighed in another way"
assert abs(got[1] - expected) > 0.01, "the loss is a mean over tokens now"
END
