"""Formats that a translator can be saved in, and its versions in a directory. It loads neither Keras nor TensorFlow."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tf_transformer import registry
from tf_transformer.config import DTYPES
from tf_transformer.utils import values
from tf_transformer.utils.files import user_path
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.type_names import Dtype
from tf_transformer.utils.values import BadInput, between, checked

if TYPE_CHECKING:
    from tf_transformer.serving import saving
else:
    saving = lazily("tf_transformer.serving.saving", "a SavedModel")

Version = Annotated[int, between(1, 2**63 - 1)]  # TensorFlow Serving's are int64


@dataclass(frozen=True)
class Format:
    """Format that a translator can be saved in, as the registry lists it.

    Attributes:
        name: Name for `--format` and `Translator.save(format=)`.
        title: Name in a sentence.
        base: Directory in which programs keep models of this format.
        dtypes: Dtypes that its weights can have.
        takes: Features that it can hold: "tasks" (engines of other tasks than translation), "ensemble", "shortlist",
            "metadata" (such as the step), "scores" (outputs are preserved exactly, so scores measured here can be
            stored), "check" (a new export can be checked), and names of options that an export fixes.
        save: Writes a `Translator`, or a task's engine, to a new path, atomically. `dtype=None` keeps the weights'
            dtype, `checked` checks the result if the format takes "check", and the other options are among `takes`.
        scored_in: Dtype in which its rounded weights are scored. `None` means that of the weights.
    """

    name: str
    title: str
    base: str
    dtypes: tuple[str, ...]
    takes: frozenset[str]
    save: Callable[..., None]  # (model, path, dtype=None, checked=False, **options)
    scored_in: str | None = None

    def problem(self, dtype: str, needs: Mapping[str, Any]) -> str:
        """Returns an error message if this format cannot hold a dtype, or `needs` by the names in `takes`, or ""."""
        if dtype not in self.dtypes:
            return f"dtype: expected one of {', '.join(self.dtypes)} for {self.title}, got {dtype!r}"
        unsupported = [name for name, value in needs.items() if value and name not in self.takes]
        return f"{self.title}: does not support {', '.join(unsupported)}" if unsupported else ""


@values.checked
def _save(
    model: Any, path: str | os.PathLike[str], dtype: Dtype | None = None, checked: bool = False, **options: Any
) -> None:
    saving.save_export((model.astype(dtype) if dtype else model).export(**options), path, checked)


_TAKES = ["tasks", "ensemble", "metadata", "scores", "check", "shortlist"]
_TAKES += ["n_best", "max_length", "max_beam_size", "completions"]
# The module that writes it needs TensorFlow, and programs list formats in their help without it.
SAVED_MODEL = Format("savedmodel", "a SavedModel", "savedmodels", DTYPES, frozenset(_TAKES), _save)


def formats() -> dict[str, Format]:
    """Returns all formats by name, SavedModel first."""
    return {"savedmodel": SAVED_MODEL} | registry.everything("formats")


def format_of(name: str) -> Format:
    """Returns the format with this name, or raises `BadInput`."""
    return registry.find("formats", name)


@checked
def publish(save: Callable[[Path], None], root: str | os.PathLike[str], version: Version | None = None) -> Path:
    """Saves a model as a version, <root>/<version>.

    Args:
        save: Writes the directory that it gets, atomically.
        root: The model's directory.
        version: Number of the version. `None` means the next one.

    Returns:
        The version's directory.

    Raises:
        BadInput: If `root` cannot be written, or `save` raises it. Nothing is left behind.
        FileExistsError: If the version exists.
    """
    while True:
        path = next_version(root) if version is None else user_path(root) / str(version)
        try:
            save(path)
            return path
        except FileExistsError:
            # Another process took the number. A SavedModel stores its version, so save it again with the next number
            # instead of renaming it.
            if version is not None or not path.exists():
                raise


def next_version(path: str | os.PathLike[str]) -> Path:
    """Returns the unused directory <path>/<integer> above those in use. Raises `BadInput` if it cannot be written."""
    from tf_transformer.utils.folders import versions  # loads NumPy, for which a program's help must not wait

    path = user_path(path)
    parent = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
        raise BadInput(f"{path}: expected a directory to write models to, got {parent}, which is not writable")
    return path / str(max((int(folder.name) for folder in versions(path)), default=0) + 1)
