"""The encoder's layer: the left half of Figure 1 (section 3.1)."""

from typing import Any

import keras

from tf_transformer.layers.attention import KeyValue
from tf_transformer.layers.transformer_layer import TransformerLayer
from tf_transformer.masks import as_key_mask
from tf_transformer.utils.type_names import Shape, Tensor


@keras.saving.register_keras_serializable("tf_transformer")
class EncoderLayer(TransformerLayer):
    """Self-attention, then feed-forward, each inside Add & Norm. d_model comes from the input.

    Args:
        num_heads: h.
        d_ff: width of the feed-forward hidden layer.
        d_k: width of a head's keys and queries; `None` means d_model / num_heads.
        d_v: width of a head's values; `None` means d_model / num_heads.
        dropout: P_drop, on each sub-layer's output.
        attention_dropout: on attention weights (the paper has none).
        activation: of the feed-forward hidden layer, for `keras.activations.get`; the paper has "relu".
        norm_first: whether normalization comes before each sub-layer, and not after it as in the paper.
        use_bias: whether attention's projections have biases; the paper's have none.
        epsilon: of layer normalization.

    Examples:
        >>> ids = keras.Input((None,), dtype="int32")
        >>> x = tt.layers.PositionalEmbedding(vocab_size=500, d_model=32)(ids)
        >>> x = tt.layers.EncoderLayer(num_heads=4, d_ff=64)(x)
        >>> x = keras.layers.GlobalAveragePooling1D()(x)  # over tokens, without padding
        >>> classifier = keras.Model(ids, keras.layers.Dense(3, activation="softmax")(x))
        >>> classifier.output_shape
        (None, 3)
    """

    def build(self, x_shape: Shape) -> None:
        self.self_attention = self.make_attention("self_attention")
        self.self_attention_norm = self.make_norm("self_attention_norm")
        self.feed_forward = self.make_feed_forward("feed_forward")
        self.feed_forward_norm = self.make_norm("feed_forward_norm")
        for layer in (self.self_attention, self.self_attention_norm, self.feed_forward, self.feed_forward_norm):
            layer.build(x_shape)

    def call(
        self, x: Tensor, mask: Tensor = None, return_attention_scores: bool = False, training: bool | None = None
    ) -> Any:
        """Encode x [B, S, d] under its padding mask [B, S].

        Returns:
            [B, S, d]; with `return_attention_scores` also the attention weights [B, h, S, S].
        """
        inputs = self.self_attention_norm.sublayer_input(x)
        kv = self.self_attention.project(inputs)
        attended, scores = self.attend_to_itself(inputs, kv, as_key_mask(mask), return_attention_scores, training)
        x = self.self_attention_norm(x, attended, training=training)
        output = self.feed_forward(self.feed_forward_norm.sublayer_input(x))
        x = self.feed_forward_norm(x, output, training=training)
        return (x, scores) if return_attention_scores else x

    def attend_to_itself(self, x: Tensor, kv: KeyValue, mask: Tensor, scores: bool, training: bool | None) -> Any:
        """Attend from x [B, S, d] to its own keys and values, under a padding mask [B, 1, S]. A variant may override
        this; `scores` says whether the attention weights are asked for."""
        return self.self_attention.attend(x, kv, mask, training=training)
