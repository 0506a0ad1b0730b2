"""The registry of formats: what a translator can be saved as. It needs neither Keras nor TensorFlow.

A format is a `Format` in `FORMATS`; `Translator.save`, `trainers.export` and its help read them there.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from tf_transformer.config import DTYPES, BadInput
from tf_transformer.utils import values
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.type_names import Dtype

if TYPE_CHECKING:
    from tf_transformer.extensions.interop.formats import ctranslate2, hugging_face, litert, onnx
    from tf_transformer.serving import savedmodel
else:
    ctranslate2 = lazily("tf_transformer.extensions.interop.formats.ctranslate2", "an export to CTranslate2")
    hugging_face = lazily("tf_transformer.extensions.interop.formats.hugging_face", "a checkpoint")
    litert = lazily("tf_transformer.extensions.interop.formats.litert", "an export to LiteRT")
    onnx = lazily("tf_transformer.extensions.interop.formats.onnx", "an export to ONNX")
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


@values.checked
def _save_ctranslate2(
    model: Any,
    path: str | os.PathLike[str],
    dtype: Dtype | Literal["int16"] | None = None,
    checked: bool = False,
    **options: Any,
) -> None:
    quantization: Any = None if dtype == "float32" else dtype
    ctranslate2.save(model, path, quantization, **options)


def _saving(module: Any) -> Save:
    """The `Save` of a module with a `Portable`."""

    def save(
        model: Any, path: str | os.PathLike[str], dtype: str | None = None, checked: bool = False, **options: Any
    ) -> None:
        own = getattr(model, "export_options", {})
        kept = {"max_length": own["max_length"]} if "max_length" in own else {}  # as Translator.export keeps them all
        module.save(model, path, dtype, checked=checked, **(kept | options))

    return save


FORMATS = {
    format.name: format
    for format in (
        Format(
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
        ),
        Format(
            "litert",
            "a folder for LiteRT",
            "litert",
            ("float32", "int8"),
            frozenset({"ensemble", "facts", "check", "max_length"}),
            _saving(litert),
        ),
        Format(
            "onnx",
            "a folder for ONNX",
            "onnx",
            ("float32", "int8"),
            frozenset({"ensemble", "facts", "check", "max_length"}),
            _saving(onnx),
        ),
        Format(
            "ctranslate2",
            "a folder for CTranslate2",
            "ctranslate2",
            ("float32", "int8", "int16", "float16", "bfloat16"),
            frozenset(),
            _save_ctranslate2,
        ),
        Format(
            "transformers",
            "a checkpoint for `transformers`",
            "transformers",
            ("float32", "bfloat16", "float16"),
            frozenset({"facts", "scores", "check"}),
            lambda *args, **options: hugging_face.save(*args, **options),
            scored_in="float32",  # its user chooses the dtype to compute in, and float16 is slow on some CPUs
        ),
    )
}


def format_of(name: str) -> Format:
    """The format with this name.

    Raises:
        BadInput: there is none.
    """
    if name not in FORMATS:
        raise BadInput(f"format: expected one of {', '.join(FORMATS)}; got {name!r}")
    return FORMATS[name]
