#!/usr/bin/env bash
# With `floatx` bfloat16, a Keras metric stops counting at 256.
#
# Expected: A mean of values that are all 1.0 or 3.0 is right for any number of batches.
# Seen: Total and count are variables of the default float dtype. Adding 1 to 256 in bfloat16 returns 256, so later
# values change nothing.
# Versions: keras 3.15.1, tensorflow-cpu 2.21.0.
# Source: `Metric.__init__` in keras/src/metrics/metric.py and `Mean.__init__` in
# keras/src/metrics/reduction_metrics.py.
# Met by: training with `keras.config.set_floatx("bfloat16")`: loss and metrics of an epoch are those of its first 256
# updates.
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

keras.config.set_floatx("bfloat16")
mean = keras.metrics.Mean()
for value in [1.0] * 256 + [3.0] * 744:
    mean.update_state(value)
count, result = float(mean.count.numpy()), float(mean.result())
print(
    f"1,000 values, 256 of 1.0 and 744 of 3.0: count {count:.0f}, mean {result}; the mean is {(256 + 3 * 744) / 1000}"
)
assert count == 256, "counts have another dtype"
END
