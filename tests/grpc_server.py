"""A stand-in for TensorFlow Serving's gRPC API: Predict and GetModelMetadata of a `ServedModel`."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from tf_transformer.extensions.server.model import DEFAULT_SIGNATURE, ServedModel, ServingError

FIELDS = {tf.string: "string_val", tf.float32: "float_val", tf.int32: "int_val", tf.bool: "bool_val"}


class Services(prediction_service_pb2_grpc.PredictionServiceServicer):
    """The server's service for one model."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model

    def Predict(self, request: Any, context: grpc.ServicerContext) -> Any:
        with _errors(context):
            self._find(request.model_spec)
            inputs = {name: tf.constant(tf.make_ndarray(proto)) for name, proto in request.inputs.items()}
            outputs = self.model.predict(request.model_spec.signature_name, inputs)
            names = request.output_filter or outputs
            answer = predict_pb2.PredictResponse(outputs={name: _proto(outputs[name]) for name in names})
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

    def _find(self, spec: Any) -> None:
        self.model.find(spec.name, spec.version.value if spec.HasField("version") else None, spec.version_label)


@contextlib.contextmanager
def _errors(context: grpc.ServicerContext) -> Iterator[None]:
    """Errors as gRPC statuses."""
    try:
        yield
    except ServingError as error:
        context.abort(getattr(grpc.StatusCode, error.status, grpc.StatusCode.UNKNOWN), error.description)


def _proto(value: np.ndarray) -> Any:
    """A tensor whose values are in their typed field, as the server sends it."""
    dtype = tf.dtypes.as_dtype(value.dtype if value.dtype != object else tf.string)
    proto = tf.make_tensor_proto([], dtype, [0])
    proto.tensor_shape.CopyFrom(tf.TensorShape(value.shape).as_proto())
    getattr(proto, FIELDS[dtype]).extend(value.ravel().tolist())
    return proto


def serve(model: ServedModel) -> tuple[grpc.Server, int]:
    """Starts a server on a free port of the local address, and returns both."""
    server = grpc.server(ThreadPoolExecutor(8))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Services(model), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port
