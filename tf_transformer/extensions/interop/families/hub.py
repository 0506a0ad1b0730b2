"""Finds pretrained checkpoints, in a directory or on the Hugging Face Hub, reads their origin, and opens them."""

import contextlib
import os
import re
from pathlib import Path
from typing import Any

from tf_transformer import registry
from tf_transformer.config import BadInput
from tf_transformer.inference.loading import Opener
from tf_transformer.inference.translator import Translator
from tf_transformer.models.families import Rebuilt, families, family_of_folder
from tf_transformer.utils.files import user_path
from tf_transformer.utils.folders import (
    CTRANSLATE2_FILE,
    HUB_NAME,
    LITERT_FILE,
    ONNX_FILE,
    is_hub_name,
    newest,
    what_is_in,
)
from tf_transformer.utils.lazy import import_extra
from tf_transformer.utils.reading import read_json

INDEX = "model.safetensors.index.json"  # names the files of sharded weights
H5_INDEX, TORCH_INDEX = "tf_model.h5.index.json", "pytorch_model.bin.index.json"
# One of them is enough.
WEIGHTS = ("model.safetensors", INDEX, "tf_model.h5", H5_INDEX, "pytorch_model.bin", TORCH_INDEX)
PARTS = {INDEX: "model-*.safetensors", H5_INDEX: "tf_model-*.h5", TORCH_INDEX: "pytorch_model-*.bin"}
PATTERNS = ("*.json", "*.spm", "*.bpe.model", "README.md")
MAX_DEPTH = 50  # depth of collections in YAML
HEAD_BYTES = 2**16  # The YAML at the start of README.md is shorter.


def folder_of(name: str | os.PathLike[str], owner: str = "", revision: str | None = None) -> Path:
    """Returns the directory of a checkpoint.

    Args:
        name: Directory of the checkpoint, or of its versions, which means the newest. With the package huggingface_hub
            also a model's name on the Hugging Face Hub, such as "Helsinki-NLP/opus-mt-en-de". Its files are downloaded
            once, into that package's cache. HF_HUB_OFFLINE=1 only reads the cache.
        owner: Owner of a model whose name has none.
        revision: Branch, tag or commit of the model. `None` means its main branch. With it a name may start like a
            local directory.

    Raises:
        BadInput: If neither a directory nor a model has this name, or if the hub cannot be reached.
    """
    path, name = user_path(name), os.fspath(name)
    if path.is_dir():
        return newest(path, *WEIGHTS) or path
    if not (HUB_NAME.fullmatch(name) if revision else is_hub_name(name)):
        raise BadInput(
            f"expected a checkpoint's directory or a model's name on the Hugging Face hub, {what_is_in(path)}"
        )
    purpose = f"expected a checkpoint's directory, found none at {name}; downloading a model of this name"
    huggingface_hub = import_extra("huggingface_hub", "hub", purpose)
    model = f"{owner}/{name}" if owner and "/" not in name else name
    try:
        # One at a time, since a model may have its weights in several formats.
        for weights in WEIGHTS:
            patterns = [*PATTERNS, weights, *([PARTS[weights]] if weights in PARTS else [])]
            folder = Path(huggingface_hub.snapshot_download(model, revision=revision, allow_patterns=patterns))
            if (folder / weights).is_file():
                return folder
    # The package also raises errors of its dependencies, with a hundred lines about sockets.
    except Exception as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        reason = re.sub(r"^.*\b\w*(?:Connect|Timeout)\w*: ", "no connection to the hub: ", reason)
        raise BadInput(
            f"expected a model's directory, found none at {name}; or a model's name on the Hugging Face hub, "
            f"got no model {model}{f' at revision {revision}' if revision else ''}: {reason}"
        ) from None
    raise BadInput(f"{model}: expected one of {', '.join(WEIGHTS)} in this model of the hub, found none")


def origin_of(name: str | os.PathLike[str], folder: Path) -> dict[str, str]:
    """Returns the origin of a checkpoint, for `model_info` and tf_transformer.json.

    "origin" is the name from the user, and "commit" the hub's, which identifies a state of its files. "license",
    "languages", "source_language" and "target_language" come from tokenizer_config.json and README.md in `folder`.
    """
    path = user_path(name)
    metadata = {"origin": path.resolve().name if path.is_dir() else os.fspath(name)}
    if folder.parent.name == "snapshots":  # the hub's cache
        metadata["commit"] = folder.name
    head: dict[str, Any] = {}
    # YAML between the first two lines "---" of README.md.
    if match := re.match(rb"---[ \t\r]*\n(.*?)^---\s*?$", readme_of(folder), re.DOTALL | re.MULTILINE):
        yaml = import_extra("yaml", "hub", f"{folder / 'README.md'}: reading it")
        # It is written by hand. A mistake there must not keep the model from loading.
        with contextlib.suppress(ValueError):
            head = parse_yaml(yaml, match[1].decode(errors="replace").encode())
    languages = head.get("language") or []
    if languages := [languages] if isinstance(languages, str) else languages:
        metadata["languages"] = ", ".join(map(str, languages))
    if head.get("license"):
        metadata["license"] = str(head["license"])
    file = folder / "tokenizer_config.json"
    settings = read_json(file) if file.is_file() else {}
    for side in ("source", "target"):
        if settings.get(f"{side}_lang"):
            metadata[f"{side}_language"] = str(settings[f"{side}_lang"])
    return metadata


def readme_of(folder: Path) -> bytes:
    """Returns the first bytes of a checkpoint's README.md, if it exists."""
    file = folder / "README.md"
    if not file.is_file():
        return b""
    with open(file, "rb") as readme:
        return readme.read(HEAD_BYTES)


def parse_yaml(yaml: Any, text: bytes) -> dict[str, Any]:
    """Parses an untrusted mapping in YAML with the module `yaml`, PyYAML's. Raises `ValueError` for anything else."""
    # It makes all scalars strings, since "no" is Norwegian and not False.
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        depth = 0
        for event in yaml.parse(text, loader):
            # Ten lines of aliases can stand for gigabytes.
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("expected YAML without aliases")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ValueError(f"expected YAML nested at most {MAX_DEPTH} deep")
        mapping = yaml.load(text, Loader=loader)  # nosec: makes only strings, lists and mappings
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    if not isinstance(mapping, dict):
        raise ValueError(type(mapping).__name__)
    return mapping


def _is_checkpoint(path: str) -> bool:
    folder = user_path(path)
    if not folder.is_dir():
        return is_hub_name(path)
    return family_of_folder(newest(folder, *WEIGHTS) or folder) is not None


def from_checkpoint(name: Any, family: str | None = None, revision: str | None = None) -> Rebuilt:
    """Loads a pretrained model. Takes the arguments of `Translator.from_pretrained`."""
    kinds, name = [registry.find("families", family)] if family else families(), os.fspath(name)
    owner = next((kind.owner for kind in kinds if kind.owner), "")
    folder = folder_of(name, owner, revision)
    if newest(folder, LITERT_FILE, ONNX_FILE, CTRANSLATE2_FILE) and not any(
        (folder / file).is_file() for file in WEIGHTS
    ):
        raise BadInput(f"expected a checkpoint, {what_is_in(folder)}")
    kind = kinds[0] if family else family_of_folder(folder)
    if kind is None or kind.load is None:
        raise BadInput(f"{name}: expected a checkpoint of a family that loads here, got other files")
    model, tokenizer, options, max_length = kind.load(folder)
    return Rebuilt(model, tokenizer, options, origin_of(name, folder), max_length)


OPENS_CHECKPOINT = Opener(
    "a checkpoint",
    _is_checkpoint,
    lambda path, **options: Translator.from_pretrained(path, **options),
    from_checkpoint,
    frozenset({"family", "revision"}),
    is_trainable=True,
)
