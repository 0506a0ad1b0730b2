"""What a run is compared by when it resumes: its settings, and what its model was compiled with."""

import json
from typing import Any

import keras
import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.training import losses, optimizer
from tf_transformer.training.recipe import CHANGEABLE, UNREAD, Recipe
from tf_transformer.utils.reading import with_new_names

RENAMED = {"WarmupSchedule": optimizer.RENAMED, "SmoothedCrossEntropy": losses.RENAMED}


def differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    """Returns what differs between two settings, with names and both values, so that a user can change them back."""
    changes, names = list[str](), list(dict.fromkeys([*before, *now]))
    if {"sha256"} <= before.keys() & now.keys():
        # A training set with a checksum may be moved or renamed.
        names = [name for name in names if name not in ("sha256", "train")]
        if before["sha256"] != now["sha256"]:
            values = now.get("train"), before["sha256"], now["sha256"]
            columns = (value if isinstance(value, list) else [value] for value in values)
            files = [str(file) for file, old, new in zip(*columns, strict=False) if file and old != new]
            changes.append("the training set has changed" + (f": {', '.join(files)}" if files else ""))
    for name in names:
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            changes += differences(old, new, f"{prefix}{name}.")
        elif name == "dev" and old != new:
            changes.append("the dev set has changed")
        elif old != new and (old or new or {name} <= before.keys() & now.keys()):
            # An option missing from another version counts as off. One that both have may mean something by 0 and null.
            # Rates as people write them, unless that hides the difference: Keras has all digits of a float32.
            short = [json.dumps(float(f"{x:.7g}") if isinstance(x, float) else x) for x in (old, new)]
            was, is_now = short if short[0] != short[1] else (json.dumps(old), json.dumps(new))
            changes.append(f"{prefix}{name} was {was}, now {is_now}")
    return changes


def compiled(model: keras.Model) -> dict[str, Any]:
    """Describes what a model was compiled with, and its dtype, as far as it changes a training."""
    optimizer = described(inner(model.optimizer))
    return {"dtype": model.dtype_policy.name, "optimizer": optimizer, "loss": described(model.loss)}


def inner(optimizer: Any) -> Any:
    """Returns the optimizer itself. With float16, Keras wraps it in one that scales the loss."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def comparable(before: dict[str, Any], model: keras.Model, rate: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a checkpoint's description `before` and the model's, without differences that don't matter."""
    now, loss = compiled(model), before.get("loss", {})
    settings = loss.get("config") if isinstance(loss, dict) else None
    if isinstance(model.loss, losses.SmoothedCrossEntropy) and isinstance(settings, dict):
        # Earlier versions stored fewer settings of the loss.
        settings = described(type(model.loss).from_config(settings))["config"]
        before = before | {"loss": loss | {"config": settings}}
    try:
        settings = now["optimizer"]["config"]
        # A callback changed the rate since the run began, and the model was compiled with the present one.
        if rate is not None and settings["learning_rate"] == rate:
            settings["learning_rate"] = before["optimizer"]["config"]["learning_rate"]
    except (KeyError, TypeError):  # an optimizer without settings, or without a rate
        pass
    return before, now


def described(thing: Any) -> Any:
    """Describes a schedule, an optimizer or a loss for JSON: class and settings, or only its name if it has none."""

    def plain(value: Any) -> Any:
        array = np.asarray(value)
        return array.tolist() if array.dtype.kind in "biufU" else type(value).__name__

    def without_name(settings: dict[str, Any]) -> Any:
        # Keras numbers the names of a process's optimizers. It describes a lambda by its position in a file.
        if settings.get("class_name") == "__lambda__":
            return "function"
        return {name: value for name, value in settings.items() if name != "name"}

    name = thing if isinstance(thing, str) else getattr(thing, "__name__", type(thing).__name__)
    try:
        settings = json.dumps(thing.get_config(), default=plain)
    except (AttributeError, NotImplementedError):  # the latter from Keras's base class
        return name
    except OSError as error:  # Keras quotes the source of a lambda, which an interactive session does not store.
        raise BadInput(f"{name}: expected named functions, got a lambda without source code. Use def") from error
    return {"class_name": name, "config": json.loads(settings, object_hook=without_name)}


def with_new_options(value: Any) -> Any:
    """Renames options in descriptions of schedules and losses that were written before."""
    if not isinstance(value, dict):
        return value
    value = {name: with_new_options(part) for name, part in value.items()}
    if value.get("class_name") in RENAMED and isinstance(value.get("config"), dict):
        value["config"] = with_new_names(value["config"], RENAMED[value["class_name"]])
    return value


def unchangeable(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that may not change when a run is resumed."""
    # A recipe of an earlier version, which lacks an option, was that of its default.
    recipe = Recipe().to_dict() | settings.get("recipe", {})
    # Earlier versions accepted and stored options that nothing read.
    unread = {name for owner, names in UNREAD.items() if settings.get(owner) or recipe.get(owner) for name in names}
    recipe = {name: value for name, value in recipe.items() if name not in CHANGEABLE | unread}
    return {name: value for name, value in settings.items() if name != "version"} | {"recipe": recipe}
