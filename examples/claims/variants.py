"""The models of the experiments by name: the baselines, and the Transformer without a part of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from examples.claims.models import Convolutional, Recurrent, WithoutPositions, convolutional_flops, recurrent_flops
from tf_transformer import Transformer, TransformerConfig
from tf_transformer.layers import DecoderLayer, EncoderLayer, KeyValue, MultiHeadAttention
from tf_transformer.layers.attention import attention
from tf_transformer.utils.type_names import Tensor
from trainers import costs


def unscaled_attention(query: Tensor, *args: Any) -> tuple[Any, Any]:
    """Computes softmax(Q K^T) V, equation (1) without its division by sqrt(d_k)."""
    return attention(query * query.shape[-1] ** 0.5, *args)


class UnscaledAttention(MultiHeadAttention):
    def attend(self, query: Tensor, kv: KeyValue, mask: Tensor = None, *args: Any, **options: Any) -> tuple[Any, Any]:
        return super().attend(query, kv, mask, unscaled_attention, **options)


class _Unscaled:
    """Part of layers without the division by sqrt(d_k)."""

    def make_attention(self, name: str) -> MultiHeadAttention:
        options = self.num_heads, self.d_k, self.d_v, self.attention_dropout, self.use_bias  # type: ignore[attr-defined]
        return UnscaledAttention(*options, name=name)


class UnscaledEncoderLayer(_Unscaled, EncoderLayer):
    pass


class UnscaledDecoderLayer(_Unscaled, DecoderLayer):
    pass


class Unscaled(Transformer):
    """Transformer without the division by sqrt(d_k)."""

    def make_encoder_layers(self) -> list[EncoderLayer]:
        return [UnscaledEncoderLayer(**self.layer_options(), name=f"e{i}") for i in range(self.config.num_layers)]

    def make_decoder_layers(self) -> list[DecoderLayer]:
        return [UnscaledDecoderLayer(**self.decoder_options(), name=f"d{i}") for i in range(self.config.decoder_layers)]


class Unordered(Transformer):
    """Transformer without positions."""

    def make_embedding(self) -> WithoutPositions:
        config = self.config
        return WithoutPositions(config.vocab_size, config.d_model, dropout=config.dropout, name="embedding")


class Kind(NamedTuple):
    """A kind of model.

    Attributes:
        model: Its class.
        forward_flops: Function of a configuration, source and target tokens that counts a forward pass.
        flops_per_second: Measured rate of training on one core of an AMD EPYC, for the plan.
    """

    model: type[Transformer]
    forward_flops: Callable[[TransformerConfig, int, int], int]
    flops_per_second: float


KINDS = {
    "transformer": Kind(Transformer, costs.forward_flops, 50e9),
    "unscaled": Kind(Unscaled, costs.forward_flops, 50e9),
    "unordered": Kind(Unordered, costs.forward_flops, 50e9),
    "lstm": Kind(Recurrent, recurrent_flops, 28e9),
    "conv": Kind(Convolutional, convolutional_flops, 42e9),
}


class Ramp(keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate of equation (3), with another peak, and with another warm-up but the same decay.

    Args:
        peak: Rate of equation (3) at the end of its warm-up.
        warmup_steps: Steps over which the rate grows linearly. 0 means none.
        decay_after: Step after which the rate falls with the inverse square root of the step.
    """

    def __init__(self, peak: float, warmup_steps: int, decay_after: int) -> None:
        self.peak, self.warmup_steps, self.decay_after = peak, warmup_steps, decay_after

    def __call__(self, step: Tensor) -> Any:
        step = ops.cast(step, "float32") + 1.0
        decay = ops.minimum(1.0, (self.decay_after / step) ** 0.5)
        return self.peak * decay * (ops.minimum(1.0, step / self.warmup_steps) if self.warmup_steps else 1.0)

    def get_config(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("peak", "warmup_steps", "decay_after")}
