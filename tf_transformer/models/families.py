"""Families of models: the paper's, and those whose pretrained checkpoints load here."""

import dataclasses
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tf_transformer import registry
from tf_transformer.config import BadInput, TransformerConfig, current_fields
from tf_transformer.layers.int8 import policy_of
from tf_transformer.models.ensemble import Ensemble
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.utils.files import user_path
from tf_transformer.utils.reading import made_of, read_bytes


class Pretrained(NamedTuple):
    """A checkpoint's contents."""

    model: Transformer
    tokenizer: Tokenizer
    options: Mapping[str, Any]  # the checkpoint's defaults for a `Translator`
    max_length: int | None = None  # maximum number of tokens of an output, including EOS


class Rebuilt(NamedTuple):
    """A model and the values stored with it."""

    model: Transformer  # or an `Ensemble`
    tokenizer: Tokenizer
    options: Mapping[str, Any]  # search options
    metadata: Mapping[str, Any]  # export metadata
    longest: int | None = None  # maximum length of a checkpoint's outputs, including EOS


class Contents(NamedTuple):
    """Contents of the files of a checkpoint that `transformers` reads."""

    tensors: Mapping[str, np.ndarray]  # float32, by PyTorch's names
    files: Mapping[str, Any]  # {name: value of a .json file, or bytes of another}


@dataclass(frozen=True)
class Family:
    """A family of models, for the rest of the package.

    Attributes:
        name: Name in one word, for `Translator.from_pretrained(family=)`.
        config: Class of its configurations. A run stores the family's name, so that another family may have the same
            fields.
        model: Class of its models.
        tokenizer: Class of its tokenizers.
        recognizes: Function that returns whether a directory holds one of its checkpoints.
        load: Function that reads such a folder. `None` if the family has no pretrained models.
        write: Function that returns the contents of such a directory for a translator of this family. `None` means
            the format's default.
        owner: Default owner of its models on the Hugging Face Hub.
    """

    name: str
    config: type[TransformerConfig]
    model: type[Transformer]
    tokenizer: type[Tokenizer]
    recognizes: Callable[[Path], bool] = field(default=lambda folder: False)
    load: Callable[[Path], Pretrained] | None = None
    write: Callable[[Any], Contents] | None = None
    owner: str = ""


PAPER = Family("transformer", TransformerConfig, Transformer, Tokenizer)


def families() -> list[Family]:
    """Returns all families in the order in which `recognizes` is called. It imports their modules."""
    return [*registry.everything("families").values()]


def family_of_folder(folder: str | os.PathLike[str]) -> Family | None:
    """Returns the family of the checkpoint in a directory, or `None` if it holds none."""
    return next((family for family in families() if family.recognizes(Path(folder))), None)


def config_of(values: Mapping[str, Any], family: str | None = None) -> TransformerConfig:
    """Returns the configuration with these fields, the inverse of `to_dict`.

    If no `family` is named and several have these fields, it is the paper's, or one of this package, or that with the
    fewest others, or a base class, in this order.

    Raises:
        BadInput: If no family has these fields or this name, or a value is out of range.
    """
    values = current_fields(values)
    # Files of earlier versions do not name their family. Its fields identify it.
    if not family and values.keys() <= _fields(TransformerConfig):
        return made_of(TransformerConfig, dict(values))
    named = {family: registry.find("families", family)} if family else registry.everything("families")
    order = {
        one.config: (registry.is_plugged_in("families", name), len(_fields(one.config)), len(one.config.__mro__))
        for name, one in named.items()
    }
    fitting = [config for config in order if values.keys() <= _fields(config)]
    if not fitting:
        supported = set[str]().union(*map(_fields, order))
        wrong = ", ".join(map(str, values.keys() - supported)) or "those of several families"
        raise BadInput(f"expected the fields of a model's configuration, got also {wrong}")
    return made_of(min(fitting, key=order.__getitem__), dict(values))


def _fields(config: type[TransformerConfig]) -> set[str]:
    return {field.name for field in dataclasses.fields(config)}


def family_of_config(config: TransformerConfig) -> Family:
    """Returns the family of models with this configuration."""
    if type(config) is TransformerConfig:  # No other family needs to be imported.
        return PAPER
    by_config = {family.config: family for family in families()}
    return next(by_config[parent] for parent in type(config).__mro__ if parent in by_config)


def stored_family(config: TransformerConfig) -> dict[str, str]:
    """Returns the entry of a stored configuration that names its family, none for a class of no family."""
    family = family_of_config(config)
    return {"family": family.name} if type(config) is family.config else {}


def build_model(config: TransformerConfig, dtype: str | None = None) -> Transformer:
    """Returns a built model with random weights.

    Args:
        config: Configuration of a family.
        dtype: A dtype, including "int8", or a policy of Keras. Defaults to the current policy.
    """
    model = family_of_config(config).model(config, dtype=policy_of(dtype))
    model.build()
    return model


def ensemble_of(models: list[Transformer]) -> Any:
    """Returns one model, or several as an `Ensemble`."""
    return Ensemble(models) if len(models) > 1 else models[0]


def check_weights(name: str, model: Transformer, weights: Sequence[Any]) -> None:
    """Raises `BadInput` if weights have other shapes than the model's, such as those of a custom class."""
    shapes = ([tuple(weight.shape) for weight in side] for side in (model.weights, weights))
    for expected, got in itertools.zip_longest(*shapes):
        if expected != got:
            raise BadInput(
                f"{name}: expected the weights of a {type(model).__name__} with this configuration, got shape {got} "
                f"instead of {expected}. Models of custom classes cannot be rebuilt."
            )


def tokenizer_of(model: bytes, family: str | None = None) -> Tokenizer:
    """Returns the tokenizer with this serialized model, its attribute `model`. It raises BadInput for other bytes."""
    return _kind_of(model, family)(model)


def load_tokenizer(path: str | os.PathLike[str], family: str | None = None) -> Tokenizer:
    """Loads a tokenizer from a file, such as a run's tokenizer.model.

    Args:
        path: The file.
        family: Name of its family, if it is known. Its tokenizer is preferred to another that accepts the file.

    Raises:
        FileNotFoundError: If the file does not exist.
        BadInput: If it holds something else.
    """
    path = user_path(path)
    return _kind_of(read_bytes(path) if path.is_file() else b"", family).load(path)


def _kind_of(model: bytes, name: str | None = None) -> type[Tokenizer]:
    # First the named family's and the paper's, so that no other family is imported without need.
    first = [registry.find("families", name).tokenizer] if name else []
    for kind in (*first, Tokenizer):
        if kind.recognizes(model):
            return kind
    others = (family.tokenizer for family in families())
    return next((kind for kind in others if kind.recognizes(model)), [*first, Tokenizer][0])
