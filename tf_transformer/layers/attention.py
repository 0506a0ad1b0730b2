"""Attention (section 3.2): equation (1) as a function, and the multi-head layer around it.

Axes: B batch, T target or query, S source or key, h heads, d model.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from tf_transformer.layers.layer import Layer, as_rows, at_least_float32, dense, rank_of, resolved_policy
from tf_transformer.layers.sublayers import Dropout
from tf_transformer.masks import as_key_mask, intersect
from tf_transformer.utils.type_names import Shape, Tensor
from tf_transformer.utils.values import BadInput, Count, Rate, checked


class KeyValue(NamedTuple):
    """Projected keys and values, one slot for every position that may be attended."""

    key: Any  # [B, h, S, d_k]
    value: Any  # [B, h, S, d_v]

    def write(self, slot: Tensor, new: "KeyValue") -> "KeyValue":
        """Returns a copy with `new` [B, h, T, ...] in slots slot .. slot + T - 1."""
        # Keras's scatter, for every backend. It may copy all slots. The searches' own writes are in `decoding.decoder`.
        B, h, T = (ops.shape(new.key)[axis] for axis in range(3))
        batch, head, column = (ops.arange(size, dtype="int32") for size in (B, h, T))
        batch, head, column = ops.meshgrid(batch, head, slot + column, indexing="ij")
        index = ops.reshape(ops.stack([batch, head, column], axis=-1), (-1, 3))  # [B * h * T, 3]
        rows = (ops.reshape(part, (-1, part.shape[-1])) for part in new)  # [B * h * T, ...]
        return KeyValue(*(ops.scatter_update(old, index, row) for old, row in zip(self, rows, strict=True)))


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor = None, dropout: Callable[[Any], Any] | None = None
) -> tuple[Any, Any]:
    """Computes scaled dot-product attention, equation (1): softmax(Q K^T / sqrt(d_k)) V.

    Args:
        query: Tensor of shape [B, h, T, d_k].
        key: Tensor of shape [B, h, S, d_k].
        value: Tensor of shape [B, h, S, d_v].
        mask: Booleans of three axes, broadcastable to [B, T, S], True where a query may attend. One with none to attend
            gets zeros.
        dropout: Function to apply to the attention weights in training.

    Returns:
        The output [B, h, T, d_v] in value's dtype and the weights ("scores") [B, h, T, S], at least float32.
    """
    if mask is not None:
        dtype = keras.backend.standardize_dtype(mask.dtype)
        if rank_of(mask) != len(query.shape) - 1 or keras.backend.is_float_dtype(dtype):
            raise BadInput(f"mask: expected bools that broadcast to [B, T, S], got {dtype} {tuple(mask.shape)}")
    # "We suspect that for large values of d_k, the dot products grow large in magnitude, pushing the softmax function
    # into regions where it has extremely small gradients": hence 1 / sqrt(d_k). Scaling the queries instead of the
    # product keeps the product within float16's range for longer.
    d_k = query.shape[-1]
    logits = ops.matmul(query * d_k**-0.5, ops.swapaxes(key, -1, -2))  # [B, h, T, S]
    # The softmax is at least float32: bfloat16's 8 bits are too few for a sum of many small weights.
    logits = ops.cast(logits, at_least_float32(logits.dtype))
    if mask is not None:
        mask = ops.expand_dims(mask, 1)  # [B, 1, T, S], the same for every head
        # With a finite minimum, a query with nothing to attend gets no NaN. The factor below makes it exactly zero.
        # A mask of the whole batch is subtracted: TensorFlow would fuse matmul and sum, which is 200 times slower.
        if mask.shape[0] == 1:
            logits = logits - ops.cast(ops.where(mask, 0.0, 1e30), logits.dtype)
        else:
            logits = logits + ops.cast(ops.where(mask, 0.0, -1e30), logits.dtype)
    # Skip softmax over one position, which makes Keras warn. It is 1, and its gradient 0.
    scores = ops.softmax(logits) if logits.shape[-1] != 1 else ops.exp(logits - logits)
    weights = ops.cast(scores, value.dtype)
    # The returned `scores` are without dropout, since they are for plots and alignments.
    output = ops.matmul(weights if dropout is None else dropout(weights), value)  # [B, h, T, d_v]
    if mask is None:
        return output, scores
    # If all keys are masked, the softmax is uniform, since all logits are equally low.
    attends = ops.any(mask, axis=-1, keepdims=True)  # [B, 1, T, 1]
    return output * ops.cast(attends, output.dtype), scores * ops.cast(attends, scores.dtype)


@keras.saving.register_keras_serializable("tf_transformer")
class MultiHeadAttention(Layer):
    """Multi-head attention (section 3.2.2).

    Computes `Concat(head_1 .. head_h) W^O` with `head_i = attention(Q W_i^Q, K W_i^K, V W_i^V)`. Keys and values come
    from the same sequence, as everywhere in the paper, so no `key` follows `value` as in `keras.layers`.

    Args:
        num_heads: Number of heads h.
        d_k: Width of a head's keys and queries. Defaults to d_model / num_heads.
        d_v: Width of a head's values. Defaults to d_model / num_heads.
        dropout: Dropout rate of the attention weights. The paper has none.
        use_bias: Whether the projections have biases. The paper's have none.

    Call arguments:
        query: Tensor of shape `(B, T, d)`.
        value: Tensor of shape `(B, S, d)`. Defaults to `query`, for self-attention.
        mask: Padding mask `(B, T)` of `query`, used in self-attention. Keras passes it as `query_mask` when
            `attention_mask` is also a tensor.
        value_mask: Padding mask `(B, S)` of `value`.
        attention_mask: Booleans of shape `(B, T, S)` or `(1, T, S)`, True where a query may attend.
        return_attention_scores: Whether to also return the attention weights.
        training: Whether to apply dropout.

    Returns:
        Tensor of shape `(B, T, d)`, and if requested the attention weights `(B, h, T, S)`.

    Examples:
        >>> x, memory = keras.random.normal((2, 5, 32)), keras.random.normal((2, 7, 32))
        >>> layer = tt.layers.MultiHeadAttention(num_heads=4)
        >>> output, scores = layer(x, memory, return_attention_scores=True)
        >>> keras.ops.shape(output), keras.ops.shape(scores)
        ((2, 5, 32), (2, 4, 5, 7))
    """

    @checked
    def __init__(
        self,
        num_heads: Count = 8,
        d_k: Count | None = None,
        d_v: Count | None = None,
        dropout: Rate = 0.0,
        use_bias: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.d_k = d_k
        self.d_v = d_v
        self.dropout = dropout
        self.use_bias = use_bias

    def check_inputs(self, inputs: dict[str, Any]) -> None:
        if inputs.get("value") is None and inputs.get("value_mask") is not None:
            raise BadInput(f"{self.name}: expected value with a value_mask, got none. Pass the mask of query as mask")

    def build(self, query_shape: Shape, value_shape: Shape = None) -> None:
        value_shape = value_shape or query_shape
        d_model = query_shape[-1]
        if d_model % self.num_heads and None in (self.d_k, self.d_v):
            raise BadInput(
                f"{self.name}: expected d_k and d_v, or a d_model that is a multiple of num_heads; "
                f"got d_model={d_model}, num_heads={self.num_heads}, d_k={self.d_k}, d_v={self.d_v}"
            )
        d_k, d_v = (size or d_model // self.num_heads for size in (self.d_k, self.d_v))
        h = self.num_kv_heads

        # Query, key and value are initialized as if they were one kernel [d, 3d], as in the authors' code.
        # One matmul projects for all heads: W_1^Q .. W_h^Q side by side.
        self.query_projection = self._projection("query", self.num_heads * d_k, 0.5)
        self.key_projection = self._projection("key", h * d_k, 0.5)
        self.value_projection = self._projection("value", h * d_v, 0.5)
        self.output_projection = self._projection("output", d_model, 1.0)
        self.query_projection.build(query_shape)
        self.key_projection.build(value_shape)
        self.value_projection.build(value_shape)
        self.output_projection.build((*query_shape[:-1], self.num_heads * d_v))
        self.weight_dropout: Any = Dropout(self.dropout, dtype=self.dtype_policy, name="weight_dropout")

    def _projection(self, name: str, units: int, scale: float) -> keras.layers.Layer:
        options = {"use_bias": self.use_bias, "dtype": resolved_policy(self, name), "name": name}
        initializer = keras.initializers.VarianceScaling(scale, "fan_avg", "uniform")  # 1 is Glorot's
        return dense(units, kernel_initializer=initializer, **options)

    @property
    def num_kv_heads(self) -> int:
        """Number of heads of keys and values. A variant may have fewer, which several heads of queries share."""
        return self.num_heads

    def _heads(self, projection: keras.layers.Layer, x: Tensor, h: int) -> Any:
        """Projects x [B, T, d] and splits it into h heads [B, h, T, width of a head]."""
        projected = projection(as_rows(x))  # [B * T, h * width]
        by_head = ops.reshape(projected, (*ops.shape(x)[:-1], h, projected.shape[-1] // h))  # [B, T, h, width]
        # Not `transpose`, which takes TensorFlow two to four times as long on a CPU.
        return ops.einsum("bthd->bhtd", by_head)

    # Two steps, so that a decoder projects a sentence's memory once and attends to it from every token.

    def project(self, value: Tensor) -> KeyValue:
        """Returns the keys [B, h, S, d_k] and values [B, h, S, d_v] of a sequence [B, S, d]."""
        h = self.num_kv_heads
        return KeyValue(self._heads(self.key_projection, value, h), self._heads(self.value_projection, value, h))

    def attend(
        self,
        query: Tensor,
        kv: KeyValue,
        attention_mask: Tensor = None,
        attention: Callable[..., tuple[Any, Any]] = attention,
        training: bool | None = None,
    ) -> tuple[Any, Any]:
        """Attends from query [B, T, d] to projected keys and values, with `attention` or a function like it.

        Returns:
            The output [B, T, d] and the attention weights [B, h, T, S].
        """
        heads = self._heads(self.query_projection, query, self.num_heads)  # [B, h, T, d_k]
        dropout = functools.partial(self.weight_dropout, training=training) if self.dropout else None
        output, scores = attention(heads, kv.key, kv.value, attention_mask, dropout)  # [B, h, T, d_v], [B, h, T, S]
        # Concat(head_1 .. head_h) W^O, by rows.
        joined = ops.reshape(ops.einsum("bhtd->bthd", output), (-1, self.num_heads * kv.value.shape[-1]))
        projected = self.output_projection(joined)  # [B * T, d]
        return ops.reshape(projected, (*ops.shape(query)[:-1], projected.shape[-1])), scores

    # Figure 1 has three uses of this call (section 3.2.3): from each source position to all of them, from each target
    # position to those before it, and, with a `value`, from the target to the encoder's output.

    def call(
        self,
        query: Tensor,
        value: Tensor = None,
        mask: Tensor = None,
        query_mask: Tensor = None,
        value_mask: Tensor = None,
        attention_mask: Tensor = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        # Keras fills masks by name: `mask` if the call has one tensor, else the argument's name with `_mask`.
        query_mask = query_mask if mask is None else mask
        key_mask = query_mask if value is None else value_mask
        kv = self.project(query if value is None else value)
        output, scores = self.attend(query, kv, intersect(attention_mask, as_key_mask(key_mask)), training=training)
        return (output, scores) if return_attention_scores else output
