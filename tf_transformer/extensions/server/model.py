"""The served model: an engine whose batches take turns, and signatures with TensorFlow Serving's rules for requests."""

import contextlib
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.inference.engine import UNUSED, Aligned, Engine, Hypothesis, Request, TranslationResult, strings_in
from tf_transformer.inference.loading import load
from tf_transformer.inference.savedmodel import load_graph
from tf_transformer.tokenizers.languages import LANGUAGES
from tf_transformer.utils.files import user_path
from tf_transformer.utils.folders import EXPORTS, SAVED_MODEL, is_version, newest
from tf_transformer.utils.reading import reading
from tf_transformer.utils.values import BadInput, Count

DEFAULT_SIGNATURE = "serving_default"
ROWS = 32  # rows of a request that a graph runs together
# TensorFlow's Python, unlike a server, adds these to the graph's error messages.
AROUND = re.compile(r"^Graph execution error:.*<stack traces unavailable>\n| \[Op:\w+\]\s*$", re.DOTALL)
TEXT, NUMBER, COUNT, FLAG = (tf.TensorSpec([None], dtype) for dtype in (tf.string, tf.float32, tf.int32, tf.bool))
Ports = dict[str, tf.TensorSpec]
# Whether the client of this thread's request has closed its connection.
client_left: ContextVar[Callable[[], bool]] = ContextVar("client_left", default=lambda: False)


class ServingError(Exception):
    """An error response: the name of a gRPC status, and the server's message, in its words if possible."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class ClientLeft(Exception):
    """The client of a request has closed its connection. The rest of its work is dropped."""


class Turns:
    """A lock that threads get in the order in which they asked, unlike `threading.Lock`.

    A request takes it for each batch, so that a long one does not hold the others. It raises `ClientLeft` if the
    client has left.
    """

    def __init__(self) -> None:
        self._lock, self._queue = threading.Lock(), deque[threading.Event]()

    def __enter__(self) -> None:
        mine = threading.Event()
        with self._lock:
            self._queue.append(mine)
            self._queue[0].set()
        mine.wait()
        if client_left.get()():
            self.__exit__()
            raise ClientLeft

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._queue.popleft()
            if self._queue:
                self._queue[0].set()


class InTurns(Engine):
    """An engine that takes a turn for each batch. Documents are parsed outside of the turns."""

    def __init__(self, engine: Engine, turns: Turns) -> None:
        self.engine, self.turns = engine, turns
        self.translates, self.aligns, self.batch_size = engine.translates, engine.aligns, engine.batch_size
        self.call_options, self.max_values, self.languages = engine.call_options, engine.max_values, engine.languages

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.engine.metadata

    @property
    def options(self) -> Mapping[str, Any]:
        return self.engine.options

    def request(self, n: Count | None, options: Mapping[str, Any]) -> Request:
        return self.engine.request(n, options)

    def replies(self, texts: Iterable[str | bytes], n: Count | None = None, **options: Any) -> list[TranslationResult]:
        # Engine's would draw each request's progress on the server's terminal.
        return self._in_batches(self._replies, list(strings_in(texts)), self.request(n, options))

    def _replies(self, texts: list[str | bytes], request: Request) -> list[TranslationResult]:
        with self.turns:
            return list(self.engine._replies(texts, request))

    def _aligned(self, texts: list[str | bytes], request: Request) -> list[Aligned]:
        with self.turns:
            return list(self.engine._aligned(texts, request))


class EngineSignatures:
    """Signatures serving_default, translate and model_info of the contract (savedmodels/README.md) for any engine.

    Options that the engine fixes, such as the beam size of a LiteRT export, are not inputs.
    """

    def __init__(self, engine: Engine, name: str, version: int) -> None:
        self._engine, self._beams = engine, engine.options.get("beam_size", 1)
        languages = LANGUAGES if engine.languages else ()
        known = {"languages": ", ".join(engine.languages)} if languages else {}
        values = {name: engine.options.get(name, SEARCH_OPTIONS[name].default) for name in engine.call_options}
        self._metadata = {**engine.metadata, **values, **known, "name": name, "version": version}
        kinds = {"float32": NUMBER, "int32": COUNT}
        options = {name: kinds[SEARCH_OPTIONS[name].dtype] for name in engine.call_options}
        best = {"translations": TEXT, "scores": NUMBER, "log_probs": NUMBER, "finished": FLAG, "lengths": COUNT}
        best = {name: tf.TensorSpec([None, self._beams], spec.dtype) for name, spec in best.items()}
        self._ports: dict[str, tuple[Ports, Ports]] = {  # inputs, of which texts are the first, and outputs
            DEFAULT_SIGNATURE: ({"text": TEXT}, {"translation": TEXT, "score": NUMBER, "truncated": FLAG}),
            "translate": (
                {"text": TEXT, **options, **dict.fromkeys(languages, TEXT)},
                {**best, "source_length": COUNT, "truncated": FLAG},
            ),
            "model_info": ({"key": TEXT}, {"value": TEXT}),
        }
        self.signatures = {name: signature_of(*ports) for name, ports in self._ports.items()}
        defaults = self.signatures["translate"].defaults
        for name, value in values.items():
            defaults[name].CopyFrom(tf.make_tensor_proto([value], options[name].dtype))
        for name in languages:
            defaults[name].CopyFrom(tf.make_tensor_proto([self._metadata.get(name, "")]))

    def __call__(self, name: str, inputs: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
        """Runs a signature. Raises `ValueError` if an input has the wrong shape or dtype."""
        expected, outputs = self._ports[name]
        for port, spec in expected.items():
            if not spec.is_compatible_with(inputs[port]):
                dtype, shape = inputs[port].dtype.name, inputs[port].shape
                raise ValueError(f"{port}: expected {spec.dtype.name} of the shape [batch], got {dtype} of {shape}")
        size = len(inputs[next(iter(expected))])
        for port, value in inputs.items():
            if len(value) not in (1, size):
                raise ValueError(f"{port}: expected a vector of length 1 or of the batch size {size}, got {len(value)}")
        columns = {port: np.broadcast_to(value.numpy(), [size]).tolist() for port, value in inputs.items()}
        if name == "model_info":
            values = [self._metadata.get(key.decode("utf-8", "replace"), "") for key in columns["key"]]
            rows = [{"value": str(value).encode()} for value in values]
        else:
            rows = self._translated(columns.pop("text"), self._beams if name == "translate" else None, columns)
        return {
            port: np.array([row[port] for row in rows], spec.dtype.as_numpy_dtype).reshape([size, *spec.shape[1:]])
            for port, spec in outputs.items()
        }

    def _translated(self, texts: list[bytes], n: int | None, options: dict[str, list[Any]]) -> list[dict[str, Any]]:
        groups: dict[tuple[Any, ...], list[int]] = {}  # rows with the same options
        for i in range(len(texts)):
            groups.setdefault(tuple(values[i] for values in options.values()), []).append(i)
        rows: dict[int, dict[str, Any]] = {}
        for values, indices in groups.items():
            replies = self._replies([texts[i] for i in indices], n, dict(zip(options, values, strict=True)))
            rows.update(zip(indices, map(self._row, replies), strict=True))
        return [rows[i] for i in range(len(texts))]

    def _replies(self, texts: list[bytes], n: int | None, options: dict[str, Any]) -> list[TranslationResult]:
        # As in a SavedModel, options out of range are clipped, NaN means the default, and an unknown language reads
        # nothing.
        languages = {name: options.pop(name).decode("utf-8", "replace") for name in LANGUAGES if name in options}
        if not set(languages.values()) <= set(self._engine.languages):
            return [TranslationResult(text, (Hypothesis("", 0.0, 0.0, False, 0),), 0, True) for text in texts]
        return self._engine.replies(texts, n, **self._engine.clipped(options), **languages)

    def _row(self, reply: TranslationResult) -> dict[str, Any]:
        rows = [(one.text.encode(), *one[1:]) for one in reply.hypotheses]
        rows += [(b"", UNUSED, UNUSED, False, 0)] * (self._beams - len(rows))
        names = ("translations", "scores", "log_probs", "finished", "lengths")
        best = dict(zip(names, zip(*rows, strict=True), strict=True))
        first = {"translation": rows[0][0], "score": reply.score, "truncated": reply.truncated}
        return {**best, **first, "source_length": reply.length}


def signature_of(inputs: Ports, outputs: Ports) -> Any:
    """Returns the `SignatureDef` that a SavedModel would have."""
    made = meta_graph_pb2.SignatureDef(method_name="tensorflow/serving/predict")
    for ports, specs in ((made.inputs, inputs), (made.outputs, outputs)):
        for name, spec in specs.items():
            ports[name].name, ports[name].dtype = f"{name}:0", spec.dtype.as_datatype_enum
            ports[name].tensor_shape.CopyFrom(spec.shape.as_proto())
    return made


class GraphSignatures:
    """Signatures of a SavedModel."""

    def __init__(self, loaded: Any, signatures: dict[str, Any], turns: Turns) -> None:
        self._loaded, self.signatures, self._turns = loaded, signatures, turns

    def __call__(self, name: str, inputs: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
        """Runs a signature. A translator's takes a turn for each `ROWS` rows, whose outputs do not depend on others."""
        sizes = {len(value) if value.shape.rank == 1 else 0 for value in inputs.values()} - {1}
        size = next(iter(sizes), 1)
        if "translate" not in self.signatures or len(sizes) > 1 or size <= ROWS:
            return self._run(name, inputs)
        starts = range(0, size, ROWS)
        parts = [
            {port: value if len(value) == 1 else value[start : start + ROWS] for port, value in inputs.items()}
            for start in starts
        ]
        outputs = [self._run(name, part) for part in parts]
        return {port: joined([output[port] for output in outputs]) for port in outputs[0]}

    def _run(self, name: str, inputs: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
        with self._turns:
            return {port: value.numpy() for port, value in self._loaded.signatures[name](**inputs).items()}


def joined(parts: list[np.ndarray]) -> np.ndarray:
    """Joins rows, padded as the contract pads them: with zeros and empty texts."""
    shape = (sum(map(len, parts)), *np.max([part.shape[1:] for part in parts], axis=0).astype(int))
    rows = np.full(shape, b"" if parts[0].dtype == object else 0, parts[0].dtype)
    start = 0
    for part in parts:
        rows[(slice(start, start + len(part)), *map(slice, part.shape[1:]))] = part
        start += len(part)
    return rows


class ServedModel:
    """A model under a name, by default that of its directory.

    Args:
        model: Path as in `tt.load`, or a translator. A SavedModel of another kind has only its signatures.
        name: Name in requests.
        opened: Function that opens a translator, such as `tt.load`.

    Attributes:
        engine: The translator, or `None`.
        signatures: `SignatureDef`s by name.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Engine,
        name: str | None = None,
        opened: Callable[[Any], Engine] = load,
    ) -> None:
        path, where = None, Path("model" if isinstance(model, Engine) else os.fspath(model))
        if not isinstance(model, Engine) and "://" not in os.fspath(model):
            path = newest(user_path(model), *EXPORTS)
            where = (path or user_path(model)).resolve()
        numbered = is_version(where.name)
        self.name = name or (where.parent if numbered else where).name or "model"
        self.version = int(where.name) if numbered else 1
        self.engine: InTurns | None = None
        turns, stored = Turns(), stored_signatures(path) if path and (path / SAVED_MODEL).is_file() else None
        if stored is None or {"translate", "model_info"} <= stored.keys():
            engine = model if isinstance(model, Engine) else opened(model)
            if not engine.translates:
                raise BadInput("serve: expected a translator, got a parser. Export it, and serve its SavedModel.")
            self.engine = InTurns(engine, turns)
        if stored is not None:
            loaded = self.engine.engine.loaded if self.engine else load_graph(str(path))  # type: ignore[attr-defined]
            self._export: Any = GraphSignatures(loaded, stored, turns)
        elif self.engine:
            self._export = EngineSignatures(self.engine, self.name, self.version)
        self.signatures = self._export.signatures

    def warm_up(self) -> None:
        """Runs each signature, since its first call takes seconds."""
        for name, signature in self.signatures.items():
            needed = {port: signature.inputs[port] for port in signature.inputs if port not in signature.defaults}
            # A graph of another kind may reject what is made up here.
            with contextlib.suppress(ServingError):
                if needed:
                    self.predict(name, {port: made_up(info) for port, info in needed.items()})

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
