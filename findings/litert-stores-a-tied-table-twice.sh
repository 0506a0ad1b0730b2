#!/usr/bin/env bash
# The LiteRT converter stores an embedding table twice if the output layer shares it and a gain comes before.
#
# Expected: Lookup and output layer use one variable, so the file has it once.
# Seen: The converter multiplies the gain, such as that of the last layer normalization, into the weights of the
# product after it. These then differ from the table, and the file is twice as large.
# `_experimental_disable_fuse_mul_and_fc` keeps one copy.
# Versions: tensorflow-cpu 2.21.0 (`tf.lite`).
# Source: `FuseMulAndFullyConnected` in tensorflow/compiler/mlir/lite/transforms/.
# Met by: exports of models with tied embeddings to phones.
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
import numpy as np
import tensorflow as tf

generator = np.random.default_rng(0)
table = tf.Variable(generator.normal(size=(1000, 64)).astype("float32"))
gain = tf.Variable(generator.uniform(0.5, 1.5, 64).astype("float32"))


def size(with_gain, fuse):
    module = tf.Module()
    module.weights = [table, gain]

    @tf.function(input_signature=[tf.TensorSpec([8], tf.int32)], autograph=False)
    def logits(ids):
        hidden = tf.tanh(tf.gather(table, ids))
        return {"logits": tf.matmul(hidden * gain if with_gain else hidden, table, transpose_b=True)}

    path = f"model-{with_gain}-{fuse}"
    tf.saved_model.save(module, path, signatures=logits)
    converter = tf.lite.TFLiteConverter.from_saved_model(path)
    converter._experimental_disable_fuse_mul_and_fc = not fuse
    return len(converter.convert())


once = 4 * 1000 * 64
got = {
    name: size(*each) / once
    for name, each in (("plain", (False, True)), ("gain", (True, True)), ("gain, not fused", (True, False)))
}
print("size of the file in tables:", {name: round(tables, 2) for name, tables in got.items()})
assert got["plain"] < 1.1 and got["gain, not fused"] < 1.1, "a plain model has two tables as well"
assert got["gain"] > 1.9, "the table is stored once now"
END
