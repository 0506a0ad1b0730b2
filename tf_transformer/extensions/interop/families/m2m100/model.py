"""M2M100 models, and NLLB-200 models, which differ in sizes and vocabulary, in our layers. Needs
`pip install "tf-transformer[hub]"`.

They differ from Marian's in three points. Normalization precedes each sub-layer, x + Sublayer(LayerNorm(x)), and
also follows each stack. Positions start with a number above 0. The longest wavelength of the sinusoids is
2 pi * 10000, which the paper's approaches.

The first token of a source is its language, and so is a target's, after BOS. A checkpoint starts targets with EOS. Our
BOS is a separate token with the same row of the embedding table, as for Marian, and so is our padding. The checkpoint's
padding remains a token with a probability.
"""

from dataclasses import dataclass
from typing import Any

import keras

from tf_transformer.config import BadInput
from tf_transformer.extensions.interop.families.marian.model import MarianConfig, MarianTransformer
from tf_transformer.utils.type_names import Shape
from tf_transformer.utils.values import Natural


@dataclass(frozen=True)
class M2M100Config(MarianConfig):
    """Configuration of an M2M100 model. The sizes of `TransformerConfig` are the encoder's.

    Attributes:
        first_position: the number of a sequence's first position, one more than the checkpoint's padding id.
    """

    first_position: Natural = 2
    norm_first: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model % 2 or self.d_model < 4:
            raise BadInput(f"d_model: expected an even number of at least 4, got {self.d_model}")
        if self.source_vocab_size is not None:
            raise BadInput(f"source_vocab_size: expected None, one vocabulary for all, got {self.source_vocab_size}")


@keras.saving.register_keras_serializable("tf_transformer")
class M2M100Transformer(MarianTransformer):
    """A `Transformer` of M2M100's sizes: logits = model((source, target)).

    Args:
        config: An `M2M100Config`.
    """

    config: M2M100Config
    config_class = M2M100Config

    def build(self, input_shape: Shape = None) -> None:
        super().build(input_shape)
        # The family's logits have no bias. It only excludes our own tokens.
        self.embedding.logits_bias.trainable = False

    def embedding_options(self) -> dict[str, Any]:
        return super().embedding_options() | {"positions": "fairseq", "first_position": self.config.first_position}
