"""A Transformer as a search calls it: step by step, with a cache that grows."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tf_transformer.layers import KeyValue


class _WrittenInPlace(KeyValue):
    """Keys and values that a TensorFlow loop writes in place. On a CPU, TensorFlow's scatter copies every slot."""

    def write(self, slot, new: KeyValue) -> KeyValue:
        def written(old, part):
            shape, width = tf.shape(old), old.shape[-1]
            flat = tf.raw_ops.TensorStridedSliceUpdate(  # over two axes it is twice as fast as over four
                input=tf.reshape(old, [shape[0] * shape[1], shape[2] * width]),
                begin=[0, slot * width],
                end=[0, (slot + tf.shape(part)[2]) * width],
                strides=[1, 1],
                value=tf.reshape(part, [shape[0] * shape[1], tf.shape(part)[2] * width]),
                begin_mask=1,  # all of the first axis
                end_mask=1,
            )
            return tf.reshape(flat, shape)

        return _WrittenInPlace(*(written(*pair) for pair in zip(self, new, strict=True)))


class Decoding(NamedTuple):
    """The first fields of a `search.Start`, described there."""

    step: Callable
    cache: Any
    grow: Callable


def decoding(model, memory, memory_mask) -> Decoding:
    """Prepare a model to decode an encoded source.

    Args:
        model: a built `Transformer` or `Ensemble`.
        memory: the encoder's output.
        memory_mask: its padding mask [B, S].
    """
    layers = [layer._replace(target=_WrittenInPlace(*layer.target)) for layer in model.init_cache(memory)]
    weights = model.softmax_weights()

    def step(ids, position, slot, ancestry, cache):
        memory_mask, layers = cache
        positions = tf.fill([tf.shape(ids)[1]], position)  # the beams' newest tokens all stand at the same place
        logits, layers = model.decode_step(ids, layers, memory_mask, positions, slot, ancestry, weights)
        return logits, (memory_mask, layers)

    def grow(cache, slots):
        memory_mask, layers = cache
        return memory_mask, [layer.grow(slots) for layer in layers]

    return Decoding(step, (memory_mask, layers), grow)
