"""Opens a model by path or by name, with the first registered engine that can.

It loads neither Keras nor TensorFlow before an engine needs them.
"""

import os
from typing import TYPE_CHECKING, Any

from tf_transformer import registry
from tf_transformer.inference.engine import Engine
from tf_transformer.inference.openers import SPECIAL, Opener, opener_of
from tf_transformer.utils.files import user_path
from tf_transformer.utils.folders import SAVED_MODEL as SAVED_MODEL_FILE
from tf_transformer.utils.folders import found_in, holds
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.terminal import quiet_import
from tf_transformer.utils.type_names import Folders
from tf_transformer.utils.values import BadInput, Count, checked

if TYPE_CHECKING:
    from tf_transformer.inference import rebuild, savedmodel
else:
    rebuild = lazily("tf_transformer.inference.rebuild", "a SavedModel")
    savedmodel = lazily("tf_transformer.inference.savedmodel", "a SavedModel")

SAVED_MODEL = Opener(
    title="a SavedModel",
    can_open=lambda path: "://" in path or holds(path, SAVED_MODEL_FILE),
    open=lambda path, **options: savedmodel.SavedModel(path, **options),
    rebuild=lambda path: rebuild.from_saved_model(path),
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

    SavedModels, LiteRT and ONNX exports run without the Keras model. Runs and checkpoints load as a `Translator` or a
    `Parser`. To get the trainable Keras model of a SavedModel, call `Translator.from_pretrained`.

    Args:
        path: Directory of a run, or a list of several for an `Ensemble`. Or the directory of a SavedModel, a LiteRT or
            an ONNX export or a pretrained checkpoint, or of its versions, of which the newest is opened. Or a
            checkpoint's name on the Hugging Face Hub, with its owner.
        batch_size: Texts per batch. `None` means the engine's default. LiteRT, and ONNX in int8, take one text at a
            time.
        threads: Threads per operation of an export's engine. `None` means its default.
        family: As in `Translator.from_pretrained`.
        revision: As in `Translator.from_pretrained`.
        options: Search options, the defaults of calls. A run also takes average_last, or the step of a
            checkpoint in its history.

    Raises:
        BadInput: If `path` holds something else, or the model does not take one of the options.
    """
    arguments = {"batch_size": batch_size, "threads": threads, "family": family, "revision": revision} | options
    arguments = {name: value for name, value in arguments.items() if value is not None}
    special = {name: arguments[name] for name in SPECIAL if name in arguments}
    # A mistyped "mine" must not be downloaded from the Hub.
    if (
        isinstance(path, str | os.PathLike)
        and "/" not in os.fspath(path)
        and not user_path(path).exists()
        and not (family or revision)
    ):
        raise BadInput(f"expected a model's folder, or its owner and name on the hub, {found_in(path)}")
    opener, where = opener_of(path, special)
    return opener.open(where, **arguments)


def trained(path: Folders, **options: Any) -> Any:
    """Loads a Keras model like `Translator.from_pretrained`, as a `Translator` or as the engine of its task."""
    with quiet_import():
        from tf_transformer.inference.translator import Translator

    options = {name: value for name, value in options.items() if value is not None}
    # A run's engine depends on its task, which its config.json names. A SavedModel's depends on its tokenizer.
    opener, where = opener_of(path, {name: options[name] for name in SPECIAL if name in options}, rebuilds=True)
    if opener.trains:
        return opener.open(where, **options)
    translator = Translator.from_pretrained(path, **options)
    tasks = registry.everything("tasks").values()
    return next((task.engine(translator) for task in tasks if task.recognizes(translator.tokenizer)), translator)
