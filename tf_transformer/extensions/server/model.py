"""A translator's export and its signatures, with TensorFlow Serving's rules for requests."""

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (its ops are in the SavedModel)
from tensorflow.core.protobuf import saved_model_pb2

from tf_transformer.config import BadInput
from tf_transformer.extensions.documents.marked import Marked, sentences_in
from tf_transformer.extensions.server.engine import EngineExport
from tf_transformer.inference import savedmodel
from tf_transformer.utils.folders import is_version, model_folder, needs_no_tensorflow

DEFAULT_SIGNATURE = "serving_default"
# TensorFlow's Python, unlike a server, adds these to the graph's error messages.
AROUND = re.compile(r"^Graph execution error:.*<stack traces unavailable>\n| \[Op:\w+\]\s*$", re.DOTALL)


class ServingError(Exception):
    """An error response: the name of a gRPC status, and the server's message, in its words if possible."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def find_version(folder: str | os.PathLike[str]) -> Path:
    """Returns the directory NAME/VERSION of an export: `folder` itself, or its newest version."""
    folder = model_folder(folder).resolve()
    if not is_version(folder.name):
        raise BadInput(f"expected a folder NAME/VERSION with an integer VERSION, got {folder}")
    return folder


class SavedModel:
    """A translator's SavedModel, with the attributes of an `EngineExport`."""

    def __init__(self, folder: Path) -> None:
        self.engine, self.alone = savedmodel.SavedModel(folder), contextlib.nullcontext()
        saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
        self.signatures = dict(saved.meta_graphs[0].signature_def)
        if not {"translate", "model_info"} <= self.signatures.keys():
            raise BadInput(f"{folder}: expected a translator's export, got another model. Open it with tt.load.")

    def __call__(self, name: str, inputs: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
        """Runs a signature."""
        return {key: value.numpy() for key, value in self.engine.loaded.signatures[name](**inputs).items()}


class ServedModel:
    """A SavedModel, a LiteRT or an ONNX export, under a name, by default that of its directory."""

    def __init__(self, folder: str | os.PathLike[str], name: str | None = None) -> None:
        folder = find_version(folder)
        self.name = name or folder.parent.name
        self.version = int(folder.name)
        self._export = EngineExport(folder) if needs_no_tensorflow(folder) else SavedModel(folder)
        self.signatures = self._export.signatures

    def warm_up(self) -> None:
        """Runs each signature that takes texts, since its first call takes seconds."""
        for name, signature in self.signatures.items():
            needed = signature.inputs.keys() - signature.defaults.keys()
            if {"text"} <= needed <= {"text", "prefix"}:
                self.predict(name, dict.fromkeys(needed, tf.constant(["a"])))

    def find(self, name: str, version: int | None = None, label: str | None = None) -> None:
        """Raises `ServingError` unless a request names this model."""
        if label:
            raise ServingError("INVALID_ARGUMENT", f"Unrecognized servable version label: {label}")
        if name != self.name or version not in (None, self.version):
            request = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            raise ServingError("NOT_FOUND", f"Servable not found for request: {request}")

    def status(self, name: str, version: int | None = None) -> dict[str, Any]:
        """Returns the response of GetModelStatus, as JSON."""
        if name != self.name:
            raise ServingError("NOT_FOUND", f"Could not find any versions of model {name}")
        if version not in (None, self.version):
            raise ServingError("NOT_FOUND", f"Could not find version {version} of model {name}")
        state = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        return {"model_version_status": [{"version": str(self.version), **state}]}

    def predict(
        self, signature_name: str, inputs: Mapping[str, tf.Tensor], output_filter: Sequence[str] = ()
    ) -> dict[str, np.ndarray]:
        """Runs a signature, by default serving_default. Missing inputs take defaults. No filter means all outputs."""
        name = signature_name or DEFAULT_SIGNATURE
        if name not in self.signatures:
            raise ServingError("FAILED_PRECONDITION", f'Serving signature key "{name}" not found.')
        signature = self.signatures[name]
        missing = signature.inputs.keys() - inputs.keys()
        if inputs.keys() - signature.inputs.keys() or missing - signature.defaults.keys():
            expected, got = (", ".join(sorted(names)) for names in (signature.inputs, inputs))
            raise ServingError("INVALID_ARGUMENT", f"inputs of {name}: expected {expected}, got {got or 'none'}")
        for output in output_filter:
            if output not in signature.outputs:
                expected = ", ".join(sorted(signature.outputs))
                raise ServingError("INVALID_ARGUMENT", f"outputs of {name}: expected some of {expected}, got {output}")
        defaults = {key: tf.constant(tf.make_ndarray(signature.defaults[key])) for key in missing}
        try:
            outputs = self._export(name, {**inputs, **defaults})
        except tf.errors.OpError as error:
            code = next(code for code, number in vars(tf.errors).items() if number == error.error_code)
            raise ServingError(code, AROUND.sub("", error.message)) from error
        except (TypeError, ValueError) as error:  # Python checks ranks and dtypes before the graph does
            raise ServingError("INVALID_ARGUMENT", str(error)) from error
        return {key: outputs[key] for key in output_filter or sorted(outputs)}

    def document(self, text: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Translates a plain text, like `Engine.document`. Returns its sentences, and what is between translations."""
        engine = self._export.engine
        language = options.get("source_language", engine.metadata.get("source_language", ""))
        marked = Marked(text).with_placeholders()
        spans = marked.sentences(sentences_in(str(language)))
        sources = [text[start:end] for start, end in spans]
        with self._export.alone:
            translations = engine.document(sources, sentences=lambda line: [line], **options)
        between = marked.between(spans, translations)
        return {"sources": sources, "translations": translations, "between": between}
