"""Opens a model by path or by name, with the first registered engine that can.

It loads neither Keras nor TensorFlow before an engine needs them.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tf_transformer import registry
from tf_transformer.inference.engine import Engine
from tf_transformer.utils.files import user_path
from tf_transformer.utils.folders import SAVED_MODEL_FILE, folders_of, holds, what_is_in
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.type_names import Folders
from tf_transformer.utils.values import BadInput, Count, checked

if TYPE_CHECKING:
    from tf_transformer.inference import savedmodel
    from tf_transformer.serving import saving
else:
    saving = lazily("tf_transformer.serving.saving", "a SavedModel")
    savedmodel = lazily("tf_transformer.inference.savedmodel", "a SavedModel")

SPECIAL = ("threads", "average_last", "step", "family", "revision")  # options that only some kinds of models take


@dataclass(frozen=True)
class Opener:
    """Entry of the registry that recognizes and opens one kind of model.

    Attributes:
        title: Name of the kind in a sentence.
        can_open: Returns whether a path, an address such as gs://bucket/model or a name holds such a model. It loads no
            framework and reads little.
        open: Returns the `Engine` of a path, or of a list of paths if `opens_several`, with `load`'s options.
        rebuild: Returns the model of a path as `Rebuilt`. `None` if its weights cannot be read back.
        takes: Options of `SPECIAL` that it takes.
        opens_several: Whether several paths can be opened together. Then it gets a list, even for one path.
        is_trainable: Whether `open` returns a trainable Keras model.
    """

    title: str
    can_open: Callable[[str], bool]
    open: Callable[..., Engine]
    rebuild: Callable[..., Any] | None = None
    takes: frozenset[str] = frozenset()
    opens_several: bool = False
    is_trainable: bool = False


OPENS_SAVED_MODEL = Opener(
    title="a SavedModel",
    can_open=lambda path: "://" in path or holds(path, SAVED_MODEL_FILE),
    open=lambda path, **options: savedmodel.SavedModel(path, **options),
    rebuild=lambda path: saving.from_saved_model(path),
    takes=frozenset({"threads"}),
)


@checked
def load(
    path: Folders,
    *,
    batch_size: Count | None = None,
    threads: Count | None = None,
    family: str | None = None,
    revision: str | None = None,
    **options: Any,
) -> Engine:
    """Opens a model for inference: `tt.load("savedmodels/demo")(["Hello world."])` returns ["Hallo Welt."].

    SavedModels, LiteRT and ONNX exports run without the Keras model. Runs and checkpoints load as a `Translator`, or
    as the engine of their task. To get the trainable Keras model of a SavedModel, call `Translator.from_pretrained`.

    Args:
        path: Directory of a run, or a list of several for an `Ensemble`. Or the directory of a SavedModel, a LiteRT or
            an ONNX export or a pretrained checkpoint, or of its versions, of which the newest is opened. Or a
            checkpoint's name on the Hugging Face Hub, with its owner.
        batch_size: Maximum number of texts per batch. `None` means the engine's default. LiteRT, and ONNX in int8, take
            one at a time.
        threads: Threads per operation of an export's engine. `None` means its default.
        family: As in `Translator.from_pretrained`.
        revision: As in `Translator.from_pretrained`.
        options: Search options, the defaults of calls. A run also takes average_last, or a checkpoint's step.

    Raises:
        BadInput: If `path` holds something else, or the model does not take one of the options.
    """
    arguments = {"batch_size": batch_size, "threads": threads, "family": family, "revision": revision} | options
    arguments = {name: value for name, value in arguments.items() if value is not None}
    special = {name: arguments[name] for name in SPECIAL if name in arguments}
    # A mistyped "mine" must not be downloaded from the Hub. "./mine" is no name, so no engine needs to be imported,
    # except for those of other distributions, which may open what is no file.
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    is_path = name.startswith((".", "~", os.sep)) or "/" not in name
    is_ours = not any(registry.is_plugged_in("engines", engine) for engine in registry.names("engines"))
    if name and is_path and is_ours and not (family or revision) and not user_path(name).exists():
        raise BadInput(f"expected a model's directory, or its owner and name on the hub, {what_is_in(name)}")
    opener, where = opener_of(path, special)
    return opener.open(where, **arguments)


def opener_of(path: Folders, options: Mapping[str, Any], rebuilds: bool = False) -> tuple[Opener, Any]:
    """Returns the first registered engine that can open a path, and the path, or a list if it `opens_several`.

    It takes the `options` of `SPECIAL`, and can rebuild the Keras model if `rebuilds`. Raises `BadInput` without one.
    """
    # Keep the path as the user wrote it: "mine" may be a name on the Hub, "./mine" is always a path.
    if isinstance(path, str | os.PathLike):
        paths = [os.fspath(path)]
        if "://" not in paths[0]:
            user_path(path)
    else:
        paths = [str(folder) for folder in folders_of(path)]
    # In the registry's order. The last of ours, a checkpoint, also takes names that exist only on the Hub.
    tried = list[Opener]()
    for name in registry.names("engines"):
        opener: Opener = registry.find("engines", name)
        if rebuilds and not opener.rebuild:
            continue
        tried.append(opener)
        chosen = {"family", "revision"} & options.keys()
        is_one = opener.opens_several or len(paths) == 1
        if is_one and chosen <= opener.takes and (chosen or all(map(opener.can_open, paths))):
            for option in options.keys() - opener.takes:
                raise BadInput(f"{option}: expected a model that takes it, got {opener.title}, {', '.join(paths)}")
            return opener, paths if opener.opens_several else paths[0]
    if len(paths) > 1:
        for_several = [opener for opener in tried if opener.opens_several]
        unopened = [path for path in paths if not any(opener.can_open(path) for opener in for_several)]
        if not unopened:
            raise BadInput(f"{', '.join(options)}: expected one model with it, got an ensemble of {len(paths)} runs")
        raise BadInput(
            f"{unopened[0]}: expected a run, since several paths are an ensemble of runs, {what_is_in(unopened[0])}"
        )
    titles = [opener.title for opener in tried]
    raise BadInput(f"expected {', '.join(titles[:-1])} or {titles[-1]}, {what_is_in(paths[0], 'config.json')}")
