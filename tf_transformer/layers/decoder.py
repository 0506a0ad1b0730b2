"""The decoder's layer: the right half of Figure 1 (section 3.1)."""

from typing import Any, NamedTuple

import keras
from keras import ops

from tf_transformer.layers.attention import KeyValue
from tf_transformer.layers.transformer_layer import TransformerLayer
from tf_transformer.masks import as_key_mask, causal_mask, intersect
from tf_transformer.utils.type_names import Shape, Tensor


class DecoderCache(NamedTuple):
    """What one decoder layer remembers between steps."""

    target: KeyValue  # slots for the target's keys and values, filled from the left [B, h, C, ...]
    memory: KeyValue  # the encoder output's keys and values, projected once [B, h, S, ...]


@keras.saving.register_keras_serializable("tf_transformer")
class DecoderLayer(TransformerLayer):
    """Masked self-attention, attention over the encoder's output, feed-forward, each inside Add & Norm.

    The arguments are those of `EncoderLayer`.

    Examples:
        >>> x, memory = keras.random.normal((2, 5, 32)), keras.random.normal((2, 7, 32))
        >>> layer = tt.layers.DecoderLayer(num_heads=4, d_ff=64)
        >>> keras.ops.shape(layer(x, memory))
        (2, 5, 32)
    """

    def build(self, x_shape: Shape, memory_shape: Shape = None) -> None:
        self.self_attention = self.make_attention("self_attention")
        self.cross_attention = self.make_attention("cross_attention")
        self.feed_forward = self.make_feed_forward("feed_forward")
        self.self_attention_norm = self.make_norm("self_attention_norm")
        self.cross_attention_norm = self.make_norm("cross_attention_norm")
        self.feed_forward_norm = self.make_norm("feed_forward_norm")
        self.cross_attention.build(x_shape, memory_shape)
        for layer in (
            self.self_attention,
            self.self_attention_norm,
            self.cross_attention_norm,
            self.feed_forward,
            self.feed_forward_norm,
        ):
            layer.build(x_shape)

    def init_cache(self, memory: Tensor, slots: int = 0) -> DecoderCache:
        """An empty cache with `slots` places for target tokens, and memory [B, S, d] projected once."""
        kv = self.cross_attention.project(memory)
        B, h = ops.shape(memory)[0], self.num_heads
        empty = (ops.zeros((B, h, slots, part.shape[-1]), part.dtype) for part in kv)
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
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        """Decode x [B, T, d]: the whole target, or only its newest tokens if there is a cache.

        Args:
            x: [B, T, d].
            memory: the encoder's output [B, S, d]; not used with a cache, which holds its projection.
            x_mask: padding mask of x [B, T], for a whole target; not needed when padding stands at the end, where
                causality hides it.
            memory_mask: padding mask of memory [B, S].
            attention_mask: bool [B, T, C], which targets each token may attend to; `None` means itself and all before
                it.
            cache: `DecoderCache` with C slots; x goes into the slots slot .. slot + T - 1.
            slot: the cache's slot for the first column of x.
            return_attention_scores: also return the weights of self-attention [B, h, T, C] and of cross-attention
                [B, h, T, S].

        Returns:
            x [B, T, d]; then the cache if one was given; then both attention weights if requested.
        """
        inputs = self.self_attention_norm.sublayer_input(x)
        target = self.self_attention.project(inputs)
        if cache is None:
            kv = self.cross_attention.project(memory)
        else:
            target, kv = cache.target.write(slot, target), cache.memory
            cache, x_mask = DecoderCache(target, kv), None
        masks = attention_mask, as_key_mask(x_mask)
        newest = None if cache is None else slot
        asked = return_attention_scores, training
        attended, self_scores = self.attend_to_target(inputs, target, *masks, newest, *asked)
        x = self.self_attention_norm(x, attended, training=training)
        inputs = self.cross_attention_norm.sublayer_input(x)
        attended, cross_scores = self.cross_attention.attend(inputs, kv, as_key_mask(memory_mask), training=training)
        x = self.cross_attention_norm(x, attended, training=training)
        output = self.feed_forward(self.feed_forward_norm.sublayer_input(x))
        x = self.feed_forward_norm(x, output, training=training)

        outputs: tuple[Any, ...] = (x,) if cache is None else (x, cache)
        if return_attention_scores:
            outputs += (self_scores, cross_scores)
        return outputs if len(outputs) > 1 else x

    def attend_to_target(
        self,
        x: Tensor,
        target: KeyValue,
        mask: Tensor,
        padding: Tensor,
        slot: Tensor,
        scores: bool,
        training: bool | None,
    ) -> Any:
        """Attend from x [B, T, d] to itself and to all before it (section 3.2.3). A variant may override this.

        Args:
            x: the inputs of self-attention.
            target: keys and values of C slots.
            mask: bool [B, T, C], which replaces the causal mask; or `None`.
            padding: the target's padding mask [B, 1, T], or `None`.
            slot: of the first column of x in a cache; `None` if there is no cache, and the target is whole.
            scores: whether the attention weights [B, h, T, C] are asked for.
            training: whether weights are dropped; `None` leaves it to Keras.
        """
        if mask is None:
            mask = causal_mask(ops.shape(x)[1], ops.shape(target.key)[2], 0 if slot is None else slot)
        return self.self_attention.attend(x, target, intersect(mask, padding), training=training)
