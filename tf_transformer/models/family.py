"""A family of models: the paper's, or one whose pretrained checkpoints load here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tf_transformer.config import TransformerConfig
from tf_transformer.decoding.text_model import TextModel
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers.tokenizer import Tokenizer


class Pretrained(NamedTuple):
    """A checkpoint's contents."""

    model: Transformer
    tokenizer: Tokenizer
    options: Mapping[str, Any]  # of a `Translator`, as the checkpoint sets them
    max_length: int | None = None  # the most symbols of an output, the end symbol included


class Contents(NamedTuple):
    """What the files of a checkpoint hold that `transformers` reads."""

    tensors: Mapping[str, np.ndarray]  # float32, by PyTorch's names
    files: Mapping[str, Any]  # by name: of .json the values, of others the bytes


@dataclass(frozen=True)
class Family:
    """What the rest of the package needs to know of a family of models.

    Attributes:
        name: in one word, for `Translator.from_pretrained(family=)`.
        config: the class of its configurations; its fields tell it from every other family's.
        model: the class of its models.
        tokenizer: the class of its tokenizers.
        recognizes: whether a folder holds one of its checkpoints.
        load: reads such a folder; `None` if there are no pretrained models.
        write: what such a folder holds of a translator of this family, whose parts compute what the family's do.
        owner: on the Hugging Face hub, of models that a name without an owner means.
    """

    name: str
    config: type[TransformerConfig]
    model: type[Transformer]
    tokenizer: type[Tokenizer]
    recognizes: Callable[[Path], bool] = field(default=lambda folder: False)
    load: Callable[[Path], Pretrained] | None = None
    write: Callable[[TextModel], Contents] | None = None
    owner: str = ""
