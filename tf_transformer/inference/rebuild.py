"""A Keras model with its tokenizer, built again from the weights of a run, a SavedModel or a checkpoint."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import keras

from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.extensions.interop.families import hub
from tf_transformer.layers.int8 import policy_of
from tf_transformer.models.ensemble import Ensemble
from tf_transformer.models.families import (
    Family,
    build_model,
    config_of,
    families,
    family_named,
    family_of_folder,
    load_tokenizer,
    tokenizer_of,
)
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.training.losses import average_weights
from tf_transformer.training.recipe import Recipe
from tf_transformer.training.run import Run
from tf_transformer.utils.folders import (
    CTRANSLATE2,
    LITERT,
    ONNX,
    find_saved_model,
    folders_of,
    found_in,
    is_hub_name,
    newest,
)
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.reading import check_h5, check_kinds, made_of, reading
from tf_transformer.utils.type_names import Folders
from tf_transformer.utils.values import BadInput, Count, checked, shown

if TYPE_CHECKING:
    from tf_transformer.serving import savedmodel
else:
    savedmodel = lazily("tf_transformer.serving.savedmodel", "a SavedModel")

LIMITS = ("n_best", "max_beam_size", "max_length")  # of an export


class Rebuilt(NamedTuple):
    """A model and what was stored with it."""

    model: Transformer | Ensemble
    tokenizer: Tokenizer
    options: Mapping[str, Any]  # of its search
    facts: Mapping[str, Any]  # of its export
    longest: int | None = None  # the most symbols of a checkpoint's outputs, the end symbol included


@checked
def rebuilt(
    path: Folders, average_last: Count | None = None, family: str | None = None, revision: str | None = None
) -> Rebuilt:
    """Build a model again; the arguments are as in `Translator.from_pretrained`.

    Raises:
        BadInput: the folder holds something else.
    """
    folders = folders_of(path)
    if average_last and not all(map(is_run, folders)):
        raise BadInput(f"average_last: expected runs with it, got {shown(path)}")
    if len(folders) > 1:
        for folder in folders:
            if find_saved_model(folder) or family_of_folder(folder):
                raise BadInput(f"{folder}: expected a run, as several are an ensemble of runs; got another model")
        return from_runs(folders, average_last)
    (folder,) = folders
    if family or revision:
        return from_checkpoint(path, family, revision)
    if saved := find_saved_model(folder):
        return from_saved_model(saved)
    folder = newest(folder, *hub.WEIGHTS) or folder
    _check_no_export(folder)
    if is_run(folder):
        return from_runs(folders, average_last)
    if not (is_hub_name(folder) or family_of_folder(folder)):
        raise BadInput(f"expected a run, a SavedModel or a checkpoint, {found_in(folder, 'config.json')}")
    return from_checkpoint(path)


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, and no checkpoint."""
    return (folder / "config.json").is_file() and not family_of_folder(folder)


@checked
def from_runs(folders: list[Path], average_last: Count | None = None) -> Rebuilt:
    """The average of a run's last checkpoints, in float32; of several runs an `Ensemble`, which has the languages of
    the first.

    Raises:
        BadInput: a folder holds something else or no checkpoint, or runs differ in configuration or tokenizer.
    """
    runs = [Run(folder) for folder in folders]
    models, tokenizers, settings = [], list[Tokenizer](), dict[str, Any]()
    for run in runs:
        settings = run.settings()
        weights = run.weights(average_last or made_of(Recipe, settings["recipe"]).averaged)
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
    facts = {name: value for name, value in start.items() if name != "step"} if isinstance(start, dict) else {}
    return Rebuilt(_together(models), tokenizers[0], {}, facts)  # a run has its own step


def from_saved_model(path: str | os.PathLike[str]) -> Rebuilt:
    """What `Translator.save` wrote: weights in their stored dtype, tokenizer and defaults.

    Saved again, the model has the limits that its export had, and its origin, licence, languages and step, but no
    scores: they are those of another export.

    Raises:
        BadInput: the folder holds something else.
    """
    stored, tokenizer, weights = savedmodel.read_export(path)
    expected, models = "an export that this version can read", list[Transformer]()
    with reading(path, expected):
        check_kinds(stored, dict.fromkeys(LIMITS, int))
        own = [name for name, option in SEARCH_OPTIONS.items() if option.translator and name in stored]
        options = {name: SEARCH_OPTIONS[name].cast(stored[name]) for name in own}
        check_kinds(stored, {"config": dict, "dtype": str})
        config = config_of(stored["config"])
        keras.dtype_policies.get(policy_of(stored["dtype"]))  # raises for a name that is none
    while weights or not models:
        with reading(path, expected):
            config.check_stored(sum(weight.nbytes for weight in weights))
        models.append(build_model(config, stored["dtype"]))
        size = len(models[-1].weights)
        with reading(path, expected):
            models[-1].set_weights(weights[:size])
        weights = weights[size:]
    facts = {name: stored[name] for name in (*LIMITS, *hub.FACTS, "step") if name in stored}
    return Rebuilt(_together(models), tokenizer_of(tokenizer), options, facts)


def from_checkpoint(name: Any, family: str | None = None, revision: str | None = None) -> Rebuilt:
    """A pretrained model.

    Raises:
        BadInput: there is no such checkpoint, or its kind is not supported.
    """
    folder, kind = checkpoint_of(name, family, revision)
    model, tokenizer, options, max_length = kind.load(folder)  # type: ignore[misc]  # `checkpoint_of` found one that loads
    return Rebuilt(model, tokenizer, options, hub.origin_of(name, folder), max_length)


def checkpoint_of(
    name: str | os.PathLike[str], family: str | None = None, revision: str | None = None
) -> tuple[Path, Family]:
    """The folder of a pretrained checkpoint, and its family, which has `load`; the arguments are as in
    `Translator.from_pretrained`."""
    kinds, name = [family_named(family)] if family else families(), os.fspath(name)
    owner = next((one.owner for one in kinds if one.owner), "")
    folder = hub.folder_of(name, owner, revision)
    _check_no_export(folder)  # which has its tokenizer
    kind = kinds[0] if family else family_of_folder(folder)
    if kind is None or kind.load is None:
        raise BadInput(f"{name}: expected a checkpoint of a family that loads here, got other files")
    return folder, kind


def _check_no_export(folder: Path) -> None:
    """Check that a folder holds no export whose weights cannot be read back.

    Raises:
        BadInput: it does.
    """
    if newest(folder, LITERT, ONNX, CTRANSLATE2) and not any((folder / file).is_file() for file in hub.WEIGHTS):
        raise BadInput(f"expected a run, a SavedModel or a checkpoint, {found_in(folder)}")


def _together(models: list[Transformer]) -> Transformer | Ensemble:
    return Ensemble(models) if len(models) > 1 else models[0]
