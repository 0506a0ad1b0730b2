"""Finds in a function of a graph which scalars hold the same size of tensors.

A layer that keeps its input's shape asks for it, and TensorFlow computes it anew each time: in a step of a search, by a
tenth of its nodes.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

Size = int | tuple[str, int]  # known; or unknown, as that axis of a tensor had it first
Sizes = tuple[Size, ...]

ELEMENTWISE = {"Abs", "AddV2", "Cast", "Identity", "Maximum", "Minimum", "Mul", "RealDiv", "Relu", "Round"}
ELEMENTWISE |= {"Rsqrt", "Square", "Sub"}
REDUCTIONS = {"Max", "Mean", "Sum"}
SCALAR = -1  # in place of an axis


class KnownSizes:
    """The sizes of a function's tensors. Its nodes come one after the other, each after its inputs."""

    def __init__(self) -> None:
        # What has one output goes by the node's name, other tensors by their own.
        self._of: dict[str, Sizes] = {}  # by tensor
        self._held: dict[str, Size] = {}  # by scalar, the size that it holds
        self._shapes: dict[str, Sizes] = {}  # by vector, a shape that it holds
        self._vectors: dict[str, list[int]] = {}  # constants
        self._first: dict[tuple[Size, int], str] = {}  # by size and dtype, the node whose scalar holds it

    def add(self, node: Any) -> str | None:
        """Note a node. Returns the name of an earlier one that holds the same size, if there is one."""
        shapes = _attribute(node, "_output_shapes").list.shape
        if len(shapes) != 1 or shapes[0].unknown_rank or any(source[0] == "^" for source in node.input):
            return None
        inputs = [self._tensor(source) for source in node.input]
        inferred = [axis.size for axis in shapes[0].dim]
        others = self._from_inputs(node, inputs, len(inferred)) or [None] * len(inferred)
        self._of[node.name] = tuple(
            size if size >= 0 else other if other is not None else (node.name, axis)
            for axis, (size, other) in enumerate(zip(inferred, others, strict=True))
        )
        if node.op == "Const" and len(inferred) < 2:
            value = tf.make_ndarray(node.attr["value"].tensor)
            if value.dtype == "int32" and value.ndim:
                self._vectors[node.name] = value.tolist()
            elif value.dtype == "int32":
                self._held[node.name] = int(value)
        elif node.op == "Shape" and inputs[0] in self._of:
            self._shapes[node.name] = self._of[inputs[0]]
        elif node.op == "Pack":
            self._shapes[node.name] = tuple(self._held.get(source, (source, SCALAR)) for source in inputs)
        elif node.op == "StridedSlice" and _attribute(node, "shrink_axis_mask").i == 1:
            shape, place = self._shapes.get(inputs[0]), self._vectors.get(inputs[1])
            if shape and place and len(place) == 1:
                return self._same(node, shape[place[0]])
        return None

    def _tensor(self, source: str) -> str:
        name = source.partition(":")[0]
        return name if name in self._of else source

    def _same(self, node: Any, size: Size) -> str | None:
        self._held[node.name] = size
        first = self._first.setdefault((size, node.attr["T"].type), node.name)
        return first if first != node.name else None

    def _from_inputs(self, node: Any, inputs: Sequence[str], rank: int) -> Sequence[Size | None] | None:
        known = [self._of.get(source) for source in inputs]
        sizes: Sequence[Size | None] | None = None
        if node.op in ELEMENTWISE and None not in known:
            backwards = itertools.zip_longest(*(reversed(each or ()) for each in known), fillvalue=1)
            sizes = [_broadcast(each) for each in backwards][::-1]
        elif node.op in REDUCTIONS and _attribute(node, "keep_dims").b and self._is_constant(inputs[1]):
            sizes = known[0]  # but 1 in the reduced axes, which TensorFlow inferred
        elif node.op == "Reshape":
            shape = self._shapes.get(inputs[1])
            sizes = shape and [None if size == -1 else size for size in shape]
        elif node.op == "Einsum" and len(inputs) == 1 and known[0]:
            source, target = node.attr["equation"].s.decode().split("->")
            sizes = [known[0][source.index(letter)] for letter in target]
        return sizes if sizes is not None and len(sizes) == rank else None

    def _is_constant(self, source: str) -> bool:
        return source in self._vectors or isinstance(self._held.get(source), int)


def _broadcast(sizes: Sequence[Size]) -> Size | None:
    """The size of an axis with these sizes in the inputs, `None` if that is unknown."""
    wide = {size for size in sizes if size != 1}
    if len(wide) > 1:
        return next((size for size in wide if isinstance(size, int)), None)
    return wide.pop() if wide else 1


def _attribute(node: Any, name: str) -> Any:
    """An attribute of a node. Asking the node itself for one that it lacks would add it."""
    return node.attr[name] if name in node.attr else tf.compat.v1.AttrValue()
