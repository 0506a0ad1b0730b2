"""Loads translators and parsers: from runs, from SavedModels, from pretrained checkpoints."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from tf_transformer.base.files import user_path
from tf_transformer.base.folders import CTRANSLATE2, LITERT, find_saved_model, found_in, newest
from tf_transformer.base.reading import check_h5, check_kinds, reading
from tf_transformer.base.type_names import Folders
from tf_transformer.base.values import Count, checked, shown
from tf_transformer.config import BadInput
from tf_transformer.engines.translator import Translator
from tf_transformer.ensemble import Ensemble
from tf_transformer.exports.savedmodel import read_export
from tf_transformer.families import hub
from tf_transformer.families.family import Family
from tf_transformer.families.registry import (
    FAMILIES,
    build_model,
    config_of,
    family_named,
    family_of_folder,
    load_tokenizer,
    tokenizer_of,
)
from tf_transformer.layers.int8 import policy_of
from tf_transformer.model import Transformer
from tf_transformer.parsing.parser import Parser
from tf_transformer.runs.run import Run
from tf_transformer.text.search_options import SEARCH_OPTIONS
from tf_transformer.text.tokenizer import Tokenizer
from tf_transformer.training import average_weights

LIMITS = ("n_best", "max_beam_size", "max_length")  # arguments of `export` that are no options of a `Translator`


@checked
def load(path: Folders, average_last: Count | None = None, **search: Any) -> Translator | Parser:
    """Load a run, a SavedModel or a pretrained checkpoint as a `Translator` or a `Parser`.

    Args:
        path: a run's folder, or a list of several for an `Ensemble`; or the folder of a checkpoint, of a SavedModel, or
            of a SavedModel's versions, which means the newest.
        average_last: checkpoints to average (section 6.1); `None` means the number in the run's recipe.
        search: options of `Translator`, for example beam_size.

    Raises:
        BadInput: the folder holds something else, or a run without checkpoints.
    """
    folders = _folders(path)
    for folder in folders if len(folders) > 1 else ():
        if find_saved_model(folder) or family_of_folder(folder):
            raise BadInput(f"{folder}: expected a run, as several folders are an ensemble of runs; got another model")
    if saved := find_saved_model(folders[0]):
        translator = from_saved_model(saved, **search)
        return Parser(translator) if translator.tokenizer.controls else translator
    if family := family_of_folder(folders[0]):
        return from_pretrained(folders[0], family=family.name, **search)
    if not (folders[0] / "config.json").is_file():
        raise BadInput(f"expected a run, a SavedModel or a checkpoint, {found_in(folders[0], 'config.json')}")
    settings = Run(folders[0]).settings()
    average_last = average_last or settings["recipe"].get("average_last", 5)
    if settings["kind"] == "parsing":
        return Parser.from_run(folders, average_last, **search)
    return from_run(folders, average_last, **search)


@checked
def from_run(path: Folders, average_last: Count = 5, **options: Any) -> Translator:
    """Load a run of trainers.translation, in float32.

    Args:
        path: the run's folder; or a list of several, for an `Ensemble`, which has the languages of the first.
        average_last: how many of a run's last checkpoints to average (section 6.1).
        options: of `Translator`.

    Raises:
        BadInput: a folder holds something else or no checkpoint, or runs differ in configuration or tokenizer.
    """
    runs = [Run(folder) for folder in _folders(path)]
    models, tokenizers = [], list[Tokenizer]()
    for run in runs:
        weights = run.weights(average_last)
        settings = run.settings()
        if not weights:
            raise BadInput(f"{run.path}: expected checkpoints, found none in {run.path / 'checkpoints'}")
        expected = "checkpoints of the model in config.json"
        with reading(run.path, expected):
            config = config_of(settings["model"])
            for file in weights:
                check_h5(file)
                config.check_stored(file.stat().st_size)
        models.append(build_model(config, "float32"))
        with reading(run.path, expected):
            average_weights(models[-1], weights)
        tokenizers.append(load_tokenizer(run.path / "tokenizer.model"))
    if not all(map(tokenizers[0].shares_vocabulary, tokenizers)):
        raise BadInput(f"expected runs with one tokenizer, got {' '.join(str(run.path) for run in runs)} with several")
    start = settings.get("start")
    if isinstance(start, dict):
        start = {name: value for name, value in start.items() if name != "step"}  # a run has its own
    options = {"export_options": start} | options
    return Translator(_together(models), tokenizers[0], **options)


def from_saved_model(path: str | os.PathLike[str], **options: Any) -> Translator:
    """Load what `Translator.save` wrote: weights in their stored dtype, tokenizer and defaults.

    A `Parser`'s SavedModel loads as well; its tokenizer has controls. Saved again, the model has the limits that its
    export had, and its origin, licence, languages and step, but no scores: they are those of another export.

    Args:
        path: <name>/<integer version>; or <name>, which means the newest version.
        options: of `Translator`; they replace what the export says.

    Raises:
        BadInput: the folder holds something else.
    """
    facts, tokenizer, weights = read_export(path)
    expected, models = "an export that this version can read", list[Transformer]()
    with reading(path, expected):
        check_kinds(facts, dict.fromkeys(LIMITS, int))
        own = [name for name, option in SEARCH_OPTIONS.items() if option.translator and name in facts]
        stored = {name: SEARCH_OPTIONS[name].cast(facts[name]) for name in own}
        check_kinds(facts, {"config": dict, "dtype": str})
        config = config_of(facts["config"])
        keras.dtype_policies.get(policy_of(facts["dtype"]))  # raises for a name that is none
    while weights or not models:
        with reading(path, expected):
            config.check_stored(sum(weight.nbytes for weight in weights))
        models.append(build_model(config, facts["dtype"]))
        size = len(models[-1].weights)
        with reading(path, expected):
            models[-1].set_weights(weights[:size])
        weights = weights[size:]
    translator = Translator(_together(models), tokenizer_of(tokenizer), **(stored | options))
    kept = {name: facts[name] for name in (*LIMITS, *hub.FACTS, "step") if name in facts}
    if "max_beam_size" in kept:
        kept["max_beam_size"] = max(kept["max_beam_size"], translator.beam_size)
    return translator.replace(export_options=kept | translator.export_options)


@checked
def from_pretrained(
    name: str | os.PathLike[str], *, family: str | None = None, revision: str | None = None, **options: Any
) -> Translator:
    """Load a pretrained model, for example a MarianMT checkpoint of OPUS-MT.

    Args:
        name: its folder, or its name on the Hugging Face hub (`hub.folder_of`). A name without an owner is one of
            the family's owner, by default Helsinki-NLP, which has OPUS-MT's models.
        family: the name of its family in `families.registry`; `None` means the one that recognizes its files.
        revision: a branch, a tag or a commit of the hub's model; `None` means its main branch. Only a commit always
            means the same files.
        options: of `Translator`; the default beam size is the checkpoint's.

    Raises:
        BadInput: there is no such checkpoint, or its kind is not supported.
    """
    folder, kind = checkpoint_of(name, family, revision)
    model, tokenizer, own, max_length = kind.load(folder)  # type: ignore[misc]  # `checkpoint_of` found one that loads
    translator = Translator(model, tokenizer, **{**own, **options})
    facts: dict[str, Any] = dict(hub.origin_of(name, folder))
    if max_length:
        facts["max_length"] = min(max_length, translator.max_source_length + translator.extra_length)
    return translator.replace(export_options=facts | options.get("export_options", {}))


def checkpoint_of(
    name: str | os.PathLike[str], family: str | None = None, revision: str | None = None
) -> tuple[Path, Family]:
    """The folder of a pretrained checkpoint, and its family, which has `load`; the arguments are as in
    `from_pretrained`."""
    families, name = [family_named(family)] if family else FAMILIES, os.fspath(name)
    owner = next((one.owner for one in families if one.owner), "")
    folder = hub.folder_of(name, owner, revision)
    if newest(folder, LITERT, CTRANSLATE2) and not any((folder / file).is_file() for file in hub.WEIGHTS):
        raise BadInput(f"expected a checkpoint, {found_in(folder)}")  # such an export has its tokenizer
    kind = families[0] if family else family_of_folder(folder)
    if kind is None or kind.load is None:
        raise BadInput(f"{name}: expected a checkpoint of a family that loads here, got other files")
    return folder, kind


def _folders(path: Folders) -> list[Path]:
    """One folder, or several, as paths.

    Raises:
        BadInput: there is none, or it is something else.
    """
    folders = [user_path(folder) for folder in ([path] if isinstance(path, str | os.PathLike) else path)]
    if not folders or isinstance(path, Mapping):
        raise BadInput(f"path: expected a folder, or a list of at least one, got {shown(path)}")
    return folders


def _together(models: list[Transformer]) -> Transformer | Ensemble:
    return Ensemble(models) if len(models) > 1 else models[0]
