"""Checks of formats before they write: whether another project computes what the model does."""

from typing import Any

import keras

from tf_transformer.config import BadInput
from tf_transformer.decoding.tensor_translator import TensorTranslator
from tf_transformer.layers import (
    AddAndNorm,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    PositionalEmbedding,
)
from tf_transformer.models.families import families
from tf_transformer.models.transformer import Transformer
from tf_transformer.models.weights import check_finite


def check_convertible(translator: TensorTranslator, wanted: str) -> None:
    """Checks that a translator is one model with finite weights of 16 or 32 bits.

    `wanted` completes the message "expected one model".
    """
    if hasattr(translator.model, "models"):
        count = len(translator.model.models)
        raise BadInput(f"translator: expected one model{wanted}, got an ensemble of {count}")
    if any(weight.dtype == "int8" for weight in translator.model.weights):
        raise BadInput("translator: expected weights of 16 or 32 bits, which quantization can convert, got int8")
    check_finite(translator.model.weights)


def check_without_shortlist(translator: TensorTranslator, format: str) -> None:
    """Raises `BadInput` if a translator has a shortlist, which a format does not hold."""
    if translator.shortlist is not None:
        raise BadInput(
            f"shortlist: expected None, since {format} has none, got a Shortlist. Call replace(shortlist=None)"
        )


def check_layers(model: Transformer) -> None:
    """Checks that every layer computes what the paper's or a family's does, and that all have the same settings.

    The number of heads and the activation may differ between encoder and decoder.
    """

    def check(layer: keras.layers.Layer, kind: type, *methods: str) -> None:
        kinds = (kind, *(family.model for family in families()))
        for method in methods:
            if getattr(type(layer), method, None) not in [getattr(known, method, None) for known in kinds]:
                raise BadInput(
                    f"{layer.path}: expected a layer that computes what {kind.__name__} does, since this format "
                    f"has no other, got {type(layer).__name__}, which overrides {method}"
                )

    check(model, Transformer, "embed_source", "encode", "decode", "decode_step", "logits")
    check(model.embedding, PositionalEmbedding, "embed", "rows", "logits")
    if getattr(model, "source_embedding", None) is not None:
        check(model.source_embedding, PositionalEmbedding, "embed", "rows")
    norm_first, epsilons = [model.config.norm_first], []
    for kind, layers in ((EncoderLayer, model.encoder_layers), (DecoderLayer, model.decoder_layers)):
        heads = []
        for layer in layers:
            check(layer, kind, "call", "attend_to_earlier", "project_itself", "attend_to_itself")
            check(layer.feed_forward, FeedForward, "call")
            for name in ("self_attention", "cross_attention", "feed_forward"):
                if norm := getattr(layer, f"{name}_norm", None):
                    check(norm, AddAndNorm, "sublayer_input", "call")
                    epsilons.append(norm.norm.epsilon)
                if (attention := getattr(layer, name, None)) and name != "feed_forward":
                    check(attention, MultiHeadAttention, "project", "attend")
                    heads.append(attention.num_heads)
            norm_first.append(layer.norm_first)
        only("num_heads", heads)
        only("activation", [layer.feed_forward.hidden.activation for layer in layers])
    only("norm_first", norm_first)
    only("epsilon", epsilons)


def only(name: str, values: list[Any]) -> None:
    """Raises `BadInput` if the values of layers differ."""
    if len(set(values)) > 1:
        got = " and ".join(sorted({getattr(value, "__name__", str(value)) for value in values}))
        raise BadInput(f"{name}: expected the same value in all layers, since this format has one, got {got}")
