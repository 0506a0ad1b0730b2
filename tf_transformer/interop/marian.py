"""Weights from elsewhere: checkpoints of MarianMT as Hugging Face's `transformers` saves them, in our layers.

Not from the paper, and therefore here and not in the layers: biases in the projections of attention, swish for ReLU,
layer normalization's epsilon 1e-5, all sines before all cosines, a bias on the logits, decoders of another depth than
their encoders. Needs `pip install tf-transformer[marian]`.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
from keras import ops

from tf_transformer.config import BadInput, TransformerConfig
from tf_transformer.layers import (
    AddAndNorm,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    PositionalEmbedding,
    sinusoids,
)
from tf_transformer.model import Transformer

EPSILON = 1e-5
ACTIVATIONS = ("swish", "silu", "relu", "gelu")


@dataclass(frozen=True)
class MarianConfig(TransformerConfig):
    """What Marian adds; the sizes of `TransformerConfig` are the encoder's.

    Attributes:
        num_decoder_layers: layers in the decoder.
        num_decoder_heads: its attention heads.
        decoder_d_ff: width of its feed-forward hidden layers.
        activation: in feed-forward networks: "swish" or its other name "silu", "relu", "gelu".
        scale_embedding: whether embeddings are multiplied by sqrt(d_model).
        pad_id: padding.
        start_id: the symbol before a target's first; in Marian it is padding, too.
        end_id: the symbol that ends sources and targets.
    """

    num_decoder_layers: int = 6
    num_decoder_heads: int = 8
    decoder_d_ff: int = 2048
    activation: str = "swish"
    scale_embedding: bool = True
    pad_id: int = 58100
    start_id: int = 58100
    end_id: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("pad_id", "start_id", "end_id"):
            given = getattr(self, name)
            if not isinstance(given, int) or not 0 <= given < self.vocab_size:
                raise BadInput(f"{name}: expected an id below vocab_size={self.vocab_size}, got {given!r}")


@keras.saving.register_keras_serializable("tf_transformer")
class MarianAttention(MultiHeadAttention):
    """Multi-head attention whose four projections have biases."""

    def make_projection(self, name, units, scale):
        return keras.layers.Dense(units, dtype=self.dtype_policy, name=name)


class _MarianParts(keras.layers.Layer):
    """What encoder and decoder layers are made of."""

    num_heads: int
    d_ff: int
    dropout: float
    attention_dropout: float

    def __init__(self, *args, activation="swish", **kwargs):
        super().__init__(*args, **kwargs)
        self.activation = activation

    def make_attention(self, name):
        return MarianAttention(self.num_heads, dropout=self.attention_dropout, name=name, dtype=self.dtype_policy)

    def make_feed_forward(self, name):
        return FeedForward(self.d_ff, self.activation, name=name, dtype=self.dtype_policy)

    def make_norm(self, name):
        return AddAndNorm(self.dropout, EPSILON, name=name, dtype=self.dtype_policy)

    def get_config(self):
        return super().get_config() | {"activation": self.activation}


@keras.saving.register_keras_serializable("tf_transformer")
class MarianEncoderLayer(_MarianParts, EncoderLayer):
    """`EncoderLayer` of Marian's parts."""


@keras.saving.register_keras_serializable("tf_transformer")
class MarianDecoderLayer(_MarianParts, DecoderLayer):
    """`DecoderLayer` of Marian's parts."""


@keras.saving.register_keras_serializable("tf_transformer")
class MarianEmbedding(PositionalEmbedding):
    """Embeddings and sinusoids, all sines before all cosines; and a bias on the logits."""

    def __init__(self, *args, scale=True, **kwargs):
        super().__init__(*args, **kwargs)
        self.scale = scale

    def build(self, ids_shape):
        super().build(ids_shape)
        self.logits_bias = self.add_weight((self.vocab_size,), "zeros", name="logits_bias", autocast=False)

    def scaled(self, ids):
        return super().scaled(ids) if self.scale else ops.cast(ops.take(self.embeddings, ids, axis=0), "float32")

    def encoding(self, position):
        pairs = sinusoids(position, self.d_model)
        return ops.concatenate([pairs[:, 0::2], pairs[:, 1::2]], axis=-1)

    def logits(self, x, *args):
        return super().logits(x, *args) + self.logits_bias

    def get_config(self):
        return super().get_config() | {"scale": self.scale}


@keras.saving.register_keras_serializable("tf_transformer")
class MarianTransformer(Transformer):
    """logits = model((source, target)), in Marian's ids: source ends with `end_id`, target begins with `start_id`.

    As with any `Transformer`: attention weights, `fit`, saving and loading; and `search` below. What takes 0 for
    padding, which here is the end symbol, does not fit: `Translator` and its exports, `SmoothedCrossEntropy`, metrics.
    Texts become ids by the checkpoint's own vocabulary, for example with `transformers.MarianTokenizer`.

    Args:
        config: a `MarianConfig`.
    """

    config: MarianConfig

    def make_embedding(self):
        config = self.config
        options = {"dropout": config.dropout, "scale": config.scale_embedding, "dtype": self.dtype_policy}
        return MarianEmbedding(config.vocab_size, config.d_model, name="embedding", **options)

    def make_encoder_layers(self):
        config, sizes = self.config, self.layer_options()
        return [
            MarianEncoderLayer(**sizes, activation=config.activation, name=f"encoder_{i}")
            for i in range(config.num_layers)
        ]

    def make_decoder_layers(self):
        config = self.config
        sizes = self.layer_options() | {"num_heads": config.num_decoder_heads, "d_ff": config.decoder_d_ff}
        return [
            MarianDecoderLayer(**sizes, activation=config.activation, name=f"decoder_{i}")
            for i in range(config.num_decoder_layers)
        ]

    def encode(self, source, mask=None, return_attention_scores=False):
        """As `Transformer.encode`; padding is `pad_id`."""
        mask = ops.not_equal(source, self.config.pad_id) if mask is None else mask
        return super().encode(source, mask, return_attention_scores)

    def search(self, source, max_length, *, n_best: int = 1, **options):
        """Beam search (section 6.1), under TensorFlow; `beam_size=1` is greedy search. Padding is never an output.

        Args:
            source: ids [B, S] that end with `end_id`, then `pad_id`.
            max_length: the greatest number of symbols, the end symbol included, one or [B].
            n_best: N.
            options: of `search.beam_search`.

        Returns:
            `search.Hypotheses`; where a row of its ids is shorter than the longest, zeros follow: see its lengths.
        """
        import tensorflow as tf

        from tf_transformer.decoding import decoding
        from tf_transformer.search import Start, beam_search

        source = tf.convert_to_tensor(source, tf.int32)
        memory, memory_mask, _ = self.encode(source)
        padding = tf.one_hot(self.config.pad_id, self.config.vocab_size, -1e9, 0.0)
        decoder, rows = decoding(self, memory, memory_mask), tf.shape(source)[:1]

        def step(*arguments):
            logits, cache = decoder.step(*arguments)
            return logits + padding, cache  # not by `allowed`, which leaves padding its share of the probability

        start = Start(
            *decoder._replace(step=step),
            start_ids=tf.fill(rows, self.config.start_id),
            max_length=tf.broadcast_to(max_length, rows),
            end_id=self.config.end_id,
        )
        return beam_search(start, n_best=n_best, **options)

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**(config | {"config": MarianConfig(**config["config"])}))


def load_marian(directory) -> MarianTransformer:
    """Read a checkpoint of MarianMT from a folder with Hugging Face's config.json and model.safetensors.

    Raises:
        BadInput: the folder holds something else, or a kind of MarianMT that this does not know.
    """
    directory = Path(directory)
    try:
        from safetensors.numpy import load_file
    except ImportError as error:
        raise BadInput(f"expected the package safetensors: pip install tf-transformer[marian] ({error})") from error
    for name, how in (("config.json", ""), ("model.safetensors", "; MarianMTModel.save_pretrained writes one")):
        if not (directory / name).is_file():
            raise BadInput(f"expected a checkpoint of MarianMT, found no {name} in {directory}{how}")
    try:
        said = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        tensors = load_file(directory / "model.safetensors")
    except Exception as error:  # of safetensors' own
        raise BadInput(f"{directory}: cannot be read: {error}") from error
    try:
        config = _config_of(said)
    except BadInput as error:
        raise BadInput(f"{directory / 'config.json'}: {error}") from error
    model = MarianTransformer(config)
    model.build()
    try:
        _assign(model, tensors)
    except BadInput as error:
        raise BadInput(f"{directory / 'model.safetensors'}: {error}") from error
    return model


def _config_of(said: dict) -> MarianConfig:
    wanted = {
        "model_type": ("marian",),
        "activation_function": ACTIVATIONS,
        "normalize_before": (False,),
        "normalize_embedding": (False,),
        "add_final_layer_norm": (False,),
        "static_position_embeddings": (True,),
        "share_encoder_decoder_embeddings": (True,),
        "tie_word_embeddings": (True,),
    }
    # What a file does not say is as in transformers.MarianConfig, which writes only what differs.
    said = {"activation_function": "gelu"} | said
    for name, values in wanted.items():
        if said.get(name, values[0] if name != "model_type" else None) not in values:
            raise BadInput(f"{name}: expected {' or '.join(map(repr, values))}, got {said.get(name)!r}")
    pad_id = said.get("pad_token_id", 58100)
    return MarianConfig(
        num_layers=said.get("encoder_layers", 12),
        d_model=said.get("d_model", 1024),
        d_ff=said.get("encoder_ffn_dim", 4096),
        num_heads=said.get("encoder_attention_heads", 16),
        dropout=said.get("dropout", 0.1),
        attention_dropout=said.get("attention_dropout", 0.0),
        vocab_size=said.get("vocab_size", 58101),
        num_decoder_layers=said.get("decoder_layers", 12),
        num_decoder_heads=said.get("decoder_attention_heads", 16),
        decoder_d_ff=said.get("decoder_ffn_dim", 4096),
        activation=said["activation_function"],
        scale_embedding=said.get("scale_embedding", False),
        pad_id=pad_id,
        start_id=said.get("decoder_start_token_id", pad_id),
        end_id=said.get("eos_token_id", 0),
    )


def _assign(model: MarianTransformer, tensors: dict[str, np.ndarray]) -> None:
    """Put every tensor into its place, and leave none over."""
    left = dict(tensors)

    def assign(variable, name, change=lambda x: x):
        if name not in left:
            raise BadInput(f"expected a tensor {name}, found none")
        value = change(left.pop(name))
        if value.shape != variable.shape:
            raise BadInput(f"{name}: expected shape {tuple(variable.shape)} (as used here), got {value.shape}")
        variable.assign(value.astype("float32"))

    def linear(layer, name):
        assign(layer.kernel, f"{name}.weight", np.transpose)
        assign(layer.bias, f"{name}.bias")

    def norm(layer, name):
        assign(layer.norm.gamma, f"{name}.weight")
        assign(layer.norm.beta, f"{name}.bias")

    def attention(layer, name):
        linear(layer.query_projection, f"{name}.q_proj")
        linear(layer.key_projection, f"{name}.k_proj")
        linear(layer.value_projection, f"{name}.v_proj")
        linear(layer.output_projection, f"{name}.out_proj")

    stacks: dict[str, list] = {"encoder": model.encoder_layers, "decoder": model.decoder_layers}
    for side, layers in stacks.items():
        for i, layer in enumerate(layers):
            name = f"model.{side}.layers.{i}"
            attention(layer.self_attention, f"{name}.self_attn")
            norm(layer.self_attention_norm, f"{name}.self_attn_layer_norm")
            if side == "decoder":
                attention(layer.cross_attention, f"{name}.encoder_attn")
                norm(layer.cross_attention_norm, f"{name}.encoder_attn_layer_norm")
            linear(layer.feed_forward.hidden, f"{name}.fc1")
            linear(layer.feed_forward.output_projection, f"{name}.fc2")
            norm(layer.feed_forward_norm, f"{name}.final_layer_norm")
    # One matrix, whose name in the file is any of these, or several.
    names = ["model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"]
    names = [name for name in [*names, "lm_head.weight"] if name in left] or names[:1]
    assign(model.embedding.embeddings, names[0])
    for name in names[1:]:
        if not np.array_equal(left.pop(name), tensors[names[0]]):
            raise BadInput(f"{name}: expected the values of {names[0]}, got others")
    if "final_logits_bias" in left:
        assign(model.embedding.logits_bias, "final_logits_bias", np.ravel)
    for side in ("encoder", "decoder"):
        left.pop(f"model.{side}.embed_positions.weight", None)  # sinusoids: nothing learned
    if left:
        raise BadInput(f"expected the tensors of MarianMT, found {', '.join(sorted(left)[:3])} besides")
