"""The door: whatever a folder, or a name on the hub, holds, as an engine. TensorFlow is loaded where it is needed."""

import os
from typing import TYPE_CHECKING, Any

from tf_transformer.inference.engine import Engine
from tf_transformer.utils.files import user_path
from tf_transformer.utils.folders import (
    CTRANSLATE2,
    EXPORTS,
    LITERT,
    ONNX,
    SAVED_MODEL,
    folders_of,
    found_in,
    is_hub_name,
    newest,
)
from tf_transformer.utils.terminal import quiet_import
from tf_transformer.utils.type_names import Folders
from tf_transformer.utils.values import BadInput, Count, checked, shown

if TYPE_CHECKING:
    from tf_transformer.inference.translator import Translator


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
            or a pretrained checkpoint, or of its versions, which means the newest; or a checkpoint's name on the
            Hugging Face hub.
        batch_size: texts a batch; `None` means the engine's default. LiteRT takes one text at a time, and so
            does ONNX in int8.
        threads: of an export's engine for one operation; `None` means its default.
        family: of a checkpoint, as in `Translator.from_pretrained`.
        revision: of a checkpoint on the hub, as in `Translator.from_pretrained`.
        options: of the search, the defaults of calls; of a run also average_last.

    Raises:
        BadInput: the folder holds something else, or the model does not take such an option.
    """
    if not isinstance(path, str | os.PathLike):
        path = folders_of(path)
        path = path[0] if len(path) == 1 else path
    rows = {} if batch_size is None else {"batch_size": batch_size}
    if isinstance(path, str | os.PathLike) and not (family or revision):
        where = os.fspath(path)
        export = None if "://" in where else newest(user_path(path), *EXPORTS, CTRANSLATE2)
        if "://" in where or (export and (export / SAVED_MODEL).is_file()):
            with quiet_import():
                from tf_transformer.inference.savedmodel import SavedModel

            return SavedModel(export or where, threads=threads, **rows, **options)
        if export and (export / LITERT).is_file():
            from tf_transformer.extensions.interop.engines.litert import LiteRT

            return LiteRT(export, threads or 1, **options)
        if export and (export / ONNX).is_file():
            from tf_transformer.extensions.interop.engines.onnx_export import ONNX as OnnxEngine

            return OnnxEngine(export, threads or 1, **rows, **options)
        is_name = "/" in where and is_hub_name(where)
        if export or not (user_path(path).is_dir() or is_name):
            raise BadInput(f"expected a run, a SavedModel, a LiteRT or ONNX export, or a checkpoint, {found_in(path)}")
    if threads:
        raise BadInput(f"threads: expected an export with it, since TensorFlow has its own setting, got {shown(path)}")
    return trained(path, family=family, revision=revision, **rows, **options)


def trained(path: Folders, **options: Any) -> "Translator | Parser":
    """The Keras model of a run, a SavedModel or a checkpoint, as a `Translator`, or as the `Parser` that it is.

    Args:
        path: as in `Translator.from_pretrained`.
        options: as there.
    """
    with quiet_import():
        from tf_transformer.extensions.parsing.parser import Parser
        from tf_transformer.inference.rebuild import is_run
        from tf_transformer.inference.translator import Translator
        from tf_transformer.training.run import Run

    path = path if isinstance(path, str | os.PathLike) else folders_of(path)
    (first, *_) = folders_of(path)
    if is_run(first) and Run(first).settings()["kind"] == "parsing":
        return Parser.from_pretrained(path, **options)
    translator = Translator.from_pretrained(path, **options)
    return Parser(translator) if translator.tokenizer.controls else translator
