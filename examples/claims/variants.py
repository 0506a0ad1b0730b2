"""The models of the experiments by name: the baselines, and the Transformer without a part of it."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from examples.claims.models import Convolutional, Recurrent, Unordered, convolutional_flops, recurrent_flops
from tf_transformer import Transformer, TransformerConfig
from tf_transformer.layers import MultiHeadAttention
from tf_transformer.layers.attention import attention
from tf_transformer.utils.type_names import Shape, Tensor
from trainers.costs import forward_flops


def unscaled_attention(query: Tensor, *args: Any) -> tuple[Any, Any]:
    """Computes softmax(Q K^T) V, equation (1) without its division by sqrt(d_k)."""
    return attention(query * query.shape[-1] ** 0.5, *args)


class Unscaled(Transformer):
    """Transformer without the division by sqrt(d_k)."""

    def build(self, input_shape: Shape = None) -> None:
        super().build(input_shape)
        for layer in self._flatten_layers():
            if isinstance(layer, MultiHeadAttention):
                layer.attend = functools.partial(layer.attend, attention=unscaled_attention)  # type: ignore[method-assign]


class Kind(NamedTuple):
    """A kind of model, a function that counts its forward pass, and its measured FLOP/s in training on one core."""

    model: type[Transformer]
    forward_flops: Callable[[TransformerConfig, int, int], int]
    flops_per_second: float


KINDS = {
    "transformer": Kind(Transformer, forward_flops, 50e9),
    "unscaled": Kind(Unscaled, forward_flops, 50e9),
    "unordered": Kind(Unordered, forward_flops, 50e9),
    "lstm": Kind(Recurrent, recurrent_flops, 28e9),
    "conv": Kind(Convolutional, convolutional_flops, 42e9),
}


class Ramp(keras.optimizers.schedules.LearningRateSchedule):
    """Equation (3) with a given `peak`, which decays after step `decay_after` also with another warm-up."""

    def __init__(self, peak: float, warmup_steps: int, decay_after: int) -> None:
        self.peak, self.warmup_steps, self.decay_after = peak, warmup_steps, decay_after

    def __call__(self, step: Tensor) -> Any:
        step = ops.cast(step, "float32") + 1.0
        decay = ops.minimum(1.0, (self.decay_after / step) ** 0.5)
        return self.peak * decay * (ops.minimum(1.0, step / self.warmup_steps) if self.warmup_steps else 1.0)

    def get_config(self) -> dict[str, Any]:
        return dict(vars(self))
