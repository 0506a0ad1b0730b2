"""MarianMT models, such as OPUS-MT's, in our layers. Needs `pip install "tf-transformer[marian]"`.

They differ from the paper: attention's projections and the logits have biases, the activation is swish, all sines come
before all cosines, and layer normalization's epsilon is 1e-5. Encoder and decoder may differ in depth, and
source and target may have their own embeddings.

In Marian the padding is the last id and also starts a target, and the end symbol is 0. Loading reorders the vocabulary
to our ids, so no other file need know of Marian. The padding's row of the embeddings is stored twice, since our start
symbol is a symbol of its own.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import keras
from keras import ops

from tf_transformer.base.type_names import Shape, Tensor
from tf_transformer.base.values import Count, checked
from tf_transformer.config import BadInput, Layers, TransformerConfig
from tf_transformer.layers import (
    AddAndNorm,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    PositionalEmbedding,
    sinusoids,
)
from tf_transformer.layers.int8 import dense
from tf_transformer.model import Transformer

EPSILON = 1e-5
Activation = Literal["swish", "silu", "relu", "gelu"]
ACTIVATIONS: tuple[str, ...] = get_args(Activation)
CONTROLS = 2  # the first ids, padding and start symbol, are never an output


@dataclass(frozen=True)
class MarianConfig(TransformerConfig):
    """The configuration of a MarianMT model; the sizes of `TransformerConfig` are the encoder's.

    Attributes:
        num_decoder_layers: layers in the decoder.
        num_decoder_heads: its attention heads.
        decoder_d_ff: width of its feed-forward hidden layers.
        activation: in feed-forward networks: "swish" or its other name "silu", "relu", "gelu".
        scale_embedding: whether embeddings are multiplied by sqrt(d_model).
        source_vocab_size: size of the source vocabulary, which then has its own embeddings; `None` if it is shared.
    """

    num_decoder_layers: Layers = 6
    num_decoder_heads: Count = 8
    decoder_d_ff: Count = 2048
    activation: Activation = "swish"
    scale_embedding: bool = True
    source_vocab_size: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model % self.num_decoder_heads:
            raise BadInput(
                f"num_decoder_heads: expected a divisor of d_model={self.d_model}, got {self.num_decoder_heads}"
            )

    @property
    def matrix_weights(self) -> int:
        encoder, decoder = 4 * self.d_model + 2 * self.d_ff, 8 * self.d_model + 2 * self.decoder_d_ff
        rows = self.vocab_size + (self.source_vocab_size or 0)
        return self.d_model * (rows + self.num_layers * encoder + self.num_decoder_layers * decoder)


@keras.saving.register_keras_serializable("tf_transformer")
class MarianAttention(MultiHeadAttention):
    """Multi-head attention whose four projections have biases."""

    def make_projection(self, name: str, units: int, scale: float) -> keras.layers.Layer:
        return dense(units, dtype=self.dtype_policy, name=name)


class _MarianParts(keras.layers.Layer):
    """The parts of encoder and decoder layers."""

    num_heads: int
    d_ff: int
    dropout: float
    attention_dropout: float

    def __init__(self, *args: Any, activation: str = "swish", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.activation = activation

    def make_attention(self, name: str) -> keras.layers.Layer:
        return MarianAttention(self.num_heads, dropout=self.attention_dropout, name=name, dtype=self.dtype_policy)

    def make_feed_forward(self, name: str) -> keras.layers.Layer:
        return FeedForward(self.d_ff, self.activation, name=name, dtype=self.dtype_policy)

    def make_norm(self, name: str) -> keras.layers.Layer:
        return AddAndNorm(self.dropout, EPSILON, name=name, dtype=self.dtype_policy)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"activation": self.activation}


@keras.saving.register_keras_serializable("tf_transformer")
class MarianEncoderLayer(_MarianParts, EncoderLayer):
    """`EncoderLayer` of Marian's parts."""


@keras.saving.register_keras_serializable("tf_transformer")
class MarianDecoderLayer(_MarianParts, DecoderLayer):
    """`DecoderLayer` of Marian's parts."""


@keras.saving.register_keras_serializable("tf_transformer")
class MarianSourceEmbedding(PositionalEmbedding):
    """Embeddings and sinusoids, all sines before all cosines."""

    @checked
    def __init__(self, *args: Any, scale: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.scale = scale

    def scaled(self, ids: Tensor) -> Any:
        return super().scaled(ids) if self.scale else self.rows(ids)

    def encoding(self, position: Tensor) -> Any:
        pairs = sinusoids(position, self.d_model)
        return ops.concatenate([pairs[:, 0::2], pairs[:, 1::2]], axis=-1)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"scale": self.scale}


@keras.saving.register_keras_serializable("tf_transformer")
class MarianEmbedding(MarianSourceEmbedding):
    """`MarianSourceEmbedding` with a bias on the logits.

    Attributes:
        controls: the number of ids, the first ones, that are never an output: padding and start symbol.
    """

    controls = CONTROLS

    def build(self, ids_shape: Shape) -> None:
        super().build(ids_shape)
        self.logits_bias = self.add_weight((self.vocab_size,), "zeros", name="logits_bias")

    def logits(self, x: Tensor, *args: Any) -> Any:
        return super().logits(x, *args) + self.logits_bias

    @property
    def variable_serialization_spec(self) -> Any:
        return {mode: [*names, "logits_bias"] for mode, names in super().variable_serialization_spec.items()}


@keras.saving.register_keras_serializable("tf_transformer")
class MarianTransformer(Transformer):
    """A `Transformer` of Marian's parts: logits = model((source, target)).

    As in Marian, padding and start symbol have no share of the probability. In `transformers` this holds in a search if
    generation_config.json has "renormalize_logits", as OPUS-MT's has.

    Args:
        config: a `MarianConfig`.
    """

    config: MarianConfig
    kinds: tuple[type[EncoderLayer], type[DecoderLayer]] = (MarianEncoderLayer, MarianDecoderLayer)

    def __init__(self, config: MarianConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.source_embedding = None if config.source_vocab_size is None else self.make_source_embedding()

    def make_embedding(self) -> PositionalEmbedding:
        return MarianEmbedding(self.config.vocab_size, **self.embedding_options(), name="embedding")

    def make_source_embedding(self) -> PositionalEmbedding:
        return MarianSourceEmbedding(self.config.source_vocab_size, **self.embedding_options(), name="source_embedding")

    def embedding_options(self) -> dict[str, Any]:
        config = self.config
        options = {"d_model": config.d_model, "dropout": config.dropout, "scale": config.scale_embedding}
        return options | {"dtype": self.dtype_policy}

    def make_encoder_layers(self) -> list[EncoderLayer]:
        config, sizes = self.config, self.layer_options()
        kind, _ = self.kinds
        options = {**sizes, "activation": config.activation}
        return [kind(**options, name=f"encoder_{i}") for i in range(config.num_layers)]

    def make_decoder_layers(self) -> list[DecoderLayer]:
        config = self.config
        sizes = self.layer_options() | {"num_heads": config.num_decoder_heads, "d_ff": config.decoder_d_ff}
        _, kind = self.kinds
        options = {**sizes, "activation": config.activation}
        return [kind(**options, name=f"decoder_{i}") for i in range(config.num_decoder_layers)]

    def build(self, input_shape: Shape = None) -> None:
        super().build(input_shape)
        if self.source_embedding is not None:
            self.source_embedding.build((None, None))

    def embed_source(self, source: Tensor) -> Any:
        return super().embed_source(source) if self.source_embedding is None else self.source_embedding.embed(source)

    def decode_step(self, *args: Any, **kwargs: Any) -> Any:
        """As `Transformer.decode_step`, but a search cannot choose padding or the start symbol."""
        logits, *others = super().decode_step(*args, **kwargs)
        return ops.where(ops.arange(self.config.vocab_size, dtype="int32") < CONTROLS, -1e9, logits), *others

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "MarianTransformer":
        return cls(**(config | {"config": MarianConfig(**config["config"])}))
