"""Multiplies the 8-bit matrices of an export by its own operation, and compares the sums with NumPy's.

Rows are as large as they can be and have the signs of a column's weights. Sums of 16 bits saturate with them.
"""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

EXACT_INT8_PAIR = 128  # as in `utils.processor`, which a process without this package cannot import
COLUMNS = 16  # of a matrix: those with the largest weights
AGAIN = "Export the model again"


class Product(NamedTuple):
    """Matmul with an 8-bit matrix of an export."""

    name: str
    matrix: np.ndarray  # [d, n]
    multiply: Callable[[np.ndarray], np.ndarray]  # integers [B, d] -> their products [B, n]
    lowest: int  # of these integers; the highest is 254 more


def products_of(path: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yields a level, a message and what is wrong, about the 8-bit matmuls of an export."""
    errors, largest = dict[str, str](), 0
    for product in (_of_onnx if (path / "model.onnx").is_file() else _of_saved_model)(path):
        errors[product.name] = errors.get(product.name) or _error(product)
        largest = max(largest, _largest_pair(product.matrix))
    if errors:
        wrong = [error for error in errors.values() if error]
        message = f"matmuls of the {len(errors)} matrices of 8-bit integers do not saturate on this processor"
        yield "FAIL", message, [f"{len(wrong)} do: {wrong[0]}. {AGAIN}"] if wrong else []
        message = f"pairs of 8-bit weights add up to at most {EXACT_INT8_PAIR}, which is exact on every processor"
        yield "WARN", message, [f"they go up to {largest}. {AGAIN}"] * (largest > EXACT_INT8_PAIR)


def _largest_pair(matrix: np.ndarray) -> int:
    """Returns the largest sum of two weights of a column that can meet, as in `utils.processor`."""
    weights = matrix.astype(int)
    if len(weights) % 4:
        return 2 * int(np.abs(weights).max())
    return max(int((one[::2] + one[1::2]).max()) for one in (weights.clip(0), -weights.clip(None, 0)))


def _error(product: Product) -> str:
    """Describes the largest error of a product. Returns "" if it is exact."""
    name, matrix, multiply, lowest = product
    columns = np.argsort(np.abs(matrix, dtype=np.int32).sum(axis=0))[-COLUMNS:]
    signs = np.sign(matrix[:, columns], dtype=np.int32).T
    rows = np.where(np.concatenate([signs, -signs]) > 0, lowest + 254, lowest)  # [2 * COLUMNS, d]
    # Sums of these integers are exact in float64.
    expected, got = rows.astype(float) @ matrix.astype(float), multiply(rows).astype(float)
    where = np.unravel_index(np.abs(got - expected).argmax(), got.shape)
    if math.isclose(got[where], expected[where], rel_tol=1e-4):
        return ""
    return f"{name} returns {got[where]:,.0f} instead of {expected[where]:,.0f}"


def _of_saved_model(path: Path) -> Iterator[Product]:
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    graphs = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes()).meta_graphs
    nodes = [node for graph in graphs for part in graph.graph_def.library.function for node in part.node_def]
    nodes = [node for node in nodes if node.op == "_QuantizedMatMul"]
    nodes = [node for node in nodes if node.attr["T1"].type == node.attr["T2"].type == tf.qint8.as_datatype_enum]
    kinds = {node.attr["transpose_b"].b: node for node in nodes}
    if not kinds:
        return
    stored = tf.train.load_checkpoint(str(path / "variables" / "variables"))
    shapes = stored.get_variable_to_shape_map()
    for key, dtype in sorted(stored.get_variable_to_dtype_map().items()):
        if dtype == tf.int8 and len(shapes[key]) == 2:
            matrix, name = stored.get_tensor(key), key.split("/.ATTRIBUTES")[0]
            # After our matrices [d, n], or their transposes [n, d], come the magnitudes [n] of their channels.
            following = re.sub(r"(?<=/)\d+(?=/)", lambda index: str(int(index[0]) + 1), key)
            ways = [way for way in sorted(kinds) if shapes.get(following) == [matrix.shape[0 if way else 1]]]
            for transposed in ways[:1] or kinds:
                yield Product(name, matrix.T if transposed else matrix, _by_node(kinds[transposed], matrix), -127)


def _by_node(node: Any, matrix: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function that multiplies by an 8-bit matrix as a node of a graph does."""
    import tensorflow as tf

    channels = matrix.shape[0 if node.attr["transpose_b"].b else 1]
    with tf.Graph().as_default() as graph:
        rows = tf.compat.v1.placeholder(tf.int8, [None, None], "rows")
        limits = tf.fill([channels], 127.0)  # The scales are 1.
        inputs = [tf.bitcast(rows, tf.qint8), tf.bitcast(tf.constant(matrix), tf.qint8), tf.zeros([channels])]
        inputs += [tf.constant(-127.0), tf.constant(127.0), limits, limits]
    definition = graph.as_graph_def()
    copy = definition.node.add(name="sums", op=node.op, input=[tensor.op.name for tensor in inputs])
    for name, value in node.attr.items():
        if not name.startswith("_"):
            copy.attr[name].CopyFrom(value)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(definition, name="")
    session = tf.compat.v1.Session(graph=graph)
    return lambda rows: session.run("sums:0", {"rows:0": rows.astype(np.int8)})


def _of_onnx(path: Path) -> Iterator[Product]:
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    def graphs(graph: Any) -> Iterator[Any]:
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    yield from graphs(attribute.g)

    model = onnx.load(path / "model.onnx")
    parts = [*graphs(model.graph)]
    weights = {one.name: one for part in parts for one in part.initializer}
    used = {node.input[1] for part in parts for node in part.node if node.op_type == "MatMulInteger"}
    for name in sorted(used & weights.keys()):
        d, n = weights[name].dims
        ports = [("rows", TensorProto.UINT8, ["B", d]), ("sums", TensorProto.INT32, ["B", n])]
        inputs, outputs = ([helper.make_tensor_value_info(*port)] for port in ports)
        node = helper.make_node("MatMulInteger", ["rows", name], ["sums"])
        graph = helper.make_graph([node], "product", inputs, outputs, [weights[name]])
        small = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
        session = onnxruntime.InferenceSession(small.SerializeToString(), providers=["CPUExecutionProvider"])

        def multiply(rows: np.ndarray, session: Any = session) -> Any:
            return session.run(None, {"rows": rows.astype(np.uint8)})[0]

        yield Product(name, numpy_helper.to_array(weights[name]), multiply, 0)
