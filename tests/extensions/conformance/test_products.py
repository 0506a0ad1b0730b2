"""Tests that 8-bit matmuls which saturate are found: sums of 16 bits in NumPy, and those of oneDNN's kernels."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from programs import without_the_package

from tf_transformer.extensions.conformance import products
from tf_transformer.extensions.conformance.products import Product, products_of
from tf_transformer.layers import int8


def exact(matrix):
    return lambda rows: rows @ matrix.astype(int)


def in_16_bits(lowest):
    """Returns `multiply` of a processor without VNNI: unsigned rows, and sums of pairs that saturate."""

    def multiply_of(matrix):
        def multiply(rows):
            unsigned, weights = rows - (-128 if lowest < 0 else 0), matrix.astype(int)
            terms = unsigned[:, :, None] * weights
            pairs = np.clip(terms[:, ::2] + terms[:, 1::2], -(2**15), 2**15 - 1)
            return pairs.sum(axis=1) - (128 if lowest < 0 else 0) * weights.sum(axis=0)

        return multiply

    return multiply_of


@pytest.mark.parametrize("lowest", [-127, 0])
@pytest.mark.parametrize(("largest", "levels"), [(64, {"FAIL": 0, "WARN": 0}), (127, {"FAIL": 1, "WARN": 1})])
def test_the_rows_find_saturation(lowest, largest, levels, monkeypatch, tmp_path):
    matrix = np.random.default_rng(1).integers(-largest, largest + 1, (64, 40)).astype(np.int8)
    matrix[5, 7] = -largest
    for multiply, saturates in ((exact, False), (in_16_bits(lowest), True)):
        product = Product("weights/3", matrix, multiply(matrix), lowest)
        monkeypatch.setattr(products, "_of_saved_model", lambda path, product=product: [product, product])
        found = {level: wrong for level, _, wrong in products_of(tmp_path)}
        assert {level: len(wrong) for level, wrong in found.items()} == levels | ({} if saturates else {"FAIL": 0})
        if levels["FAIL"] and saturates:
            (message,) = found["FAIL"]
            assert message.startswith("1 do: weights/3 returns ") and message.endswith(". Export the model again")


class Int8(tf.Module):
    """A matmul of 8-bit integers of at most `largest`, stored as an export stores them."""

    def __init__(self, largest):
        super().__init__()
        values = np.random.default_rng(2).integers(-largest, largest + 1, (96, 24)).astype(np.int8)
        values[0, 0] = largest
        self.weights = [tf.Variable(values, name="kernel"), tf.Variable(np.ones(24, np.float32), name="kernel_max")]

    @tf.function(input_signature=[tf.TensorSpec([None, 96])], autograph=False)
    def multiply(self, x):
        return {"y": int8.int8_product(x, *self.weights)}


CHECK = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from products import products_of
print(json.dumps([[*products_of(Path(path))] for path in sys.argv[2:]]))
"""


@pytest.mark.program
@pytest.mark.usefixtures("needs_int8")
def test_saved_models_under_the_kernels_of_avx2(tmp_path):
    """The process that checks does not import this package."""
    for largest in (64, 127):
        root = Int8(largest)
        tf.saved_model.save(root, str(tmp_path / str(largest)), signatures=root.multiply)
    command = [sys.executable, "-c", CHECK, os.path.dirname(products.__file__)]
    environment = without_the_package(tmp_path) | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        [*command, *(str(tmp_path / name) for name in ("64", "127"))], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    narrow, wide = json.loads(done.stdout)
    assert [(level, wrong) for level, _, wrong in narrow] == [("FAIL", []), ("WARN", [])]
    # On arm64, oneDNN has other kernels, which are exact.
    saturates = os.uname().machine == "x86_64"
    assert [(level, len(wrong)) for level, _, wrong in wide] == [("FAIL", int(saturates)), ("WARN", 1)]


def test_an_onnx_file(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper, numpy_helper

    for largest, wide in ((64, 0), (127, 1)):
        weights = np.full((16, 3), largest, np.int8)
        ports = [("x", TensorProto.UINT8, [1, 16]), ("y", TensorProto.INT32, [1, 3])]
        inputs, outputs = ([helper.make_tensor_value_info(*port)] for port in ports)
        node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
        graph = helper.make_graph([node], "main", inputs, outputs, [numpy_helper.from_array(weights, "w")])
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(made, tmp_path / "model.onnx")
        (fail, _, wrong), (warn, _, too_large) = products_of(tmp_path)
        # Whether 127 saturates depends on this processor.
        assert (fail, warn, len(too_large)) == ("FAIL", "WARN", wide) and (wide or not wrong)


def test_exports_without_8_bits(tmp_path):
    root = tf.Module()
    root.weights = [tf.Variable(tf.zeros([8, 3], tf.int8), name="table")]
    root.rows = tf.function(lambda ids: {"rows": tf.gather(root.weights[0], ids)}, [tf.TensorSpec([None], tf.int32)])
    tf.saved_model.save(root, str(tmp_path), signatures=root.rows)
    assert not [*products_of(tmp_path)]
