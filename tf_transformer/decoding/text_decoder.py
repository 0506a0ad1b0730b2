"""What a search needs of a model."""

from typing import Any, Protocol

from tf_transformer.config import TransformerConfig
from tf_transformer.layers import DecoderCache
from tf_transformer.utils.type_names import Tensor


class TextDecoder(Protocol):
    """What a search needs of a model: `Transformer` and `Ensemble` have it, and document it."""

    config: TransformerConfig

    @property
    def weights(self) -> Any: ...

    @property
    def dtype_policy(self) -> Any: ...

    def __call__(self, inputs: Tensor, *, return_attention_scores: bool = False) -> Any: ...

    def encode(
        self, source: Tensor, mask: Tensor = None, return_attention_scores: bool = False
    ) -> tuple[Any, Any, Any]: ...

    def decode(
        self, target: Tensor, memory: Tensor, memory_mask: Tensor, return_attention_scores: bool = False
    ) -> tuple[Any, Any, Any]: ...

    def init_cache(self, memory: Tensor, slots: int = 0) -> list[DecoderCache]: ...

    def softmax_weights(self) -> Any: ...

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
    ) -> tuple[Any, ...]: ...

    def astype(self, dtype: str) -> "TextDecoder": ...

    def merged(self) -> "TextDecoder": ...
