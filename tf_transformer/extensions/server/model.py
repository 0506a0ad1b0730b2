"""The served model: an engine whose batches take turns, and signatures with TensorFlow Serving's rules for requests.

The limits of requests have LibreTranslate's names and messages.
"""

import contextlib
import functools
import json
import math
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from werkzeug.exceptions import BadRequest, HTTPException, TooManyRequests

from tf_transformer.decoding.search_options import LANGUAGES
from tf_transformer.inference.engine import Engine
from tf_transformer.inference.loading import load
from tf_transformer.inference.savedmodel import load_graph
from tf_transformer.inference.turns import InTurns, Turns, pooled
from tf_transformer.utils.files import user_path
from tf_transformer.utils.folders import EXPORTS, SAVED_MODEL_FILE, is_version, newest
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.reading import reading
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import BadInput

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2
else:  # A LiteRT or an ONNX export is served without it.
    tf = lazily("tensorflow", "a SavedModel")
    saved_model_pb2 = lazily("tensorflow.core.protobuf.saved_model_pb2", "a SavedModel")

DEFAULT_SIGNATURE = "serving_default"
# Signatures of a translator whose rows do not depend on each other.
BY_ROW = (DEFAULT_SIGNATURE, "translate", "translate_details", "complete", "score")
# TensorFlow's Python, unlike a server, adds these to the graph's error messages.
AROUND = re.compile(r"^Graph execution error:.*<stack traces unavailable>\n| \[Op:\w+\]\s*$", re.DOTALL)
AVERAGE = 128  # bytes of a row of a full batch
MINUTE = 60.0  # seconds
HTTP = {"INVALID_ARGUMENT": 400, "FAILED_PRECONDITION": 400, "NOT_FOUND": 404, "RESOURCE_EXHAUSTED": 429}


class ServingError(HTTPException):
    """An error response: the name of a gRPC status, and the server's message, in its words if possible."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, HTTP.get(status, 500)


@dataclass(frozen=True)
class Limits:
    """Limits of a request. -1 means no limit.

    Attributes:
        chars: Characters of a text.
        batch: Texts of a request.
        requests: Requests per minute and client. A text of a list counts as one.
        body: Bytes of a request's body.
    """

    chars: int = 100_000
    batch: int = 1_000
    requests: int = -1
    body: int = 4 << 20

    def __str__(self) -> str:
        names = {"chars": "characters", "batch": "texts", "requests": "requests per minute", "body": "bytes"}
        limits = {words: getattr(self, name) for name, words in names.items()}
        return "at most " + ", ".join(f"{limit:,} {words}" for words, limit in limits.items() if limit >= 0)

    def check(self, texts: list[str]) -> None:
        """Raises `BadRequest` if a request has too many texts, or too long ones."""
        for size, limit in [(len(texts), self.batch), *((len(text), self.chars) for text in texts)]:
            if 0 <= limit < size:
                raise BadRequest(f"Invalid request: request ({size}) exceeds text limit ({limit})")
        if any("\ud800" <= letter < "\ue000" for text in texts for letter in {*text}):
            raise BadRequest("Invalid request: a text has half of a surrogate pair")


class Rates:
    """Requests of each client in the current minute."""

    def __init__(self, limit: int) -> None:
        self._limit, self._lock, self._end, self._counts = limit, threading.Lock(), 0.0, Counter[str]()

    def spend(self, address: str, count: int = 1) -> None:
        """Adds requests of a client. Raises `TooManyRequests` if it has reached the limit before."""
        if self._limit < 0:
            return
        with self._lock:
            now = time.monotonic()
            if now >= self._end:
                self._end, self._counts = now + MINUTE, Counter()
            if self._counts[address] >= self._limit:
                raise TooManyRequests(f"Slowdown: {self._limit} per 1 minute", retry_after=math.ceil(self._end - now))
            self._counts[address] += count


class ServedModel:
    """A model under a name, by default that of its directory.

    Args:
        model: Path as in `tt.load`, or a translator. A SavedModel of another kind has only its signatures.
        name: Name in requests.
        opened: Function that opens a translator, such as `tt.load`.
        workers: As in `pooled`. By default one, for a server with processes of its own.

    Attributes:
        engine: The translator, or `None`.
        kind: Name of the translator's class, or "SavedModel".
        turns: Turns of all requests.
        signatures: `SignatureDef`s by name, of a SavedModel.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Engine,
        name: str | None = None,
        opened: Callable[[Any], Engine] = load,
        workers: int | None = 1,
    ) -> None:
        path, where = None, Path("model" if isinstance(model, Engine) else os.fspath(model))
        if not isinstance(model, Engine) and "://" not in os.fspath(model):
            path = newest(user_path(model), *EXPORTS)
            where = (path or user_path(model)).resolve()
        numbered = is_version(where.name)
        self.name = name or (where.parent if numbered else where).name or "model"
        self.version = int(where.name) if numbered else 1
        self.signatures = stored_signatures(path) if path and (path / SAVED_MODEL_FILE).is_file() else {}
        self.engine, self.kind, count = None, "SavedModel", workers or 1
        if not self.signatures or {"translate", "model_info"} <= self.signatures.keys():
            engine = model if isinstance(model, Engine) else opened(model)
            if not engine.translates:
                expected = "serve: expected a translator, got an engine of another task"
                raise BadInput(f"{expected}. Export it, and serve its SavedModel.")
            self.kind, (pool, count) = type(engine).__name__, pooled(engine, workers)
        # Long requests leave a worker to the others, and have smaller batches than calls from Python.
        self.turns, self.at_once = Turns(count, min(1, count - 1), AVERAGE), max(1, count - 1)
        if not self.signatures or {"translate", "model_info"} <= self.signatures.keys():
            self.engine = InTurns(pool, self.turns, self.at_once)
        if self.signatures:
            self._loaded: Any = engine.loaded if self.engine else load_graph(str(path))  # type: ignore[attr-defined]

    def __str__(self) -> str:
        counted = [(self.turns.workers, "worker")]
        if self.engine:
            counted.append((self.engine.batch_size, "sentence"))
        workers, *batch = [f"{count} {name}{'s' * (count > 1)}" for count, name in counted]
        return f"engine {self.kind}, {workers}" + "".join(f", at most {size} per batch" for size in batch)

    def warm_up(self) -> None:
        """Runs each signature, since its first call takes seconds."""
        for name, signature in self.signatures.items():
            needed = {port: signature.inputs[port] for port in signature.inputs if port not in signature.defaults}
            # A graph of another kind may reject what is made up here.
            with contextlib.suppress(ServingError):
                if needed:
                    self.predict(name, {port: made_up(info) for port, info in needed.items()})

    def find(self, name: str, version: int | str | None = None, label: str | None = None) -> None:
        """Raises `ServingError` unless a request names this model."""
        if label:
            raise ServingError("INVALID_ARGUMENT", f"Unrecognized servable version label: {shown(label)}")
        if name != self.name or str(version or self.version) != str(self.version):
            request = f"Specific({shown(name)}, {shown(version)})" if version else f"Latest({shown(name)})"
            raise ServingError("NOT_FOUND", f"Servable not found for request: {request}")

    def predict(self, signature_name: str, inputs: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        """Runs a signature, by default serving_default. Missing inputs take defaults."""
        name = signature_name or DEFAULT_SIGNATURE
        signature = self.signatures[name]
        missing = signature.inputs.keys() - inputs.keys() & signature.defaults.keys()
        defaults = {key: tf.constant(tf.make_ndarray(signature.defaults[key])) for key in missing}
        try:
            return self._run(name, {**inputs, **defaults})
        except tf.errors.OpError as error:
            code = next(code for code, number in vars(tf.errors).items() if number == error.error_code)
            raise ServingError(code, AROUND.sub("", error.message)) from error
        except (TypeError, ValueError) as error:  # Python checks ranks and dtypes before the graph does
            raise ServingError("INVALID_ARGUMENT", str(error)) from error

    def _run(self, name: str, inputs: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        """Runs a signature. Rows that do not depend on others share turns, with those of other requests as well."""
        graph, sizes = self._loaded.signatures[name], {tuple(value.shape) for value in inputs.values()} - {(1,)}
        count = next(iter(sizes), (1,))
        if not (self.engine and name in BY_ROW and len(sizes) < 2 and len(count) == 1 and count[0]):
            outputs = self.turns.take(functools.partial(graph, **inputs))
            return {port: value.numpy() for port, value in sorted(outputs.items())}
        columns = {port: np.broadcast_to(value.numpy(), count) for port, value in inputs.items()}
        texts = [port for port, value in inputs.items() if value.dtype == tf.string and port not in LANGUAGES]
        options = {tuple(row) for row in zip(*(columns[port] for port in columns if port not in texts), strict=True)}
        # All rows of a turn have equal options, since the widest beam of a batch decides what it costs.
        key = (name, *columns, *options) if len(options) < 2 else None
        lengths = [max(map(len, row)) for row in zip(*(columns[port] for port in texts), strict=True)]

        def run(rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
            called = dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))
            outputs = graph(**{port: tf.constant(called[port], inputs[port].dtype) for port in columns})
            values = {port: value.numpy() for port, value in sorted(outputs.items())}
            return [{port: value[i : i + 1] for port, value in values.items()} for i in range(len(rows))]

        rows = list(zip(*columns.values(), strict=True))
        values = self.turns.map(run, rows, lengths or [0] * len(rows), key=key, at_once=self.at_once)
        return {port: np.concatenate([row[port] for row in values]) for port in values[0]}


def stored_signatures(folder: Path) -> dict[str, Any]:
    """Returns the `SignatureDef`s of a SavedModel, by name."""
    file = folder / SAVED_MODEL_FILE
    with reading(file, "a SavedModel"):
        return dict(saved_model_pb2.SavedModel.FromString(file.read_bytes()).meta_graphs[0].signature_def)


def made_up(info: Any) -> Tensor:
    """Returns a value for an input: one row of "a" or 0."""
    shape = [max(dim.size, 1) for dim in info.tensor_shape.dim]
    dtype = tf.dtypes.as_dtype(info.dtype)
    return tf.fill(shape, "a") if dtype == tf.string else tf.zeros(shape, dtype)


def shown(value: Any) -> str:
    """Formats a value of a request for an error message, in one line of at most 256 characters."""
    return (value if isinstance(value, str) and value.isprintable() else json.dumps(value))[:256]
