"""TensorFlow Serving's REST API in JSON, and the page that uses it.

Requests and responses follow the server's json_tensor.cc and http_rest_api_handler.cc. What the server would reject
is a one-line error here: what was expected, and what arrived.
"""

import base64
import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from flask import Blueprint, Response, abort, render_template, request

from tf_transformer.decoding.search_options import options_of
from tf_transformer.extensions import documents
from tf_transformer.extensions.documents.marked import Marked, sentences_in
from tf_transformer.extensions.server.model import DEFAULT_SIGNATURE, Limits, ServedModel, shown
from tf_transformer.inference.engine import Engine
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.type_names import Tensor

if TYPE_CHECKING:
    import tensorflow as tf
    from google.protobuf import json_format
else:  # Only SavedModels take them.
    tf = lazily("tensorflow", "a SavedModel")
    json_format = lazily("google.protobuf.json_format", "a SavedModel")

# The page contains its style and script, and connects only to this server.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


def routes(model: ServedModel, limits: Limits) -> Blueprint:
    """Returns the addresses of the page at /, of its requests at /document, and of the API under /v1/."""
    api = Blueprint("predict", __name__)

    def predict(name: str, **version: str) -> dict[str, Any]:
        model.find(name, **version)
        if not model.signatures:
            message = "expected a SavedModel, which tf-transformer export writes, got another model. POST to /translate"
            abort(404, message)
        content = parsed(request.get_data())
        if not isinstance(content, dict) or len(content.keys() & {"instances", "inputs"}) != 1:
            abort(400, f"expected an object with either instances or inputs, got {shown(content)}")
        signature_name, inputs = read_request(model, content, limits)
        outputs = {name: json_value(name, value) for name, value in model.predict(signature_name, inputs).items()}
        if "inputs" in content:
            return {"outputs": outputs if len(outputs) > 1 else next(iter(outputs.values()))}
        rows = [dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)]
        return {"predictions": rows if len(outputs) > 1 else next(iter(outputs.values()))}

    def status(name: str, **version: str) -> dict[str, Any]:
        model.find(name, **version)
        state = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        return {"model_version_status": [{"version": str(model.version), **state}]}

    def metadata(name: str, **version: str) -> dict[str, Any]:
        """Returns the response of GetModelMetadata. Like the server, it omits the defaults of inputs."""
        model.find(name, **version)
        options = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
        signatures = {
            name: json_format.MessageToDict(signature, **options) for name, signature in model.signatures.items()
        }
        for signature in signatures.values():
            signature.pop("defaults", None)
        spec = {"name": model.name, "signature_name": "", "version": str(model.version)}
        return {"model_spec": spec, "metadata": {"signature_def": {"signature_def": signatures}}}

    for version in ("", "/versions/<named:version>", "/labels/<named:label>"):
        path = f"/v1/models/<named:name>{version}"
        api.post(f"{path}:predict")(predict)
        api.get(path)(status)
        api.get(f"{path}/metadata")(metadata)

    @api.get("/")
    def page() -> Response:
        engine = translator_of(model)
        options = [options_of("request")[name] for name in engine.call_options if name in options_of("request")]
        html = render_template("page.html", model=model, engine=engine, options=options)
        return Response(html, headers={"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"})

    @api.post("/document")
    def document() -> Any:
        engine = translator_of(model)
        body = parsed(request.get_data())
        if not isinstance(body, dict) or not isinstance(body.get("text"), str):
            abort(400, f"expected an object with a text and options, got {shown(body)}")
        limits.check([body["text"]])
        try:
            return translated(engine, body.pop("text"), body)
        except TypeError as error:  # an unknown option
            abort(400, str(error))

    return api


def translator_of(model: ServedModel) -> Engine:
    """Returns a model's translator, or raises the error of `refuse`."""
    return model.engine or refuse(model)


def refuse(model: ServedModel) -> NoReturn:
    """Raises the error of a model that is no translator, with the address that serves it."""
    got = f"got another SavedModel. POST to /v1/models/{model.name}:predict"
    abort(404, f"{request.path}: expected a translator, {got}")


def translated(engine: Engine, text: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Translates a plain text like `documents.translate`. Returns its sentences and the text between them."""
    language = options.get("source_language", engine.metadata.get("source_language", ""))
    marked = Marked(text).with_placeholders()
    spans = marked.sentences(sentences_in(str(language)))
    sources = [text[start:end] for start, end in spans]
    translations = documents.translate(engine, sources, sentences=lambda line: [line], **options)
    return {"sources": sources, "translations": translations, "between": marked.between(spans, translations)}


def read_request(model: ServedModel, content: Mapping[str, Any], limits: Limits) -> tuple[str, dict[str, Tensor]]:
    """Converts JSON to a signature's name and tensors by name."""
    name = content.get("signature_name") or DEFAULT_SIGNATURE
    known = sorted(each for each, signature in model.signatures.items() if signature.inputs)  # not TensorFlow's own
    if name not in known:
        abort(400, f"signature_name: expected one of {', '.join(known)}, got {shown(name)}")
    dtypes = {key: tf.dtypes.as_dtype(info.dtype) for key, info in sorted(model.signatures[name].inputs.items())}
    if "inputs" in content:
        values = _named("inputs", content["inputs"], dtypes)
    else:
        if not isinstance(content["instances"], list) or not content["instances"]:
            abort(400, f"instances: expected a list of rows, got {shown(content['instances'])}")
        rows = [_named(f"instances[{i}]", row, dtypes) for i, row in enumerate(content["instances"])]
        values = {key: [row[key] for row in rows] for key in dtypes}
    inputs = {key: _tensor(key, values[key], dtype) for key, dtype in dtypes.items()}
    for value in inputs.values():
        if value.dtype == tf.string:
            limits.check([text.decode("utf-8", "replace") for text in tf.reshape(value, [-1]).numpy()])
    return name, inputs


def parsed(body: bytes) -> Any:
    """Returns the JSON of a body."""
    try:
        # Like TensorFlow Serving, pass through bytes that are not UTF-8.
        return json.loads(body.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        abort(400, f"expected JSON, got something else: {error}")


def _named(label: str, value: Any, names: Collection[str]) -> dict[str, Any]:
    """Returns {input: value}. A bare value is that of a single input."""
    named = value if isinstance(value, dict) and not _is_base64(value) else dict.fromkeys(list(names)[:1], value)
    if named.keys() != set(names):
        abort(400, f"{label}: expected values for {', '.join(names)}, got {shown(value)}")
    return named


def _tensor(label: str, value: Any, dtype: Any) -> Tensor:
    try:
        np.array(value, dtype.as_numpy_dtype)  # Unlike TensorFlow, it raises an error for numbers out of range.
        return tf.constant(_decoded(value), dtype)
    except (TypeError, ValueError, OverflowError):
        abort(400, f"{label}: expected {dtype.name} in lists of one shape, got {shown(value)}")


def _decoded(value: Any, depth: int = 0) -> Any:
    """Replaces texts, and bytes in base64, by bytes."""
    if depth > 64:  # More than 254 dimensions would end TensorFlow's process.
        raise ValueError
    if isinstance(value, list):
        return [_decoded(each, depth + 1) for each in value]
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return base64.b64decode(value["b64"], validate=True) if _is_base64(value) else value


def _is_base64(item: Any) -> bool:
    return isinstance(item, dict) and list(item) == ["b64"] and isinstance(item["b64"], str)


def json_value(name: str, value: np.ndarray) -> Any:
    """Converts an output to lists for JSON. Like the server, it writes NaN and Infinity, which are no strict JSON."""
    if value.dtype == object and value.size:
        as_bytes = name.endswith("_bytes")
        coded = np.vectorize(lambda item: {"b64": base64.b64encode(item).decode()} if as_bytes else item.decode(), "O")
        try:
            return coded(value).tolist()
        except UnicodeDecodeError as error:
            action = "Rename it to end in _bytes, which are sent in base64, or use gRPC"
            abort(400, f"{name}: expected an output in UTF-8, got other bytes: {error}. {action}")
    if value.dtype != object and value.dtype.kind not in "biuf":
        value = _real(name, value)
    # 0.6, not 0.6000000238418579
    return value.astype(str).astype(float).tolist() if value.dtype == np.float32 else value.tolist()


def _real(name: str, value: np.ndarray) -> np.ndarray:
    """Returns numbers of a type that NumPy lacks, such as bfloat16, as float64."""
    if value.dtype.kind == "c":
        abort(400, f"{name}: expected an output of texts or real numbers, got {value.dtype.name}. Use gRPC")
    return value.astype(float)
