"""Restricted self-attention (section 4, Table 1), which the paper leaves to future work."""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tf_transformer.layers.attention import KeyValue, attention
from tf_transformer.layers.encoder import EncoderLayer
from tf_transformer.masks import intersect
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import Count, checked

MIN_BLOCK = 16  # positions in a block of `restricted_attention`. Smaller matmuls take as long.


@checked
def restricted_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor = None,
    dropout: Callable[[Any], Any] | None = None,
    *,
    window: Count,
) -> tuple[Any, Any]:
    """Computes attention of each position to those at most window // 2 away.

    It computes in blocks of positions and their neighbors, so time and memory grow with T * window, not with T * T.

    Args:
        query: Tensor of shape [B, h, T, d_k].
        key: Tensor of shape [B, h, T, d_k].
        value: Tensor of shape [B, h, T, d_v].
        mask: Booleans, broadcastable to [B, 1, T], True where a position may be attended.
        dropout: As in `attention`.
        window: Size r of the neighborhood around each position.

    Returns:
        The output [B, h, T, d_v] in value's dtype, and the weights in float32 for N blocks of b positions:
        [B, h, N, b, 3b], from each block to the block before, itself and the block after.
    """
    # Why blocks and not a band: backends have no product that skips masked entries. A block of b >= reach positions
    # needs only itself and its two neighbors, a dense product of [b, 3b] for each of N = T / b blocks.
    reach, T = window // 2, ops.shape(query)[2]
    b = max(reach, MIN_BLOCK)
    if isinstance(T, int):
        b = min(b, T + 1)  # A sequence shorter than the window needs smaller blocks.
    elif ops.is_tensor(T):  # Not for a symbolic length on JAX, where blocks need a static size.
        b = ops.minimum(b, T + 1)
    N = (T + b - 1) // b  # Not -(-T // b): ONNX's division doesn't round negative numbers down.

    def blocks(x: Tensor, before: int = 0, after: int = 0) -> Any:  # [B, h, T, d] -> [B, h, before + N + after, b, d]
        x = ops.pad(x, [[0, 0], [0, 0], [before * b, (N + after) * b - T], [0, 0]])
        return ops.reshape(x, (ops.shape(x)[0], ops.shape(x)[1], before + N + after, b, x.shape[-1]))

    def neighbors(x: Tensor) -> Any:  # [B, h, T, d] -> [B, h, N, 3b, d]
        x = blocks(x, 1, 1)
        return ops.concatenate([x[:, :, first : N + first] for first in range(3)], axis=3)

    # The neighbors of a block include positions that are too far from some of its queries, and padding at both ends.
    position = ops.arange(3 * b, dtype="int32")
    ahead = position - b - ops.expand_dims(position[:b], 1)  # [b, 3b], from query to key
    near = ops.logical_and(ahead >= -reach, ahead <= reach)
    exists = ops.ones((1, 1, T), "bool") if mask is None else mask
    exists = ops.swapaxes(neighbors(ops.expand_dims(exists, -1))[:, 0], -1, -2)  # [B, N, 1, 3b], false beyond the ends
    mask = ops.logical_and(near, exists)
    output, scores = attention(blocks(query), neighbors(key), neighbors(value), mask, dropout)
    B, h = ops.shape(query)[0], ops.shape(query)[1]
    return ops.reshape(output, (B, h, N * b, value.shape[-1]))[:, :, :T], scores


@checked
def near_mask(length: Tensor, window: Count) -> Any:
    """Returns the mask under which each position attends to those at most window // 2 away: bool [1, T, T]."""
    position = ops.arange(length, dtype="int32")
    return ops.expand_dims(ops.abs(ops.expand_dims(position, 1) - position) <= window // 2, 0)


@keras.saving.register_keras_serializable("tf_transformer")
class RestrictedEncoderLayer(EncoderLayer):
    """`EncoderLayer` whose positions attend to those at most r // 2 away (section 4).

    Args:
        window: Size r of the neighborhood.
        options: Arguments of `EncoderLayer`, whose calls it shares.

    Examples:
        >>> layer = tt.layers.RestrictedEncoderLayer(num_heads=4, d_ff=64, window=8)
        >>> keras.ops.shape(layer(keras.random.normal((2, 100, 32))))
        (2, 100, 32)
    """

    @checked
    def __init__(self, *, window: Count = 64, **options: Any) -> None:
        super().__init__(**options)
        self.window = window

    def attend_to_itself(self, x: Tensor, kv: KeyValue, mask: Tensor, scores: bool, training: bool | None) -> Any:
        # Weights, and masks by query, take n * n anyway, so blocks would save nothing.
        if scores or (mask is not None and mask.shape[1] != 1):
            near = near_mask(ops.shape(x)[1], self.window)
            return self.self_attention.attend(x, kv, intersect(mask, near), training=training)
        blocks = functools.partial(restricted_attention, window=self.window)
        return self.self_attention.attend(x, kv, mask, blocks, training)
