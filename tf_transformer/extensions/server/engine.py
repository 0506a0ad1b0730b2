"""An engine, such as a LiteRT or an ONNX export, called like a SavedModel."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.inference.engine import UNUSED, Hypothesis, TranslationResult
from tf_transformer.inference.loading import load
from tf_transformer.tokenizers.languages import LANGUAGES

TEXT, NUMBER, COUNT, FLAG = (tf.TensorSpec([None], dtype) for dtype in (tf.string, tf.float32, tf.int32, tf.bool))


class Function(NamedTuple):
    """A signature's function."""

    answer: Callable[..., dict[str, Any]]  # from a row of the inputs, by name, to a row of the outputs
    inputs: dict[str, tf.TensorSpec]  # the texts first
    outputs: dict[str, tf.TensorSpec]

    def signature(self) -> Any:
        """Returns the `SignatureDef` that a SavedModel would have."""
        made = meta_graph_pb2.SignatureDef(method_name="tensorflow/serving/predict")
        for ports, specs in ((made.inputs, self.inputs), (made.outputs, self.outputs)):
            for name, spec in specs.items():
                ports[name].name, ports[name].dtype = f"{name}:0", spec.dtype.as_datatype_enum
                ports[name].tensor_shape.CopyFrom(spec.shape.as_proto())
        return made


class EngineExport:
    """Serves serving_default, translate and model_info of the contract (savedmodels/README.md) by any engine.

    Options that the engine fixes, such as the beam size of a LiteRT export, are not inputs. Calls run one at a time.
    """

    def __init__(self, folder: Path) -> None:
        self.engine = load(folder)
        self.alone = threading.Lock()
        self._metadata = {**self.engine.metadata, "name": folder.parent.name, "version": folder.name}
        languages = LANGUAGES if self.engine.languages else ()
        if languages:
            self._metadata["languages"] = ", ".join(self.engine.languages)
        self._beams = self.engine.options["beam_size"]
        kinds = {"float32": NUMBER, "int32": COUNT}
        options = {name: kinds[SEARCH_OPTIONS[name].dtype] for name in self.engine.call_options}
        best = {"translations": TEXT, "scores": NUMBER, "log_probs": NUMBER, "finished": FLAG, "lengths": COUNT}
        best = {name: tf.TensorSpec([None, self._beams], spec.dtype) for name, spec in best.items()}
        one = {"translation": TEXT, "score": NUMBER, "truncated": FLAG}
        every = {**best, "source_length": COUNT, "truncated": FLAG}
        self._functions = {
            "serving_default": Function(self._default, {"text": TEXT}, one),
            "translate": Function(self._translate, {"text": TEXT, **options, **dict.fromkeys(languages, TEXT)}, every),
            "model_info": Function(self._info, {"key": TEXT}, {"value": TEXT}),
        }
        self.signatures = {name: function.signature() for name, function in self._functions.items()}
        defaults = self.signatures["translate"].defaults
        for name in options:
            defaults[name].CopyFrom(tf.make_tensor_proto([self.engine.options[name]], options[name].dtype))
        for name in languages:
            defaults[name].CopyFrom(tf.make_tensor_proto([self._metadata[name]]))

    def __call__(self, name: str, inputs: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
        """Runs a signature. Raises `ValueError` if an input has the wrong shape or dtype."""
        function = self._functions[name]
        for port, spec in function.inputs.items():
            if not spec.is_compatible_with(inputs[port]):
                dtype, shape = inputs[port].dtype.name, inputs[port].shape
                raise ValueError(f"{port}: expected {spec.dtype.name} of the shape [batch], got {dtype} of {shape}")
        size = len(inputs[next(iter(function.inputs))])
        for port, value in inputs.items():
            if len(value) not in (1, size):
                raise ValueError(f"{port}: expected a vector of length 1 or of the batch size {size}, got {len(value)}")
        columns = [np.broadcast_to(value.numpy(), [size]).tolist() for value in inputs.values()]
        rows = [function.answer(**dict(zip(inputs, row, strict=True))) for row in zip(*columns, strict=True)]
        return {
            port: np.array([row[port] for row in rows], spec.dtype.as_numpy_dtype).reshape([size, *spec.shape[1:]])
            for port, spec in function.outputs.items()
        }

    def _default(self, text: bytes) -> dict[str, Any]:
        reply = self._reply(text)
        return {"translation": reply.text.encode(), "score": reply.score, "truncated": reply.truncated}

    def _translate(self, text: bytes, **options: Any) -> dict[str, Any]:
        reply = self._reply(text, self._beams, **options)
        rows = [(one.text.encode(), *one[1:]) for one in reply.hypotheses]
        rows += [(b"", UNUSED, UNUSED, False, 0)] * (self._beams - len(rows))
        names = ("translations", "scores", "log_probs", "finished", "lengths")
        best = dict(zip(names, zip(*rows, strict=True), strict=True))
        return {**best, "source_length": reply.length, "truncated": reply.truncated}

    def _reply(self, text: bytes, n: int | None = None, **options: Any) -> TranslationResult:
        # As in a SavedModel, options out of range are clipped, NaN means the default, and an unknown language reads
        # nothing.
        languages = {name: options.pop(name).decode("utf-8", "replace") for name in LANGUAGES if name in options}
        if not set(languages.values()) <= set(self.engine.languages):
            return TranslationResult(text, (Hypothesis("", 0.0, 0.0, False, 0),), 0, True)
        with self.alone:
            (reply,) = self.engine.replies([text], n, **self.engine.clipped(options), **languages)
        return reply

    def _info(self, key: bytes) -> dict[str, Any]:
        return {"value": str(self._metadata.get(key.decode("utf-8", "replace"), "")).encode()}
