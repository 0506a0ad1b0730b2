"""The registry of families: which one a configuration, a tokenizer's file or a folder of a checkpoint belongs to."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tf_transformer.config import BadInput, TransformerConfig
from tf_transformer.extensions.interop.families.m2m100 import family as m2m100
from tf_transformer.extensions.interop.families.marian import family as marian
from tf_transformer.layers.int8 import policy_of
from tf_transformer.models.family import Family
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.utils.files import user_path
from tf_transformer.utils.reading import made_of, read_bytes

PAPER = Family("transformer", TransformerConfig, Transformer, Tokenizer, write=marian.FAMILY.write)
# A tokenizer of MarianMT takes any archive, and the paper's any file, so these come last.
FAMILIES = (m2m100.FAMILY, marian.FAMILY, PAPER)


def family_named(name: str) -> Family:
    """The family with this name.

    Raises:
        BadInput: there is none.
    """
    for family in FAMILIES:
        if family.name == name:
            return family
    raise BadInput(f"family: expected one of {', '.join(family.name for family in FAMILIES)}; got {name!r}")


def family_of_folder(folder: str | os.PathLike[str]) -> Family | None:
    """The family of the checkpoint in a folder; `None` if it holds none."""
    return next((family for family in FAMILIES if family.recognizes(Path(folder))), None)


def config_of(values: Mapping[str, Any]) -> TransformerConfig:
    """The configuration with these fields, the inverse of `to_dict`; of the family that has the fewest others.

    Raises:
        BadInput: no family has these fields, or a value has another type or is out of range.
    """
    fields = {family.config: {field.name for field in dataclasses.fields(family.config)} for family in FAMILIES}
    fitting = [config for config, names in fields.items() if values.keys() <= names]
    if not fitting:
        known = set().union(*fields.values())
        wrong = ", ".join(map(str, values.keys() - known)) or "those of several families"
        raise BadInput(f"expected the fields of a model's configuration, got also {wrong}")
    return made_of(min(fitting, key=lambda config: len(fields[config])), dict(values))


def family_of_config(config: TransformerConfig) -> Family:
    """The family of models with this configuration."""
    families = {family.config: family for family in FAMILIES}
    return next(families[parent] for parent in type(config).__mro__ if parent in families)


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
    return next(family.tokenizer for family in FAMILIES if family.tokenizer.recognizes(model))
