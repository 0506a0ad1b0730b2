#!/usr/bin/env bash
# In a batch with as many rows as time steps, Keras weighs time steps with the weights of the rows.
#
# Expected: `sample_weight` with one weight per row, as `fit` documents, weighs all tokens of a row. It does so in
# metrics, and for outputs without a time axis.
# Seen: The loss multiplies losses (B, T) by weights (B,), which NumPy's rules align with T. If B is T, time step i has
# the weight of row i, without an error. For other sizes, `fit` raises. With `ignore_class` or a mask, it is the same.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0.
# Source: `reduce_weighted_values` and `squeeze_or_expand_to_same_rank` in keras/src/losses/loss.py.
# Met by: sequence models with a weight for each sentence, such as a clean and a noisy corpus, if sentences and batch
# are of one size, such as 64 rows of 64 tokens.
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

B = T = 4
generator = np.random.default_rng(0)
logits = generator.normal(size=(B, T, 3)).astype("float32")
labels = generator.integers(3, size=(B, T))
weights = np.array([0.0, 0.0, 0.0, 1.0], "float32")  # only the last row counts
losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, labels[..., None], -1)[..., 0]

inputs = keras.Input((None, 3))
model = keras.Model(inputs, keras.layers.Activation("linear")(inputs))
model.compile(
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    weighted_metrics=[keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="metric")],
)
got = model.evaluate(logits, labels, sample_weight=weights, batch_size=B, verbose=0, return_dict=True)
rows, columns = (weights[:, None] * losses).mean(), (weights[None, :] * losses).mean()
print(f"loss of 4 rows of 4 tokens {got['loss']:.4f}. Weighted by rows it is {rows:.4f}, by columns {columns:.4f}")
print(f"metric {got['metric']:.4f}. The mean of the last row is {losses[-1].mean():.4f}")
assert np.isclose(got["metric"], losses[-1].mean(), rtol=1e-4), "the metric does not weigh rows"
assert np.isclose(got["loss"], columns, rtol=1e-4) and not np.isclose(rows, columns), "the loss does not weigh columns"
try:
    model.evaluate(logits[:, :3], labels[:, :3], sample_weight=weights, batch_size=B, verbose=0)
    raise SystemExit("4 rows of 3 tokens raise no error any more")
except Exception as error:
    print("4 rows of 3 tokens:", type(error).__name__)
END
