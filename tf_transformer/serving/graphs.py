"""Shrinks the graph of a SavedModel. A server copies all of it when it loads, and at the first request of a signature.

TensorFlow traces a constant, or the shape of a tensor, as often as Python asks for it, and names each node after its
whole scope. The rewritten functions compute the same with half as many nodes, which have short names.
"""

import collections
import copy
import graphlib
import re
from collections.abc import Set
from pathlib import Path
from typing import Any

from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry
from tensorflow.python.saved_model.fingerprinting_utils import write_fingerprint


def compact(folder: Path) -> None:
    """Rewrites the functions of a SavedModel. Its outputs are bit-identical.

    Signatures, variables, functions, and nodes outside of functions keep their names.
    """
    file = folder / "saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    for graph in saved.meta_graphs:
        inputs = {name for signature in graph.signature_def.values() for name in signature.inputs}
        for function in graph.graph_def.library.function:
            _merge(function)
            _rename(function, inputs)
        # TensorFlow also reads each variable outside of functions, and uses none of these reads.
        nodes = graph.graph_def.node
        used = {_producer(source) for node in nodes for source in node.input}
        remaining = [copy.deepcopy(node) for node in nodes if node.op != "ReadVariableOp" or node.name in used]
        for node in remaining:
            _drop_notes(node)
        del nodes[:]
        nodes.extend(remaining)
    file.write_bytes(saved.SerializeToString())
    write_fingerprint(str(folder))  # otherwise it is that of the former graph


def _drop_notes(node: Any) -> None:
    """Drops what TensorFlow infers again, shows only to people, or needs for gradients."""
    node.attr.pop("_output_shapes", None)
    # It names a function that the file does not have, so Python would warn at every load.
    node.attr.pop("_gradient_op_type", None)
    node.ClearField("experimental_debug_info")


def _merge(function: Any) -> None:
    """Merges nodes that compute the same, and drops those that neither outputs nor side effects need."""
    same: dict[str, str] = {}  # node name → name of its replacement
    first: dict[Any, str] = {}  # computation → name of the first node that does it
    kept: dict[str, Any] = {}
    needed = []
    nodes = {node.name: node for node in function.node_def}
    sources = {name: [*map(_producer, node.input)] for name, node in nodes.items()}
    # Each after its inputs, some of which are arguments of the function.
    for node in (nodes[name] for name in graphlib.TopologicalSorter(sources).static_order() if name in nodes):
        _set_inputs(node, same)
        _drop_notes(node)
        definition = op_def_registry.get(node.op)
        # A stateful operation, such as a random one, may compute something else every time.
        if definition is not None and not definition.is_stateful:
            attributes = sorted(
                (name, value.SerializeToString(deterministic=True)) for name, value in node.attr.items()
            )
            key = (node.op, node.device, tuple(node.input), tuple(attributes))
            if first.setdefault(key, node.name) != node.name:
                same[node.name] = first[key]
                continue
        elif node.op != "ReadVariableOp":
            needed.append(node.name)
        kept[node.name] = node
    _set_results(function, same)
    needed += [_producer(source) for source in (*function.ret.values(), *function.control_ret.values())]
    live = set()
    while needed:
        name = needed.pop()
        if name in kept and name not in live:
            live.add(name)
            needed += map(_producer, kept[name].input)
    remaining = [copy.deepcopy(node) for name, node in kept.items() if name in live]
    del function.node_def[:]
    function.node_def.extend(remaining)


def _rename(function: Any, inputs: Set[str]) -> None:
    """Shortens the names of nodes, arguments and results, which nothing outside a function uses.

    Keeps the names of a signature's inputs, since a server's error messages show them to clients.
    """
    arguments, results = function.signature.input_arg, function.signature.output_arg
    names = {
        argument.name: argument.name if argument.name in inputs else f"in{index}"
        for index, argument in enumerate(arguments)
    }
    # A node is named by its operation, so that profiles are readable.
    counts: collections.Counter[str] = collections.Counter()
    for node in function.node_def:
        stem = re.sub("[^A-Za-z0-9]", "", node.op)[:9]
        counts[stem] += 1
        names[node.name] = f"{stem}_{counts[stem]}"
    for node in function.node_def:
        _set_inputs(node, names)
        node.name = names[node.name]
    _set_results(function, names)
    outputs = {result.name: f"out{index}" for index, result in enumerate(results)}
    sources = {outputs[name]: source for name, source in function.ret.items()}
    function.ret.clear()
    function.ret.update(sources)
    for ports, new in ((arguments, names), (results, outputs)):
        for port in ports:
            port.name = new[port.name]
            port.ClearField("handle_data")  # shapes of variables, which the variables' nodes have too
    function.arg_attr.clear()


def _set_inputs(node: Any, names: dict[str, str]) -> None:
    """Renames the inputs of a node. Control inputs are a set, and come last."""
    inputs = [_renamed(source, names) for source in node.input]
    data = [source for source in inputs if source[0] != "^"]
    node.input[:] = data + sorted({source for source in inputs if source[0] == "^"})


def _set_results(function: Any, names: dict[str, str]) -> None:
    for results in (function.ret, function.control_ret):
        for name, source in list(results.items()):
            results[name] = _renamed(source, names)


def _renamed(source: str, names: dict[str, str]) -> str:
    """Renames a source "^node", "node", "node:output:index" or "argument"."""
    name = _producer(source)
    return source.replace(name, names.get(name, name), 1)


def _producer(source: str) -> str:
    return source.removeprefix("^").partition(":")[0]
