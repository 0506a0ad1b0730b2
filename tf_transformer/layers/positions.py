"""Kinds of positions (section 3.5). Each is a class that computes what is added to a vector at a position.

`PositionalEmbedding` and `PositionalEncoding` take the name of a kind, or an instance of a class of your own.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
from keras import ops

from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import Count, checked

Sinusoids = Literal["sinusoidal", "halves", "fairseq"]
Named = Sinusoids | Literal["learned"]  # names in POSITIONS


@checked
def sinusoids(
    positions: Tensor,
    d_model: Count,
    kind: Sinusoids = "sinusoidal",
    dtype: Literal["float32", "float64"] = "float32",
) -> Any:
    """Computes sinusoidal position encodings (section 3.5).

    PE(pos, 2i) = sin(pos / 10000^(2i / d_model)) and PE(pos, 2i + 1) = cos(the same), interleaved.

    Args:
        positions: Integers of shape [T].
        d_model: Width of an encoding.
        kind: "sinusoidal" is the paper's. "halves" has all sines before all cosines. "fairseq" is the same, with a
            longest wave of exactly 2 pi * 10000.
        dtype: Dtype of the result.

    Returns:
        Encodings [T, d_model]. In float32 they are accurate to about 1e-6 for positions below 4,096.
    """
    frequencies = 10_000.0 ** (-np.arange(0, d_model, 2) / d_model)  # float64
    if kind == "fairseq":
        frequencies = 10_000.0 ** (-np.arange(len(frequencies)) / max(len(frequencies) - 1, 1))
    # Computed from the positions, not taken from a table, which would limit their number.
    # A plain float32 product of position and frequency is wrong by up to 2e-4 below position 4,096. So compute in full
    # circles, of which only the fraction matters: 12 leading bits make the product with a 12-bit position exact.
    turns = frequencies / (2 * math.pi)  # full circles per position
    mantissa, exponent = np.frexp(turns)
    coarse = np.ldexp(np.round(mantissa * 2**12), exponent - 12)
    positions = ops.expand_dims(ops.cast(positions, dtype), -1)  # [T, 1]
    circles = positions * coarse.astype(dtype)
    angles = 2 * math.pi * ((circles - ops.floor(circles)) + positions * (turns - coarse).astype(dtype))
    pairs = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)  # [T, ceil(d_model / 2), 2]
    pairs = ops.reshape(pairs, (-1, 2 * len(frequencies)))[:, :d_model]  # [T, d_model], interleaved
    return pairs if kind == "sinusoidal" else ops.concatenate([pairs[:, 0::2], pairs[:, 1::2]], axis=-1)


class Positions:
    """Base of kinds of positions. A kind of your own defines `encoding`, and `get_config` if it has arguments.

    Register it by `keras.saving.register_keras_serializable` for models that are saved in `.keras` files.

    Attributes:
        max_length: Number of positions. `None` means any.
        weight_names: Names of the weights that `build` adds, which are attributes of the layer.
    """

    max_length: int | None = None
    weight_names: ClassVar[tuple[str, ...]] = ()

    def build(self, layer: Any, initializer: Any) -> None:
        """Adds weights to the layer, whose width is `layer.d_model`."""

    def encoding(self, layer: Any, position: Tensor) -> Any:
        """Returns what is added at `position` [T]: [T, d] in `layer.sum_dtype`."""
        raise NotImplementedError(f"{type(self).__name__}: expected a method encoding")

    def first(self, layer: Any, count: Tensor) -> Any:
        """Returns the encoding of positions 0 to count - 1: [count, d]."""
        return self.encoding(layer, ops.arange(count, dtype="int32"))

    def get_config(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Positions":
        return cls(**config)


class Sinusoidal(Positions):
    """Sinusoids, which "may allow the model to extrapolate to sequence lengths longer than the ones encountered during
    training". They have no weights."""

    def __init__(self, kind: Sinusoids = "sinusoidal", first_position: int = 0) -> None:
        self.kind: Sinusoids = kind
        self.first_position = first_position

    def encoding(self, layer: Any, position: Tensor) -> Any:
        position = position + self.first_position if self.first_position else position
        return sinusoids(position, layer.d_model, self.kind, layer.sum_dtype)


class Learned(Positions):
    """A table of learned vectors. The two kinds "produced nearly identical results" (row E of Table 3)."""

    weight_names = ("position_embeddings",)

    def __init__(self, max_length: int) -> None:
        self.max_length: int = max_length

    def build(self, layer: Any, initializer: Any) -> None:
        shape = (self.max_length, layer.d_model)
        layer.position_embeddings = layer.add_weight(shape, initializer, name="position_embeddings")

    def encoding(self, layer: Any, position: Tensor) -> Any:
        return ops.cast(ops.take(layer.position_embeddings, position, axis=0), layer.sum_dtype)

    def first(self, layer: Any, count: Tensor) -> Any:
        # A slice, since a GPU's gather returns zeros for positions beyond the table. Too few rows raise.
        return ops.cast(layer.position_embeddings[:count], layer.sum_dtype)


# By name, a function of `max_length` and `first_position`.
POSITIONS: dict[str, Callable[[int, int], Positions]] = {
    "sinusoidal": lambda max_length, first: Sinusoidal("sinusoidal", first),
    "halves": lambda max_length, first: Sinusoidal("halves", first),
    "fairseq": lambda max_length, first: Sinusoidal("fairseq", first),
    "learned": lambda max_length, first: Learned(max_length),
}


def positions_of(positions: "str | Positions", max_length: int, first_position: int) -> Positions:
    """Returns the kind of positions of a name, or an instance as it is."""
    return POSITIONS[positions](max_length, first_position) if isinstance(positions, str) else positions
