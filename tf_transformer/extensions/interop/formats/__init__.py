"""Exports to LiteRT, ONNX, CTranslate2, Argos Translate and transformers."""

import functools
import os
from typing import Any, Literal

from tf_transformer.serving.formats import Format
from tf_transformer.utils import values
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.type_names import Dtype

_argos = lazily(f"{__name__}.argos", "a package for Argos Translate")
_ctranslate2 = lazily(f"{__name__}.ctranslate2", "an export to CTranslate2")
_hugging_face = lazily(f"{__name__}.hugging_face", "a checkpoint")
_litert = lazily(f"{__name__}.litert", "an export to LiteRT")
_onnx = lazily(f"{__name__}.onnx", "an export to ONNX")


@values.checked
def _save_ctranslate2(
    model: Any,
    path: str | os.PathLike[str],
    dtype: Dtype | Literal["int16"] | None = None,
    checked: bool = False,
    **options: Any,
) -> None:
    quantization: Any = None if dtype == "float32" else dtype
    _ctranslate2.save(model, path, quantization, **options)


def _save_portable(
    module: Any, model: Any, path: Any, dtype: str | None = None, checked: bool = False, **options: Any
) -> None:
    # A loaded model keeps the limit of its export, like `Translator.export`.
    limits = {name: value for name, value in getattr(model, "export_options", {}).items() if name == "max_length"}
    module.save(model, path, dtype, checked=checked, **(limits | options))


# A program lists all formats in its help, so a format's module is imported when it saves.
_ROUNDED, _PORTABLE = ("float32", "int8"), frozenset({"metadata", "check", "max_length", "shortlist"})
LITERT = Format(
    "litert", "a directory for LiteRT", "litert", _ROUNDED, _PORTABLE, functools.partial(_save_portable, _litert)
)
ONNX = Format("onnx", "a directory for ONNX", "onnx", _ROUNDED, _PORTABLE, functools.partial(_save_portable, _onnx))
CTRANSLATE2 = Format(
    "ctranslate2",
    "a directory for CTranslate2",
    "ctranslate2",
    ("float32", "int8", "int16", "float16", "bfloat16"),
    frozenset({"shortlist"}),
    _save_ctranslate2,
)
ARGOS = Format(
    "argos",
    "a package for Argos Translate",
    "argos",
    CTRANSLATE2.dtypes,
    frozenset({"metadata"}),
    lambda *args, **options: _argos.save(*args, **options),
)
TRANSFORMERS = Format(
    "transformers",
    "a checkpoint for `transformers`",
    "transformers",
    ("float32", "bfloat16", "float16"),
    frozenset({"metadata", "scores", "check"}),
    lambda *args, **options: _hugging_face.save(*args, **options),
    # Users choose the dtype to compute in, and float16 is slow on some CPUs.
    scored_in="float32",
)
