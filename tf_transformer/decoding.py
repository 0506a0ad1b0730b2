"""A Transformer as a search calls it: step by step, with a cache that grows."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tf_transformer.layers import KeyValue


class _WrittenInPlace(KeyValue):
    """Keys and values that a TensorFlow loop writes in place. On a CPU, TensorFlow's scatter copies every slot."""

    def write(self, slot: Any, new: KeyValue) -> KeyValue:
        def written(old: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
            (B, h, C, _), T = tf.unstack(tf.shape(old)), tf.shape(part)[2]
            words, new = _as_words(old), _as_words(part)
            width = words.shape[-1]
            words = tf.raw_ops.TensorStridedSliceUpdate(  # over two axes it is twice as fast as over four
                input=tf.reshape(words, [B * h, C * width]),
                begin=[0, slot * width],
                end=[0, (slot + T) * width],
                strides=[1, 1],
                value=tf.reshape(new, [B * h, T * width]),
                begin_mask=1,  # all of the first axis
                end_mask=1,
            )
            return tf.reshape(tf.bitcast(words, old.dtype), [B, h, C, old.shape[-1]])

        return _WrittenInPlace(*(written(*pair) for pair in zip(self, new, strict=True)))

    def keep(self, slots: tf.Tensor) -> "_WrittenInPlace":
        """Keep only these slots, [B, M]."""
        return _WrittenInPlace(*(tf.gather(part, slots, axis=2, batch_dims=1) for part in self))


def _as_words(x: tf.Tensor) -> tf.Tensor:
    """x [..., n] as the widest numbers that fit n exactly: the operation copies one number at a time."""
    for dtype in (tf.complex128, tf.complex64):
        each = dtype.size // x.dtype.size
        if x.shape[-1] % each == 0:
            return tf.bitcast(tf.reshape(x, [*tf.unstack(tf.shape(x))[:-1], x.shape[-1] // each, each]), dtype)
    return x


class Decoding(NamedTuple):
    """The first fields of a `search.Start`, which describes them."""

    step: Callable[..., tuple[tf.Tensor, Any]]
    cache: Any
    keep: Callable[[Any, tf.Tensor], Any]


def decoding(model: Any, memory: Any, memory_mask: tf.Tensor) -> Decoding:
    """Prepare a model to decode an encoded source.

    Args:
        model: a built `Transformer` or `Ensemble`.
        memory: the encoder's output.
        memory_mask: its padding mask [B, S].
    """
    layers = [layer._replace(target=_WrittenInPlace(*layer.target)) for layer in model.init_cache(memory, slots=1)]
    weights = model.softmax_weights()

    def step(ids: tf.Tensor, position: Any, slot: Any, ancestry: tf.Tensor, cache: Any) -> tuple[tf.Tensor, Any]:
        memory_mask, layers = cache
        positions = tf.fill([tf.shape(ids)[1]], position)  # the beams' newest tokens all stand at the same place
        logits, layers = model.decode_step(ids, layers, memory_mask, positions, slot, ancestry, weights)
        return logits, (memory_mask, layers)

    def keep(cache: Any, slots: tf.Tensor) -> Any:
        memory_mask, layers = cache
        return memory_mask, [layer._replace(target=layer.target.keep(slots)) for layer in layers]

    return Decoding(step, (memory_mask, layers), keep)
