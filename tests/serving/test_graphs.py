"""The rewritten graph of a SavedModel: smaller, with the same outputs and side effects."""

import functools

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tf_transformer.serving.graphs import compact


class Module(tf.Module):
    def __init__(self):
        super().__init__()
        self.matrix = tf.Variable(np.arange(35.0).reshape(5, 7), dtype=tf.float32)
        self.calls = tf.Variable(0)
        # `tf.function` would order these side effects by control inputs, so that the nodes differ.
        draw = functools.partial(tf.raw_ops.RandomUniform, shape=[3], dtype=tf.float32)
        self.draw = tf.compat.v1.wrap_function(lambda: [draw(), draw()], [])

    @tf.function(input_signature=[tf.TensorSpec([None, 5], name="x"), tf.TensorSpec([], tf.int32, "times")])
    def __call__(self, x, times):
        self.calls.assign_add(1)
        self.calls.assign_add(1)
        _ = tf.exp(x)  # unused

        def body(i, product):
            matrix = tf.convert_to_tensor(self.matrix)
            wide, again = (tf.matmul(product + tf.constant(0.5), matrix) for _ in range(2))
            return i + 1, tf.cond(i > 1, lambda: wide[:, :5] - 1.0, lambda: again[:, :5] / 2.0)

        _, product = tf.while_loop(
            lambda i, _: i < times, body, [0, x], [tf.TensorShape([]), tf.TensorShape([None, 5])]
        )
        return {"product": product}


def nodes_of(folder):
    """Returns all nodes of a SavedModel, those of its functions included."""
    (graph,) = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes()).meta_graphs
    return [*graph.graph_def.node, *(node for one in graph.graph_def.library.function for node in one.node_def)]


def test_same_outputs_and_side_effects(tmp_path):
    module = Module()
    tf.saved_model.save(module, str(tmp_path), signatures=module.__call__.get_concrete_function())
    before, fingerprint = [node.op for node in nodes_of(tmp_path)], (tmp_path / "fingerprint.pb").read_bytes()
    compact(tmp_path)
    after = nodes_of(tmp_path)
    ops = [node.op for node in after]
    assert set(before) - set(ops) == {"Exp"}
    assert ops.count("MatMul") == before.count("MatMul") / 2 > 0
    assert all(ops.count(op) == before.count(op) > 0 for op in ("RandomUniform", "AssignAddVariableOp"))
    assert max(len(node.name) for node in after if node.op == "MatMul") < 16
    assert not any("_output_shapes" in node.attr for node in after)
    assert (tmp_path / "fingerprint.pb").read_bytes() != fingerprint  # describes the new graph

    x = np.random.default_rng(3).normal(size=(2, 5)).astype("float32")
    expected = x
    for i in range(3):
        wide = (expected + np.float32(0.5)) @ np.arange(35, dtype="float32").reshape(5, 7)
        expected = wide[:, :5] - 1 if i > 1 else wide[:, :5] / 2
    loaded = tf.saved_model.load(str(tmp_path))
    for number, call in enumerate((loaded, loaded.signatures["serving_default"]), 1):
        result = call(x=tf.constant(x), times=tf.constant(3))
        np.testing.assert_allclose(result["product"], expected, rtol=1e-5)
        assert loaded.calls.numpy() == 2 * number
    assert not np.array_equal(*loaded.draw())
