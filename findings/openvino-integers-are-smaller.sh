#!/usr/bin/env bash
# OpenVINO computes int64 in int32 on a CPU, and compares int32 in float32.
#
# Expected: A model of integers has the integers that it was written with. Its inputs and outputs are int64, and the
# runtime returns int64.
# Seen: Inputs of int64 lose their upper 32 bits without an error, but a constant becomes the nearest int32, so that
# 2^32 + 5 differs from itself. The largest of 16777217 and 16777216 is 16777216, both are equal, and a sum of int32 is
# rounded to float32. `INFERENCE_PRECISION_HINT` and `EXECUTION_MODE_HINT` change nothing.
# Versions: openvino 2026.4.1.
# Source: openvinotoolkit/openvino#35823 on int64, openvinotoolkit/openvino#37766 on float32 in divisions.
# Met by: hashed ids, 64-bit seeds and times, and searches that pack a score and an id into one integer.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="openvino==2026.4.1 numpy==2.4.6"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
"$environment/bin/python" - <<'END'
import numpy as np
import openvino as ov
from openvino import opset13 as op

core = ov.Core()


def run(build, values, dtype, **settings):
    """Returns what a model computes from values of a dtype."""
    values = np.array(values, dtype)
    x = op.parameter([-1], dtype)
    outputs = [one.output(0) for one in build(x, dtype)]
    request = core.compile_model(ov.Model(outputs, [x], "model"), "CPU", settings)
    got = request([values])
    return [np.array(got[i]) for i in range(len(outputs))]


HASH = 2**32 + 5


def of_int64(x, dtype):
    return [op.add(x, op.constant(dtype(1))), op.equal(x, op.constant(dtype(HASH)))]


def of_int32(x, dtype):
    axis = op.constant(np.int32(0))
    is_equal = op.equal(x, op.constant(dtype(16777217)))
    return [is_equal, op.reduce_max(x, axis, False), op.reduce_sum(x, axis, False)]


for settings in ({}, {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}):
    more, same = run(of_int64, [HASH, 5], np.int64, **settings)
    print(f"int64 {HASH} and 5: plus 1 {more.tolist()} as {more.dtype}, equal to {HASH} {same.tolist()}")
    assert more.tolist() == [6, 6] and same.tolist() == [False, False], "int64 has 64 bits now"
    same, most, total = run(of_int32, [16777217, 16777216], np.int32, **settings)
    print(f"int32 16777217 and 16777216: equal to 16777217 {same.tolist()}, maximum {most}, sum {total}")
    assert same.tolist() == [True, True] and most == 16777216 and total == 33554432, "int32 is compared exactly now"
END
