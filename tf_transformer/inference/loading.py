"""Opens whatever a directory, or a name on the hub, holds. Each registered engine says what it can open.

It loads neither Keras nor TensorFlow before an engine needs them.
"""

import os
from typing import Any

from tf_transformer import registry
from tf_transformer.inference.engine import Engine
from tf_transformer.inference.openers import SPECIAL, Opener, opener_of
from tf_transformer.utils.files import user_path
from tf_transformer.utils.folders import SAVED_MODEL as SAVED_MODEL_FILE
from tf_transformer.utils.folders import found_in, holds
from tf_transformer.utils.terminal import quiet_import
from tf_transformer.utils.type_names import Folders
from tf_transformer.utils.values import BadInput, Count, checked


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
    if (
        isinstance(path, str | os.PathLike)
        and "/" not in os.fspath(path)
        and not user_path(path).exists()
        and not (family or revision)
    ):
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
