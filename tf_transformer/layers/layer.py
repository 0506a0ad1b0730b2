"""What all layers of a sequence have in common."""

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import keras

from tf_transformer.layers.rematerialization import Rematerialized
from tf_transformer.utils.type_names import Shape
from tf_transformer.utils.values import BadInput

# The axes of tensors by the names that they have in the layers' calls.
AXES = {
    "ids": "[B, T]",
    "position": "[T]",
    "x": "[B, T, d]",
    "sublayer_output": "[B, T, d]",
    "query": "[B, T, d]",
    "value": "[B, S, d]",
    "memory": "[B, S, d]",
    "mask": "[B, T]",
    "query_mask": "[B, T]",
    "x_mask": "[B, T]",
    "value_mask": "[B, S]",
    "memory_mask": "[B, S]",
    "attention_mask": "[B, T, S]",
}


class Layer(Rematerialized):
    """The base of the layers of a sequence. The mask of the first input is that of the output, and each argument of a
    constructor is an attribute and a part of the config."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras, after a check of the inputs: inside `call`, Keras would surround a message with its own lines.

        Raises:
            BadInput: If a tensor has another number of axes than documented, or a mask holds floats.
        """
        check_axes(self, args, kwargs)
        return super().__call__(*args, **kwargs)

    def compute_output_shape(self, x_shape: Shape, *other_shapes: Shape) -> Any:
        return x_shape

    def get_config(self) -> dict[str, Any]:
        made = [kind.__init__ for kind in type(self).__mro__ if issubclass(kind, Layer)]
        names = [name for init in reversed(made) for name in inspect.signature(init).parameters if hasattr(self, name)]
        return super().get_config() | {name: getattr(self, name) for name in names} | quantized_inside(self)


def check_axes(layer: keras.layers.Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Checks the tensors of a call, as far as their axes are known."""
    names = _parameters(type(layer).call)
    given = dict(zip(names, args, strict=False)) | kwargs
    if given.get("reverse"):  # of an embedding, which then takes vectors
        given["x"] = given.pop("ids", None)
    for name in AXES.keys() & given.keys():
        if got := _wrong(name, given[name]):
            kind = " of bools" if name.endswith("mask") else ""
            order = f". The arguments are {', '.join(names[: names.index(name) + 1])}" if name in names[1:] else ""
            raise BadInput(f"{layer.name}: expected {name} {AXES[name]}{kind}, got {got}{order}")


@functools.lru_cache
def _parameters(call: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(call).parameters)[1:]


def _wrong(name: str, value: Any) -> str:
    """Returns what an argument is instead of what it should be; nothing if it is right, or not known yet."""
    axes = AXES[name].count(",") + 1
    if isinstance(value, list | tuple | dict) and axes > 1:
        return f"a {type(value).__name__}"
    if hasattr(value, "row_splits") or getattr(value, "ragged", False):
        return f"a ragged tensor, for which write {name}.to_tensor(); it pads with 0"
    if (rank := rank_of(value)) is None:
        return ""
    dtype = keras.backend.standardize_dtype(value.dtype)
    is_right = rank == axes and not (name.endswith("mask") and keras.backend.is_float_dtype(dtype))
    return "" if is_right else f"{dtype} {tuple(value.shape)}"


def rank_of(value: Any) -> int | None:
    """The number of a tensor's axes; `None` if it is not known, or if the value is no tensor."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return None
    return shape.rank if hasattr(shape, "rank") else len(shape)


def quantized_inside(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns the "dtype" of a layer's config, with the policies of those layers inside that Keras has quantized.

    The keys are patterns, since a path may begin with the names of models around the layer, which differ in a file.
    """
    inside = [each for each in layer._flatten_layers(include_self=False) if each.quantization_mode]
    paths = [re.escape(layer.name + each.path.removeprefix(layer.path)) for each in inside]
    policies = {f"(.*/)?{path}": resolved_policy(each) for path, each in zip(paths, inside, strict=True)}
    policy = keras.dtype_policies.DTypePolicyMap(resolved_policy(layer), policies) if policies else layer.dtype_policy
    return {"dtype": keras.dtype_policies.serialize(policy)}


def resolved_policy(layer: keras.layers.Layer, *inside: str) -> keras.DTypePolicy:
    """Returns the dtype policy of a layer, or of one inside. In a file of a quantized model it is one of a map.

    Keras can look it up itself, but saves a layer that has a map only once.
    """
    policy = layer.dtype_policy
    is_map = isinstance(policy, keras.dtype_policies.DTypePolicyMap)
    return policy["/".join((layer.path or layer.name, *inside))] if is_map else policy
