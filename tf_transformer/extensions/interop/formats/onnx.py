"""Export to ONNX (https://onnx.ai), which onnxruntime runs on servers, in browsers, and from C#, Java and JavaScript.

The file holds `portable.graph_of_ids`, the encoder and the search of `decoding.search`. Sources may have any length and
be any number, and the cache of the search grows with the outputs.

tf2onnx, which converts the graph, makes every weight of the decoder a part of the loop's state, and onnxruntime then
packs it for its products at every step. `take_from_state` takes out what does not change. A step of a small model takes
about as long as its nodes are many, so `infer_sizes`, `fuse_norms` and `share_constants` make them fewer.
"""

import logging
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.decoding.text_model import TextModel
from tf_transformer.extensions.interop.formats.portable import Portable, graph_of_ids
from tf_transformer.utils.extras import import_extra

_CENTRED = ("Sub", "x", ("ReduceMean", "x"))
_VARIANCE = ("ReduceMean", ("Mul", _CENTRED, _CENTRED))
_INVERSE = ("Reciprocal", ("Sqrt", ("Add", _VARIANCE, "epsilon")))
NORMS: tuple[Any, ...] = (  # as `LayerNormalization` computes them, and as TensorFlow then orders the products
    ("Add", ("Mul", ("Mul", _CENTRED, _INVERSE), "gamma"), "beta"),
    ("Add", ("Mul", _CENTRED, ("Mul", _INVERSE, "gamma")), "beta"),
)
OPTIMIZERS = ("ConstFoldOptimizer", "IdentityOptimizer", "MergeDuplicatedNodesOptimizer")  # of tf2onnx
OPSET = 17  # of ONNX's operations: onnxruntime from 1.12 on
MOST = 2**31  # bytes of a graph on the way, which has the weights in float32: protobuf writes no more


class ONNXFolder(Portable):
    """The graph of model.onnx has the inputs and outputs of docs/guides/onnx.md."""

    engine, package, file = "ONNX", "onnxruntime", "model.onnx"

    def _check(self, translator: TextModel) -> None:
        for module in ("tf2onnx", "onnxruntime"):
            import_extra(module, "onnx", "an export to ONNX")
        size = 4 * sum(math.prod(weight.shape) for weight in translator.model.weights)
        if size >= MOST:
            limit, got = (f"{number / 2**30:.2f} GiB" for number in (MOST, size))
            raise BadInput(f"translator: expected weights of less than {limit} in float32 for ONNX, got {got}")

    def _converted(self, translator: TextModel, dtype: str, max_length: int) -> bytes:
        model = _model_of(graph_of_ids(translator, max_length))
        take_from_state(model.graph)
        infer_sizes(model.graph)
        take_from_steps(model.graph)
        fuse_norms(model.graph)
        share_constants(model.graph)
        tables = _tables(model.graph)
        if dtype == "int8":
            model = _quantized(model)
        for table, weights in tables:
            (store_integers if dtype == "int8" else store_once)(model.graph, table, weights)
        _remove_unused(model.graph)
        contents: bytes = model.SerializeToString()
        return contents


save = ONNXFolder().save


def _model_of(function: Any) -> Any:
    """The ONNX model of a traced function, by tf2onnx. Of its optimizers it takes those that the passes here need:
    onnxruntime has its own, and all of them took seven times as long."""
    import tensorflow as tf
    from tf2onnx import optimizer, tf_loader, tfonnx

    logging.getLogger("tf2onnx").setLevel(logging.ERROR)  # it warns of shapes that it does not know
    traced = function.get_concrete_function()
    inputs, outputs = (
        [tensor.name for tensor in ports if tensor.dtype != tf.resource] for ports in (traced.inputs, traced.outputs)
    )
    names = sorted(traced.structured_outputs)
    signature = [spec.name for spec in function.input_signature]
    frozen = tf_loader.from_function(traced, inputs, outputs)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(frozen, name="")
        made = tfonnx.process_tf_graph(
            graph,
            opset=OPSET,
            custom_op_handlers={"SelectV2": (_where, []), "Einsum": (_transposed, []), "Erfc": (_erfc, [])},
            input_names=inputs,
            output_names=outputs,
            tensors_to_rename=dict(zip([*inputs, *outputs], [*signature, *names], strict=True)),
        )
    kept = {name: getattr(optimizer, name) for name in OPTIMIZERS}
    return optimizer.optimize_graph(made, catch_errors=False, optimizers=kept).make_model("translate")


def _where(context: Any, node: Any, name: str, arguments: list[Any]) -> None:
    """Convert a choice by one node. tf2onnx makes six, a sum of products, which a NaN that is not chosen spoils."""
    node.type = "Where"


def _transposed(context: Any, node: Any, name: str, arguments: list[Any]) -> None:
    """Convert an `einsum` of one tensor, whose axes it moves; tf2onnx makes two nodes of it, and takes long."""
    (before, after) = node.get_attr_value("equation").decode().split("->")
    node.type = "Transpose"
    node.set_attr("perm", [before.index(axis) for axis in after])


def _erfc(context: Any, node: Any, name: str, arguments: list[Any]) -> None:
    """Convert 1 - erf(x), a part of gelu, which ONNX lacks."""
    one = context.make_const(f"{name}_one", np.array(1, np.float32))
    erf = context.make_node("Erf", [node.input[0]])
    node.type = "Sub"
    context.replace_inputs(node, [one.output[0], erf.output[0]])


def graphs_in(graph: Any) -> Iterator[Any]:
    """A graph and those of its loops and branches."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs_in(attribute.g)


def take_from_state(graph: Any) -> None:
    """Take what no step changes out of the state of a graph's loops: their bodies use it where it comes from."""
    for loop in [node for node in graph.node if node.op_type == "Loop"]:
        (body,) = (attribute.g for attribute in loop.attribute if attribute.name == "body")
        inside, outside = _copies(body), _copies(graph)
        used = {name for node in graph.node if node is not loop for name in node.input}
        used |= {output.name for output in graph.output}
        kept, origins = [], {}
        for k, name in enumerate(loop.input[2:]):
            own, after = body.input[2 + k].name, body.output[1 + k].name
            if inside.get(after, after) == own and loop.output[k] not in used:
                origins[own] = outside.get(name, name)
            else:
                kept.append(k)
        for port in body.input[:2]:  # count and condition are scalars, of which onnxruntime wants to know
            port.type.tensor_type.shape.SetInParent()
        states = len(loop.input) - 2
        for ports, fixed in ((loop.input, 2), (body.input, 2), (body.output, 1), (loop.output, 0)):
            own = [*ports[:fixed], *(ports[fixed + k] for k in kept), *ports[fixed + states :]]
            _replace(ports, own)
        for part in graphs_in(body):
            for node in part.node:
                _replace(node.input, [origins.get(name, name) for name in node.input])
    _remove_unused(graph)


def infer_sizes(graph: Any) -> None:
    """Write -1 for the one size of a reshape that is computed, as the number of rows is, by eight nodes."""
    from onnx import numpy_helper

    constants = {one.name: one for part in graphs_in(graph) for one in part.initializer}
    for part in graphs_in(graph):
        made = {name: node for node in part.node for name in node.output}
        for node in [node for node in part.node if node.op_type == "Reshape"]:
            shape = made.get(node.input[1])
            if shape is not None and shape.op_type == "Cast":
                shape = made.get(shape.input[0])
            if shape is None or shape.op_type != "Concat":
                continue
            computed = [made.get(name) for name in shape.input if name not in constants]
            if any(one is None or one.op_type != "Unsqueeze" for one in computed):  # else it is one number
                continue
            sizes = [numpy_helper.to_array(constants[name]) if name in constants else [-1] for name in shape.input]
            contents = np.concatenate(sizes).astype(np.int64)
            if np.count_nonzero(contents == -1) == 1:
                node.input[1] = f"{node.output[0]}_shape"
                part.initializer.append(numpy_helper.from_array(contents, node.input[1]))
    _remove_unused(graph)


def take_from_steps(graph: Any) -> None:
    """Compute before a graph's loops what their steps would all compute alike."""
    for loop in [node for node in graph.node if node.op_type == "Loop"]:
        (body,) = (attribute.g for attribute in loop.attribute if attribute.name == "body")
        changing, ends = {port.name for port in body.input}, {port.name for port in body.output}
        kept, taken = [], []
        for node in body.node:
            is_whole = any(attribute.HasField("g") for attribute in node.attribute)  # a branch, not always computed
            if is_whole or not changing.isdisjoint(node.input) or not ends.isdisjoint(node.output):
                changing.update(node.output)
                kept.append(node)
            else:
                taken.append(node)
        place = [*graph.node].index(loop)
        for node in reversed(taken):
            graph.node.insert(place, node)
        graph.initializer.extend(body.initializer)
        _replace(body.node, kept)
        del body.initializer[:]


def fuse_norms(graph: Any) -> None:
    """Make one node of each layer normalization, which is ten."""
    from onnx import helper, numpy_helper

    constants = {one.name: one for part in graphs_in(graph) for one in part.initializer}
    for part in graphs_in(graph):
        made, nodes = {name: node for node in part.node for name in node.output}, []
        for node in part.node:
            matches: list[dict[str, str]] = [{}, {}]
            pairs = zip(NORMS, matches, strict=True)
            found = next((found for norm, found in pairs if _matches(norm, node.output[0], made, found)), {})
            if found.get("epsilon") in constants:
                epsilon = float(numpy_helper.to_array(constants[found["epsilon"]]).item())
                inputs = [found[name] for name in ("x", "gamma", "beta")]
                node = helper.make_node("LayerNormalization", inputs, node.output, axis=-1, epsilon=epsilon)
            nodes.append(node)
        _replace(part.node, nodes)
    _remove_unused(graph)


def _matches(pattern: Any, name: str, made: dict[str, Any], found: dict[str, str]) -> bool:
    """Whether a value is computed as a pattern says: operations with their inputs, or names for any values, which are
    put into `found`."""
    if isinstance(pattern, str):
        return found.setdefault(pattern, name) == name
    operation, *inputs = pattern
    node = made.get(name)
    if node is None or node.op_type != operation or len(node.input) != len(inputs):
        return False
    return all(_matches(*pair, made, found) for pair in zip(inputs, node.input, strict=True))


def share_constants(graph: Any) -> None:
    """Keep one of equal constants, so that onnxruntime sees which nodes compute the same."""
    for part in graphs_in(graph):
        first: dict[bytes, str] = {}
        same = {}
        for one in part.initializer:
            unnamed = type(one).FromString(one.SerializeToString())
            unnamed.ClearField("name")
            same[one.name] = first.setdefault(unnamed.SerializeToString(), one.name)
        for each in graphs_in(part):
            for node in each.node:
                _replace(node.input, [same.get(name, name) for name in node.input])
    _remove_unused(graph)


def _copies(graph: Any) -> dict[str, str]:
    """The names of a graph that mean the same as another one, with the first of these."""
    found: dict[str, str] = {}
    for node in graph.node:
        if node.op_type == "Identity":
            found[node.output[0]] = found.get(node.input[0], node.input[0])
    return found


def _replace(ports: Any, new: list[Any]) -> None:
    """Replace the contents of a repeated field by others, which may be among them."""
    copies = [port if isinstance(port, str) else type(port).FromString(port.SerializeToString()) for port in new]
    del ports[:]
    ports.extend(copies)


def _remove_unused(graph: Any) -> None:
    """Remove the nodes and the constants of a graph, and of those in it, that no output needs."""
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


def _tables(graph: Any) -> list[tuple[str, str]]:
    """The names of the tables of embeddings, each with that of its copy for the softmax, or "" if it has none."""
    from onnx import numpy_helper

    matrices = {one.name: numpy_helper.to_array(one) for one in graph.initializer if len(one.dims) == 2}
    looked_up = {node.input[0] for part in graphs_in(graph) for node in part.node if node.op_type == "Gather"}
    found = []
    for name in sorted(looked_up & matrices.keys()):
        table = matrices[name]
        if table.dtype == np.float32:
            same = (other for other, matrix in matrices.items() if other != name and np.array_equal(matrix.T, table))
            found.append((name, next(same, "")))
    return found


def store_once(graph: Any, table: str, weights: str) -> None:
    """Keep a table of embeddings [V, d] alone, and not its copy for the softmax [d, V], which onnxruntime makes.

    Args:
        graph: the model's.
        table, weights: names of constants; without a copy, `weights` is "".
    """
    from onnx import helper

    if weights:
        _replace(graph.initializer, [one for one in graph.initializer if one.name != weights])
        graph.node.insert(0, helper.make_node("Transpose", [table], [weights], perm=[1, 0]))


def store_integers(graph: Any, table: str, weights: str) -> None:
    """Look up the 8-bit integers of the softmax's weights instead of a table, which then is not needed; or integers of
    its own, if it has no copy there.

    Args:
        graph: the model's, whose products have integers.
        table, weights: as of `store_once`.
    """
    from onnx import TensorProto, helper, numpy_helper

    integers, scales = (f"{weights or table}_{part}" for part in ("quantized", "scale"))
    if not weights:
        rows = next(numpy_helper.to_array(one) for one in graph.initializer if one.name == table)
        scale = np.maximum(np.abs(rows).max(axis=1, keepdims=True) / 127, np.finfo("float32").tiny)
        contents = {integers: np.rint(rows / scale).astype("int8"), scales: scale.astype("float32")}
        graph.initializer.extend(numpy_helper.from_array(content, name) for name, content in contents.items())

    def looked_up(ids: str, output: str) -> Iterator[Any]:
        """The nodes that look up ids; where the integers are [d, V], ids are [B, T]."""
        number, scale, row = (f"{output}_{part}" for part in ("integers", "scales", "row"))
        yield helper.make_node("Gather", [integers, ids], [number], axis=int(bool(weights)))
        yield helper.make_node("Cast", [number], [f"{number}_cast"], to=TensorProto.FLOAT)
        yield helper.make_node("Gather", [scales, ids], [scale])
        yield helper.make_node("Mul", [f"{number}_cast", scale], [row if weights else output])
        if weights:
            yield helper.make_node("Transpose", [row], [output], perm=[1, 2, 0])

    for part in graphs_in(graph):
        nodes = [
            list(looked_up(node.input[1], node.output[0]))
            if node.op_type == "Gather" and node.input[0] == table
            else [node]
            for node in part.node
        ]
        _replace(part.node, [node for each in nodes for node in each])


def _quantized(model: Any) -> Any:
    """The model with products of 8-bit integers: weights have a scale by channel, inputs one as they come."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    onnx.helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})  # else it advises that

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        quantize_dynamic(
            model,
            path,
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            extra_options={"EnableSubgraph": True},
        )
        return onnx.load(path)
