"""Shared type names. Keras and TensorFlow do not describe their tensors to type checkers."""

import os
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

Tensor: TypeAlias = Any  # a backend's tensor, or an array, number or nested list that becomes one
Shape: TypeAlias = Any  # sizes, None if unknown, or a tuple of shapes for several tensors
Dtype: TypeAlias = Literal["float32", "bfloat16", "float16", "int8"]  # dtype of stored and multiplied weights
VocabularyKind: TypeAlias = Literal["bpe", "unigram"]
Folders: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]  # one run or several
MetricName: TypeAlias = Literal["BLEU", "chrF", "chrF++", "TER", "spBLEU"]  # sacreBLEU's metrics
