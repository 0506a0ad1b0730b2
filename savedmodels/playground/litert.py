"""A LiteRT export, called like a SavedModel."""

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from tf_transformer.engines.litert import litert_translator
from tf_transformer.text.search_options import SEARCH_OPTIONS

TEXT, NUMBER, COUNT, FLAG = (tf.TensorSpec([None], dtype) for dtype in (tf.string, tf.float32, tf.int32, tf.bool))


class Function(NamedTuple):
    """What a signature does."""

    answer: Callable[..., dict[str, Any]]  # from a row of the inputs, by name, to a row of the outputs
    inputs: dict[str, tf.TensorSpec]  # the texts first
    outputs: dict[str, tf.TensorSpec]

    def described(self) -> Any:
        """As a SavedModel describes it."""
        inputs, outputs = (
            {
                name: meta_graph_pb2.TensorInfo(
                    name=f"{name}:0", dtype=spec.dtype.as_datatype_enum, tensor_shape=spec.shape.as_proto()
                )
                for name, spec in ports.items()
            }
            for ports in (self.inputs, self.outputs)
        )
        return meta_graph_pb2.SignatureDef(inputs=inputs, outputs=outputs, method_name="tensorflow/serving/predict")


class LiteRTExport:
    """Answers serving_default, translate and model_info, as savedmodels/README.md has them. What the export fixes, such
    as the beam size, is no input. The file translates a text at a time, so requests wait for each other.

    Args:
        folder: NAME/VERSION.

    Attributes:
        signatures: by name, as a SavedModel describes them.

    Raises:
        BadInput: as of `litert_translator`.
    """

    def __init__(self, folder: Path) -> None:
        self._translator = litert_translator(folder)
        self._alone = threading.Lock()
        self._facts = self._translator.facts | {"name": folder.parent.name, "version": folder.name}
        self._beams = self._facts["beam_size"]
        options = {
            name: NUMBER if SEARCH_OPTIONS[name].dtype == "float32" else COUNT for name in self._translator.options
        }
        best = {"translations": TEXT, "scores": NUMBER, "log_probs": NUMBER, "finished": FLAG, "lengths": COUNT}
        best = {name: tf.TensorSpec([None, self._beams], spec.dtype) for name, spec in best.items()}
        one = {"translation": TEXT, "score": NUMBER, "truncated": FLAG}
        every = {**best, "source_length": COUNT, "truncated": FLAG}
        self._functions = {
            "serving_default": Function(self._default, {"text": TEXT}, one),
            "translate": Function(self._translate, {"text": TEXT, **options}, every),
            "model_info": Function(self._info, {"key": TEXT}, {"value": TEXT}),
        }
        self.signatures = {name: function.described() for name, function in self._functions.items()}
        for name, value in self._translator.options.items():
            default = tf.make_tensor_proto([value], options[name].dtype)
            self.signatures["translate"].defaults[name].CopyFrom(default)

    def __call__(self, name: str, inputs: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
        """Run a signature.

        Raises:
            ValueError: an input has another shape or dtype.
        """
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
        with self._turn():
            (best,) = self._translator.n_best(text, 1)
        return {"translation": best.text.encode(), "score": best.score, "truncated": self._length(text)["truncated"]}

    def _translate(self, text: bytes, **options: float) -> dict[str, Any]:
        with self._turn():
            best = self._translator.n_best(text, self._beams, **options)
        rows = [(one.text.encode(), one.score, one.log_prob, one.finished, one.length) for one in best]
        rows += [(b"", -1e9, -1e9, False, 0)] * (self._beams - len(rows))  # places that are not used
        names = ("translations", "scores", "log_probs", "finished", "lengths")
        return {**dict(zip(names, zip(*rows, strict=True), strict=True)), **self._length(text)}

    def _length(self, text: bytes) -> dict[str, Any]:
        length = len(self._translator.source_ids(text))
        return {"source_length": length, "truncated": length > self._facts["max_source_length"]}

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        with self._alone, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of long texts: `truncated` says so
            yield

    def _info(self, key: bytes) -> dict[str, Any]:
        return {"value": str(self._facts.get(key.decode("utf-8", "replace"), "")).encode()}
