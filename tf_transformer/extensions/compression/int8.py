"""Products in 8-bit integers, for serving on CPUs.

Each output channel of a weight matrix, and each row of an input, is scaled so that its largest magnitude becomes 127.
Sums of products are exact integers, so the rows of a product do not depend on each other. Everything else is float32,
including small matrices, whose products take less time than converting the rows.

On TensorFlow, oneDNN's operation `_QuantizedMatMul` computes the product. It exists on x86-64, but not on arm64.
"""

import functools
import itertools
import math
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_transformer.config import BadInput
from tf_transformer.layers.lora import adapters
from tf_transformer.utils.type_names import Shape, Tensor

INT8_MAX = 127.0
MIN_INT8_ELEMENTS = 2**17  # elements of a dense layer's matrix from which 8 bits are faster, measured at 4 to 128 rows
MIN_MAGNITUDE = 1e-30  # replaces 0 as the largest magnitude of a row of zeros


@keras.saving.register_keras_serializable("tf_transformer")
class Int8(keras.DTypePolicy):
    """Dtype policy of layers that multiply 8-bit integers. Their other weights and their sums are float32."""

    def __init__(self, name: str = "int8") -> None:
        super().__init__("float32")
        self._name = name


def policy_of(dtype: str | None) -> str | Int8 | None:
    """Returns `Int8` for "int8". Other names are policies of Keras."""
    return Int8() if dtype == "int8" else dtype


def is_int8(layer: keras.layers.Layer) -> bool:
    """Returns whether a layer or a model multiplies 8-bit integers."""
    return isinstance(layer.dtype_policy, Int8)


def dense(units: int, activation: Any = None, *, dtype: Any, **options: Any) -> keras.layers.Layer:
    """Returns a dense layer for rows [B, d]: `Int8Dense` for the policy `Int8`, else `keras.layers.Dense`."""
    if isinstance(dtype, Int8):
        options.pop("kernel_initializer", None)  # Its weights come from a trained model.
    layer = (Int8Dense if isinstance(dtype, Int8) else keras.layers.Dense)(units, activation, dtype=dtype, **options)
    if layer._remat_mode and layer._remat_mode.mode != "activations":
        # It is computed again with the layer around it. By itself it would fail in compiled calls.
        layer._remat_mode = None
    return layer


@keras.saving.register_keras_serializable("tf_transformer")
class Int8Dense(keras.layers.Layer):
    """Dense layer that multiplies 8-bit integers if its matrix is large: [B, d] -> float32 [B, units]."""

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
    """Adds an int8 matrix to a layer. Returns its integers, and its largest magnitudes along `axis`."""
    matrix = layer.add_weight(shape, "zeros", "int8", trainable=False, autocast=False, name=name)
    return matrix, layer.add_weight((shape[1 - axis],), "zeros", trainable=False, name=f"{name}_max")


def is_scale(variable: keras.Variable) -> bool:
    """Returns whether a variable holds an int8 matrix's magnitudes, which don't count as parameters."""
    return variable.name.endswith("_max")


def copy_weights(model: keras.Model, source: keras.Model) -> None:
    """Copies the weights of `source` into a built model of the same configuration, converted to the model's dtype.
    LoRA adapters are added to the matrices that they adapt. Raises `BadInput` if `source` has 8-bit weights, ours or
    Keras's own, whose rounding cannot be undone, or if the two models have different weights.
    """
    if not (is_int8(source) and is_int8(model)) and any(weight.dtype == "int8" for weight in source.weights):
        dtype = model.dtype_policy.name
        raise BadInput(f"expected a model in another dtype than int8 to convert to {dtype}, got weights of 8 bits")
    changes, factors = {}, set()
    for matrix, a, b, scale in adapters(source):
        changes[id(matrix)] = scale * ops.convert_to_numpy(ops.matmul(a, b))
        factors |= {id(a), id(b)}
    # Match weights by their layer's position, not by name: Keras numbers the names of unnamed layers.
    for layer, other in itertools.zip_longest(model._flatten_layers(), source._flatten_layers()):
        new, old = (
            [] if each is None else each._trainable_variables + each._non_trainable_variables for each in (layer, other)
        )
        old = [weight for weight in old if id(weight) not in factors]
        integers = [] if is_int8(source) else [weight for weight in new if weight.dtype == "int8"]
        scales = {weight.name: weight for weight in new if weight.name in {f"{matrix.name}_max" for matrix in integers}}
        new = [weight for weight in new if weight.name not in scales]
        if scales:  # An int8 layer lists its trainable bias before the integers, a float layer after its kernel.
            new, old = (sorted(weights, key=lambda weight: weight.name) for weights in (new, old))
        if (expected := [tuple(weight.shape) for weight in new]) != (got := [tuple(weight.shape) for weight in old]):
            raise BadInput(
                f"{(other or layer).path}: expected weights of shapes {expected}, as in a new model of this "
                f"configuration, got {got}. Make all layers from the configuration"
            )
        for weight, before in zip(new, old, strict=True):
            value = np.asarray(ops.convert_to_numpy(before)) + changes.get(id(before), 0)
            if f"{weight.name}_max" in scales:
                value, largest = quantized(value.astype("float32"), axis=0 if weight.name == "kernel" else 1)
                scales[f"{weight.name}_max"].assign(largest)
            weight.assign(value)


def quantized(matrix: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Rounds a matrix to int8. Returns the integers, and the largest magnitudes along `axis` before rounding."""
    largest = np.abs(matrix).max(axis=axis, keepdims=True)
    integers = np.round(matrix * (INT8_MAX / np.maximum(largest, MIN_MAGNITUDE)))
    return integers.astype("int8"), largest.squeeze(axis).astype("float32")


def int8_product(x: Tensor, matrix: Tensor, largest: Tensor, transposed: bool = False) -> Any:
    """Multiplies float32 x [B, d] by an int8 matrix [d, n], or by the transpose of one [n, d]. Returns float32 [B, n].

    `largest` [n] has the largest magnitude of each column before rounding, or of each row if transposed.
    """
    row_largest = ops.max(ops.abs(x), axis=-1, keepdims=True, initial=MIN_MAGNITUDE)  # [B, 1]
    integers = ops.cast(ops.round(x * (INT8_MAX / row_largest)), "int8")
    matrix, largest = ops.convert_to_tensor(matrix), ops.convert_to_tensor(largest)
    if keras.backend.backend() == "tensorflow":
        return _onednn_product(integers, matrix, largest, transposed) * row_largest
    sums = ops.matmul(integers, ops.transpose(matrix) if transposed else matrix)  # int32
    return ops.cast(sums, "float32") * (largest * INT8_MAX**-2) * row_largest


def _onednn_product(integers: Tensor, matrix: Tensor, largest: Tensor, transposed: bool) -> Any:
    """Multiplies integers [B, d] by an int8 matrix. Returns float32 [B, n], scaled by channel but not by row."""
    import tensorflow as tf
    from tensorflow.python.framework import op_def_library

    if tf.executing_eagerly():
        return tf.function(_onednn_product, autograph=False)(integers, matrix, largest, transposed)
    largest = tf.convert_to_tensor(largest)  # Read the variable once.
    # The operation requires a bias. It can't be the layer's own, since the rows' scales come after it.
    no_bias = tf.zeros([largest.shape[0]])
    # `tf.raw_ops` has no names that begin with an underscore.
    (product,), _ = op_def_library.apply_op(
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
    """Raises `BadInput` if TensorFlow cannot multiply 8-bit integers on this machine."""
    try:
        int8_product(ops.ones((1, 2)), ops.ones((2, 3), "int8"), ops.ones((3,)))
    except Exception as error:  # TensorFlow raises several kinds.
        reason = str(error).strip().splitlines()[0]
        raise BadInput(
            f"int8: expected a TensorFlow that has oneDNN's _QuantizedMatMul, as on x86-64, got one without: {reason}"
        ) from error
