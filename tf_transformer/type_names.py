"""Types that several rooms share. Keras and TensorFlow do not describe their tensors to type checkers."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from tf_transformer.config import TransformerConfig
    from tf_transformer.layers import DecoderCache

Tensor: TypeAlias = Any  # of the backend; or an array, a number or nested lists that become one
Shape: TypeAlias = Any  # sizes, None where one is not fixed; for several tensors a tuple of such
Dtype: TypeAlias = Literal["float32", "bfloat16", "float16", "int8"]  # that weights are stored and multiplied in
VocabularyKind: TypeAlias = Literal["bpe", "unigram"]
Folders: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]  # of a run, or of several


class TextDecoder(Protocol):
    """What a search needs of a model: `Transformer` and `Ensemble` have it, and document it."""

    config: "TransformerConfig"

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

    def init_cache(self, memory: Tensor, slots: int = 0) -> list["DecoderCache"]: ...

    def softmax_weights(self) -> Any: ...

    def decode_step(
        self,
        target: Tensor,
        cache: list["DecoderCache"],
        memory_mask: Tensor,
        position: Tensor,
        slot: Tensor,
        attention_mask: Tensor = None,
        softmax_weights: Tensor = None,
        return_attention_scores: bool = False,
    ) -> tuple[Any, ...]: ...

    def astype(self, dtype: str) -> "TextDecoder": ...

    def merged(self) -> "TextDecoder": ...
