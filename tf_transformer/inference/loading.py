"""Opens whatever a directory, or a name on the hub, holds. Each registered engine says what it can open.

It loads neither Keras nor TensorFlow before an engine needs them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tf_transformer import registry
from tf_transformer.inference.engine import Engine
from tf_transformer.utils.files import user_path
from tf_transformer.utils.folders import SAVED_MODEL as SAVED_MODEL_FILE
from tf_transformer.utils.folders import folders_of, found_in, holds
from tf_transformer.utils.terminal import quiet_import
from tf_transformer.utils.type_names import Folders
from tf_transformer.utils.values import BadInput, Count, checked

SPECIAL = ("threads", "average_last", "family", "revision")  # options that only some kinds of models take


@dataclass(frozen=True)
class Opener:
    """How one kind of model is opened. It is what the registry holds of an engine.

    Attributes:
        title: Name of the kind in a sentence.
        can_open: Returns whether a path, an address such as gs://bucket/model or a name holds such a model. It loads no
            framework and reads little.
        open: Returns the `Engine` of a path, or of a list of paths if `several`, with `load`'s options.
        rebuild: Returns the model of a path as `Rebuilt`; `None` if its weights cannot be read back.
        takes: Options of `SPECIAL` that it takes.
        several: Whether several paths can be opened together. It gets a list then, also of one path.
        trains: Whether `open` gives a Keras model, to train or to change it.
    """

    title: str
    can_open: Callable[[str], bool]
    open: Callable[..., Engine]
    rebuild: Callable[..., Any] | None = None
    takes: frozenset[str] = frozenset()
    several: bool = False
    trains: bool = False


def _open_saved_model(path: str, **options: Any) -> Engine:
    with quiet_import():
        from tf_transformer.inference.savedmodel import SavedModel

    return SavedModel(path, **options)


def _rebuild_saved_model(path: str) -> Any:
    from tf_transformer.inference.rebuild import from_saved_model

    return from_saved_model(path)


SAVED_MODEL = Opener(
    "a SavedModel",
    lambda path: "://" in path or holds(path, SAVED_MODEL_FILE),
    _open_saved_model,
    _rebuild_saved_model,
    frozenset({"threads"}),
)


def opener_of(path: Folders, options: Mapping[str, Any], rebuilds: bool = False) -> tuple[Opener, Any]:
    """Returns the first registered engine that can open a path, and what it gets: the path, or a list of several.

    Args:
        path: As in `load`.
        options: Those of `SPECIAL` that the caller gave.
        rebuilds: Whether it must be able to rebuild the Keras model.

    Raises:
        BadInput: If no engine can open it, or the engine does not take one of the options.
    """
    paths = (
        [path if "://" in path else str(user_path(path))] if isinstance(path, str) else list(map(str, folders_of(path)))
    )
    tried = list[Opener]()
    for name in registry.names("engines"):
        opener: Opener = registry.find("engines", name)
        if rebuilds and not opener.rebuild:
            continue
        tried.append(opener)
        chosen = {"family", "revision"} & options.keys()
        if (
            chosen <= opener.takes
            and (opener.several or len(paths) == 1)
            and (chosen or all(map(opener.can_open, paths)))
        ):
            for option in options.keys() - opener.takes:
                raise BadInput(f"{option}: expected a model that takes it, got {opener.title}, {', '.join(paths)}")
            return opener, paths if opener.several else paths[0]
    if len(paths) > 1:
        wrong = next(path for path in paths if not any(opener.several and opener.can_open(path) for opener in tried))
        raise BadInput(f"{wrong}: expected a run, since several paths are an ensemble of runs, {found_in(wrong)}")
    titles = [opener.title for opener in tried]
    raise BadInput(f"expected {', '.join(titles[:-1])} or {titles[-1]}, {found_in(paths[0], 'config.json')}")


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
    """Open a model, to answer texts: `tt.load("savedmodels/demo")(["Hello world."])` gives ["Hallo Welt."].

    An export is opened as what it is: a `SavedModel` runs the graph that is served, a LiteRT or an ONNX export its own
    engine. A run or a checkpoint becomes a `Translator`, or a `Parser`. `Translator.from_pretrained` always gives the
    Keras model, to train or to change it.

    Args:
        path: the folder of a run, or a list of several for an `Ensemble`; of a SavedModel, a LiteRT or an ONNX export
            or a pretrained checkpoint, or of its versions, which means the newest; or a checkpoint's name, with its
            owner, on the Hugging Face hub.
        batch_size: texts a batch; `None` means the engine's default. LiteRT takes one text at a time, and so
            does ONNX in int8.
        threads: of an export's engine for one operation; `None` means its default.
        family: of a checkpoint, as in `Translator.from_pretrained`.
        revision: of a checkpoint on the hub, as in `Translator.from_pretrained`.
        options: of the search, the defaults of calls; of a run also average_last.

    Raises:
        BadInput: the folder holds something else, or the model does not take such an option.
    """
    given = {"batch_size": batch_size, "threads": threads, "family": family, "revision": revision} | options
    given = {name: value for name, value in given.items() if value is not None}
    special = {name: given[name] for name in SPECIAL if name in given}
    if isinstance(path, str) and "/" not in path and not user_path(path).exists() and not (family or revision):
        raise BadInput(f"expected a model's folder, or its owner and name on the hub, {found_in(path)}")
    opener, where = opener_of(path, special)
    return opener.open(where, **given)


def trained(path: Folders, **options: Any) -> Any:
    """The Keras model of a run, a SavedModel or a checkpoint, as a `Translator`, or as the engine of its task.

    Args:
        path: as in `Translator.from_pretrained`.
        options: as there.
    """
    with quiet_import():
        from tf_transformer.inference.translator import Translator

    options = {name: value for name, value in options.items() if value is not None}
    opener, where = opener_of(path, {name: options[name] for name in SPECIAL if name in options}, rebuilds=True)
    if opener.trains:
        return opener.open(where, **options)
    translator = Translator.from_pretrained(path, **options)
    tasks = registry.everything("tasks").values()
    return next((task.engine(translator) for task in tasks if task.recognizes(translator.tokenizer)), translator)
