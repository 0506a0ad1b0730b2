"""Finds a pretrained checkpoint, in a folder or on the Hugging Face hub, and reads where it comes from."""

import os
import re
from pathlib import Path
from typing import Any

from tf_transformer.config import BadInput
from tf_transformer.utils.extras import import_extra
from tf_transformer.utils.files import user_path
from tf_transformer.utils.folders import HUB_NAME, found_in, is_hub_name, newest
from tf_transformer.utils.reading import parse_yaml, read_json

INDEX = "model.safetensors.index.json"  # names the files of weights that lie in several
WEIGHTS = ("model.safetensors", INDEX, "tf_model.h5", "pytorch_model.bin")  # one of them is enough
PARTS = {INDEX: ["model-*.safetensors"]}
HEAD_BYTES = 2**16  # of a README.md, which may begin with YAML
OTHERS = ("*.json", "*.spm", "*.bpe.model", "README.md")


def folder_of(name: str | os.PathLike[str], owner: str = "", revision: str | None = None) -> Path:
    """The folder of a checkpoint.

    Args:
        name: a folder, or that of its versions, which means the newest; or, with the package huggingface_hub, a model's
            name on the Hugging Face hub, for example "Helsinki-NLP/opus-mt-en-de". The needed files are downloaded
            once, into that package's cache. HF_HUB_OFFLINE=1 reads the cache alone.
        owner: of a model whose name has none.
        revision: a branch, a tag or a commit of the model; `None` means its main branch. With it a name may begin as a
            folder here does.

    Raises:
        BadInput: there is neither such a folder nor such a model on the hub, or the hub cannot be reached.
    """
    path, name = user_path(name), os.fspath(name)
    if path.is_dir():
        return newest(path, *WEIGHTS) or path
    if not (HUB_NAME.fullmatch(name) if revision else is_hub_name(name)):
        raise BadInput(f"expected a checkpoint's folder or a model's name on the Hugging Face hub, {found_in(path)}")
    purpose = f"expected a checkpoint's folder, found none at {name}; downloading a model of this name"
    huggingface_hub = import_extra("huggingface_hub", "hub", purpose)
    model = f"{owner}/{name}" if owner and "/" not in name else name
    try:
        for weights in WEIGHTS:
            patterns = [*OTHERS, weights, *PARTS.get(weights, [])]
            folder = Path(huggingface_hub.snapshot_download(model, revision=revision, allow_patterns=patterns))
            if (folder / weights).is_file():
                return folder
    except Exception as error:  # the package raises its own errors and those of its dependencies
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        reason = re.sub(r"^.*\b\w*(?:Connect|Timeout)\w*: ", "no connection to the hub: ", reason)
        raise BadInput(
            f"expected a model's folder, found none at {name}; or a model's name on the Hugging Face hub, got no model "
            f"{model}{f' at revision {revision}' if revision else ''}: {reason}"
        ) from None  # not from a hundred lines about sockets
    raise BadInput(f"{model}: expected one of {', '.join(WEIGHTS)} in this model of the hub, found none")


def origin_of(name: str | os.PathLike[str], folder: Path) -> dict[str, str]:
    """The origin of a checkpoint, for `model_info` and tf_transformer.json.

    "origin" is its name, and "commit" the hub's, which names one state of its files. "license", "languages",
    "source_language" and "target_language" come from its tokenizer_config.json and the head of its README.md, as far
    as these have them.

    Args:
        name: the name that the user gave.
        folder: the checkpoint's folder.
    """
    path = user_path(name)
    facts = {"origin": path.resolve().name if path.is_dir() else os.fspath(name)}
    if folder.parent.name == "snapshots":  # of the hub's cache
        facts["commit"] = folder.name
    head = _front_matter(folder)
    languages = head.get("language") or []
    if languages := [languages] if isinstance(languages, str) else languages:
        facts["languages"] = ", ".join(map(str, languages))
    if head.get("license"):
        facts["license"] = str(head["license"])
    file = folder / "tokenizer_config.json"
    settings = read_json(file) if file.is_file() else {}
    for side in ("source", "target"):
        if settings.get(f"{side}_lang"):
            facts[f"{side}_language"] = str(settings[f"{side}_lang"])
    return facts


def readme_of(folder: Path) -> bytes:
    """The beginning of a checkpoint's README.md; nothing if there is none."""
    file = folder / "README.md"
    if not file.is_file():
        return b""
    with open(file, "rb") as readme:
        return readme.read(HEAD_BYTES)


def _front_matter(folder: Path) -> dict[str, Any]:
    """The YAML between the first two lines "---" of a README.md; {} if there is none."""
    head = re.match(rb"---[ \t\r]*\n(.*?)^---\s*?$", readme_of(folder), re.DOTALL | re.MULTILINE)
    if not head:
        return {}
    try:
        yaml = import_extra("yaml", "hub", f"{folder / 'README.md'}: reading it")
        text = head[1].decode(errors="replace").encode()
        settings = parse_yaml(yaml, text)  # strings alone: "no" is Norwegian, not False
    except BadInput:
        raise
    except ValueError:
        return {}  # a person wrote it; a mistake there must not keep the model from loading
    return settings if isinstance(settings, dict) else {}
