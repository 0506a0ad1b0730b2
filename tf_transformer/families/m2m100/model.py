"""M2M100 models, and NLLB-200 models, which differ in sizes and vocabulary, in our layers. Needs
`pip install "tf-transformer[hub]"`.

They are made of Marian's parts with three differences. Normalization comes before each sub-layer,
x + Sublayer(LayerNorm(x)), and once more at the end of each stack. Positions begin with a number above 0. The longest
wave of the sinusoids is 2 pi * 10000 itself, to which the paper's comes near.

The first symbol of a source is that of its language, and so is a target's, after the start symbol. A checkpoint starts
targets with its end symbol. Our start symbol is a symbol of its own with the same row of embeddings, as for Marian; so
is our padding. The checkpoint's own padding stays a symbol that has its share of the probability.
"""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_transformer.base.type_names import Shape, Tensor
from tf_transformer.base.values import Natural, checked
from tf_transformer.config import BadInput
from tf_transformer.families.marian.model import (
    EPSILON,
    MarianConfig,
    MarianDecoderLayer,
    MarianEmbedding,
    MarianEncoderLayer,
    MarianTransformer,
)
from tf_transformer.layers import AddAndNorm, PositionalEmbedding
from tf_transformer.layers.embedding import angles
from tf_transformer.layers.normalization import LayerNormalization


@dataclass(frozen=True)
class M2M100Config(MarianConfig):
    """The configuration of an M2M100 model; the sizes of `TransformerConfig` are the encoder's.

    Attributes:
        first_position: the number of a sequence's first position, one more than the checkpoint's padding id.
    """

    first_position: Natural = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model % 2 or self.d_model < 4:
            raise BadInput(f"d_model: expected an even number of at least 4, got {self.d_model}")
        if self.source_vocab_size is not None:
            raise BadInput(f"source_vocab_size: expected None, one vocabulary for all, got {self.source_vocab_size}")


@keras.saving.register_keras_serializable("tf_transformer")
class NormAndAdd(AddAndNorm):
    """The residual connection around a sub-layer that reads normalized inputs: x + Dropout(Sublayer(LayerNorm(x)))."""

    def sublayer_input(self, x: Tensor) -> Any:
        return self.norm(x)

    def call(self, x: Tensor, sublayer_output: Tensor) -> Any:
        return x + self.output_dropout(sublayer_output)


class _NormFirst(keras.layers.Layer):
    """The parts of encoder and decoder layers that differ from Marian's."""

    dropout: float

    def make_norm(self, name: str) -> keras.layers.Layer:
        return NormAndAdd(self.dropout, EPSILON, name=name, dtype=self.dtype_policy)


@keras.saving.register_keras_serializable("tf_transformer")
class M2M100EncoderLayer(_NormFirst, MarianEncoderLayer):
    """`EncoderLayer` of Marian's parts, with normalization first."""


@keras.saving.register_keras_serializable("tf_transformer")
class M2M100DecoderLayer(_NormFirst, MarianDecoderLayer):
    """`DecoderLayer` of Marian's parts, with normalization first."""


@keras.saving.register_keras_serializable("tf_transformer")
class M2M100Embedding(MarianEmbedding):
    """`MarianEmbedding` with fairseq's sinusoids, all sines before all cosines.

    Args:
        first_position: the number of the first position.
    """

    @checked
    def __init__(self, *args: Any, first_position: Natural = 2, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.first_position = first_position

    def encoding(self, position: Tensor) -> Any:
        half = self.d_model // 2
        frequencies = 10_000.0 ** (-np.arange(half) / (half - 1))
        x = angles(position + self.first_position, frequencies)
        return ops.concatenate([ops.sin(x), ops.cos(x)], axis=-1)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"first_position": self.first_position}


@keras.saving.register_keras_serializable("tf_transformer")
class M2M100Transformer(MarianTransformer):
    """A `Transformer` of M2M100's parts: logits = model((source, target)).

    Args:
        config: an `M2M100Config`.
    """

    config: M2M100Config
    kinds = (M2M100EncoderLayer, M2M100DecoderLayer)

    def __init__(self, config: M2M100Config, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        norm = {"epsilon": EPSILON, "dtype": self.dtype_policy}
        self.encoder_norm = LayerNormalization(**norm, name="encoder_norm")
        self.decoder_norm = LayerNormalization(**norm, name="decoder_norm")

    def make_embedding(self) -> PositionalEmbedding:
        options = self.embedding_options() | {"first_position": self.config.first_position}
        return M2M100Embedding(self.config.vocab_size, **options, name="embedding")

    def build(self, input_shape: Shape = None) -> None:
        super().build(input_shape)
        for norm in (self.encoder_norm, self.decoder_norm):
            norm.build((None, None, self.config.d_model))

    def encoder_output(self, x: Tensor) -> Any:
        return self.encoder_norm(x)

    def decoder_output(self, x: Tensor) -> Any:
        return self.decoder_norm(x)

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "M2M100Transformer":
        return cls(**(config | {"config": M2M100Config(**config["config"])}))
