"""MarianMT models, such as OPUS-MT's, in our layers. Needs `pip install "tf-transformer[marian]"`.

They differ from the paper: attention's projections and the logits have biases, the activation is swish, all sines come
before all cosines, and layer normalization's epsilon is 1e-5. Encoder and decoder may differ in depth, and source and
target may have separate embeddings.

In Marian padding is the last id and also starts a target, and EOS is 0. Loading reorders the vocabulary to our ids, so
that no other file depends on Marian. Padding's row of the embedding table is stored twice, since our BOS is a separate
token.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import keras
from keras import ops

from tf_transformer.config import Activation, BadInput, Layers, TransformerConfig
from tf_transformer.layers import PositionalEmbedding
from tf_transformer.layers.layer import class_for
from tf_transformer.models.transformer import Transformer
from tf_transformer.utils.type_names import Shape, Tensor
from tf_transformer.utils.values import Count

CONTROLS = 2  # The first ids, padding and BOS, are never an output.


@dataclass(frozen=True)
class MarianConfig(TransformerConfig):
    """Configuration of a MarianMT model. The sizes of `TransformerConfig` are the encoder's.

    Attributes:
        num_decoder_heads: its attention heads.
        decoder_d_ff: width of its feed-forward hidden layers.
        scale_embedding: whether embeddings are multiplied by sqrt(d_model).
        source_vocab_size: size of a source vocabulary with separate embeddings. `None` if the vocabulary is shared.
        alignment_heads: number of heads, the first of the last layer, that were trained to align. `None` means none.
    """

    num_decoder_heads: Count = 8
    decoder_d_ff: Count = 2048
    scale_embedding: bool = True
    source_vocab_size: Count | None = None
    alignment_heads: Count | None = None
    num_decoder_layers: Layers = 6
    activation: Activation = "swish"
    use_bias: ClassVar[bool] = True
    epsilon: ClassVar[float] = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model % self.num_decoder_heads:
            raise BadInput(
                f"num_decoder_heads: expected a divisor of d_model={self.d_model}, got {self.num_decoder_heads}"
            )

    @property
    def matrix_weights(self) -> int:
        wider = 2 * self.num_decoder_layers * (self.decoder_d_ff - self.d_ff)
        return super().matrix_weights + self.d_model * ((self.source_vocab_size or 0) + wider)


@keras.saving.register_keras_serializable("tf_transformer")
class MarianTransformer(Transformer):
    """A `Transformer` of Marian's sizes: logits = model((source, target)).

    As in Marian, padding and BOS have a probability of 0. In `transformers` this holds in a search if
    generation_config.json sets "renormalize_logits", as OPUS-MT's does.

    Args:
        config: A `MarianConfig`.
    """

    config: MarianConfig
    config_class = MarianConfig
    controls = CONTROLS

    def __init__(self, config: MarianConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        size = config.source_vocab_size
        self.source_embedding = None if size is None else self._embedding(size, name="source_embedding")

    def make_embedding(self) -> PositionalEmbedding:
        return self._embedding(self.config.vocab_size, use_bias=True, name="embedding")

    def _embedding(self, size: int, **options: Any) -> PositionalEmbedding:
        return class_for(self.dtype_policy, PositionalEmbedding)(size, **self.embedding_options(), **options)

    def embedding_options(self) -> dict[str, Any]:
        config = self.config
        options = {"d_model": config.d_model, "dropout": config.dropout, "scale": config.scale_embedding}
        return options | {"positions": "halves", "dtype": self.dtype_policy}

    def decoder_options(self) -> dict[str, Any]:
        config = self.config
        return super().decoder_options() | {"num_heads": config.num_decoder_heads, "d_ff": config.decoder_d_ff}

    def build(self, input_shape: Shape = None) -> None:
        super().build(input_shape)
        if self.source_embedding is not None:
            self.source_embedding.build((None, None))

    def embed_source(self, source: Tensor, training: bool | None = None) -> Any:
        if self.source_embedding is None:
            return super().embed_source(source, training)
        return self.source_embedding.embed(source, training=training)

    def decode_step(self, *args: Any, **kwargs: Any) -> Any:
        # A search must not choose padding or BOS.
        logits, *others = super().decode_step(*args, **kwargs)
        return ops.where(ops.arange(ops.shape(logits)[-1], dtype="int32") < CONTROLS, -1e9, logits), *others
