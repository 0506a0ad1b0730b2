"""Embeddings, which share their weights with the softmax (section 3.4), with positions (section 3.5)."""

import functools
from typing import Any, Literal, NamedTuple

import keras
import numpy as np
from keras import ops

from tf_transformer.layers.layer import Layer, at_least_float32, by_row, rank_of, resolved_policy
from tf_transformer.layers.positions import Named, Positions, positions_of
from tf_transformer.layers.sublayers import Dropout
from tf_transformer.masks import padding_mask
from tf_transformer.utils.type_names import Shape, Tensor
from tf_transformer.utils.values import BadInput, Count, Natural, Rate, checked, shown

# Arguments of Keras's `ReversibleEmbedding` that `PositionalEmbedding` does not have, with what is the case.
FIXED = {"tie_weights": True, "reverse_dtype": None, "logit_soft_cap": None, "input_length": None}


class PositionedLayer(Layer):
    """Base of the layers that add positions (section 3.5).

    A subclass has the attributes `positions`, `max_length` and, once it is built, `d_model`.
    """

    first_position = 0

    @property
    def sum_dtype(self) -> Any:
        """Dtype of the sum of a vector and its position, which is then rounded once to the compute dtype."""
        return at_least_float32(self.compute_dtype)

    @functools.cached_property
    def position_kind(self) -> Positions:
        """Kind of positions."""
        return positions_of(self.positions, self.max_length, self.first_position)

    @property
    def num_positions(self) -> int | None:
        """Length of the longest sequence. `None` means any."""
        return self.position_kind.max_length

    def encoding(self, position: Tensor) -> Any:
        """Returns the encoding of `position` [T]: [T, d] in `sum_dtype`."""
        return self.position_kind.encoding(self, position)

    def encoding_of(self, x: Tensor) -> Any:
        """Returns the encoding of positions 0 to T - 1 of a sequence x [B, T, ...]: [T, d] in `sum_dtype`."""
        if _has_any_length(x):
            return self.encoding(ops.arange(ops.shape(x)[1], dtype="int32"))
        return self.position_kind.first(self, ops.shape(x)[1])

    def known_sizes(self, inputs: dict[str, Any]) -> dict[str, tuple[int, str]]:
        return {"d": (self.d_model, "d_model")} if hasattr(self, "d_model") else {}

    def check_inputs(self, inputs: dict[str, Any]) -> None:
        # In `call`, Keras would add lines to the message, and a functional model would not raise until its first call.
        x: Any = inputs.get("ids", inputs.get("x"))
        has_position = inputs.get("position") is not None
        if inputs.get("reverse"):
            if has_position:
                raise BadInput(f"{self.name}: expected no position with reverse=True, got one. Logits have none")
            return
        most = None if has_position or rank_of(x) is None or _has_any_length(x) else self.num_positions
        if most is not None and (x.shape[1] or 0) > most:
            name = type(self.position_kind).__name__.lower()
            raise BadInput(
                f"{self.name}: expected at most max_length={most} {name} positions, "
                f"got a sequence of shape {tuple(x.shape)}"
            )

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        if isinstance(config.get("positions"), dict):  # Keras serializes objects in a config, but does not read them.
            config = config | {"positions": keras.saving.deserialize_keras_object(config["positions"])}
        return super().from_config(config)


def _has_any_length(x: Tensor) -> bool:
    """Returns whether x [B, T, ...] has a T that stands for any: a symbol on JAX, or 83 in Keras's trace of shapes on
    PyTorch, where a table of learned positions would be too short for the layer around this one."""
    return getattr(x, "is_meta", False) or not isinstance(x.shape[1], int | None)


@keras.saving.register_keras_serializable("tf_transformer")
class PositionalEncoding(PositionedLayer):
    """Adds positions to vectors, such as a time series, image patches or audio frames (section 3.5).

    Computes `Dropout(x + position)`. For token ids, use `PositionalEmbedding`.

    Args:
        positions: `"sinusoidal"`, for sequences of any length, `"learned"`, or an instance of `Positions`.
        max_length: Number of learned positions. A longer sequence raises an error.
        dropout: Dropout rate of the sum.

    Call arguments:
        x: Tensor of shape `(B, T, d)`.
        training: Whether to apply dropout.

    Returns:
        Tensor of shape `(B, T, d)`.

    Examples:
        >>> layer = tt.layers.PositionalEncoding()
        >>> keras.ops.shape(layer(keras.random.normal((2, 5, 32))))
        (2, 5, 32)
    """

    @checked
    def __init__(
        self,
        positions: Literal["sinusoidal", "learned"] | Positions = "sinusoidal",
        max_length: Count = 1024,
        dropout: Rate = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.positions = positions
        self.max_length = max_length
        self.dropout = dropout

    def build(self, x_shape: Shape) -> None:
        self.d_model = x_shape[-1]
        self.position_kind.build(self, keras.initializers.RandomNormal(stddev=self.d_model**-0.5))
        self._drop: Any = Dropout(self.dropout, dtype=self.dtype_policy)

    def call(self, x: Tensor, training: bool | None = None) -> Any:
        summed = ops.cast(x, self.sum_dtype) + self.encoding_of(x)
        return self._drop(ops.cast(summed, self.compute_dtype), training=training)

    def compute_output_spec(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        # Traced on JAX and PyTorch, x of unknown length would have 83, perhaps more than there are learned positions.
        return keras.KerasTensor(x.shape, self.compute_dtype)


class CandidateWeights(NamedTuple):
    """Linear transformation to the logits of M tokens for each of B sentences."""

    kernel: Any  # [B, d, M]
    bias: Any  # [B, M], at least float32

    def logits(self, x: Tensor) -> Any:
        """Returns the logits [B, T, M] of x [B, T, d]."""
        return ops.cast(ops.matmul(x, self.kernel), self.bias.dtype) + ops.expand_dims(self.bias, 1)


@keras.saving.register_keras_serializable("tf_transformer")
class PositionalEmbedding(PositionedLayer, keras.layers.ReversibleEmbedding):
    """Token embeddings plus positions: Dropout(sqrt(d_model) * embedding + position).

    Id 0 is padding, and the layer's mask hides it, unless `mask_zero` is false. Embeddings start with standard
    deviation d_model^-0.5, so that each component has variance 1 after the factor. As in Keras's
    `ReversibleEmbedding`, `enable_lora` and `quantize` work for embeddings and logits.

    Args:
        vocab_size: Vocabulary size V.
        d_model: Width of an embedding.
        positions: "sinusoidal", for any length, "learned" (row E of Table 3), another kind of `sinusoids`, or an
            instance of `Positions`.
        max_length: Number of learned positions. Longer sequences raise an error.
        dropout: Dropout rate of the sum (section 5.4).
        scale: Whether to multiply embeddings by sqrt(d_model), as in the paper.
        first_position: Index of a sequence's first position. Learned positions begin at 0.
        use_bias: Whether the logits have a bias. The paper's have none.
        mask_zero: Whether id 0 is padding. If not, all ids are tokens, such as bytes. Losses then need
            `ignore_class=None`.
        kwargs: Arguments of `keras.layers.Embedding`, such as `embeddings_initializer`, or `weights` to begin with, of
            shape `(V, d)`.

    Raises:
        BadInput: If `weights` have another shape, or `kwargs` have an argument of Keras's `ReversibleEmbedding` that
            follows from these.

    Call arguments:
        ids: Token ids of shape `(B, T)`.
        position: Positions of shape `(T,)`. Defaults to 0 .. T - 1.
        training: Whether to apply dropout.
        reverse: Whether to return the `logits` of vectors `(B, T, d)` given as the first argument.

    Returns:
        Tensor of shape `(B, T, d)`, or logits `(B, T, V)`, which are at least float32.

    Examples:
        >>> layer = tt.layers.PositionalEmbedding(vocab_size=500, d_model=32)
        >>> ids = keras.ops.array([[5, 6, 7, 0]])
        >>> keras.ops.shape(layer(ids))
        (1, 4, 32)
        >>> keras.ops.convert_to_numpy(layer.compute_mask(ids)).tolist()
        [[True, True, True, False]]
    """

    lora_alpha: Any

    @checked
    def __init__(
        self,
        vocab_size: Count,
        d_model: Count = 512,
        positions: Named | Positions = "sinusoidal",
        max_length: Count = 1024,
        dropout: Rate = 0.1,
        scale: bool = True,
        first_position: Natural = 0,
        use_bias: bool = False,
        mask_zero: bool = True,
        **kwargs: Any,
    ) -> None:
        for name, value in FIXED.items():
            if name in kwargs and (got := kwargs.pop(name)) != value:
                raise BadInput(f"{name}: expected {value}, as always in a PositionalEmbedding, got {shown(got)}")
        if first_position and (isinstance(positions, Positions) or positions == "learned"):
            kind = "learned positions" if positions == "learned" else "positions of a class"
            raise BadInput(f"first_position: expected 0 with {kind}, got {first_position}")
        if named := [name for name in ("input_dim", "output_dim") if name in kwargs]:
            raise BadInput(f"{named[0]}: expected vocab_size and d_model in a PositionalEmbedding, got {named[0]}")
        weights, initializer = kwargs.pop("weights", None), keras.initializers.RandomNormal(stddev=d_model**-0.5)
        # Positions start as usual, whatever embeddings start with.
        self._positions_initializer = initializer
        self._has_initializer = kwargs.get("embeddings_initializer") is not None
        kwargs["embeddings_initializer"] = kwargs.get("embeddings_initializer") or initializer
        super().__init__(input_dim=vocab_size, output_dim=d_model, **kwargs)
        self.vocab_size = vocab_size
        self.d_model = d_model
        self.positions = positions
        self.max_length = max_length
        self.dropout = dropout
        self.scale = scale
        self.first_position = first_position
        self.use_bias = use_bias
        self.mask_zero = mask_zero
        if weights is not None:
            (table,) = weights if isinstance(weights, list | tuple) and len(weights) == 1 else (weights,)
            if (got := tuple(np.shape(table))) != (vocab_size, d_model):
                raise BadInput(f"weights: expected embeddings of shape ({vocab_size}, {d_model}), got shape {got}")
            self.build((None, None))
            self.embeddings.assign(table)

    def add_weight(self, *args: Any, **kwargs: Any) -> keras.Variable:
        # Without Keras's autocast, which would cast the whole table for a few rows.
        return super().add_weight(*args, **({"autocast": False} | kwargs))

    def build(self, ids_shape: Shape) -> None:
        self._dtype_policy = resolved_policy(self)
        self.build_table(ids_shape)
        self.position_kind.build(self, self._positions_initializer)
        self.logits_bias: Any = (
            self.add_weight((self.vocab_size,), "zeros", name="logits_bias") if self.use_bias else None
        )
        # Not as a child: Keras's `quantize` of a model skips layers that have others inside. So hold it as a function.
        dropout = Dropout(self.dropout, dtype=self.compute_dtype)
        dropout._remat_mode = None  # It is computed again with this layer.
        self._drop, self.seed_generator = dropout.__call__, getattr(dropout, "seed_generator", None)

    def build_table(self, ids_shape: Shape) -> None:
        """Adds the embedding table. A variant may override this, `rows` and `product`."""
        alpha = self.lora_alpha
        super().build(ids_shape)
        self.lora_alpha = alpha  # Keras 3.15 replaces it by the rank.
        self._tracker.unlock()  # Keras locks it after the table, for LoRA. More weights follow.

    # The model's first layer and, in reverse, its last one.

    def call(self, ids: Tensor, position: Tensor = None, training: bool | None = None, reverse: bool = False) -> Any:
        return self.logits(ids) if reverse else self.embed(ids, position, training)

    def quantized_call(self, *args: Any, **kwargs: Any) -> Any:
        # Keras calls this and not `call` after `quantize`.
        return self.call(*args, **kwargs)

    def embed(self, ids: Tensor, position: Tensor = None, training: bool | None = None) -> Any:
        """Embeds ids [B, T] at `position` [T] as a call does, for a caller that makes its own mask."""
        ids = ops.cast(ids, "int32")
        # "In the embedding layers, we multiply those weights by sqrt(d_model)."
        embeddings = self.rows(ids) * self.d_model**0.5 if self.scale else self.rows(ids)  # [B, T, d]
        encoding = self.encoding_of(ids) if position is None else self.encoding(position)
        return self._drop(ops.cast(embeddings + encoding, self.compute_dtype), training=training)

    def rows(self, ids: Tensor) -> Any:
        """Returns the table's rows for ids [B, T]: [B, T, d] in `sum_dtype`."""
        if isinstance(ids, keras.KerasTensor):
            # A functional model would keep the table's present values as a constant.
            raise BadInput(f"{self.name}: expected ids with values, got a symbolic tensor. Call the layer itself")
        rows = super().quantized_call(ids) if self.quantization_mode else ops.take(self.embeddings, ids, axis=0)
        return ops.cast(rows, self.sum_dtype)

    def softmax_weights(self) -> Any:
        """Returns the table as the pre-softmax linear transformation (section 3.4): [d, V] in the compute dtype.
        `None` if it holds integers, which are multiplied as stored."""
        if self.quantization_mode:
            return None
        return ops.transpose(ops.cast(self.embeddings, self.compute_dtype))

    def candidate_weights(self, candidates: Tensor) -> "CandidateWeights":
        """Returns the linear transformation to the logits of some tokens, ids [B, M]. After the first, 0 is padding."""
        kernel = ops.transpose(ops.cast(self.rows(candidates), self.compute_dtype), (0, 2, 1))
        is_none = (candidates == 0) & (ops.arange(ops.shape(candidates)[1], dtype="int32") > 0)
        bias = ops.cast(ops.where(is_none, -1e9, 0.0), self.sum_dtype)
        return CandidateWeights(kernel, bias + ops.take(self.logits_bias, candidates) if self.use_bias else bias)

    def logits(self, x: Tensor, softmax_weights: Tensor = None) -> Any:
        """Applies the pre-softmax linear transformation: [B, T, d] -> [B, T, V] in `sum_dtype`.

        Args:
            x: Tensor of shape [B, T, d].
            softmax_weights: Result of `softmax_weights()` or `candidate_weights()`, for a loop that computes it once.
        """
        if hasattr(softmax_weights, "logits"):
            return softmax_weights.logits(x)
        if isinstance(x, keras.KerasTensor) and softmax_weights is None:
            # In a functional model this must be a call of the layer, so that the table stays shared.
            return self(x, reverse=True)
        # The softmax after it is at least float32, in the loss and in a search.
        product = self.product if softmax_weights is None else functools.partial(ops.matmul, x2=softmax_weights)
        logits = ops.cast(by_row(product, x), self.sum_dtype)
        return logits + self.logits_bias if self.use_bias else logits

    def product(self, x: Tensor) -> Any:
        """Multiplies rows x [N, d] by the transposed table: [N, V]."""
        if self.quantization_mode:
            return super().quantized_call(x, reverse=True)
        return ops.matmul(x, self.softmax_weights())

    def quantize(self, mode: Any = None, type_check: bool = False, config: Any = None) -> None:
        # Keras's type check would raise for a subclass of its layer.
        super().quantize(mode, type_check=False, config=config)

    @property
    def variable_serialization_spec(self) -> dict[Any, list[str]]:
        """Names of the weights in Keras's files, in order: those of Keras's own layer, then ours."""
        ours = [*self.position_kind.weight_names] + ["logits_bias"] * self.use_bias
        return {mode: names + ours for mode, names in super().variable_serialization_spec.items()}

    def compute_mask(self, ids: Tensor, mask: Tensor = None) -> Any:
        if rank_of(ids) == 3:
            return mask
        return padding_mask(ids) if self.mask_zero else None

    def compute_output_shape(self, ids_shape: Shape, position_shape: Shape = None, reverse: bool = False) -> Any:
        return (*ids_shape[:-1], self.vocab_size) if reverse else (*ids_shape, self.d_model)

    def compute_output_spec(self, ids: Tensor, *args: Any, reverse: bool = False, **kwargs: Any) -> Any:
        # Tracing would fail on PyTorch, where unknown lengths become 83, which may exceed the learned positions.
        shape = self.compute_output_shape(ids.shape, reverse=reverse)
        return keras.KerasTensor(shape, self.sum_dtype if reverse else self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        # Keras's own arguments follow from ours.
        omitted = {"input_dim", "output_dim", *FIXED} | (set() if self._has_initializer else {"embeddings_initializer"})
        return {name: value for name, value in super().get_config().items() if name not in omitted}
