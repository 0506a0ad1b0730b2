"""The layers of Figure 1, for use in any Keras model."""

from tf_transformer.layers.attention import KeyValue, MultiHeadAttention, attention
from tf_transformer.layers.decoder import DecoderCache, DecoderLayer
from tf_transformer.layers.embedding import PositionalEmbedding, PositionalEncoding
from tf_transformer.layers.encoder import EncoderLayer
from tf_transformer.layers.positions import Positions, sinusoids
from tf_transformer.layers.restricted import RestrictedEncoderLayer, restricted_attention
from tf_transformer.layers.sublayers import AddAndNorm, FeedForward

__all__ = [
    "AddAndNorm",
    "DecoderCache",
    "DecoderLayer",
    "EncoderLayer",
    "FeedForward",
    "KeyValue",
    "MultiHeadAttention",
    "PositionalEmbedding",
    "PositionalEncoding",
    "Positions",
    "RestrictedEncoderLayer",
    "attention",
    "restricted_attention",
    "sinusoids",
]
