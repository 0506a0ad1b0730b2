#!/usr/bin/env bash
# TensorFlow never frees a graph that was traced with a custom gradient.
#
# Expected: A `tf.function` without references is freed with its graph, as one without a custom gradient is.
# Seen: Each trace of a function with `tf.custom_gradient` adds an entry to a registry of the process, and its graph
# stays in memory.
# Versions: tensorflow-cpu 2.21.0.
# Source: `_graph_mode_decorator` in tensorflow/python/ops/custom_gradient.py; tensorflow/tensorflow#97697.
# Met by: processes that build models in a loop, such as a search for hyperparameters or a server that reloads models.
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
import gc
import weakref

import tensorflow as tf
from tensorflow.python.framework import ops


@tf.custom_gradient
def doubled(x):
    return 2 * x, lambda upstream: 2 * upstream


def graphs(function, count=20):
    """Traces `function` `count` times, drops the results, and returns how many graphs are still in memory."""
    graphs = []
    for _ in range(count):
        traced = tf.function(lambda x: function(x) + 1, autograph=False)
        graphs.append(weakref.ref(traced.get_concrete_function(tf.TensorSpec([None])).graph))
    del traced
    gc.collect()
    return sum(graph() is not None for graph in graphs)


before = len(ops.gradient_registry._registry)
plain, custom = graphs(lambda x: 2 * x), graphs(doubled)
added = len(ops.gradient_registry._registry) - before
print(
    f"of 20 graphs each, still in memory: {plain} plain, {custom} with a custom gradient; {added} registered gradients"
)
assert plain == 0, "plain graphs stay in memory too, so this program measures something else"
assert custom == added == 20, "graphs with custom gradients are freed"
END
