"""Packages with an export to CTranslate2 for Argos Translate (https://github.com/argosopentech/argos-translate), which
LibreTranslate and offline apps install. They need `pip install "tf-transformer[ctranslate2]"`.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tf_transformer.config import BadInput
from tf_transformer.decoding.search_options import LANGUAGES
from tf_transformer.decoding.tensor_translator import TensorTranslator
from tf_transformer.extensions.interop.formats import ctranslate2
from tf_transformer.extensions.interop.formats.checks import check_convertible, check_without_shortlist
from tf_transformer.utils import values
from tf_transformer.utils.files import new_folder
from tf_transformer.utils.version import __version__

ARGOS_VERSION = "1.9"  # the release of Argos Translate since which a package needs no sentence splitter


@values.checked
def save(
    translator: TensorTranslator,
    path: str | os.PathLike[str],
    dtype: str | None = None,
    checked: bool = False,
    **facts: Any,
) -> None:
    """Writes a directory with one file, `translate-SOURCE_TARGET.argosmodel`.

    `argostranslate.package.install_from_path` installs it.

    Args:
        translator: A `Translator` of one pair of languages, with one tokenizer for both.
        path: New directory NAME/VERSION.
        dtype: Storage of weights, as in an export to CTranslate2.
        checked: Ignored, since Argos Translate has no check.
        facts: source_language and target_language, ISO 639 codes, if the translator does not know them. Others go into
            the package's README.

    Raises:
        BadInput: As in an export to CTranslate2, or if a language is unknown, or the model needs more than Argos
            Translate passes: a language's token, or one tokenizer for each side.
        FileExistsError: If `path` exists.
    """
    check_convertible(translator, ", which CTranslate2 can run")
    check_without_shortlist(translator, "a package for Argos Translate")
    known: Any = translator  # which has metadata
    metadata = {**known.metadata, **facts}
    languages = [str(metadata.get(name) or "") for name in LANGUAGES]
    if set(translator.tokenizer.files) != {"tokenizer.model"}:
        raise BadInput(
            "argos: expected a model of one pair of languages with one tokenizer, since Argos Translate passes only "
            f"a text's tokens; got {', '.join(translator.tokenizer.files)}. Use the format ctranslate2."
        )
    for name, language in zip(LANGUAGES, languages, strict=True):
        if not language.isalnum():
            action = "Pass --languages en de, or source_language= and target_language= in Python."
            raise BadInput(f"{name}: expected a code of letters, such as en, got {language or 'none'}. {action}")
    package, version = f"translate-{'_'.join(languages)}", os.path.basename(os.path.abspath(path))
    description = {"package_version": f"{version}.0" if version.isdecimal() else "1.0", "argos_version": ARGOS_VERSION}
    for side, code in zip(("from", "to"), languages, strict=True):
        description |= {f"{side}_code": code, f"{side}_name": code}
    description["type"] = "translate"
    readme = [f"# {' to '.join(languages)}", "", f"Exported by tf-transformer {__version__}.", ""]
    readme += [f"- {name}: {value}" for name, value in sorted(metadata.items())]
    quantization: Any = None if dtype == "float32" else dtype
    with tempfile.TemporaryDirectory() as parts, new_folder(path) as folder:
        root = Path(parts) / package
        root.mkdir()
        ctranslate2.save(translator, root / "model", quantization)
        shutil.move(root / "model" / "tokenizer.model", root / "sentencepiece.model")
        (root / "metadata.json").write_text(json.dumps(description, indent=2), encoding="utf-8")
        (root / "README.md").write_text("\n".join([*readme, ""]), encoding="utf-8")
        archive = shutil.make_archive(str(Path(parts) / "archive"), "zip", parts, package)
        shutil.move(archive, folder / f"{package}.argosmodel")
