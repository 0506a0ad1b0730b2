"""Loads a SavedModel as TensorFlow Serving does: by its C++ loader and session, through TensorFlow's C API.

`tf.saved_model.load` restores differently, and loads models that the server cannot load. Here, as in the server,
TensorFlow's Python is absent, XLA is off, tensorflow-text has only the tokenizer's op, and only the graph checks shapes
and dtypes. The libraries are those of the installed packages.

Run as a file, or imported as `loader` with its directory on the path, it does not import this package, which would
bring in Python's TensorFlow:

    python tf_transformer/extensions/conformance/loader.py savedmodels/demo/1 "Two doors." "The red door."
"""

import ctypes
import functools
import importlib.util
import re
import struct
import sys
from collections.abc import Iterator
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# NumPy imports it on first use, which crashes once TensorFlow's libraries are loaded.
import numpy.random
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

TEXT_OPS = ("_sentencepiece_tokenizer.so",)
STRING = 7  # TensorFlow's number of the data type
DTYPES = {  # the other numbers
    **{1: np.float32, 2: np.float64, 3: np.int32, 4: np.uint8, 5: np.int16, 6: np.int8, 9: np.int64},
    **{10: np.bool_, 17: np.uint16, 19: np.float16, 22: np.uint32, 23: np.uint64},
}
NUMBERS = {np.dtype(dtype): number for number, dtype in DTYPES.items()} | {np.dtype(object): STRING}
STRING_SIZE = 24  # bytes of a TF_TString


class SessionError(RuntimeError):
    """An error of TensorFlow. `code` is gRPC's number, such as 3 for INVALID_ARGUMENT and 5 for NOT_FOUND."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"code {code}: {message}")
        self.code = code


class Port(NamedTuple):
    """An input or output of a signature."""

    tensor: str  # name in the graph, such as "serving_default_text:0"
    dtype: Any  # NumPy's, `object` for strings, `None` if it is not a dense tensor
    shape: tuple[Any, ...] | None  # `None` for sizes that are not fixed, and for an unknown rank


class Signature(NamedTuple):
    """A function of a SavedModel."""

    inputs: dict[str, Port]
    outputs: dict[str, Port]
    defaults: dict[str, np.ndarray]  # values of optional inputs


class Servable:
    """A SavedModel in a session. Any number of threads may use it at once.

    `text_ops` are op libraries of tensorflow-text to load, once per process.
    """

    def __init__(self, path: str | Path, text_ops: Any = TEXT_OPS) -> None:
        if not (Path(path) / "saved_model.pb").is_file():
            raise FileNotFoundError(f"expected the directory of a SavedModel, found no saved_model.pb in {path}")
        self._c = c = _library(tuple(text_ops))
        self.version = c.TF_Version().decode()
        options, buffer = c.TF_NewSessionOptions(), c.TF_NewBuffer()
        self._graph = c.TF_NewGraph()
        try:
            self._session = c.call(
                "TF_LoadSessionFromSavedModel",
                *(options, None, str(path).encode(), (c_char_p * 1)(b"serve"), 1, self._graph, buffer),
            )
            content = ctypes.cast(buffer, POINTER(_Buffer)).contents
            meta_graph = ctypes.string_at(content.data, content.length)
        except SessionError:
            c.TF_DeleteGraph(self._graph)
            raise
        finally:
            c.TF_DeleteSessionOptions(options)
            c.TF_DeleteBuffer(buffer)
        self.signatures = _signatures(c, meta_graph)

    def predict(
        self, inputs: dict[str, Any], signature: str = "serving_default", outputs: Any = None
    ) -> dict[str, np.ndarray]:
        """Returns the outputs of a signature, all or some, by name: arrays, whose strings are `bytes`.

        Inputs are arrays, which keep their dtype, or lists, which take the signature's. Those with a default may be
        omitted. Raises `KeyError` where the server checks names itself, and `SessionError` if the session fails.
        """
        if signature not in self.signatures:
            raise KeyError(f"signature: expected one of {', '.join(self.signatures)}; got {signature!r}")
        ports = self.signatures[signature]
        names = list(ports.outputs if outputs is None else outputs)
        for kind, requested, known in (("input", inputs, ports.inputs), ("output", names, ports.outputs)):
            for name in requested:
                if name not in known:
                    raise KeyError(f"{kind}s of {signature}: expected {', '.join(known)}; got {name!r}")
        inputs = ports.defaults | inputs  # the server also feeds defaults
        for name in ports.inputs:
            if name not in inputs:
                raise KeyError(f"inputs of {signature}: expected {', '.join(ports.inputs)}; {name!r} is missing")
        feeds = (_Output * len(inputs))(*(self._output(ports.inputs[name].tensor) for name in inputs))
        fetches = (_Output * len(names))(*(self._output(ports.outputs[name].tensor) for name in names))
        values: list[int] = []
        results = (c_void_p * len(names))()
        try:
            for name, value in inputs.items():
                array = value if isinstance(value, np.ndarray) else np.array(value, ports.inputs[name].dtype)
                values.append(_tensor(self._c, array.astype(object) if array.dtype.kind in "SU" else array))
            fed = feeds, (c_void_p * len(values))(*values), len(values)
            self._c.call("TF_SessionRun", self._session, None, *fed, fetches, results, len(names), None, 0, None)
            return {name: _array_of(self._c, result) for name, result in zip(names, results, strict=True)}
        finally:
            for tensor in [*results, *values]:
                if tensor:
                    self._c.TF_DeleteTensor(tensor)

    def close(self) -> None:
        """Frees the session and its variables. `predict` does not work afterwards."""
        if self._session:
            session, self._session = self._session, None
            self._c.call("TF_CloseSession", session)
            self._c.call("TF_DeleteSession", session)
            self._c.TF_DeleteGraph(self._graph)

    def _output(self, tensor: str) -> "_Output":
        name, _, index = tensor.partition(":")
        if operation := self._c.TF_GraphOperationByName(self._graph, name.encode()):
            return _Output(operation, int(index or 0))
        raise SessionError(5, f"the graph has no tensor {tensor!r}")


class _Output(ctypes.Structure):  # TF_Output
    _fields_ = [("operation", c_void_p), ("index", c_int)]


class _Buffer(ctypes.Structure):  # TF_Buffer
    _fields_ = [("data", c_void_p), ("length", c_size_t), ("deallocator", c_void_p)]


# Result and arguments. The last argument of functions for `call` is a TF_Status.
P, S, N, L, Z = c_void_p, c_char_p, c_int, c_int64, c_size_t  # any pointer, a string, and integers of three sizes
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "TF_Version": (S,),
    "TF_Message": (S, P),
    **{f"TF_New{name}": (P,) for name in ("Status", "Buffer", "Graph", "SessionOptions")},
    **{f"TF_Delete{name}": (None, P) for name in ("Status", "Buffer", "Graph", "SessionOptions", "Tensor")},
    **dict.fromkeys(("TF_GetCode", "TF_TensorType", "TF_NumDims"), (N, P)),
    "TF_NewBufferFromString": (P, S, Z),
    "TF_LoadLibrary": (P, S, P),
    "TF_GraphOperationByName": (P, P, S),
    "TF_LoadSessionFromSavedModel": (P, P, P, S, P, N, P, P, P),
    "TF_SessionRun": (None, P, P, P, P, N, P, P, N, P, N, P, P),
    **dict.fromkeys(("TF_CloseSession", "TF_DeleteSession"), (None, P, P)),
    "TF_AllocateTensor": (P, N, P, N, Z),
    "TF_TensorFromProto": (None, P, P, P),
    "TF_Dim": (L, P, N),
    "TF_TensorData": (P, P),
    "TF_StringInit": (None, P),
    "TF_StringCopy": (None, P, S, Z),
    "TF_StringGetDataPointer": (P, P),
    "TF_StringGetSize": (Z, P),
}


class _Library:
    """TensorFlow's C functions as attributes."""

    def __init__(self) -> None:
        if "tensorflow" in sys.modules:
            raise RuntimeError("expected a separate process: Python's TensorFlow is already in this one")
        folder = _package("tensorflow")
        suffix = ".2.dylib" if sys.platform == "darwin" else ".so.2"
        # Global, since op libraries look up TensorFlow's functions. The framework first, since the other needs it.
        libraries = [
            ctypes.CDLL(str(_existing(folder / f"libtensorflow_{name}{suffix}")), mode=ctypes.RTLD_GLOBAL)
            for name in ("framework", "cc")
        ]
        for name, (result, *arguments) in FUNCTIONS.items():
            function = next(getattr(library, name) for library in reversed(libraries) if hasattr(library, name))
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        libraries[1]._ZN10tensorflow21DisableXlaCompilationEv()  # the server's default

    def __getattr__(self, name: str) -> Any:  # for type checkers, which do not see the functions above
        raise AttributeError(name)

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls a function whose last argument is a status, and raises `SessionError` if the status is an error."""
        status = self.TF_NewStatus()
        try:
            result = getattr(self, name)(*arguments, status)
            if code := self.TF_GetCode(status):
                raise SessionError(code, self.TF_Message(status).decode("utf-8", "replace"))
            return result
        finally:
            self.TF_DeleteStatus(status)


@functools.cache
def _library(text_ops: tuple[str, ...]) -> _Library:
    """Returns TensorFlow with these op libraries."""
    library = _Library()
    for file in text_ops:
        library.call("TF_LoadLibrary", str(_existing(_package("tensorflow_text") / "python" / "ops" / file)).encode())
    return library


def _package(name: str) -> Path:
    """Returns the directory of an installed package without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        name = name.replace("_", "-")
        raise FileNotFoundError(f"expected the libraries of the package {name}, which is not installed")
    return Path(spec.origin).parent


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"expected TensorFlow's library {path.name}, found none in {path.parent}")
    return path


def _tensor(c: _Library, array: np.ndarray) -> int:
    """Copies an array to a TF_Tensor. The caller deletes it, which also frees its strings."""
    if array.dtype not in NUMBERS:
        raise TypeError(f"expected numbers or strings, got an array of {array.dtype}")
    number = NUMBERS[array.dtype]
    texts = [text.encode() if isinstance(text, str) else bytes(text) for text in array.flat] if number == STRING else []
    size = STRING_SIZE * len(texts) if number == STRING else array.nbytes
    pointer = c.TF_AllocateTensor(number, (c_int64 * array.ndim)(*array.shape), array.ndim, size)
    data = c.TF_TensorData(pointer)
    if number != STRING:
        # A name, since an address does not keep a copy's memory.
        contiguous = np.ascontiguousarray(array)
        ctypes.memmove(data, contiguous.ctypes.data, size)
    for i, text in enumerate(texts):
        c.TF_StringInit(data + STRING_SIZE * i)
        c.TF_StringCopy(data + STRING_SIZE * i, text, len(text))
    return pointer


def _array_of(c: _Library, pointer: Any) -> np.ndarray:
    """Copies a TF_Tensor to an array."""
    shape = tuple(c.TF_Dim(pointer, axis) for axis in range(c.TF_NumDims(pointer)))
    number, data = c.TF_TensorType(pointer), c.TF_TensorData(pointer)
    if number == STRING:
        array = np.empty(shape, object)
        for i in range(array.size):
            cell = data + STRING_SIZE * i
            array.flat[i] = ctypes.string_at(c.TF_StringGetDataPointer(cell), c.TF_StringGetSize(cell))
        return array
    if number not in DTYPES:
        raise TypeError(f"expected numbers or strings, got a tensor of data type {number}")
    array = np.empty(shape, DTYPES[number])
    if array.size:
        ctypes.memmove(array.ctypes.data, data, array.nbytes)
    return array


def _tensor_of(c: _Library, proto: bytes) -> np.ndarray:
    """Returns the values of a serialized `TensorProto`."""
    # `TF_TensorFromProto` overwrites a tensor, here one bool.
    buffer, tensor = c.TF_NewBufferFromString(proto, len(proto)), c.TF_AllocateTensor(10, (c_int64 * 0)(), 0, 1)
    try:
        c.call("TF_TensorFromProto", buffer, tensor)
        return _array_of(c, tensor)
    finally:
        c.TF_DeleteTensor(tensor)
        c.TF_DeleteBuffer(buffer)


# The fields that are read here. The Python classes of these messages are in TensorFlow's Python, which must not be
# loaded here, and in the package tensorflow-serving-api, which exporting should not need. Maps are lists of entries.
FIELDS = {
    "Dim": "size:1 INT64",
    "Shape": "dim:2 Dim*, unknown_rank:3 BOOL",
    "TensorInfo": "name:1 STRING, dtype:2 INT32, tensor_shape:3 Shape",
    "Port": "key:1 STRING, value:2 TensorInfo",
    "Tensor": "key:1 STRING, value:2 BYTES",
    "SignatureDef": "inputs:1 Port*, outputs:2 Port*, defaults:4 Tensor*",
    "Signature": "key:1 STRING, value:2 SignatureDef",
    "MetaGraphDef": "signature_def:5 Signature*",
    "ModelSpec": "signature_name:3 STRING",
    "PredictRequest": "model_spec:1 ModelSpec, inputs:2 Tensor*",
    "PredictLog": "request:1 PredictRequest",
    "PredictionLog": "predict_log:6 PredictLog",
}


@functools.cache
def _message(name: str) -> Any:
    """Returns protobuf's class of a message in `FIELDS`."""
    file, field = descriptor_pb2.FileDescriptorProto(name="loader.proto"), descriptor_pb2.FieldDescriptorProto
    for kind, fields in FIELDS.items():
        message = file.message_type.add(name=kind)
        for key, number, of, star in re.findall(r"(\w+):(\d) (\w+)(\*?)", fields):
            label = field.LABEL_REPEATED if star else field.LABEL_OPTIONAL
            options = {"type_name": of} if of in FIELDS else {"type": field.Type.Value(f"TYPE_{of}")}
            message.field.add(name=key, number=int(number), label=label, **options)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def warmup_requests(path: str | Path) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yields signature and inputs of each record in assets.extra/tf_serving_warmup_requests."""
    file = Path(path) / "assets.extra" / "tf_serving_warmup_requests"
    c, content, position = _library(TEXT_OPS), file.read_bytes(), 0
    while position < len(content):
        (length,) = struct.unpack_from("<Q", content, position)
        # Before a record are its length and the length's checksum, after it the record's checksum.
        record, position = content[position + 12 : position + 12 + length], position + 12 + length + 4
        request = _message("PredictionLog").FromString(record).predict_log.request
        yield request.model_spec.signature_name, {entry.key: _tensor_of(c, entry.value) for entry in request.inputs}


def _signatures(c: _Library, meta_graph: bytes) -> dict[str, Signature]:
    signatures = {}
    for entry in _message("MetaGraphDef").FromString(meta_graph).signature_def:
        inputs, outputs = (
            {port.key: _port(port.value) for port in ports} for ports in (entry.value.inputs, entry.value.outputs)
        )
        defaults = {default.key: _tensor_of(c, default.value) for default in entry.value.defaults}
        if not entry.key.startswith("__"):  # TensorFlow's own
            signatures[entry.key] = Signature(inputs, outputs, defaults)
    return signatures


def _port(info: Any) -> Port:
    """Reads a `TensorInfo`."""
    shape = tuple(None if dim.size < 0 else dim.size for dim in info.tensor_shape.dim)
    dtype = object if info.dtype == STRING else DTYPES.get(info.dtype)
    return Port(info.name, dtype, None if info.tensor_shape.unknown_rank else shape)


def main() -> None:
    path, *texts = sys.argv[1:] or sys.exit(__doc__)
    servable = Servable(path)
    for name, signature in servable.signatures.items():
        print(f"{name}: {', '.join(signature.inputs)} -> {', '.join(signature.outputs)}")
    if texts:
        outputs = servable.predict({"text": texts})
        for row, text in enumerate(texts):
            print(text)
            for name, values in outputs.items():
                value = values[row]
                print(f"  {name}={value.decode() if isinstance(value, bytes) else value}")


if __name__ == "__main__":
    main()
