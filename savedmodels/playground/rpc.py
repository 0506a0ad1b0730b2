"""TensorFlow Serving's gRPC API: Predict, GetModelMetadata and GetModelStatus. Needs tensorflow-serving-api."""

import contextlib
import math
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf.json_format import ParseDict
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from savedmodels.playground.model import DEFAULT_SIGNATURE, ServedModel, ServingError
from tf_transformer.config import BadInput

MOST_FILLED = 65_536  # values of a request's inputs beyond its bytes
FIELDS = {tf.string: "string_val", tf.float32: "float_val", tf.int32: "int_val", tf.bool: "bool_val"}


class Services(prediction_service_pb2_grpc.PredictionServiceServicer, model_service_pb2_grpc.ModelServiceServicer):
    """The server's two services for one model."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model

    def Predict(self, request: Any, context: grpc.ServicerContext) -> Any:
        with _errors(context):
            self._find(request.model_spec)
            outputs = self.model.predict(request.model_spec.signature_name, _tensors(request), request.output_filter)
            answer = predict_pb2.PredictResponse(outputs={name: _proto(value) for name, value in outputs.items()})
            answer.model_spec.name = self.model.name
            answer.model_spec.version.value = self.model.version
            answer.model_spec.signature_name = request.model_spec.signature_name or DEFAULT_SIGNATURE
            return answer

    def GetModelMetadata(self, request: Any, context: grpc.ServicerContext) -> Any:
        with _errors(context):
            self._find(request.model_spec)
            signatures = get_model_metadata_pb2.SignatureDefMap()
            for name, signature in self.model.signatures.items():
                signatures.signature_def[name].CopyFrom(signature)
                signatures.signature_def[name].ClearField("defaults")
            answer = get_model_metadata_pb2.GetModelMetadataResponse()
            answer.model_spec.name = self.model.name
            answer.model_spec.version.value = self.model.version
            answer.metadata["signature_def"].Pack(signatures)
            return answer

    def GetModelStatus(self, request: Any, context: grpc.ServicerContext) -> Any:
        spec = request.model_spec
        with _errors(context):
            status = self.model.status(spec.name, spec.version.value if spec.HasField("version") else None)
            return ParseDict(status, get_model_status_pb2.GetModelStatusResponse())

    def _find(self, spec: Any) -> None:
        self.model.find(spec.name, spec.version.value if spec.HasField("version") else None, spec.version_label)


class _Said(grpc.ServerInterceptor):
    """Says each request on standard error."""

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        print("gRPC", handler_call_details.method, file=sys.stderr, flush=True)
        return continuation(handler_call_details)


@contextlib.contextmanager
def _errors(context: grpc.ServicerContext) -> Iterator[None]:
    """Errors as gRPC statuses."""
    try:
        yield
    except ServingError as error:
        context.abort(getattr(grpc.StatusCode, error.code, grpc.StatusCode.UNKNOWN), error.message)


def _tensors(request: Any) -> dict[str, tf.Tensor]:
    """Returns the inputs of a Predict request.

    Raises:
        ServingError: If an input is damaged, or claims a shape that is much larger than the request.
    """
    shapes = [[dim.size for dim in proto.tensor_shape.dim] for proto in request.inputs.values()]
    # TensorFlow fills a tensor with its last value, so that a few bytes can claim all memory.
    claimed, most = sum(map(math.prod, shapes)), request.ByteSize() + MOST_FILLED
    if claimed > most or any(size < 0 for shape in shapes for size in shape):
        message = f"inputs: expected shapes of at most {most:,} values, the bytes of the request and {MOST_FILLED:,}"
        raise ServingError("INVALID_ARGUMENT", f"{message}, got {claimed:,}")
    try:
        return {name: tf.constant(tf.make_ndarray(proto)) for name, proto in request.inputs.items()}
    except (TypeError, ValueError) as error:
        raise ServingError("INVALID_ARGUMENT", f"inputs: expected tensors, got others: {error}") from error


def _proto(value: np.ndarray) -> Any:
    """A tensor whose values are in their typed field, as the server sends it."""
    dtype = tf.dtypes.as_dtype(value.dtype if value.dtype != object else tf.string)
    proto = tf.make_tensor_proto([], dtype, [0])
    proto.tensor_shape.CopyFrom(tf.TensorShape(value.shape).as_proto())
    getattr(proto, FIELDS[dtype]).extend(value.ravel().tolist())
    return proto


def serve(model: ServedModel, port: int, verbose: bool = False) -> tuple[grpc.Server, int]:
    """Start a server on the local address, and return it with its port."""
    said = [_Said()] if verbose else []
    server = grpc.server(ThreadPoolExecutor(8), interceptors=said, options=[("grpc.so_reuseport", 0)])
    services = Services(model)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(services, server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(services, server)
    try:
        port = server.add_insecure_port(f"127.0.0.1:{port}")
    except RuntimeError as error:
        raise BadInput(f"--grpc-port: expected a free port, got {port}: {error}") from error
    server.start()
    return server, port
