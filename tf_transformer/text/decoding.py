"""A Transformer as a search calls it: step by step, with a cache that grows."""

from typing import Any

import tensorflow as tf

from tf_transformer.base.type_names import Tensor
from tf_transformer.layers import KeyValue
from tf_transformer.text.search import Decoder
from tf_transformer.text.text_decoder import TextDecoder


class SearchKeyValue(KeyValue):
    """Keys and values in a search, which drops the slots that no hypothesis sees any more."""

    def keep(self, slots: tf.Tensor) -> "SearchKeyValue":
        """Keep only these slots, [B, M]."""
        return type(self)(*(tf.gather(part, slots, axis=2, batch_dims=1) for part in self))


class InPlaceKeyValue(SearchKeyValue):
    """Keys and values that a TensorFlow loop writes in place. On a CPU, TensorFlow's scatter copies every slot."""

    def write(self, slot: Tensor, new: KeyValue) -> KeyValue:
        shape = tf.shape(new.key)
        B, h, T = shape[0], new.key.shape[1], shape[2]

        def written(old: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
            word = _word(old)
            each = word.size // old.dtype.size
            width = old.shape[-1] // each
            rows = [B * h, -1, each]
            words = tf.raw_ops.TensorStridedSliceUpdate(  # over two axes it is twice as fast as over four
                input=tf.bitcast(tf.reshape(old, rows), word),
                begin=[0, slot * width],
                end=[0, (slot + T) * width],
                strides=[1, 1],
                value=tf.bitcast(tf.reshape(part, rows), word),
                begin_mask=1,  # all of the first axis
                end_mask=1,
            )
            return tf.reshape(tf.bitcast(words, old.dtype), [B, h, -1, old.shape[-1]])

        return InPlaceKeyValue(*(written(*pair) for pair in zip(self, new, strict=True)))


def _word(x: tf.Tensor) -> tf.DType:
    """The widest numbers that fit the last axis of x exactly: the operation copies one number at a time."""
    size = x.shape[-1] * x.dtype.size
    return next((word for word in (tf.complex128, tf.complex64) if size % word.size == 0), x.dtype)


def decoder_of(
    model: TextDecoder,
    memory: Tensor,
    memory_mask: tf.Tensor,
    key_value: type[SearchKeyValue] = InPlaceKeyValue,
    weights: Tensor = None,
) -> Decoder:
    """Prepare a model to decode an encoded source.

    Args:
        model: a built `Transformer` or `Ensemble`.
        memory: the encoder's output.
        memory_mask: its padding mask [B, S].
        key_value: how keys and values are written.
        weights: of the softmax; `None` means `model.softmax_weights()`.
    """
    layers = [layer._replace(target=key_value(*layer.target)) for layer in model.init_cache(memory, slots=1)]
    weights = model.softmax_weights() if weights is None else weights

    def step(ids: tf.Tensor, position: Tensor, slot: Tensor, ancestry: tf.Tensor, cache: Any) -> tuple[Any, ...]:
        memory_mask, is_token, layers = cache
        positions = tf.expand_dims(position, 0)  # the beams' newest tokens all stand at the same place
        seen = layers, memory_mask, positions, slot, ancestry
        logits, layers, _, cross_scores = model.decode_step(ids, *seen, weights, return_attention_scores=True)
        attention = tf.reduce_mean(cross_scores[-1], axis=1)  # [B, K, S]
        attended = tf.argmax(tf.where(tf.expand_dims(is_token, 1), attention, -1.0), axis=2, output_type=tf.int32)
        return logits, (memory_mask, is_token, layers), attended

    def keep(cache: Any, slots: tf.Tensor) -> Any:
        *masks, layers = cache
        return *masks, [layer._replace(target=layer.target.keep(slots)) for layer in layers]

    is_token = tf.pad(memory_mask[:, 1:], [[0, 0], [0, 1]])  # all but the last one, which is the end symbol
    return Decoder(step, (memory_mask, is_token, layers), keep)


def decoder_after(decoder: Decoder, ids: tf.Tensor) -> Decoder:
    """A decoder of `decoder_of` that has taken a symbol, ids [B], before those of the search.

    It keeps the symbol in slot 0, which the search does not count and all beams see.
    """

    def step(ids: tf.Tensor, position: Tensor, slot: Tensor, ancestry: tf.Tensor, cache: Any) -> tuple[Any, ...]:
        ancestry = tf.pad(ancestry, [[0, 0], [0, 0], [1, 0]], constant_values=True)
        return decoder.step(ids, position + 1, slot + 1, ancestry, cache)

    def keep(cache: Any, slots: tf.Tensor) -> Any:
        last = tf.shape(cache[-1][0].target.key)[2] - 1  # at first there is only slot 0, and no copies but its own
        return decoder.keep(cache, tf.minimum(tf.pad(slots + 1, [[0, 0], [1, 0]]), last))

    seen = tf.ones([tf.shape(ids)[0], 1, 1], tf.bool)
    _, cache, _ = decoder.step(ids[:, tf.newaxis], 0, 0, seen, decoder.cache)
    return Decoder(step, cache, keep, decoder.steps)
