"""Types that several rooms share. Keras and TensorFlow do not describe their tensors to type checkers."""

import os
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

Tensor: TypeAlias = Any  # of the backend; or an array, a number or nested lists that become one
Shape: TypeAlias = Any  # sizes, None where one is not fixed; for several tensors a tuple of such
Dtype: TypeAlias = Literal["float32", "bfloat16", "float16", "int8"]  # that weights are stored and multiplied in
VocabularyKind: TypeAlias = Literal["bpe", "unigram"]
Folders: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]  # of a run, or of several
