"""The Transformer: Figure 1 as a whole (section 3).

`call` is the whole figure, for training. A search calls `encode` once, then `decode_step` for each token.
"""

import inspect
from typing import Any, ClassVar, NamedTuple

import keras
from keras import ops

from tf_transformer.config import TransformerConfig, current_fields
from tf_transformer.layers import DecoderCache, DecoderLayer, EncoderLayer, PositionalEmbedding
from tf_transformer.layers.int8 import policy_of
from tf_transformer.layers.layer import class_for, quantized_inside, resolved_policy
from tf_transformer.layers.sublayers import LayerNormalization
from tf_transformer.masks import padding_mask
from tf_transformer.models.keras_model import KerasModel
from tf_transformer.models.weights import adapters, copy_weights
from tf_transformer.utils.type_names import Shape, Tensor
from tf_transformer.utils.values import BadInput, checked

NOT_COPIED = ("name", "trainable", "dtype", "config")  # a copy has others


class AttentionScores(NamedTuple):
    """Attention weights, one array per layer."""

    encoder: list[Any]  # [B, h, S, S]
    decoder: list[Any]  # [B, h, T, T]
    cross: list[Any]  # [B, h, T, S]


class Attention(NamedTuple):
    """Attention weights of one pair of sentences, with its tokens for labels."""

    source: list[str]  # S tokens that the encoder reads, EOS last
    target: list[str]  # T tokens that the decoder writes, one per row of its weights
    scores: AttentionScores


@keras.saving.register_keras_serializable("tf_transformer")
class Transformer(KerasModel):
    """Transformer of Figure 1: logits = model((source, target)).

    Source and target are int ids of shapes `(B, S)` and `(B, T)`, where 0 is padding. Logits are float32 of shape
    `(B, T, V)`. The target is the decoder's input: the target sentence shifted right by one position, so that its first
    id is BOS. Source embeddings, target embeddings and the pre-softmax transformation share one matrix (section 3.4).

    Args:
        config: A `TransformerConfig`, for example `PRESETS["base"]`.

    Examples:
        >>> config = tt.TransformerConfig(num_layers=1, d_model=32, d_ff=64, num_heads=4, vocab_size=500)
        >>> model = tt.Transformer(config)
        >>> source, target = keras.ops.array([[5, 6, 7, 2]]), keras.ops.array([[1, 8, 9]])
        >>> keras.ops.shape(model((source, target)))
        (1, 3, 500)
        >>> model.compile("adam", tt.SmoothedCrossEntropy(), metrics=[tt.Perplexity()])
    """

    config_class: ClassVar[type[TransformerConfig]] = TransformerConfig  # a variant may have another

    @checked
    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Keras would cast ids that arrive as floats to the compute dtype, and 16 bits round them.
        self.autocast = False
        self.config = config
        self.embedding = self.make_embedding()
        self.encoder_layers = self.make_encoder_layers()
        self.decoder_layers = self.make_decoder_layers()
        self.encoder_norm = self.make_norm("encoder_norm")
        self.decoder_norm = self.make_norm("decoder_norm")

    # Override these methods to use other layers.

    def make_embedding(self) -> PositionalEmbedding:
        embedding_class = class_for(self.dtype_policy, PositionalEmbedding)
        return embedding_class(self.config.vocab_size, **self.embedding_options(), name="embedding")

    def embedding_options(self) -> dict[str, Any]:
        """Returns the arguments of the embedding."""
        options = {name: getattr(self.config, name) for name in ("d_model", "positions", "max_length", "dropout")}
        return options | {"dtype": self.dtype_policy}

    def make_encoder_layers(self) -> list[EncoderLayer]:
        return [EncoderLayer(**self.layer_options(), name=f"encoder_{i}") for i in range(self.config.num_layers)]

    def make_decoder_layers(self) -> list[DecoderLayer]:
        return [DecoderLayer(**self.decoder_options(), name=f"decoder_{i}") for i in range(self.config.decoder_layers)]

    def make_norm(self, name: str) -> LayerNormalization | None:
        """Returns the normalization at the end of a stack, or `None` if it comes last in each layer."""
        options = {"epsilon": self.config.epsilon, "name": name, "dtype": self.dtype_policy}
        return LayerNormalization(**options) if self.config.norm_first else None

    def layer_options(self) -> dict[str, Any]:
        """Returns the arguments of encoder layers."""
        names = ["num_heads", "d_ff", "d_k", "d_v", "dropout", "attention_dropout"]
        names += ["activation", "norm_first", "use_bias", "epsilon"]
        return {name: getattr(self.config, name) for name in names} | {"dtype": self.dtype_policy}

    def decoder_options(self) -> dict[str, Any]:
        """Returns the arguments of decoder layers, in the paper the same as of encoder layers."""
        return self.layer_options()

    def build(self, input_shape: Shape = None) -> None:
        """Creates all weights. Their sizes come from the configuration."""
        for layer in self.layers if not self.trainable else ():
            layer.trainable = False
        # One table for both sides and for the logits: "we share the same weight matrix between the two embedding layers
        # and the pre-softmax linear transformation" (section 3.4).
        self.embedding.build((None, None))
        shape = (None, None, self.config.d_model)
        for encoder_layer in self.encoder_layers:
            encoder_layer.build(shape)
        for decoder_layer in self.decoder_layers:
            decoder_layer.build(shape, shape)
        for norm in (self.encoder_norm, self.decoder_norm):
            if norm is not None:
                norm.build(shape)
        self._dtype_policy = resolved_policy(self)

    @property
    def max_length(self) -> int | None:
        """Length of the longest sequence that has positions. `None` means any."""
        return self.embedding.num_positions

    def embed_source(self, source: Tensor, training: bool | None = None) -> Any:
        """Embeds source ids [B, S] for the encoder's layers: [B, S, d]."""
        return self.embedding.embed(source, training=training)

    def encode(
        self,
        source: Tensor,
        mask: Tensor = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> tuple[Any, Any, list[Any]]:
        """Encodes source ids [B, S] with their padding mask [B, S], by default computed from the ids.

        Returns:
            Memory [B, S, d], its padding mask [B, S] and, if requested, each layer's attention weights [B, h, S, S].
        """
        # "The encoder maps an input sequence of symbol representations (x_1, ..., x_n) to a sequence of continuous
        # representations z = (z_1, ..., z_n)." The mask is made here, once, and passed by name.
        mask = padding_mask(source) if mask is None else mask
        x, scores = self.embed_source(source, training), []  # [B, S, d]
        for layer in self.encoder_layers:
            if return_attention_scores:
                x, layer_scores = layer(x, mask=mask, return_attention_scores=True, training=training)
                scores.append(layer_scores)
            else:
                x = layer(x, mask=mask, training=training)
        return (x if self.encoder_norm is None else self.encoder_norm(x)), mask, scores

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        memory_mask: Tensor,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> tuple[Any, list[Any], list[Any]]:
        """Decodes whole targets [B, T].

        Returns:
            Logits [B, T, V] and, if requested, each layer's weights of self-attention [B, h, T, T] and of
            cross-attention [B, h, T, S].
        """
        # "Given z, the decoder then generates an output sequence (y_1, ..., y_m) of symbols one element at a time." In
        # training, all of them at once. The causal mask hides padding at the end of a target from all tokens.
        x, self_scores, cross_scores = self.embedding.embed(target, training=training), [], []
        options = {"memory_mask": memory_mask, "training": training}
        for layer in self.decoder_layers:
            if return_attention_scores:
                x, of_self, of_cross = layer(x, memory, return_attention_scores=True, **options)
                self_scores.append(of_self)
                cross_scores.append(of_cross)
            else:
                x = layer(x, memory, **options)
        return self.logits(x), self_scores, cross_scores

    def logits(self, x: Tensor, softmax_weights: Tensor = None) -> Any:
        """Returns the logits [B, T, V] of the outputs [B, T, d] of the decoder's last layer."""
        x = x if self.decoder_norm is None else self.decoder_norm(x)
        return self.pre_softmax.logits(x, softmax_weights)

    @property
    def pre_softmax(self) -> PositionalEmbedding:
        """Layer whose table is the pre-softmax linear transformation. A variant may have one without embeddings."""
        return self.embedding

    def call(self, inputs: Tensor, return_attention_scores: bool = False, training: bool | None = None) -> Any:
        source, target = inputs
        # Passed on to every layer: Keras's step on JAX calls this method directly, so layers cannot infer `training`.
        option: dict[str, Any] = {"return_attention_scores": return_attention_scores, "training": training}
        memory, memory_mask, encoder_scores = self.encode(source, **option)  # [B, S, d], [B, S]
        logits, decoder_scores, cross_scores = self.decode(target, memory, memory_mask, **option)
        if return_attention_scores:
            return logits, AttentionScores(encoder_scores, decoder_scores, cross_scores)
        return logits

    def init_cache(self, memory: Tensor, slots: int = 0) -> list[DecoderCache]:
        """Returns caches of all decoder layers for memory [B, S, d], with `slots` target tokens."""
        return [layer.init_cache(memory, slots) for layer in self.decoder_layers]

    def softmax_weights(self, candidates: Tensor = None) -> Any:
        """Returns the softmax's weights for a loop of `decode_step`, or `None` if the stored embeddings will do.

        With candidates, ids [B, M], logits are [B, T, M].
        """
        if candidates is not None:
            return self.pre_softmax.candidate_weights(candidates)
        # Transposed once per search, and not at every token. In int8 and bfloat16, the matmul with the stored
        # embeddings is at least as fast.
        layer = self.pre_softmax
        return None if layer.embeddings.dtype in ("bfloat16", "int8") else layer.softmax_weights()

    def decode_step(
        self,
        target: Tensor,
        cache: list[DecoderCache],
        memory_mask: Tensor,
        position: Tensor,
        slot: Tensor,
        attention_mask: Tensor = None,
        softmax_weights: Tensor = None,
        return_attention_scores: bool = False,
    ) -> tuple[Any, ...]:
        """Decodes only the newest target ids [B, T], with a cache of the earlier ones.

        Without an `attention_mask`, the T columns are consecutive tokens. In beam search, they are the newest tokens of
        a sentence's T beams, all at the same position, and the mask selects each beam's earlier tokens.

        Args:
            target: Ids [B, T].
            cache: Cache from `init_cache` or the previous step, with C slots.
            memory_mask: Padding mask of the source [B, S].
            position: Each column's position in the target, [T], from 0; [1] if it is the same for all.
            slot: The cache's slot for the first column.
            attention_mask: Bool [B, T, C]. `None` means causal.
            softmax_weights: Result of `softmax_weights()`.
            return_attention_scores: Whether to return each layer's attention weights too.

        Returns:
            Logits [B, T, V] and the new cache. If requested, each layer's weights of self-attention [B, h, T, C] and of
            cross-attention [B, h, T, S].
        """
        x, new_cache, self_scores, cross_scores = self.embedding.embed(target, position), [], [], []  # x: [B, T, d]
        positions = ops.broadcast_to(ops.expand_dims(position, 0), (1, ops.shape(target)[1]))
        for layer, layer_cache in zip(self.decoder_layers, cache, strict=True):
            x, layer_cache, of_self, of_cross = layer(
                x,
                memory_mask=memory_mask,
                attention_mask=attention_mask,
                cache=layer_cache,
                slot=slot,
                positions=positions,
                return_attention_scores=True,  # computed anyway, and dropped from the graph if nothing uses them
            )
            new_cache.append(layer_cache)
            self_scores.append(of_self)
            cross_scores.append(of_cross)
        logits = self.logits(x, softmax_weights)
        return (logits, new_cache, self_scores, cross_scores) if return_attention_scores else (logits, new_cache)

    def compute_output_shape(self, input_shape: Shape) -> Any:
        return (*input_shape[1], self.config.vocab_size)

    def astype(self, dtype: str) -> "Transformer":
        """Returns a built model that stores and multiplies the same weights in another dtype.

        LoRA's adapters are merged into them.

        Args:
            dtype: A dtype, such as "bfloat16" or "int8".

        Raises:
            BadInput: If the backend cannot multiply 8-bit integers here.
        """
        model = self.like(dtype=policy_of(dtype))
        copy_weights(model, self)
        return model

    def like(self, config: TransformerConfig | None = None, dtype: Any = None) -> "Transformer":
        """Returns a built model with random weights, made with the same arguments as this one, except for these.

        A variant with more arguments has them in its `get_config`, as Keras's files need it.

        Raises:
            BadInput: If a variant cannot be made from its `get_config`.
        """
        kind, own = type(self), {name: value for name, value in self.get_config().items() if name not in NOT_COPIED}
        parameters = inspect.signature(kind.__init__).parameters.values()
        named = [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
        if missing := [name for name in named[1:] if name not in {*own, *NOT_COPIED}]:
            raise BadInput(f"{kind.__name__}: expected all of its arguments in get_config, found no {missing[0]}")
        try:
            model = kind.from_config(own | {"config": config or self.config, "dtype": dtype or self.dtype_policy})
        except TypeError as error:
            reason = " ".join(str(error).split())[:200]
            raise BadInput(f"{kind.__name__}: expected all of its arguments in get_config: {reason}") from error
        model.build()
        return model

    def merged(self) -> "Transformer":
        """Returns this model, or a copy with LoRA's adapters merged into its weights."""
        return self.astype(self.dtype_policy.name) if any(adapters(self)) else self

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"config": self.config.to_dict()} | quantized_inside(self)

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "Transformer":
        fields = config["config"]
        if not isinstance(fields, TransformerConfig):
            fields = cls.config_class(**current_fields(fields))
        return cls(**(config | {"config": fields}))
