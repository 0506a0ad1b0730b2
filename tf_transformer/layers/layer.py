"""The base of the layers of a sequence: checks of inputs, configs, dtype policies, and matmuls of rows."""

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from tf_transformer.layers.rematerialization import rematerialized
from tf_transformer.utils.type_names import Shape, Tensor
from tf_transformer.utils.values import BadInput

# Axes of tensors, by the argument names of the layers' calls.
AXES = {
    "ids": "[B, T]",
    "position": "[T]",
    "positions": "[B, T]",
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
FOR_ALL_ROWS = ("attention_mask", "positions")  # may have one row for the whole batch


def _width(name: str) -> str:
    """Returns the last axis of an argument: d, or an axis that may have another size than that of x."""
    return "d" if name in ("x", "sublayer_output") else f"d of {name}"


class Rematerialized(keras.layers.Layer):
    """Base of our layers. A `keras.RematScope` computes each one again, as a whole, in the backward pass."""

    def rematerialized_call(self, layer_call: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return rematerialized(self, layer_call, *args, **kwargs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # Traces `call`, even though Keras would ask `compute_output_shape` first: outputs and their dtypes depend on
        # arguments such as `return_attention_scores`, of which that method has only shapes.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


class Layer(Rematerialized):
    """Base of the layers of a sequence. The first input's mask is the output's mask, and each argument of a
    constructor is an attribute and part of the config."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        # Keras freezes the layers that a layer has when it is frozen, not those that `build` makes later.
        if isinstance(value, keras.layers.Layer) and not self.trainable:
            value.trainable = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Checks the axes of all tensors, then calls the layer as Keras does.

        Raises:
            BadInput: If a tensor has another number of axes than documented, or another size of an axis than the other
                tensors of the call. If a mask holds floats.
        """
        # In `call`, Keras would add lines to the message. `build` sees only the first call, and no masks.
        names = [*_signature(type(self).call).parameters][1:]
        inputs = dict(zip(names, args, strict=False)) | kwargs
        if inputs.get("reverse"):  # An embedding's logits: the first argument holds vectors, not ids.
            inputs["x"] = inputs.pop("ids", None)
        for name in AXES.keys() & inputs.keys():
            if got := _mismatch(name, inputs[name]):
                kind = " of bools" if name.endswith("mask") else ""
                order = f". The arguments are {', '.join(names[: names.index(name) + 1])}" if name in names[1:] else ""
                raise BadInput(f"{self.name}: expected {name} {AXES[name]}{kind}, got {got}{order}")
        self._check_sizes(inputs, ["x", *names])
        self.check_inputs(inputs)
        return super().__call__(*args, **kwargs)

    def _check_sizes(self, inputs: dict[str, Any], names: Sequence[str]) -> None:
        """Raises `BadInput` if two tensors of a call have other sizes of the same axis, where these are known."""
        # Backends would broadcast a size of 1, such as that of a mask [B, 1], or name the sizes of a product.
        sizes = self.known_sizes(inputs)
        for shape_name, shape in (self._build_shapes_dict or {}).items():
            if shape:
                sizes[_width(shape_name.removesuffix("_shape"))] = shape[-1], "the first call"
        for name in names:
            value: Any = inputs.get(name)
            if name not in AXES or rank_of(value) is None:
                continue
            axes = AXES[name][1:-1].split(", ")
            if name == "attention_mask":  # Its keys are those of `value`, of a cache, or of the layer's input.
                axes[-1] = "S" if inputs.get("value") is not None else "C" if inputs.get("cache") is not None else "T"
            elif axes[-1] == "d":
                axes[-1] = _width(name)
            for axis, size in zip(axes, value.shape, strict=True):
                if not isinstance(size, int) or (axis == "B" and size == 1 and name in FOR_ALL_ROWS):
                    continue
                expected, origin = sizes.setdefault(axis, (size, name))
                if size != expected:
                    got = f"{keras.backend.standardize_dtype(value.dtype)} {tuple(value.shape)}"
                    shown = f"{name} [{', '.join(axis[0] for axis in axes)}] with {axis[0]} = {expected}"
                    raise BadInput(f"{self.name}: expected {shown} as in {origin}, got {got}")

    def known_sizes(self, inputs: dict[str, Any]) -> dict[str, tuple[int, str]]:
        """Returns required sizes of axes, each with its origin. A subclass may override this."""
        return {}

    def check_inputs(self, inputs: dict[str, Any]) -> None:
        """Raises `BadInput` if the arguments of a call do not fit each other. A subclass may override this."""

    def compute_output_shape(self, *shapes: Shape, **named_shapes: Shape) -> Any:
        # Keras's `summary` passes the shapes by the names of `build`.
        return [*shapes, *named_shapes.values()][0]

    def get_config(self) -> dict[str, Any]:
        # Every argument of a constructor is an attribute of its name. Signatures of base classes come first.
        inits = [kind.__init__ for kind in type(self).__mro__ if issubclass(kind, Layer)]
        names = [name for init in reversed(inits) for name in inspect.signature(init).parameters if hasattr(self, name)]
        config = {name: getattr(self, name) for name in names}
        if isinstance(activation := config.get("activation"), keras.layers.Layer):
            # As an object, a clone would share it.
            config["activation"] = keras.saving.serialize_keras_object(activation)
        return super().get_config() | config | quantized_inside(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        if isinstance(config.get("activation"), dict):
            config = config | {"activation": keras.activations.get(config["activation"])}
        return super().from_config(config)


_signature = functools.lru_cache(inspect.signature)  # an eager search calls each layer once per token


def _mismatch(name: str, value: Any) -> str:
    """Describes an argument of the wrong kind. Returns "" if it is right, or if its axes are not known yet."""
    axes = AXES[name].count(",") + 1
    if isinstance(value, list | tuple | dict) and axes > 1:
        return f"a {type(value).__name__}"
    if hasattr(value, "row_splits") or getattr(value, "ragged", False):
        return f"a ragged tensor, for which write {name}.to_tensor(); it pads with 0"
    if (rank := rank_of(value)) is None:
        return ""
    dtype = keras.backend.standardize_dtype(value.dtype)
    is_right = rank == axes and not (name.endswith("mask") and keras.backend.is_float_dtype(dtype))
    is_right = is_right and not (AXES[name].endswith("d]") and value.shape[-1] is None)  # weights have this size
    return "" if is_right else f"{dtype} {tuple(value.shape)}"


def rank_of(value: Any) -> int | None:
    """Returns the number of a tensor's axes, or `None` if it is unknown or the value isn't a tensor."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return None
    return shape.rank if hasattr(shape, "rank") else len(shape)


def at_least_float32(dtype: Any) -> str:
    """Returns the dtype of a sum or a softmax under a dtype: float32 for 16 bits, else the dtype itself."""
    return str(keras.backend.result_type(dtype, "float32"))


def as_rows(x: Tensor) -> Any:
    """Reshapes [B, T, d] to [B * T, d]."""
    # Keras computes a `Dense` on three axes with TensorFlow's tensordot, a dozen small operations. The ONNX converter
    # also fails on tensordot's two reshapes in a row, where the second takes its shape from the result of the first.
    return ops.reshape(x, (-1, x.shape[-1]))


def by_row(function: Callable[[Any], Any], x: Tensor) -> Any:
    """Applies `function`, [B * T, d] -> [B * T, e], to the rows of x [B, T, d]. Returns [B, T, e]."""
    rows = function(as_rows(x))
    return ops.reshape(rows, (*ops.shape(x)[:-1], rows.shape[-1]))


class Dense(keras.layers.Dense):
    """Keras's layer, with a gradient of the bias that is also right in bfloat16."""

    def call(self, inputs: Tensor, training: bool | None = None) -> Any:
        if not training or self.bias is None or self.compute_dtype != "bfloat16":
            return super().call(inputs, training=training)
        # `ops.add` would be TensorFlow's BiasAdd. Its gradient counts rows in bfloat16, which cannot count beyond 256.
        return self.activation(ops.matmul(inputs, self.kernel) + ops.convert_to_tensor(self.bias))

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        # Keras refuses subclasses, which may compute something else.
        super().quantize(mode, type_check=False, config=config)


def dense(units: int, activation: Any = None, *, dtype: Any, **options: Any) -> keras.layers.Layer:
    """Returns a dense layer for rows [B, d], of the class that the dtype policy has for `keras.layers.Dense`."""
    kind = class_for(dtype, keras.layers.Dense)
    layer = (Dense if kind is keras.layers.Dense else kind)(units, activation, dtype=dtype, **options)
    if layer._remat_mode and layer._remat_mode.mode != "activations":
        # It is computed again with the layer around it. By itself it would fail in compiled calls.
        layer._remat_mode = None
    return layer


def class_for(policy: Any, layer_class: type) -> Any:
    """Returns a layer's class for a dtype policy: `layer_class`, or its replacement in that of `int8.Int8`."""
    # The policy brings the classes, since they derive from layers that ask here.
    return getattr(policy, "layer_classes", {}).get(layer_class, layer_class)


def quantized_inside(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns the "dtype" of a layer's config, with the policies of the layers inside that Keras has quantized."""
    inside = [child for child in layer._flatten_layers(include_self=False) if child.quantization_mode]
    # Keys are patterns: a path may begin with the names of models around the layer, which differ in a file.
    policies = {
        f"(.*/)?{re.escape(layer.name + child.path.removeprefix(layer.path))}": resolved_policy(child)
        for child in inside
    }
    policy = keras.dtype_policies.DTypePolicyMap(resolved_policy(layer), policies) if policies else layer.dtype_policy
    return {"dtype": keras.dtype_policies.serialize(policy)}


def resolved_policy(layer: keras.layers.Layer, *inside: str) -> keras.DTypePolicy:
    """Returns the dtype policy of a layer, or of one inside it, given by path."""
    # A quantized model's file has a map of policies. Keras could look it up, but saves a layer with a map only once.
    policy = layer.dtype_policy
    is_map = isinstance(policy, keras.dtype_policies.DTypePolicyMap)
    return policy["/".join((layer.path or layer.name, *inside))] if is_map else policy


def traced_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function of tensors that calls `ops.custom_gradient`."""

    # TensorFlow registers a gradient for each trace of such a function and never frees it, nor its graph. So the
    # function has a graph of its own, traced once per dtype and rank of its arguments and not once per model.
    @functools.cache
    def traced(*kinds: Any) -> Any:
        import tensorflow as tf

        return tf.function(function, [tf.TensorSpec([None] * rank, dtype) for dtype, rank in kinds], autograph=False)

    @functools.wraps(function)
    def call(*args: Tensor) -> Any:
        if keras.backend.backend() != "tensorflow":
            return function(*args)
        return traced(*((arg.dtype, len(arg.shape)) for arg in args))(*args)

    return call
