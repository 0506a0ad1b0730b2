"""Transformer with rotary positions (Su et al. 2021, equation 34) and fewer heads of keys and values than of queries
(Ainslie et al. 2023): classes of one's own, which search, export and are stored like the package's.

docs/guides/change-the-architecture.md explains them.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

import tf_transformer as tt
from tf_transformer.layers import KeyValue, attention


@keras.saving.register_keras_serializable("examples")
class NoPositions(tt.layers.Positions):
    """Nothing is added to embeddings."""

    def encoding(self, layer: Any, position: Any) -> Any:
        return ops.zeros((*ops.shape(position), layer.d_model), layer.sum_dtype)


def rotated(x: Any, positions: Any = None) -> Any:
    """Rotates heads [B, h, T, d_k] by their positions, [B, T] or [1, T], by default 0 to T - 1.

    Numbers i and i + d_k / 2 are the coordinates of a plane, as in Llama. Products of two rotated heads depend on the
    distance of their positions, and not on the positions.
    """
    half = x.shape[-1] // 2
    if positions is None:
        positions = ops.expand_dims(ops.arange(ops.shape(x)[2], dtype="int32"), 0)
    angles = ops.expand_dims(ops.cast(positions, "float32"), -1) * (10_000.0 ** -(np.arange(half) / half))
    angles = ops.expand_dims(angles, 1)  # the same for all heads: [B, 1, T, d_k / 2]
    first, second = ops.cast(x[..., :half], "float32"), ops.cast(x[..., half:], "float32")
    turned = first * ops.cos(angles) - second * ops.sin(angles), first * ops.sin(angles) + second * ops.cos(angles)
    return ops.cast(ops.concatenate(turned, axis=-1), x.dtype)


@keras.saving.register_keras_serializable("examples")
class GroupedAttention(tt.layers.MultiHeadAttention):
    """Attention whose `kv_heads` heads of keys and values serve `num_heads` heads of queries."""

    def __init__(self, *args: Any, kv_heads: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kv_heads = kv_heads

    @property
    def num_kv_heads(self) -> int:
        return self.kv_heads

    def attend(
        self, query: Any, kv: KeyValue, attention_mask: Any = None, attention: Any = attention, training: Any = None
    ) -> Any:
        group = np.arange(self.num_heads) * self.kv_heads // self.num_heads

        def grouped(query: Any, key: Any, value: Any, *args: Any) -> Any:
            return attention(query, ops.take(key, group, axis=1), ops.take(value, group, axis=1), *args)

        return super().attend(query, kv, attention_mask, grouped, training)


@keras.saving.register_keras_serializable("examples")
class RotaryAttention(GroupedAttention):
    """Grouped self-attention with rotary positions. The cache holds rotated keys."""

    def project(self, value: Any, positions: Any = None) -> KeyValue:
        key, value = super().project(value)
        return KeyValue(rotated(key, positions), value)

    def attend(
        self,
        query: Any,
        kv: KeyValue,
        attention_mask: Any = None,
        attention: Any = attention,
        training: Any = None,
        positions: Any = None,
    ) -> Any:
        def rotary(query: Any, *args: Any) -> Any:
            return attention(rotated(query, positions), *args)

        return super().attend(query, kv, attention_mask, rotary, training)


class Rotary(keras.layers.Layer):
    """Mixin for encoder and decoder layers."""

    def __init__(self, *args: Any, kv_heads: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kv_heads = kv_heads

    def make_attention(self, name: str) -> GroupedAttention:
        kind = RotaryAttention if name == "self_attention" else GroupedAttention
        options: Any = self
        arguments = options.num_heads, options.d_k, options.d_v, options.attention_dropout, options.use_bias
        return kind(*arguments, kv_heads=self.kv_heads, name=name, dtype=self.dtype_policy)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"kv_heads": self.kv_heads}


@keras.saving.register_keras_serializable("examples")
class RotaryEncoderLayer(Rotary, tt.layers.EncoderLayer):
    """`EncoderLayer` with rotary, grouped attention."""


@keras.saving.register_keras_serializable("examples")
class RotaryDecoderLayer(Rotary, tt.layers.DecoderLayer):
    """`DecoderLayer` with rotary, grouped attention. A cache passes the positions of the newest tokens."""

    self_attention: RotaryAttention

    def project_itself(self, x: Any, positions: Any) -> KeyValue:
        return self.self_attention.project(x, positions)

    def attend_to_itself(self, x: Any, kv: KeyValue, mask: Any, positions: Any, training: bool | None) -> Any:
        return self.self_attention.attend(x, kv, mask, positions=positions, training=training)


@keras.saving.register_keras_serializable("examples")
class RotaryTransformer(tt.Transformer):
    """`Transformer` of these layers. Argument besides `config`: the number `kv_heads`."""

    def __init__(self, config: tt.TransformerConfig, kv_heads: int = 2, **kwargs: Any) -> None:
        self.kv_heads = kv_heads
        super().__init__(config, **kwargs)

    def embedding_options(self) -> dict[str, Any]:
        return super().embedding_options() | {"positions": NoPositions()}

    def make_encoder_layers(self) -> list[Any]:
        options = self.layer_options() | {"kv_heads": self.kv_heads}
        return [RotaryEncoderLayer(**options, name=f"encoder_{i}") for i in range(self.config.num_layers)]

    def make_decoder_layers(self) -> list[Any]:
        options = self.decoder_options() | {"kv_heads": self.kv_heads}
        return [RotaryDecoderLayer(**options, name=f"decoder_{i}") for i in range(self.config.decoder_layers)]

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"kv_heads": self.kv_heads}
