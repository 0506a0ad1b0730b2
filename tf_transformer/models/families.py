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
from tf_transformer.layers.layer import policy_of
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
        write: Function that returns the contents of such a directory for a translator of this family.
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


# The paper's models are written as checkpoints of MarianMT.
PAPER = Family(
    "transformer",
    TransformerConfig,
    Transformer,
    Tokenizer,
    write=lambda translator: registry.find("families", "marian").write(translator),
)


def families() -> list[Family]:
    """Returns all families in the order in which `recognizes` is called."""
    return [*registry.everything("families").values()]


def family_of_folder(folder: str | os.PathLike[str]) -> Family | None:
    """Returns the family of the checkpoint in a directory, or `None` if it holds none."""
    return next((family for family in families() if family.recognizes(Path(folder))), None)


def config_of(values: Mapping[str, Any], family: str | None = None) -> TransformerConfig:
    """Returns the configuration with these fields, the inverse of `to_dict`.

    If no `family` is named and several have these fields, it is the one with the fewest others, and of those a base
    class.

    Raises:
        BadInput: If no family has these fields or this name, or a value is out of range.
    """
    values = current_fields(values)
    # Files of earlier versions do not name their family. Its fields identify it.
    configs = [one.config for one in ([registry.find("families", family)] if family else families())]
    fields = {config: {field.name for field in dataclasses.fields(config)} for config in configs}
    fitting = [config for config, names in fields.items() if values.keys() <= names]
    if not fitting:
        supported = set().union(*fields.values())
        wrong = ", ".join(map(str, values.keys() - supported)) or "those of several families"
        raise BadInput(f"expected the fields of a model's configuration, got also {wrong}")
    # A plug-in may derive a class without more fields, and comes first in the registry.
    return made_of(min(fitting, key=lambda config: (len(fields[config]), len(config.__mro__))), dict(values))


def family_of_config(config: TransformerConfig) -> Family:
    """Returns the family of models with this configuration."""
    by_config = {family.config: family for family in families()}
    return next(by_config[parent] for parent in type(config).__mro__ if parent in by_config)


def stored_family(config: TransformerConfig) -> dict[str, str]:
    """Returns the entry of a stored configuration that names its family, none for a class of no family."""
    return {family.config: {"family": family.name} for family in families()}.get(type(config), {})


def build_model(config: TransformerConfig, dtype: str | None = None) -> Transformer:
    """Returns a built model with random weights.

    Args:
        config: Configuration of a family.
        dtype: A dtype, including "int8", or a policy of Keras. Defaults to the current policy.
    """
    model = family_of_config(config).model(config, dtype=policy_of(dtype))
    model.build()
    return model


def together(models: list[Transformer]) -> Any:
    """Returns one model, or several as an `Ensemble`."""
    return registry.find("services", "ensemble")(models) if len(models) > 1 else models[0]


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
    kinds = [family.tokenizer for family in families()]
    if name:
        kinds.insert(0, registry.find("families", name).tokenizer)

    # A class that accepts any file, even an empty one, is asked last. Of several, it is that of the named family, or
    # the paper's: a plug-in may have another one.
    specific = [kind for kind in kinds if not kind.recognizes(b"")]
    general = kinds[0] if name and kinds[0] not in specific else Tokenizer
    return next(kind for kind in [*specific, general] if kind.recognizes(model))
