"""Products in 8-bit integers, for serving on CPUs.

Each output channel of a weight matrix, and each row of an input, has a scale of its own: its largest magnitude becomes
127. Sums of products are exact integers, so the rows of a product do not depend on each other. All else stays float32;
so do small matrices, whose products take less time than converting the rows.

On TensorFlow, oneDNN's operation `_QuantizedMatMul` computes the product. It exists on x86-64, not on arm64.
"""

import functools
import itertools
import math
import posixpath
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_transformer.config import BadInput
from tf_transformer.utils.type_names import Shape, Tensor

INT8_MAX = 127.0
MIN_INT8_ELEMENTS = 2**17  # elements of a dense layer's matrix, from which 8 bits are faster; measured at 4 to 128 rows
MIN_MAGNITUDE = 1e-30  # replaces 0 as the largest magnitude of a row of zeros


@keras.saving.register_keras_serializable("tf_transformer")
class Int8(keras.DTypePolicy):
    """The dtype policy of layers that multiply 8-bit integers; their other weights, and their sums, are float32."""

    def __init__(self, name: str = "int8") -> None:
        super().__init__("float32")
        self._name = name


def policy_of(dtype: str | None) -> str | Int8 | None:
    """The dtype policy with a name: `Int8` for "int8"; other names are policies of Keras."""
    return Int8() if dtype == "int8" else dtype


def is_int8(layer: keras.layers.Layer) -> bool:
    """Whether a layer multiplies 8-bit integers."""
    return isinstance(layer.dtype_policy, Int8)


def dense(units: int, activation: Any = None, *, dtype: Any, **options: Any) -> keras.layers.Layer:
    """A dense layer for rows [B, d]: `Int8Dense` if the dtype policy is `Int8`, else `keras.layers.Dense`."""
    if isinstance(dtype, Int8):
        options.pop("kernel_initializer", None)  # its weights come from a trained model
    layer = (Int8Dense if isinstance(dtype, Int8) else keras.layers.Dense)(units, activation, dtype=dtype, **options)
    if layer._remat_mode and layer._remat_mode.mode != "activations":
        layer._remat_mode = None  # computed again with the layer around it; alone it would fail in compiled calls
    return layer


@keras.saving.register_keras_serializable("tf_transformer")
class Int8Dense(keras.layers.Layer):
    """A dense layer that multiplies 8-bit integers if its matrix is large: [B, d] -> float32 [B, units]."""

    def __init__(self, units: int, activation: Any = None, use_bias: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias

    def build(self, x_shape: Shape) -> None:
        shape = (x_shape[-1], self.units)
        if math.prod(shape) < MIN_INT8_ELEMENTS:
            self.kernel, self.kernel_max = self.add_weight(shape, "zeros", name="kernel"), None
        else:
            self.kernel, self.kernel_max = int8_weights(self, "kernel", shape, axis=0)
        self.bias = self.add_weight((self.units,), "zeros", name="bias") if self.use_bias else None

    def call(self, x: Tensor) -> Any:
        is_small = self.kernel_max is None
        x = ops.matmul(x, self.kernel) if is_small else int8_product(x, self.kernel, self.kernel_max)
        return self.activation(x if self.bias is None else x + self.bias)

    def compute_output_shape(self, x_shape: Shape) -> Any:
        return (*x_shape[:-1], self.units)

    def get_config(self) -> dict[str, Any]:
        activation = keras.activations.serialize(self.activation)
        return super().get_config() | {"units": self.units, "activation": activation, "use_bias": self.use_bias}


def int8_weights(
    layer: keras.layers.Layer, name: str, shape: tuple[int, int], axis: int
) -> tuple[keras.Variable, keras.Variable]:
    """Add an int8 matrix to a layer: the variables of its integers, and of its largest magnitudes along `axis`."""
    matrix = layer.add_weight(shape, "zeros", "int8", trainable=False, autocast=False, name=name)
    return matrix, layer.add_weight((shape[1 - axis],), "zeros", trainable=False, name=f"{name}_max")


def is_scale(variable: keras.Variable) -> bool:
    """Whether a variable holds an int8 matrix's scales, its largest magnitudes, which do not count as parameters."""
    return variable.name.endswith("_max")


def copy_weights(model: keras.Model, source: keras.Model) -> None:
    """Copies the weights of `source` into a built model of the same configuration, converted to the model's dtype.
    LoRA adapters are added to the matrices that they adapt.

    Weights are matched by their layer's position, not by name: Keras numbers the names of unnamed layers.

    Raises:
        BadInput: If `source` has 8-bit weights, ours or Keras's own, whose rounding cannot be undone, or if the two
            models have different weights.
    """
    if not (is_int8(source) and is_int8(model)) and any(weight.dtype == "int8" for weight in source.weights):
        dtype = model.dtype_policy.name
        raise BadInput(f"expected a model in another dtype than int8 to convert to {dtype}, got weights of 8 bits")
    adapters, factors = _adapters(source), {id(factor) for _, *ab, _ in _lora(source) for factor in ab}
    for layer, other in itertools.zip_longest(model._flatten_layers(), source._flatten_layers()):
        new, old = _own(layer), [weight for weight in _own(other) if id(weight) not in factors]
        integers = [] if is_int8(source) else [weight for weight in new if weight.dtype == "int8"]
        scales = {weight.name: weight for weight in new if weight.name in {f"{matrix.name}_max" for matrix in integers}}
        new = [weight for weight in new if weight.name not in scales]
        if scales:  # integers come after the weights that learn
            new, old = (sorted(weights, key=lambda weight: weight.name) for weights in (new, old))
        if (expected := [tuple(weight.shape) for weight in new]) != (got := [tuple(weight.shape) for weight in old]):
            raise BadInput(
                f"{(other or layer).path}: expected weights of shapes {expected}, as in a new model of this "
                f"configuration, got {got}. Make all layers from the configuration"
            )
        for weight, before in zip(new, old, strict=True):
            value = np.asarray(ops.convert_to_numpy(before)) + adapters.get(id(before), 0)
            if f"{weight.name}_max" in scales:
                value, largest = quantized(value.astype("float32"), axis=0 if weight.name == "kernel" else 1)
                scales[f"{weight.name}_max"].assign(largest)
            weight.assign(value)


def _own(layer: keras.layers.Layer | None) -> list[keras.Variable]:
    """The weights of a layer itself."""
    return [] if layer is None else layer._trainable_variables + layer._non_trainable_variables


def has_adapters(model: keras.Model) -> bool:
    """Whether a model has adapters of LoRA."""
    return any(_lora(model))


def wake_adapters(model: keras.Model) -> None:
    """Draw the first factor of each adapter anew, after a file was loaded. Keras adds an adapter's product to the
    matrix in a file, and loading leaves both factors 0, from where neither learns."""
    for _, a, _, _ in _lora(model):
        a.assign(keras.initializers.HeUniform()(a.shape))


def frozen_weights(model: keras.Model) -> list[str]:
    """The parts of a built model that do not learn, for `freeze`: whole layers, and else weights.

    A matrix with an adapter of LoRA learns if that does.
    """
    adapters = {id(factor) for _, a, b, _ in _lora(model) for factor in (a, b)}
    adapted = {id(matrix) for matrix, a, b, _ in _lora(model) if a.trainable or b.trainable}
    layers: dict[str, dict[str, bool]] = {}
    for name, weight in _by_name(model).items():
        if id(weight) not in adapters:
            frozen = not weight.trainable and id(weight) not in adapted
            layers.setdefault(name.partition("/")[0], {})[name] = frozen
    return [
        part
        for layer, weights in layers.items()
        for part in ([layer] if all(weights.values()) else [name for name, frozen in weights.items() if frozen])
    ]


def freeze(model: keras.Model, parts: Iterable[str]) -> None:
    """Freezes these layers and weights of a built model.

    Raises:
        BadInput: If the model has no layer or weight of such a name.
    """
    weights = _by_name(model)
    for part in parts:
        found = [weight for name, weight in weights.items() if f"{name}/".startswith(f"{part}/")]
        if not found:
            layers = ", ".join(dict.fromkeys(name.partition("/")[0] for name in weights))
            raise BadInput(f"frozen: expected layers or weights of the model, in {layers}; got {part!r}")
        for weight in found:
            weight.trainable = False


def _adapters(model: keras.Model) -> dict[int, np.ndarray]:
    """What LoRA adds to a model's matrices, by the id of their variables."""
    return {id(matrix): scale * ops.convert_to_numpy(ops.matmul(a, b)) for matrix, a, b, scale in _lora(model)}


def _lora(model: keras.Model) -> Iterator[tuple[keras.Variable, keras.Variable, keras.Variable, float]]:
    """Each adapter of a model: the matrix, the two factors, and the scale of their product."""
    for layer in model._flatten_layers():
        if getattr(layer, "lora_enabled", False):
            name = "kernel" if hasattr(layer, "lora_kernel_a") else "embeddings"
            a, b = (getattr(layer, f"lora_{name}_{side}") for side in "ab")
            yield getattr(layer, f"_{name}"), a, b, layer.lora_alpha / layer.lora_rank


def _by_name(model: keras.Model) -> dict[str, keras.Variable]:
    """A model's variables by their names within the model."""
    scope = posixpath.commonpath([variable.path for variable in model.weights])
    return {posixpath.relpath(variable.path, scope): variable for variable in model.weights}


def quantized(matrix: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Round a matrix to 8-bit integers: the integers, and the largest magnitudes along `axis` before rounding."""
    largest = np.abs(matrix).max(axis=axis, keepdims=True)
    integers = np.round(matrix * (INT8_MAX / np.maximum(largest, MIN_MAGNITUDE)))
    return integers.astype("int8"), largest.squeeze(axis).astype("float32")


def int8_product(x: Tensor, matrix: Tensor, largest: Tensor, transposed: bool = False) -> Any:
    """x [B, d] times an int8 matrix [d, n], or the transpose of one [n, d]: float32 [B, n].

    Args:
        x: float32 [B, d].
        matrix: int8 [d, n], or [n, d] if transposed.
        largest: float32 [n], the largest magnitude of each column before rounding; of each row if transposed.
        transposed: whether the matrix is [n, d].
    """
    row_largest = ops.max(ops.abs(x), axis=-1, keepdims=True, initial=MIN_MAGNITUDE)  # [B, 1]
    integers = ops.cast(ops.round(x * (INT8_MAX / row_largest)), "int8")
    matrix, largest = ops.convert_to_tensor(matrix), ops.convert_to_tensor(largest)
    if keras.backend.backend() == "tensorflow":
        return _onednn_product(integers, matrix, largest, transposed) * row_largest
    sums = ops.matmul(integers, ops.transpose(matrix) if transposed else matrix)  # int32
    return ops.cast(sums, "float32") * (largest * INT8_MAX**-2) * row_largest


def _onednn_product(integers: Tensor, matrix: Tensor, largest: Tensor, transposed: bool) -> Any:
    """Integers [B, d] times an int8 matrix: float32 [B, n], with the channels' scales but not the rows'."""
    import tensorflow as tf
    from tensorflow.python.framework import op_def_library

    if tf.executing_eagerly():
        return tf.function(_onednn_product, autograph=False)(integers, matrix, largest, transposed)
    largest = tf.convert_to_tensor(largest)  # read once
    # The operation demands a bias. The layer's own cannot be it, since the rows' scales come after it.
    no_bias = tf.zeros([largest.shape[0]])
    (product,), _ = op_def_library.apply_op(  # tf.raw_ops has no names that begin with an underscore
        "_QuantizedMatMul",
        name="int8_product",
        device_inputs=[tf.bitcast(integers, tf.qint8), tf.bitcast(matrix, tf.qint8), no_bias],
        host_inputs=[tf.constant(-1.0), tf.constant(1.0), largest, largest],  # ranges of the rows, then of the channels
        fused_ops=["BiasAdd", "Dequantize"],
        transpose_a=False,
        transpose_b=transposed,
        is_weight_const=True,  # packed once, at the first request
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
    product.set_shape([None, largest.shape[0]])
    return product


@functools.cache
def check_kernel() -> None:
    """Check that TensorFlow can multiply 8-bit integers on this machine.

    Raises:
        BadInput: it cannot.
    """
    try:
        int8_product(ops.ones((1, 2)), ops.ones((2, 3), "int8"), ops.ones((3,)))
    except Exception as error:  # TensorFlow raises several kinds
        reason = str(error).strip().splitlines()[0]
        raise BadInput(
            f"int8: expected a TensorFlow that has oneDNN's _QuantizedMatMul, as on x86-64, got one without: {reason}"
        ) from error
