"""Formats: what a translator can be saved as. `Translator.save`, the export program and its help read the registry.

It needs neither Keras nor TensorFlow.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tf_transformer import registry
from tf_transformer.config import DTYPES
from tf_transformer.utils import values
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.type_names import Dtype

if TYPE_CHECKING:
    from tf_transformer.serving import savedmodel
else:
    savedmodel = lazily("tf_transformer.serving.savedmodel", "a SavedModel")


class Save(Protocol):
    """Writes a translator or a parser in some format, whole or not at all.

    Args:
        model: the `Translator` or `Parser`.
        path: must not exist.
        dtype: of the weights; `None` means those of the model.
        checked: check what was written in a process of its own, if the format `takes` "check".
        options: further ones, which `Format.takes` names.
    """

    def __call__(
        self, model: Any, path: str | os.PathLike[str], dtype: Any = None, checked: bool = False, **options: Any
    ) -> None: ...


@dataclass(frozen=True)
class Format:
    """A form in which a translator is saved.

    Attributes:
        name: in one word, for `--format` and `Translator.save(format=)`.
        title: its name in a sentence.
        base: the folder in which programs keep the models of this format.
        dtypes: that its weights can have.
        takes: what else it can hold: "parser", "ensemble", "facts" (such as the step), "scores"
            (its weights compute here what they compute there, so a score here is a fact), "check" (a new export can be
            checked), and options that an export fixes, by their names.
        save: writes a model.
        scored_in: the dtype that its rounded weights are scored in; `None` means that of the weights.
    """

    name: str
    title: str
    base: str
    dtypes: tuple[str, ...]
    takes: frozenset[str]
    save: Save
    scored_in: str | None = None

    def problem(self, dtype: str, needs: Mapping[str, Any]) -> str:
        """An error message for what this format cannot hold, in one line; "" if it can hold all.

        Args:
            dtype: of the weights.
            needs: by the names in `takes`; values that are false are not needed.
        """
        if dtype not in self.dtypes:
            return f"dtype: expected one of {', '.join(self.dtypes)} for {self.title}, got {dtype!r}"
        lacking = [name for name, value in needs.items() if value and name not in self.takes]
        return f"{self.title}: expected none of {', '.join(lacking)}, which it cannot hold" if lacking else ""


@values.checked
def _save_savedmodel(
    model: Any, path: str | os.PathLike[str], dtype: Dtype | None = None, checked: bool = False, **options: Any
) -> None:
    savedmodel.save_export((model.astype(dtype) if dtype else model).export(**options), path, checked)


SAVED_MODEL = Format(
    "savedmodel",
    "a SavedModel",
    "savedmodels",
    DTYPES,
    frozenset(
        {
            *("parser", "ensemble", "facts", "scores", "check"),
            *("n_best", "max_length", "max_beam_size", "completions"),
        }
    ),
    _save_savedmodel,
)


def formats() -> dict[str, Format]:
    """Returns all formats by name, SavedModel first."""
    return {"savedmodel": SAVED_MODEL} | registry.everything("formats")


def format_of(name: str) -> Format:
    """Returns the format with this name.

    Raises:
        BadInput: If there is none.
    """
    found: Format = registry.find("formats", name)
    return found
