"""The decoder's layer: the right half of Figure 1 (section 3.1).

Training, greedy search, beam search and serving all run `DecoderLayer.call`: on whole targets, or on the newest tokens
with a cache of the earlier ones.
"""

from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tf_transformer.layers.attention import KeyValue
from tf_transformer.layers.encoder import TransformerLayer
from tf_transformer.layers.layer import AXES, rank_of
from tf_transformer.masks import as_key_mask, causal_mask, intersect
from tf_transformer.utils.type_names import Shape, Tensor
from tf_transformer.utils.values import BadInput


class DecoderCache(NamedTuple):
    """Keys and values that one decoder layer keeps between steps."""

    target: KeyValue  # slots for the target's keys and values, filled from the left [B, h, C, ...]
    memory: KeyValue | None  # the encoder output's keys and values, projected once [B, h, S, ...]


@keras.saving.register_keras_serializable("tf_transformer")
class DecoderLayer(TransformerLayer):
    """Masked self-attention, attention over the encoder's output, feed-forward, each inside Add & Norm (section 3.1).

    It decodes a whole target or, with a cache, only the newest tokens. The arguments are those of `EncoderLayer`. If
    the first call has no `memory`, the layer has no attention over it: it is a block of a decoder-only model.

    Call arguments:
        x: Tensor of shape `(B, T, d)`.
        memory: The encoder's output, of shape `(B, S, d)`. Unused with a cache, which holds its projection, and
            in a decoder-only layer.
        x_mask: Padding mask `(B, T)` of a whole target. Padding at the end needs none, since causality hides it.
        memory_mask: Padding mask `(B, S)` of memory.
        attention_mask: Booleans of shape `(B, T, C)`, True where a token may attend. Defaults to a causal mask.
        cache: `DecoderCache` with C slots, from `init_cache`. `x` is written to the slots slot .. slot + T - 1.
        slot: The cache's slot for the first column of `x`.
        positions: Positions of the columns of `x`, `(B, T)` or `(1, T)`, for variants whose attention depends on them.
            Defaults to 0 .. T - 1.
        return_attention_scores: Whether to also return the attention weights.
        training: Whether to apply dropout.
        mask: Same as `x_mask`. Keras uses this name without memory.

    Returns:
        Tensor of shape `(B, T, d)`. Then, with a cache, the new cache. Then, if requested, the weights of
        self-attention `(B, h, T, C)` and of cross-attention `(B, h, T, S)`, if any.

    Examples:
        >>> x, memory = keras.random.normal((2, 5, 32)), keras.random.normal((2, 7, 32))
        >>> layer = tt.layers.DecoderLayer(num_heads=4, d_ff=64)
        >>> keras.ops.shape(layer(x, memory))
        (2, 5, 32)
        >>> keras.ops.shape(tt.layers.DecoderLayer(num_heads=4, d_ff=64)(x))
        (2, 5, 32)
        >>> cache = layer.init_cache(memory, slots=5)
        >>> for slot in range(5):
        ...     output, cache = layer(x[:, slot : slot + 1], cache=cache, slot=slot)
        >>> keras.ops.shape(output)
        (2, 1, 32)
    """

    def build(self, x_shape: Shape, memory_shape: Shape = None) -> None:
        # Optimizers number the variables of checkpoints in this order.
        has_memory = memory_shape is not None
        self.self_attention = self.make_attention("self_attention")
        self.cross_attention: Any = self.make_attention("cross_attention") if has_memory else None
        self.feed_forward = self.make_feed_forward("feed_forward")
        self.self_attention_norm = self.make_norm("self_attention_norm")
        self.cross_attention_norm: Any = self.make_norm("cross_attention_norm") if has_memory else None
        self.feed_forward_norm = self.make_norm("feed_forward_norm")
        if self.cross_attention:
            self.cross_attention.build(x_shape, memory_shape)
        for layer in (
            self.self_attention,
            self.self_attention_norm,
            self.cross_attention_norm,
            self.feed_forward,
            self.feed_forward_norm,
        ):
            if layer:
                layer.build(x_shape)

    def known_sizes(self, inputs: dict[str, Any]) -> dict[str, tuple[int, str]]:
        cache = inputs.get("cache")
        if not isinstance(cache, DecoderCache) or type(cache.target) is not KeyValue:  # That of a search may grow.
            return {}
        sizes = {"B": cache.target.key.shape[0], "C": cache.target.key.shape[2]}
        sizes |= {} if cache.memory is None else {"S": cache.memory.key.shape[2]}
        return {axis: (size, "the cache") for axis, size in sizes.items() if size is not None}

    def check_inputs(self, inputs: dict[str, Any]) -> None:
        has_memory, cache, slot = inputs.get("memory") is not None, inputs.get("cache"), inputs.get("slot", 0)
        if cache is None:
            if self.built and has_memory != (self.cross_attention is not None):
                expected = "none, as in its first call" if has_memory else "[B, S, d], got none"
                raise BadInput(
                    f"{self.name}: expected memory {expected}. Use one layer with memory and another without"
                )
            if not has_memory and inputs.get("memory_mask") is not None:
                raise BadInput(f"{self.name}: expected memory with a memory_mask, got none")
            if not isinstance(slot, int) or slot:
                raise BadInput(f"{self.name}: expected a cache with slot={slot}, got none")
        elif not isinstance(cache, DecoderCache):
            raise BadInput(f"{self.name}: expected cache a DecoderCache of init_cache, got {type(cache).__name__}")
        elif type(cache.target) is KeyValue and isinstance(slot, int):
            slots, T = cache.target.key.shape[2], inputs["x"].shape[1]
            if slots is not None and T is not None and not 0 <= slot <= slots - T:
                raise BadInput(f"{self.name}: expected slots {slot} to {slot + T - 1} in a cache of {slots} slots")

    def init_cache(self, memory: Tensor = None, slots: int = 0, x: Tensor = None) -> DecoderCache:
        """Returns a cache with `slots` empty slots for target tokens, and the projection of memory [B, S, d].

        A decoder-only layer has no memory. It takes B from x [B, T, d].

        Raises:
            BadInput: If the layer is not built, or the tensor that it needs is missing.
        """
        if not self.built:
            raise BadInput(f"{self.name}: expected a built layer for a cache, got none. Call it first")
        name, value = ("x", x) if self.cross_attention is None else ("memory", memory)
        if rank_of(value) != 3:
            got = "none" if value is None else f"shape {np.shape(value)}"
            raise BadInput(f"{self.name}: expected {name} {AXES[name]} for a cache, got {got}")
        # Memory is projected once per sentence. The K beams of a search are K queries to this one projection.
        kv = None if memory is None else self.cross_attention.project(memory)
        # No position of x is projected: the result has the sizes and the dtype of the slots.
        sizes = kv or self.self_attention.project(x[:, :0])
        B, h = ops.shape(x if memory is None else memory)[0], self.self_attention.num_kv_heads
        empty = (ops.zeros((B, h, slots, part.shape[-1]), part.dtype) for part in sizes)
        return DecoderCache(KeyValue(*empty), kv)

    def call(
        self,
        x: Tensor,
        memory: Tensor = None,
        x_mask: Tensor = None,
        memory_mask: Tensor = None,
        attention_mask: Tensor = None,
        cache: DecoderCache | None = None,
        slot: Tensor = 0,
        positions: Tensor = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        mask: Tensor = None,
    ) -> Any:
        inputs = self.self_attention_norm.sublayer_input(x)
        if cache is None:
            kv = None if memory is None else self.cross_attention.project(memory)
            earlier, padding = None, as_key_mask(x_mask if mask is None else mask)
        else:
            # No padding mask: the one that Keras may fill in for `x_mask` is of the newest tokens only.
            earlier, kv, padding = cache.target, cache.memory, None
        context = (earlier, slot, attention_mask, padding, positions)
        attended, self_scores, target = self.attend_to_earlier(inputs, *context, training)
        cache = None if cache is None else DecoderCache(target, kv)
        x, cross_scores = self.self_attention_norm(x, attended, training=training), None

        # "In addition to the two sub-layers in each encoder layer, the decoder inserts a third sub-layer, which
        # performs multi-head attention over the output of the encoder stack."
        if kv is not None:
            inputs, memory_mask = self.cross_attention_norm.sublayer_input(x), as_key_mask(memory_mask)
            attended, cross_scores = self.cross_attention.attend(inputs, kv, memory_mask, training=training)
            x = self.cross_attention_norm(x, attended, training=training)

        output = self.feed_forward(self.feed_forward_norm.sublayer_input(x))
        x = self.feed_forward_norm(x, output, training=training)

        outputs: tuple[Any, ...] = (x,) if cache is None else (x, cache)
        if return_attention_scores:
            outputs += (self_scores,) if kv is None else (self_scores, cross_scores)
        return outputs if len(outputs) > 1 else x

    # A variant may override these. They get the positions of the columns of x, [B, T] or [1, T], or `None` for 0 to
    # T - 1.

    def attend_to_earlier(
        self,
        x: Tensor,
        earlier: KeyValue | None,
        slot: Tensor,
        attention_mask: Tensor,
        padding: Tensor,
        positions: Tensor,
        training: bool | None,
    ) -> tuple[Any, Any, KeyValue]:
        """Attends from x [B, T, d] to itself and, with a cache, to the `earlier` tokens.

        Returns:
            The output [B, T, d], the attention weights [B, h, T, C], and the keys and values, also those of x.
        """
        target, first = self.project_itself(x, positions), 0  # [B, h, T, d_k], [B, h, T, d_v]
        if earlier is not None:
            target, first = earlier.write(slot, target), slot
        # "We also modify the self-attention sub-layer in the decoder stack to prevent positions from attending to
        # subsequent positions." With a cache, the causal mask also hides slots that are not written yet.
        if attention_mask is None:
            attention_mask = causal_mask(ops.shape(x)[1], ops.shape(target.key)[2], first)
        attention_mask = intersect(attention_mask, padding)
        return *self.attend_to_itself(x, target, attention_mask, positions, training), target

    def project_itself(self, x: Tensor, positions: Tensor) -> KeyValue:
        """Returns the keys and values of x [B, T, d] for self-attention, which the cache keeps."""
        return self.self_attention.project(x)

    def attend_to_itself(
        self, x: Tensor, kv: KeyValue, mask: Tensor, positions: Tensor, training: bool | None
    ) -> tuple[Any, Any]:
        """Attends from x [B, T, d] to keys and values of C slots, under a mask that broadcasts to [B, T, C]."""
        return self.self_attention.attend(x, kv, mask, training=training)
