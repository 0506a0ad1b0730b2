#!/usr/bin/env bash
# On x86-64 processors without VNNI, TensorFlow's product of 8-bit integers saturates inside of its sums.
#
# Expected: int8 products are added in 32 bits, so 512 products of 127 x 127 are 8,258,048 on every processor.
# Seen: Without VNNI (AVX2, AVX-512 before Cascade Lake, AMD before Zen 4), oneDNN adds pairs of products in 16 bits:
# 65,280. With weights of at most 64 in magnitude, sums are exact. A trained MarianMT model lost 2 BLEU.
# `ONEDNN_MAX_CPU_ISA=AVX2` selects these kernels on any x86-64 processor with AVX2.
# Versions: tensorflow-cpu 2.21.0. Needs x86-64.
# Source: `QuantizedFusedMatMulOp` in tensorflow/core/kernels/mkl/mkl_matmul_op_fused.cc, with oneDNN's kernels for
# AVX2 (vpmaddubsw).
# Met by: 8-bit models that were tested on a new server and run on an old one.
set -euo pipefail
[ "$(uname -m)" = x86_64 ] || { echo "skipped: needs an x86-64 processor, got $(uname -m)"; exit 0; }
grep -qw avx2 /proc/cpuinfo || { echo "skipped: needs AVX2"; exit 0; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="tensorflow-cpu==2.21.0 keras==3.15.1"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3
ONEDNN_MAX_CPU_ISA=AVX2 TF_ENABLE_ONEDNN_OPTS=1 "$environment/bin/python" - <<'END'
import tensorflow as tf
from tensorflow.python.framework import op_def_library


def product(rows, weights):
    """Multiplies int8 rows by int8 weights with oneDNN's kernel, which `tf.raw_ops` does not have."""
    channels = tf.fill([weights.shape[1]], 127.0)
    (result,), _ = op_def_library.apply_op(
        "_QuantizedMatMul",
        name="product",
        device_inputs=[tf.bitcast(rows, tf.qint8), tf.bitcast(weights, tf.qint8), tf.zeros_like(channels)],
        host_inputs=[tf.constant(-127.0), tf.constant(127.0), channels, channels],
        fused_ops=["BiasAdd", "Dequantize"],
        transpose_a=False,
        transpose_b=False,
        is_weight_const=True,
        is_bias_const=True,
        input_quant_mode="SCALED",
        output_quant_mode="SCALED",
        leakyrelu_alpha=0.0,
        T1=tf.qint8,
        T2=tf.qint8,
        Tbias=tf.float32,
        U=tf.float32,
        Tout=tf.float32,
        Tdevice_outputs=[tf.float32],
        Thost_outputs=[],
    )
    return result


rows = tf.fill([1, 512], tf.constant(127, tf.int8))
got = {
    weight: tf.function(product, autograph=False)(rows, tf.fill([512, 4], tf.constant(weight, tf.int8))).numpy()[0, 0]
    for weight in (127, 64)
}
for weight, value in got.items():
    print(f"512 products of 127 x {weight}: {value:,.0f}, exact {512 * 127 * weight:,}")
assert got[64] == 512 * 127 * 64, "small weights also saturate"
assert got[127] < 512 * 127 * 127 / 100, "the kernel of AVX2 adds in 32 bits now"
END
