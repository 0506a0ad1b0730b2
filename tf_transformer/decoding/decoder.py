"""Adapts a Transformer to the search, which calls it token by token, with a cache."""

from typing import TYPE_CHECKING, Any

from keras import ops

from tf_transformer.decoding.primitives import gather, write_slots
from tf_transformer.decoding.search import Decoder, FixedShapes, SearchProblem
from tf_transformer.layers import KeyValue
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.type_names import Tensor

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazily("tensorflow", "a search whose shapes change")


# The model's `DecoderCache` holds `KeyValue`s, whose `write` adds the newest keys and values. Each loop of a search
# allows another way to write, so each has a class here, and the model's `call` does not know which one it has.
class InPlaceKeyValue(KeyValue):
    """Keys and values that a TensorFlow loop writes in place."""

    def write(self, slot: Tensor, new: KeyValue) -> KeyValue:
        shape = tf.shape(new.key)
        B, h, T = shape[0], new.key.shape[1], shape[2]

        def written(old: Tensor, part: Tensor) -> Any:
            # On CPUs, TensorFlow's scatter copies every slot. This kernel writes in place, but copies one number at a
            # time, so it gets the widest type that divides the last axis. Two axes are twice as fast as four.
            size = old.shape[-1] * old.dtype.size
            wide = next((wide for wide in (tf.complex128, tf.complex64) if size % wide.size == 0), old.dtype)
            numbers = wide.size // old.dtype.size  # per wide number
            width = old.shape[-1] // numbers
            rows = [B * h, -1, numbers]
            updated = tf.raw_ops.TensorStridedSliceUpdate(
                input=tf.bitcast(tf.reshape(old, rows), wide),
                begin=[0, slot * width],
                end=[0, (slot + T) * width],
                strides=[1, 1],
                value=tf.bitcast(tf.reshape(part, rows), wide),
                begin_mask=1,  # all of the first axis
                end_mask=1,
            )
            return tf.reshape(tf.bitcast(updated, old.dtype), [B, h, -1, old.shape[-1]])

        return InPlaceKeyValue(*(written(*pair) for pair in zip(self, new, strict=True)))


class FixedKeyValue(KeyValue):
    """Keys and values of a search with fixed shapes: on JAX, on PyTorch and in LiteRT files."""

    def write(self, slot: Tensor, new: KeyValue) -> KeyValue:
        return FixedKeyValue(*(write_slots(old, slot, part) for old, part in zip(self, new, strict=True)))


class AppendedKeyValue(KeyValue):
    """Keys and values of a search whose cache `grows`, in ONNX files, where a loop's state may change its shape."""

    def write(self, slot: Tensor, new: KeyValue) -> KeyValue:
        return AppendedKeyValue(*(ops.concatenate(pair, axis=2) for pair in zip(self, new, strict=True)))


def decoder_of(
    model: Transformer,
    memory: Tensor,
    memory_mask: Tensor,
    fixed: FixedShapes | None = None,
    weights: Tensor = None,
    candidates: Tensor = None,
) -> Decoder:
    """Prepares a built `Transformer` or `Ensemble` to decode the encoder's output, with its padding mask [B, S].

    `weights` are those of the softmax, by default `model.softmax_weights()`. `candidates`, int32 [B, M], are the tokens
    that have logits. The ids of `step` are tokens, and those of `problem_after` are candidates.
    """
    key_value: type[KeyValue] = InPlaceKeyValue
    if fixed:
        key_value = AppendedKeyValue if fixed.grows else FixedKeyValue
    layers = [layer._replace(target=key_value(*layer.target)) for layer in model.init_cache(memory, slots=1)]
    weights = model.softmax_weights(candidates) if weights is None else weights
    # Those of candidates differ from row to row, and rows may leave.
    by_row, weights = (weights, None) if candidates is not None else ((), weights)

    def step(ids: Tensor, position: Tensor, slot: Tensor, ancestry: Tensor, cache: Any) -> tuple[Any, ...]:
        memory_mask, is_token, by_row, layers = cache
        positions = ops.reshape(position, (1,))  # the same for the newest token of each beam
        context = layers, memory_mask, positions, slot, ancestry
        # The ancestry is the whole mask of self-attention. It is causal, since no slot is visible before it is written.
        table = weights if candidates is None else by_row
        logits, layers, _, cross_scores = model.decode_step(ids, *context, table, return_attention_scores=True)
        # The mean of the last layer's heads, or of those that a family trained to align. Only details use it.
        attention = ops.mean(cross_scores[-1][:, : model.config.alignment_heads], axis=1)  # [B, K, S]
        attended = ops.argmax(ops.where(ops.expand_dims(is_token, 1), attention, -1.0), axis=2)
        return logits, (memory_mask, is_token, by_row, layers), attended

    def keep(cache: Any, slots: Tensor) -> Any:
        def kept(target: KeyValue) -> KeyValue:
            return type(target)(*(gather(part, slots, axis=2, batch_dims=1) for part in target))

        # Only the target's slots. Memory is the same for every token.
        *others, layers = cache
        return *others, [layer._replace(target=kept(layer.target)) for layer in layers]

    is_token = ops.pad(memory_mask[:, 1:], ((0, 0), (0, 1)))  # false at EOS, which words do not align with
    return Decoder(step, (memory_mask, is_token, by_row, layers), keep, fixed, candidates)


def decoder_after(decoder: Decoder, ids: Tensor) -> Decoder:
    """Feeds a token, ids [B], to a decoder of `decoder_of` before the search starts.

    The token takes slot 0, which the search does not count and all beams see.
    """

    def step(ids: Tensor, position: Tensor, slot: Tensor, ancestry: Tensor, cache: Any) -> tuple[Any, ...]:
        rows, beams, _ = ops.shape(ancestry)
        ancestry = ops.concatenate([ops.ones((rows, beams, 1), "bool"), ancestry], axis=2)
        return decoder.step(ids, position + 1, slot + 1, ancestry, cache)

    def keep(cache: Any, slots: Tensor) -> Any:
        # The search begins with slots that do not exist yet. At first there is only slot 0 to copy into them.
        last = ops.shape(cache[-1][0].target.key)[2] - 1
        return decoder.keep(cache, ops.minimum(ops.pad(slots + 1, ((0, 0), (1, 0))), last))

    ancestry, cache = ops.ones((ops.shape(ids)[0], 1, 1), "bool"), decoder.cache
    if decoder.fixed and decoder.fixed.grows:  # every step appends its slot, so none may be free
        cache = decoder.keep(cache, ops.zeros((ops.shape(ids)[0], 0), "int32"))
    _, cache, _ = decoder.step(ids[:, None], 0, 0, ancestry, cache)
    return decoder._replace(step=step, cache=cache, keep=keep)


def problem_after(decoder: Decoder, start: Tensor, max_length: Tensor) -> SearchProblem:
    """Returns the problem of a search after the token start [B]. Its ids are indices of the decoder's candidates."""
    if (candidates := decoder.candidates) is None:
        return SearchProblem(decoder, start, max_length, EOS_ID)

    def step(ids: Tensor, position: Tensor, slot: Tensor, ancestry: Tensor, cache: Any) -> tuple[Any, ...]:
        tokens, cache = cache
        ids = gather(tokens, ids, batch_dims=1)
        logits, cache, *attended = decoder.step(ids, position, slot, ancestry, cache)
        return logits, (tokens, cache), *attended

    def keep(cache: Any, slots: Tensor) -> Any:
        return cache[0], decoder.keep(cache[1], slots)

    # A target's language may not be a candidate. It takes the index of BOS, which no output has.
    tokens = ops.concatenate([candidates[:, :BOS_ID], start[:, None], candidates[:, BOS_ID + 1 :]], axis=1)
    among = decoder._replace(step=step, cache=(tokens, decoder.cache), keep=keep)
    return SearchProblem(among, ops.full_like(start, BOS_ID), max_length, EOS_ID)
