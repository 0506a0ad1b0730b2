"""Export to ONNX (https://onnx.ai), which onnxruntime runs on servers, in browsers, and from C#, Java and JavaScript.

The file holds `portable.graph_of_ids`: the encoder and the search of `decoding.search`. It takes any number of sources
of any lengths, and the search's cache grows with the outputs.

tf2onnx converts the graph. It makes every weight of the decoder a part of the loop's state, and onnxruntime then packs
it for its matmuls at every step. `take_from_state` moves out what does not change. The time of a step of a small model
depends on the number of nodes, so `infer_sizes`, `take_from_steps`, `fuse_norms` and `share_constants` reduce it.
"""

import logging
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.decoding.tensor_translator import TensorTranslator
from tf_transformer.extensions.interop.formats.portable import Portable, graph_of_ids
from tf_transformer.layers.int8 import INT8_MAX, quantized
from tf_transformer.utils.lazy import import_extra, lazily
from tf_transformer.utils.processor import EXACT_INT8_PAIR, MAX_INT8_PAIR

onnx, helper, numpy_helper = (lazily(f"onnx{part}", "an export to ONNX") for part in ("", ".helper", ".numpy_helper"))
_CENTERED = ("Sub", "x", ("ReduceMean", "x"))
_VARIANCE = ("ReduceMean", ("Mul", _CENTERED, _CENTERED))
_INVERSE = ("Reciprocal", ("Sqrt", ("Add", _VARIANCE, "epsilon")))
# `LayerNormalization`, in the two orders of multiplication that TensorFlow chooses. Strings stand for any values.
NORMS: tuple[Any, ...] = (
    ("Add", ("Mul", ("Mul", _CENTERED, _INVERSE), "gamma"), "beta"),
    ("Add", ("Mul", _CENTERED, ("Mul", _INVERSE, "gamma")), "beta"),
)
# The optimizers of tf2onnx that the passes here need. All took seven times as long, and onnxruntime has others.
OPTIMIZERS = ("ConstFoldOptimizer", "IdentityOptimizer", "MergeDuplicatedNodesOptimizer")
OPSET = 17  # onnxruntime 1.12 or later
MAX_BYTES = 2**31  # protobuf's maximum size in bytes, for a graph with weights in float32


class ONNXFolder(Portable):
    """Format of ONNX. docs/guides/onnx.md describes inputs and outputs of model.onnx."""

    engine, package, file = "ONNX", "onnxruntime", "model.onnx"
    int8_facts = {MAX_INT8_PAIR: EXACT_INT8_PAIR}  # noqa: RUF012

    def _check(self, translator: TensorTranslator) -> None:
        for module in ("tf2onnx", "onnxruntime"):
            import_extra(module, "onnx", "an export to ONNX")
        size = 4 * sum(math.prod(weight.shape) for weight in translator.model.weights)
        if size >= MAX_BYTES:
            limit, got = (f"{number / 2**30:.2f} GiB" for number in (MAX_BYTES, size))
            raise BadInput(f"translator: expected weights of less than {limit} in float32 for ONNX, got {got}")

    def _converted(self, translator: TensorTranslator, dtype: str, max_length: int) -> bytes:
        model = _by_tf2onnx(graph_of_ids(translator, max_length))
        for simplify in (take_from_state, infer_sizes, take_from_steps, fuse_norms, share_constants):
            simplify(model.graph)
        # Embedding tables by name, each with the name of its copy for the softmax, or "".
        matrices = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer if len(one.dims) == 2}
        lookups = (node for part in graphs_in(model.graph) for node in part.node if node.op_type == "Gather")
        tables = dict[str, str]()
        for name in sorted({node.input[0] for node in lookups} & matrices.keys()):
            table = matrices[name]
            if table.dtype == np.float32:
                others = (other for other in matrices if other != name)
                tables[name] = next((other for other in others if np.array_equal(matrices[other].T, table)), "")
        if dtype == "int8":
            model = _quantized(model)
        for table, weights in tables.items():
            if dtype == "int8":
                store_integers(model.graph, table, weights)
            # A table [V, d] is stored once: onnxruntime transposes it to the softmax weights [d, V].
            elif weights:
                _replace(model.graph.initializer, [one for one in model.graph.initializer if one.name != weights])
                model.graph.node.insert(0, helper.make_node("Transpose", [table], [weights], perm=[1, 0]))
        _remove_unused(model.graph)
        return bytes(model.SerializeToString())


save = ONNXFolder().save


def _by_tf2onnx(function: Any) -> Any:
    """Converts a traced function to an ONNX model by tf2onnx."""
    import tensorflow as tf
    from tf2onnx import optimizer, tf_loader, tfonnx

    # It warns about unknown shapes.
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    traced = function.get_concrete_function()
    inputs = [tensor.name for tensor in traced.inputs if tensor.dtype != tf.resource]
    outputs = [tensor.name for tensor in traced.outputs]
    names = [spec.name for spec in function.input_signature] + sorted(traced.structured_outputs)
    frozen = tf_loader.from_function(traced, inputs, outputs)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(frozen, name="")
        converted = tfonnx.process_tf_graph(
            graph,
            opset=OPSET,
            custom_op_handlers={"SelectV2": (_where, []), "Einsum": (_transposed, []), "Erfc": (_erfc, [])},
            input_names=inputs,
            output_names=outputs,
            tensors_to_rename=dict(zip([*inputs, *outputs], names, strict=True)),
        )
    optimizers = {name: getattr(optimizer, name) for name in OPTIMIZERS}
    return optimizer.optimize_graph(converted, catch_errors=False, optimizers=optimizers).make_model("translate")


def _where(context: Any, node: Any, name: str, arguments: list[Any]) -> None:
    # tf2onnx itself makes a sum of products, of six nodes. A NaN that is not selected would spoil it.
    node.type = "Where"


def _transposed(context: Any, node: Any, name: str, arguments: list[Any]) -> None:
    # Each einsum here has one operand and moves its axes. tf2onnx itself makes two nodes, and takes long.
    (before, after) = node.get_attr_value("equation").decode().split("->")
    node.type = "Transpose"
    node.set_attr("perm", [before.index(axis) for axis in after])


def _erfc(context: Any, node: Any, name: str, arguments: list[Any]) -> None:
    # ONNX has no 1 - erf(x), a part of gelu.
    ones = context.make_const(f"{name}_one", np.array(1, np.float32))
    erf = context.make_node("Erf", [node.input[0]])
    node.type = "Sub"
    context.replace_inputs(node, [ones.output[0], erf.output[0]])


def graphs_in(graph: Any) -> Iterator[Any]:
    """Yields a graph and, recursively, the graphs of its loops and branches."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs_in(attribute.g)


def _loops(graph: Any) -> list[tuple[Any, Any]]:
    """Returns each loop of a graph with its body."""
    loops = (node for node in graph.node if node.op_type == "Loop")
    return [(node, part.g) for node in loops for part in node.attribute if part.name == "body"]


def take_from_state(graph: Any) -> None:
    """Takes what no step changes out of the state of a graph's loops. Their bodies then use the original."""
    for loop, body in _loops(graph):
        inside, outside = _originals(body), _originals(graph)
        used = {name for node in graph.node if node is not loop for name in node.input}
        used |= {output.name for output in graph.output}
        state, origins = [], {}
        # A loop's inputs, and the body's, are two scalars and the state. The body's outputs are the condition and the
        # state, and the loop's outputs the state.
        for k, name in enumerate(loop.input[2:]):
            before, after = body.input[2 + k].name, body.output[1 + k].name
            if inside.get(after, after) == before and loop.output[k] not in used:
                origins[before] = outside.get(name, name)
            else:
                state.append(k)
        # onnxruntime requires the shapes of count and condition, which are scalars.
        for port in body.input[:2]:
            port.type.tensor_type.shape.SetInParent()
        states = len(loop.input) - 2
        for ports, fixed in ((loop.input, 2), (body.input, 2), (body.output, 1), (loop.output, 0)):
            _replace(ports, [*ports[:fixed], *(ports[fixed + k] for k in state), *ports[fixed + states :]])
        for part in graphs_in(body):
            for node in part.node:
                _replace(node.input, [origins.get(name, name) for name in node.input])
    _remove_unused(graph)


def infer_sizes(graph: Any) -> None:
    """Replaces the one computed size of a reshape, such as the number of rows, by -1. Eight nodes compute it."""
    constants = {one.name: one for part in graphs_in(graph) for one in part.initializer}
    for part in graphs_in(graph):
        producers = {name: node for node in part.node for name in node.output}
        for node in [node for node in part.node if node.op_type == "Reshape"]:
            # TensorFlow packs the sizes, and tf2onnx makes of it a Concat, perhaps with a Cast.
            shape = producers.get(node.input[1])
            if shape is not None and shape.op_type == "Cast":
                shape = producers.get(shape.input[0])
            if shape is None or shape.op_type != "Concat":
                continue
            # Only an Unsqueeze is certain to be one number.
            computed = [producers.get(name) for name in shape.input if name not in constants]
            if any(one is None or one.op_type != "Unsqueeze" for one in computed):
                continue
            sizes = [numpy_helper.to_array(constants[name]) if name in constants else [-1] for name in shape.input]
            contents = np.concatenate(sizes).astype(np.int64)
            if np.count_nonzero(contents == -1) == 1:
                node.input[1] = f"{node.output[0]}_shape"
                part.initializer.append(numpy_helper.from_array(contents, node.input[1]))
    _remove_unused(graph)


def take_from_steps(graph: Any) -> None:
    """Moves computations that are the same in all steps of a loop before it."""
    for loop, body in _loops(graph):
        changing, ends = {port.name for port in body.input}, {port.name for port in body.output}
        varying, moved = [], []
        for node in body.node:
            # A branch is not always computed.
            is_branch = any(attribute.HasField("g") for attribute in node.attribute)
            if is_branch or not changing.isdisjoint(node.input) or not ends.isdisjoint(node.output):
                changing.update(node.output)
                varying.append(node)
            else:
                moved.append(node)
        index = [*graph.node].index(loop)
        for node in reversed(moved):
            graph.node.insert(index, node)
        graph.initializer.extend(body.initializer)
        _replace(body.node, varying)
        del body.initializer[:]


def fuse_norms(graph: Any) -> None:
    """Replaces the ten nodes of each layer normalization by one."""

    def matches(pattern: Any, name: str, producers: dict[str, Any], values: dict[str, str]) -> bool:
        """Returns whether a value is computed as in a pattern, whose strings it binds in `values`."""
        if isinstance(pattern, str):
            return values.setdefault(pattern, name) == name
        operation, *inputs = pattern
        node = producers.get(name)
        if node is None or node.op_type != operation or len(node.input) != len(inputs):
            return False
        return all(matches(*pair, producers, values) for pair in zip(inputs, node.input, strict=True))

    constants = {one.name: one for part in graphs_in(graph) for one in part.initializer}
    for part in graphs_in(graph):
        producers, nodes = {name: node for node in part.node for name in node.output}, []
        for node in part.node:
            for norm in NORMS:
                values = dict[str, str]()
                if matches(norm, node.output[0], producers, values) and values["epsilon"] in constants:
                    epsilon = float(numpy_helper.to_array(constants[values["epsilon"]]).item())
                    inputs = [values[name] for name in ("x", "gamma", "beta")]
                    # Its other nodes become unused.
                    node = helper.make_node("LayerNormalization", inputs, node.output, axis=-1, epsilon=epsilon)
                    break
            nodes.append(node)
        _replace(part.node, nodes)
    _remove_unused(graph)


def share_constants(graph: Any) -> None:
    """Keeps one of equal constants, so that onnxruntime recognizes nodes that compute the same."""
    for part in graphs_in(graph):
        first, same = dict[bytes, str](), dict[str, str]()
        for one in part.initializer:
            unnamed = type(one).FromString(one.SerializeToString())
            unnamed.ClearField("name")
            same[one.name] = first.setdefault(unnamed.SerializeToString(), one.name)
        for each in graphs_in(part):
            for node in each.node:
                _replace(node.input, [same.get(name, name) for name in node.input])
    _remove_unused(graph)


def _originals(graph: Any) -> dict[str, str]:
    """Returns by name the original of each copy in a graph."""
    originals: dict[str, str] = {}
    for node in graph.node:
        if node.op_type == "Identity":
            originals[node.output[0]] = originals.get(node.input[0], node.input[0])
    return originals


def _replace(ports: Any, new: list[Any]) -> None:
    """Replaces the contents of a repeated field. Deleting them invalidates the old ones, so they are copied first."""
    copies = [port if isinstance(port, str) else type(port).FromString(port.SerializeToString()) for port in new]
    del ports[:]
    ports.extend(copies)


def _remove_unused(graph: Any) -> None:
    """Removes nodes and constants that no output needs."""
    while True:
        parts = list(graphs_in(graph))
        needed = {name for part in parts for node in part.node for name in node.input}
        needed |= {output.name for part in parts for output in part.output}
        unused = [(part, node) for part in parts for node in part.node if needed.isdisjoint(node.output)]
        if not unused:
            break
        for part, node in unused:
            part.node.remove(node)
    for part in parts:
        _replace(part.initializer, [one for one in part.initializer if one.name in needed])


def store_integers(graph: Any, table: str, weights: str) -> None:
    """Looks up embeddings in the 8-bit softmax weights of a quantized graph, or an 8-bit table if it has none ("")."""
    integers, scales = (f"{weights or table}_{part}" for part in ("quantized", "scale"))
    if not weights:
        rows = next(numpy_helper.to_array(one) for one in graph.initializer if one.name == table)
        scale = np.maximum(np.abs(rows).max(axis=1, keepdims=True) / 127, np.finfo("float32").tiny)
        contents = {integers: np.rint(rows / scale).astype("int8"), scales: scale.astype("float32")}
        graph.initializer.extend(numpy_helper.from_array(content, name) for name, content in contents.items())

    def looked_up(ids: str, output: str) -> Iterator[Any]:
        # Softmax weights are [d, V], so their rows for ids [B, T] are [d, B, T].
        number, scale, row = (f"{output}_{part}" for part in ("integers", "scales", "row"))
        yield helper.make_node("Gather", [integers, ids], [number], axis=int(bool(weights)))
        yield helper.make_node("Cast", [number], [f"{number}_cast"], to=onnx.TensorProto.FLOAT)
        yield helper.make_node("Gather", [scales, ids], [scale])
        yield helper.make_node("Mul", [f"{number}_cast", scale], [row if weights else output])
        if weights:
            yield helper.make_node("Transpose", [row], [output], perm=[1, 2, 0])

    for part in graphs_in(graph):
        nodes: list[Any] = []
        for node in part.node:
            is_lookup = node.op_type == "Gather" and node.input[0] == table
            nodes += looked_up(node.input[1], node.output[0]) if is_lookup else [node]
        _replace(part.node, nodes)


def _quantized(model: Any) -> Any:
    """Makes matmuls of 8-bit integers: weights have a scale per channel, inputs get one when they are computed."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    weights = {one.name: numpy_helper.to_array(one) for part in graphs_in(model.graph) for one in part.initializer}
    # Without this mark it logs advice.
    helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        quantize_dynamic(
            model,
            path,
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            extra_options={"EnableSubgraph": True},  # the loop's body
        )
        model = onnx.load(path)
    # onnxruntime rounds to integers that saturate on some processors.
    stored = {one.name: one for part in graphs_in(model.graph) for one in part.initializer}
    for name in weights:
        if f"{name}_quantized" in stored:
            integers, largest = quantized(weights[name], axis=0)
            for part, values in (("quantized", integers), ("scale", largest / np.float32(INT8_MAX))):
                one = stored[f"{name}_{part}"]
                one.CopyFrom(numpy_helper.from_array(values, one.name))
    return model
