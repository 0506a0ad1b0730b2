"""Kinds of model folders: SavedModels, LiteRT and ONNX exports, and versions of them. It loads no TensorFlow."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from tf_transformer.utils.files import user_path
from tf_transformer.utils.reading import read_json
from tf_transformer.utils.type_names import Folders
from tf_transformer.utils.values import BadInput, shown

VERSION = re.compile("[0-9]{1,18}")  # name of a version's directory
HUB_NAME = re.compile(r"([\w.-]+/)?[\w.-]+")
# Directories that programs create.
OF_PROGRAMS = ("runs", "savedmodels", "litert", "onnx", "ctranslate2", "argos", "transformers")
SAVED_MODEL_FILE, LITERT_FILE, ONNX_FILE, CTRANSLATE2_FILE = "saved_model.pb", "model.tflite", "model.onnx", "model.bin"
EXPORTS = (SAVED_MODEL_FILE, LITERT_FILE, ONNX_FILE)  # tt.load opens them
RUN_FOUND = (
    "a run, {0}, which tt.load opens, and of which `tf-transformer export --run {0} --name NAME` makes a SavedModel"
)
CHECKPOINT_FOUND = RUN_FOUND.replace("a run", "a pretrained checkpoint").replace("--run", "--pretrained")
OPENED_BY = {  # description of a kind of directory and what opens it, by a file that identifies the kind
    SAVED_MODEL_FILE: "a SavedModel, {}, which tt.load opens",
    LITERT_FILE: "a LiteRT export, {}, which tt.load opens",
    ONNX_FILE: "an ONNX export, {}, which tt.load opens",
    CTRANSLATE2_FILE: "an export for CTranslate2, {}, which ctranslate2.Translator opens",
    "records.json": "prepared records, {}, which tt.Records opens",
    "source.spm": CHECKPOINT_FOUND,
    "sentencepiece.bpe.model": CHECKPOINT_FOUND,
}


def folders_of(path: Folders) -> list[Path]:
    """Returns one directory, or several, as a list of at least one path."""
    folders = [user_path(folder) for folder in ([path] if isinstance(path, str | os.PathLike) else path)]
    if not folders or isinstance(path, Mapping):
        raise BadInput(f"path: expected a directory, or a list of at least one, got {shown(path)}")
    return folders


def what_is_in(path: str | os.PathLike[str], *wanted: str) -> str:
    """Describes a directory that has none of the files `wanted`, and how to open it, as the end of an error."""
    folder = user_path(path)
    if not folder.is_dir():
        return f"found {'a file, no directory,' if folder.exists() else 'nothing'} at {folder}"
    for file, description in OPENED_BY.items():
        if file not in wanted and (other := newest(folder, file)):
            return f"got {description.format(other)}"
    if (folder / "config.json").is_file() and "recipe" in read_json(folder / "config.json"):
        return f"got {RUN_FOUND.format(folder)}"
    found = f"found no {' or '.join(wanted)} in {folder}"
    if models := [
        child for child in sorted(folder.iterdir()) if not child.name.startswith(".") and _holds_model(child)
    ]:
        names = ", ".join(child.name for child in models[:3]) + " and others" * (len(models) > 3)
        found += f", a directory of models: {names}. Pass one of them, such as {models[0]}"
    return found


def _holds_model(folder: Path) -> bool:
    """Returns whether a directory, or a version in it, is one of the kinds that `what_is_in` describes."""
    is_run = (folder / "config.json").is_file() and (folder / "tokenizer.model").is_file()
    return is_run or newest(folder, *OPENED_BY) is not None


def is_hub_name(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path is the name of a model on the Hugging Face hub.

    A mistyped path must not load a model from the hub. So it is not a name if its first part exists here, or is a
    directory that the programs create.
    """
    name = os.fspath(path)
    first = name.partition("/")[0]
    return bool(HUB_NAME.fullmatch(name)) and first not in OF_PROGRAMS and not user_path(first).exists()


def holds(path: str, file: str) -> bool:
    """Returns whether a local directory, or the newest version in it, is the kind of export that has this file."""
    export = None if "://" in path else newest(user_path(path), *EXPORTS, CTRANSLATE2_FILE)
    return export is not None and (export / file).is_file()


def is_version(name: str) -> bool:
    """Returns whether a directory's name is a server's version: a 64-bit integer."""
    return bool(VERSION.fullmatch(name))


def versions(path: Path) -> list[Path]:
    """Returns the versions in a model's directory, newest first."""
    numbered = [folder for folder in path.iterdir() if is_version(folder.name)] if path.is_dir() else []
    return sorted(numbered, key=lambda folder: (int(folder.name), folder.name), reverse=True)


def newest(path: Path, *files: str) -> Path | None:
    """Returns `path` if it has one of the files, or the newest of its versions that has one."""
    folders = (path, *versions(path))
    return next((folder for folder in folders if any((folder / name).is_file() for name in files)), None)


def needs_no_tensorflow(path: str | os.PathLike[str]) -> bool:
    """Returns whether a local directory, or the newest version in it, is a LiteRT or an ONNX export."""
    export = None if "://" in os.fspath(path) else newest(user_path(path), *EXPORTS)
    return export is not None and any((export / name).is_file() for name in (LITERT_FILE, ONNX_FILE))


def model_folder(path: str | os.PathLike[str]) -> Path:
    """Returns the directory of a SavedModel, a LiteRT or an ONNX export: `path` or its newest version."""
    if export := newest(user_path(path), *EXPORTS):
        return export
    expected = "expected the directory of a SavedModel, a LiteRT or an ONNX export, or of its versions"
    raise BadInput(f"{expected}, {what_is_in(path, *EXPORTS)}")


def find_saved_model(path: str | os.PathLike[str]) -> Path | None:
    """Returns the directory of a SavedModel: `path`, its newest version, or `None`."""
    return newest(user_path(path), SAVED_MODEL_FILE)


def saved_model_of(path: str | os.PathLike[str]) -> Path:
    """Returns `find_saved_model(path)`, or raises `BadInput`."""
    if export := find_saved_model(path):
        return export
    raise BadInput(f"expected the directory of a SavedModel or of its versions, {what_is_in(path, SAVED_MODEL_FILE)}")


def size_of(path: str | os.PathLike[str]) -> int:
    """Returns the size of all files in a directory, in bytes."""
    return sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())
