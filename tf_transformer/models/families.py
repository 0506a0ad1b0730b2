"""Families of models: the paper's, and those whose pretrained checkpoints load here."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tf_transformer import registry
from tf_transformer.config import BadInput, TransformerConfig, current_fields
from tf_transformer.layers.int8 import policy_of
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.utils.files import user_path
from tf_transformer.utils.reading import made_of, read_bytes


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
    write: Callable[[Any], Contents] | None = None
    owner: str = ""


# A checkpoint of the paper's models is one of MarianMT's.
PAPER = Family(
    "transformer",
    TransformerConfig,
    Transformer,
    Tokenizer,
    write=lambda translator: registry.find("families", "marian").write(translator),
)


def families() -> list[Family]:
    """Returns all families in the order in which they are asked what they recognize."""
    return [*registry.everything("families").values()]


def family_named(name: str) -> Family:
    """The family with this name.

    Raises:
        BadInput: there is none.
    """
    found: Family = registry.find("families", name)
    return found


def family_of_folder(folder: str | os.PathLike[str]) -> Family | None:
    """The family of the checkpoint in a folder; `None` if it holds none."""
    return next((family for family in families() if family.recognizes(Path(folder))), None)


def config_of(values: Mapping[str, Any]) -> TransformerConfig:
    """The configuration with these fields, the inverse of `to_dict`; of the family that has the fewest others.

    Raises:
        BadInput: no family has these fields, or a value has another type or is out of range.
    """
    values = current_fields(values)
    fields = {family.config: {field.name for field in dataclasses.fields(family.config)} for family in families()}
    fitting = [config for config, names in fields.items() if values.keys() <= names]
    if not fitting:
        known = set().union(*fields.values())
        wrong = ", ".join(map(str, values.keys() - known)) or "those of several families"
        raise BadInput(f"expected the fields of a model's configuration, got also {wrong}")
    return made_of(min(fitting, key=lambda config: len(fields[config])), dict(values))


def family_of_config(config: TransformerConfig) -> Family:
    """The family of models with this configuration."""
    by_config = {family.config: family for family in families()}
    return next(by_config[parent] for parent in type(config).__mro__ if parent in by_config)


def build_model(config: TransformerConfig, dtype: str | None = None) -> Transformer:
    """A built model with random weights. `dtype` is a dtype, "int8" included, or a policy of Keras; `None` means the
    current policy."""
    model = family_of_config(config).model(config, dtype=policy_of(dtype))
    model.build()
    return model


def tokenizer_of(model: bytes) -> Tokenizer:
    """The tokenizer with this serialized model, its attribute `model`.

    Raises:
        BadInput: the bytes are no tokenizer.
    """
    return _kind_of(model)(model)


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Load a tokenizer from a file, such as a run's tokenizer.model.

    Raises:
        FileNotFoundError: there is no file.
        BadInput: it holds something else.
    """
    path = user_path(path)
    return _kind_of(read_bytes(path) if path.is_file() else b"").load(path)


def _kind_of(model: bytes) -> type[Tokenizer]:
    return next(family.tokenizer for family in families() if family.tokenizer.recognizes(model))
