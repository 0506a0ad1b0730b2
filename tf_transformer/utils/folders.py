"""What a folder of a model holds: a SavedModel, a LiteRT or an ONNX export, or versions of one. It loads no
TensorFlow."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from tf_transformer.utils.files import user_path
from tf_transformer.utils.reading import read_json
from tf_transformer.utils.type_names import Folders
from tf_transformer.utils.values import BadInput, shown

VERSION = re.compile("[0-9]{1,18}")  # the name of a version's folder
HUB_NAME = re.compile(r"([\w.-]+/)?[\w.-]+")
OF_PROGRAMS = ("runs", "savedmodels", "litert", "onnx", "ctranslate2", "transformers")  # folders that they make
SAVED_MODEL, LITERT, ONNX, CTRANSLATE2 = "saved_model.pb", "model.tflite", "model.onnx", "model.bin"
EXPORTS = (SAVED_MODEL, LITERT, ONNX)  # which tt.load opens
RUN = "a run, {0}, which tt.load opens, and of which `tf-transformer export --run {0} --name NAME` makes a SavedModel"
CHECKPOINT = RUN.replace("a run", "a pretrained checkpoint").replace("--run", "--pretrained")
OPENED_BY = {  # what a folder may hold, by a file that tells, and what opens it
    SAVED_MODEL: "a SavedModel, {}, which tt.load opens",
    LITERT: "a LiteRT export, {}, which tt.load opens",
    ONNX: "an ONNX export, {}, which tt.load opens",
    CTRANSLATE2: "an export for CTranslate2, {}, which ctranslate2.Translator opens",
    "records.json": "prepared records, {}, which tt.Records opens",
    "source.spm": CHECKPOINT,
    "sentencepiece.bpe.model": CHECKPOINT,
}


def folders_of(path: Folders) -> list[Path]:
    """One folder, or several, as paths.

    Raises:
        BadInput: there is none, or it is something else.
    """
    folders = [user_path(folder) for folder in ([path] if isinstance(path, str | os.PathLike) else path)]
    if not folders or isinstance(path, Mapping):
        raise BadInput(f"path: expected a folder, or a list of at least one, got {shown(path)}")
    return folders


def found_in(path: str | os.PathLike[str], *wanted: str) -> str:
    """What is in a folder that lacks the files that were `wanted`, and what opens it: the end of an error's line."""
    folder = user_path(path)
    if not folder.is_dir():
        return f"found {'a file, no folder,' if folder.exists() else 'nothing'} at {folder}"
    for file, what in OPENED_BY.items():
        if file not in wanted and (found := newest(folder, file)):
            return f"got {what.format(found)}"
    if (folder / "config.json").is_file() and "recipe" in read_json(folder / "config.json"):
        return f"got {RUN.format(folder)}"
    return f"found no {' or '.join(wanted)} in {folder}"


def is_hub_name(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path is a model's name on the Hugging Face hub: it leads into no folder here, and into none
    that the programs make. A mistyped path must not load a model that somebody else uploaded under this name."""
    name = os.fspath(path)
    first = name.partition("/")[0]
    return bool(HUB_NAME.fullmatch(name)) and first not in OF_PROGRAMS and not user_path(first).exists()


def holds(path: str, file: str) -> bool:
    """Returns whether a local folder, or the newest of the versions in it, is the kind of export that has this file."""
    export = None if "://" in path else newest(user_path(path), *EXPORTS, CTRANSLATE2)
    return export is not None and (export / file).is_file()


def versions(path: Path) -> list[Path]:
    """The versions in a model's folder, those in folders named by a number, the newest first."""
    found = [folder for folder in path.iterdir() if VERSION.fullmatch(folder.name)] if path.is_dir() else []
    return sorted(found, key=lambda folder: (int(folder.name), folder.name), reverse=True)


def newest(path: Path, *files: str) -> Path | None:
    """The folder that has one of the files: `path` itself, or the newest of its versions; `None` if none has."""
    folders = (path, *versions(path))
    return next((folder for folder in folders if any((folder / name).is_file() for name in files)), None)


def is_version(name: str) -> bool:
    """Whether a folder of this name is a version for a server: an integer of 64 bits."""
    return bool(VERSION.fullmatch(name))


def needs_no_tensorflow(path: str | os.PathLike[str]) -> bool:
    """Whether a folder, or the newest of the versions in it, is a LiteRT or an ONNX export. A folder elsewhere, such as
    gs://bucket/model, never is."""
    found = None if "://" in os.fspath(path) else newest(user_path(path), *EXPORTS)
    return found is not None and any((found / name).is_file() for name in (LITERT, ONNX))


def model_folder(path: str | os.PathLike[str]) -> Path:
    """The folder of a SavedModel, a LiteRT or an ONNX export: `path` itself, or the newest of the versions in it.

    Raises:
        BadInput: there is none.
    """
    if found := newest(user_path(path), *EXPORTS):
        return found
    what = "expected the folder of a SavedModel, a LiteRT or an ONNX export, or of its versions"
    raise BadInput(f"{what}, {found_in(path, *EXPORTS)}")


def find_saved_model(path: str | os.PathLike[str]) -> Path | None:
    """The folder of a SavedModel: `path` itself, or the newest of the versions in it; `None` if there is none."""
    return newest(user_path(path), SAVED_MODEL)


def saved_model_of(path: str | os.PathLike[str]) -> Path:
    """As `find_saved_model`.

    Raises:
        BadInput: there is none.
    """
    if found := find_saved_model(path):
        return found
    raise BadInput(f"expected the folder of a SavedModel or of its versions, {found_in(path, SAVED_MODEL)}")
