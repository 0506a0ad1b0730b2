"""What the parts of a model compute, for formats that hold weights and leave the computing to another project."""

from typing import Any

import keras

from tf_transformer.config import BadInput
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
from tf_transformer.tokenizers.tokenizer import Tokenizer


def attentions(layer: keras.layers.Layer) -> list[Any]:
    """The attentions of a layer of encoder or decoder."""
    return [getattr(layer, name) for name in ("self_attention", "cross_attention") if hasattr(layer, name)]


def norms(layer: keras.layers.Layer) -> list[Any]:
    """Its normalizations."""
    names = ("self_attention_norm", "cross_attention_norm", "feed_forward_norm")
    return [getattr(layer, name) for name in names if hasattr(layer, name)]


def check_parts(model: Transformer) -> None:
    """Check that every part computes what the paper's does, or a family's; options may differ.

    Raises:
        BadInput: a part computes something of its own.
    """

    def check(part: keras.layers.Layer, kind: type, *methods: str) -> None:
        kinds = (kind, *(family.model for family in families()))
        for method in methods:
            if getattr(type(part), method, None) not in [getattr(known, method, None) for known in kinds]:
                raise BadInput(
                    f"{part.path}: expected a layer that computes what {kind.__name__} does, since this format "
                    f"has no other, got {type(part).__name__}, whose {method} is its own"
                )

    check(model, Transformer, "embed_source", "encode", "decode", "decode_step", "logits")
    check(model.embedding, PositionalEmbedding, "embed", "rows", "logits")
    if getattr(model, "source_embedding", None) is not None:
        check(model.source_embedding, PositionalEmbedding, "embed", "rows")
    for kind, layers in ((EncoderLayer, model.encoder_layers), (DecoderLayer, model.decoder_layers)):
        for layer in layers:
            check(layer, kind, "call", "attend_to_itself")
            for attention in attentions(layer):
                check(attention, MultiHeadAttention, "project", "attend")
            check(layer.feed_forward, FeedForward, "call")
            for norm in norms(layer):
                check(norm, AddAndNorm, "sublayer_input", "call")


def check_no_added(tokenizer: Tokenizer) -> None:
    """Checks that SentencePiece makes all tokens of a text, since clients of this format have nothing else.

    Raises:
        BadInput: If `tokenizer` matches added tokens first.
    """
    if tokenizer.added:
        got = f"which this format's clients do not match, got {', '.join(tokenizer.added)[:99]}"
        raise BadInput(f"tokenizer: expected one without added tokens, {got}. Export a SavedModel.")


def only(name: str, values: list[Any]) -> Any:
    """The value that all layers of a stack, or of the model, share.

    Raises:
        BadInput: there are several.
    """
    if len(set(values)) > 1:
        got = " and ".join(sorted({getattr(value, "__name__", str(value)) for value in values}))
        raise BadInput(f"{name}: expected the same value in all layers, since this format has one, got {got}")
    return values[0]
