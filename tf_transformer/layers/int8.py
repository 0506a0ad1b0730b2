"""Matmuls of 8-bit integers, for serving on CPUs: `Int8`, the dtype policy of a `Transformer`.

Each row of an input is scaled so that its largest magnitude becomes 127, and each output channel of a weight matrix so
that no two neighbors add up to more than 128. Sums of products are then exact integers on every processor, so the rows
of a product do not depend on each other. Everything else is float32, including small matrices, whose products take less
time than converting the rows.

On TensorFlow, oneDNN's operation `_QuantizedMatMul` computes the product.
"""

import functools
import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_transformer.config import BadInput
from tf_transformer.layers.embedding import PositionalEmbedding
from tf_transformer.utils.files import plainly_named
from tf_transformer.utils.processor import pair_sums
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

    @property
    def layer_classes(self) -> dict[type, type]:
        """Classes of layers that replace others."""
        return {keras.layers.Dense: Int8Dense, PositionalEmbedding: Int8Embedding}


def policy_of(dtype: str | None) -> Any:
    """Returns the policy for "int8". Other names are policies of Keras."""
    return Int8() if dtype == "int8" else dtype


@keras.saving.register_keras_serializable("tf_transformer")
class Int8Dense(keras.layers.Layer):
    """Dense layer that multiplies 8-bit integers if its matrix is large: [B, d] -> float32 [B, units]."""

    def __init__(
        self, units: int, activation: Any = None, use_bias: bool = True, kernel_initializer: Any = None, **kwargs: Any
    ) -> None:
        # Without an initializer, since the weights come from a trained model.
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

    def rounded(self, values: dict[str, np.ndarray]) -> list[np.ndarray]:
        return rounded(self, values, "" if self.kernel_max is None else "kernel", axis=0)

    def compute_output_shape(self, x_shape: Shape) -> Any:
        return (*x_shape[:-1], self.units)

    def get_config(self) -> dict[str, Any]:
        activation = keras.activations.serialize(self.activation)
        return super().get_config() | {"units": self.units, "activation": activation, "use_bias": self.use_bias}


@keras.saving.register_keras_serializable("tf_transformer")
class Int8Embedding(PositionalEmbedding):
    """`PositionalEmbedding` with a table of 8-bit integers, which the softmax multiplies as stored."""

    def build_table(self, ids_shape: Shape) -> None:
        shape = (self.vocab_size, self.d_model)
        self._embeddings, self.embeddings_max = int8_weights(self, "embeddings", shape, axis=1)

    def rows(self, ids: Tensor) -> Any:
        rows = ops.cast(ops.take(self.embeddings, ids, axis=0), "float32")
        return rows * ops.expand_dims(ops.take(self.embeddings_max, ids) * (1 / INT8_MAX), -1)

    def product(self, x: Tensor) -> Any:
        return int8_product(x, self.embeddings, self.embeddings_max, transposed=True)

    def rounded(self, values: dict[str, np.ndarray]) -> list[np.ndarray]:
        return rounded(self, values, "embeddings", axis=1)

    def quantize(self, mode: Any = None, type_check: bool = False, config: Any = None) -> None:
        raise NotImplementedError(f"{self.name}: its table holds 8-bit integers already")

    @property
    def variable_serialization_spec(self) -> dict[Any, list[str]]:
        spec = super().variable_serialization_spec
        return {mode: [table, "embeddings_max", *names] for mode, (table, *names) in spec.items()}


def int8_weights(
    layer: keras.layers.Layer, name: str, shape: tuple[int, int], axis: int
) -> tuple[keras.Variable, keras.Variable]:
    """Adds an int8 matrix to a layer. Returns its integers, and along `axis` the magnitudes that 127 stands for."""
    matrix = layer.add_weight(shape, "zeros", "int8", trainable=False, autocast=False, name=name)
    return matrix, layer.add_weight((shape[1 - axis],), "zeros", trainable=False, name=f"{name}_max")


def rounded(layer: keras.layers.Layer, values: dict[str, np.ndarray], matrix: str, axis: int) -> list[np.ndarray]:
    """Returns the values of a layer's weights, in order, from those of a layer in float32 by name.

    `matrix` names the one to round, if any, with its magnitudes of 127 along `axis`.
    """
    check_kernel()
    if matrix in values:
        values[matrix], values[f"{matrix}_max"] = quantized(values[matrix].astype("float32"), axis)
    names = [weight.name for weight in layer._trainable_variables + layer._non_trainable_variables]
    return [values[name] for name in dict.fromkeys([*names, *values]) if name in values]


def quantized(matrix: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Rounds a matrix to integers whose pairs are exact: sums of products run along `axis`.

    Returns them, and along `axis` the magnitudes that 127 stands for.
    """
    # No weight is larger than its pair. A pair of 127 may be rounded to EXACT_INT8_PAIR.
    largest = pair_sums(matrix, axis).max(axis=0)
    integers = np.round(matrix * (INT8_MAX / np.maximum(np.expand_dims(largest, axis), MIN_MAGNITUDE)))
    return integers.astype("int8"), largest.astype("float32")


def int8_product(x: Tensor, matrix: Tensor, largest: Tensor, transposed: bool = False) -> Any:
    """Multiplies float32 x [B, d] by an int8 matrix [d, n], or by the transpose of one [n, d]. Returns float32 [B, n].

    `largest` [n] has the magnitude that 127 stands for in each column, or in each row if transposed.
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

    # `apply_op` only adds to graphs.
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


def share_in_8_bits(path: Path) -> float:
    """Returns the share of an export's weights that are 8-bit integers, 0 to 1. It reads no weights."""
    import tensorflow as tf

    with plainly_named(path) as plain:
        stored = tf.train.load_checkpoint(str(plain / "variables" / "variables"))
    dtypes = stored.get_variable_to_dtype_map()
    sizes = {name: math.prod(shape) for name, shape in stored.get_variable_to_shape_map().items()}
    sizes = {name: size for name, size in sizes.items() if name.startswith("weights/")}
    return sum(size for name, size in sizes.items() if dtypes[name] == tf.int8) / sum(sizes.values())


@functools.cache
def check_kernel() -> None:
    """Raises `BadInput` if TensorFlow cannot multiply 8-bit integers on this machine."""
    try:
        int8_product(ops.ones((1, 2)), ops.ones((2, 3), "int8"), ops.ones((3,)))
    except Exception as error:  # TensorFlow raises several kinds.
        reason = str(error).strip().splitlines()[0]
        raise BadInput(
            f"int8: expected a TensorFlow that has oneDNN's _QuantizedMatMul, as on Linux, got one without: {reason}"
        ) from error
