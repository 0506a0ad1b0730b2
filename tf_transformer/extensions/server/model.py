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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from werkzeug.exceptions import BadRequest, HTTPException, TooManyRequests

from tf_transformer.inference.engine import Engine, Request, TranslationResult, batches, strings_in
from tf_transformer.inference.loading import load
from tf_transformer.inference.savedmodel import load_graph
from tf_transformer.inference.words import Aligned
from tf_transformer.utils.files import encoded, user_path
from tf_transformer.utils.folders import EXPORTS, SAVED_MODEL, is_version, newest
from tf_transformer.utils.reading import reading
from tf_transformer.utils.values import BadInput, Count

DEFAULT_SIGNATURE = "serving_default"
# Signatures of a translator of which a graph runs so many rows together.
BY_ROW, ROWS = (DEFAULT_SIGNATURE, "translate", "translate_details", "complete", "score"), 32
TURN = 4_096  # bytes of a turn: rows times the longest. Those of 32 sentences, since a long text takes as long as many
# TensorFlow's Python, unlike a server, adds these to the graph's error messages.
AROUND = re.compile(r"^Graph execution error:.*<stack traces unavailable>\n| \[Op:\w+\]\s*$", re.DOTALL)
MINUTE = 60.0  # seconds
HTTP = {"INVALID_ARGUMENT": 400, "FAILED_PRECONDITION": 400, "NOT_FOUND": 404, "RESOURCE_EXHAUSTED": 429}
T = TypeVar("T")
# Whether the client of this thread's request has closed its connection.
client_left: ContextVar[Callable[[], bool]] = ContextVar("client_left", default=lambda: False)


class ServingError(HTTPException):
    """An error response: the name of a gRPC status, and the server's message, in its words if possible."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, HTTP.get(status, 500)


class ClientLeft(HTTPException):
    """The client of a request has closed its connection. The rest of its work is dropped."""

    code, description = 499, "the client has left"  # nginx's status for it, which only the log shows


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


class Turns:
    """Runs batches one by one, in the order in which threads asked, so that a long request does not hold the others."""

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(1)

    def take(self, work: Callable[[], T]) -> T:
        """Returns the result of `work`. Raises `ClientLeft` if the client has left before its turn."""
        left = client_left.get()

        def turn() -> T:
            if left():
                raise ClientLeft
            return work()

        return self._worker.submit(turn).result()


def turns(sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yields the indices of at most `most` texts, by size in bytes, that run together. See `TURN`."""
    return batches(sizes, most, lambda rows, longest: max(rows, -(-rows * longest * most // TURN)))


class InTurns(Engine):
    """An engine that takes a turn for each batch. Documents are parsed outside of the turns."""

    def __init__(self, engine: Engine, turns: Turns) -> None:
        self.engine, self.turns = engine, turns
        self.translates, self.aligns, self.batch_size = engine.translates, engine.aligns, engine.batch_size
        self.call_options, self.max_values, self.languages = engine.call_options, engine.max_values, engine.languages

    metadata = property(lambda self: self.engine.metadata)
    options = property(lambda self: self.engine.options)

    def request(self, n: Count | None, options: Mapping[str, Any]) -> Request:
        return self.engine.request(n, options)

    def replies(self, texts: Iterable[str | bytes], n: Count | None = None, **options: Any) -> list[TranslationResult]:
        # Engine's would draw each request's progress on the server's terminal.
        return self._in_batches(self._replies, list(strings_in(texts)), self.request(n, options))

    def _in_batches(self, function: Any, texts: list[str | bytes], request: Request, *progress: Any) -> list[Any]:
        """Like an engine's, in batches that are bounded in bytes as well."""
        values = dict[int, Any]()
        for rows in turns([len(encoded(text)) for text in texts], self.batch_size):
            values.update(zip(rows, function([texts[i] for i in rows], request), strict=True))
        return [values[i] for i in range(len(texts))]

    def _replies(self, texts: list[str | bytes], request: Request) -> list[TranslationResult]:
        return self.turns.take(lambda: list(self.engine._replies(texts, request)))

    def _aligned(self, texts: list[str | bytes], request: Request) -> list[Aligned]:
        return self.turns.take(lambda: list(self.engine._aligned(texts, request)))


class ServedModel:
    """A model under a name, by default that of its directory.

    Args:
        model: Path as in `tt.load`, or a translator. A SavedModel of another kind has only its signatures.
        name: Name in requests.
        opened: Function that opens a translator, such as `tt.load`.

    Attributes:
        engine: The translator, or `None`.
        signatures: `SignatureDef`s by name, of a SavedModel.
    """

    def __init__(
        self, model: str | os.PathLike[str] | Engine, name: str | None = None, opened: Callable[[Any], Engine] = load
    ) -> None:
        path, where = None, Path("model" if isinstance(model, Engine) else os.fspath(model))
        if not isinstance(model, Engine) and "://" not in os.fspath(model):
            path = newest(user_path(model), *EXPORTS)
            where = (path or user_path(model)).resolve()
        numbered = is_version(where.name)
        self.name = name or (where.parent if numbered else where).name or "model"
        self.version = int(where.name) if numbered else 1
        self.signatures = stored_signatures(path) if path and (path / SAVED_MODEL).is_file() else {}
        self.engine, self._turns = None, Turns()
        if not self.signatures or {"translate", "model_info"} <= self.signatures.keys():
            engine = model if isinstance(model, Engine) else opened(model)
            if not engine.translates:
                raise BadInput("serve: expected a translator, got a parser. Export it, and serve its SavedModel.")
            self.engine = InTurns(engine, self._turns)
        if self.signatures:
            self._loaded: Any = engine.loaded if self.engine else load_graph(str(path))  # type: ignore[attr-defined]

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

    def predict(self, signature_name: str, inputs: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
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

    def _run(self, name: str, inputs: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
        """Runs a signature. Rows that do not depend on others take a turn for each `ROWS` of them, or `TURN` bytes."""
        sizes = {len(value) if value.shape.rank == 1 else 0 for value in inputs.values()} - {1}
        size = max(sizes, default=1) if self.engine and name in BY_ROW and len(sizes) == 1 else 1
        graph = self._loaded.signatures[name]
        texts = [value for value in inputs.values() if size > 1 and value.dtype == tf.string and len(value) == size]
        lengths = tf.reduce_max([tf.strings.length(value) for value in texts], axis=0).numpy().tolist() if texts else []
        parts = list(turns(lengths, ROWS))
        if len(parts) < 2:
            outputs = self._turns.take(functools.partial(graph, **inputs))
            return {port: value.numpy() for port, value in sorted(outputs.items())}
        taken = list[Mapping[str, tf.Tensor]]()
        for rows in parts:
            part = {port: value if len(value) == 1 else tf.gather(value, rows) for port, value in inputs.items()}
            taken.append(self._turns.take(functools.partial(graph, **part)))
        order = np.argsort(np.concatenate(parts))
        return {port: np.concatenate([output[port] for output in taken])[order] for port in sorted(taken[0])}


def stored_signatures(folder: Path) -> dict[str, Any]:
    """Returns the `SignatureDef`s of a SavedModel, by name."""
    file = folder / SAVED_MODEL
    with reading(file, "a SavedModel"):
        return dict(saved_model_pb2.SavedModel.FromString(file.read_bytes()).meta_graphs[0].signature_def)


def made_up(info: Any) -> tf.Tensor:
    """Returns a value for an input: one row of "a" or 0."""
    shape = [max(dim.size, 1) for dim in info.tensor_shape.dim]
    dtype = tf.dtypes.as_dtype(info.dtype)
    return tf.fill(shape, "a") if dtype == tf.string else tf.zeros(shape, dtype)


def shown(value: Any) -> str:
    """Formats a value of a request for an error message, in one line of at most 256 characters."""
    return (value if isinstance(value, str) and value.isprintable() else json.dumps(value))[:256]
