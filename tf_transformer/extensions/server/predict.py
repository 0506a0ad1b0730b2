"""TensorFlow Serving's REST API in JSON, and the page that uses it.

Requests and responses follow the server's json_tensor.cc and http_rest_api_handler.cc. What the server would reject
is a one-line error here: what was expected, and what arrived.
"""

import base64
import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf
from flask import Blueprint, Response, abort, render_template, request
from google.protobuf.json_format import MessageToDict

from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.extensions.documents.marked import Marked, sentences_in
from tf_transformer.extensions.server.limits import Limits
from tf_transformer.extensions.server.model import DEFAULT_SIGNATURE, ServedModel, ServingError
from tf_transformer.inference.engine import Engine
from tf_transformer.tokenizers.languages import LANGUAGES

MODEL = r"/v1/models/([^/:\x00-\x1f]{1,256})(?:/versions/([0-9]{1,18})|/labels/([^/:\x00-\x1f]{1,256}))?"
PATHS = {"POST": re.compile(MODEL + "(:predict)"), "GET": re.compile(MODEL + "(/metadata)?")}
# The page contains its style and script, and connects only to this server.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


def routes(model: ServedModel, limits: Limits) -> Blueprint:
    """Returns the addresses of the page at /, of its requests at /document, and of the API under /v1/."""
    api = Blueprint("predict", __name__)

    @api.route("/v1/<path:_>", methods=["GET", "POST"])
    def answer(_: str) -> Any:
        return _answer(model, limits)

    @api.get("/")
    def page() -> Response:
        if not model.engine:
            abort(404, f"expected a translator for a page, got another model. POST to /v1/models/{model.name}:predict")
        inputs = model.signatures["translate"].inputs
        known = [option for option in SEARCH_OPTIONS.values() if option.request]
        html = render_template(
            "page.html",
            name=model.name,
            version=model.version,
            languages=[name for name in LANGUAGES if name in inputs],
            options=[option for option in known if option.name in inputs],
            fixed=[option.name for option in known if option.name not in inputs],
            aligned="translate_details" in model.signatures,
            completes="complete" in model.signatures,
        )
        return Response(html, headers={"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"})

    @api.post("/document")
    def document() -> Any:
        if not model.engine:
            abort(404)
        body = parsed(request.get_data())
        if not isinstance(body, dict) or not isinstance(body.get("text"), str):
            _invalid(f"expected an object with a text and options, got {_shown(body)}")
        limits.check([body["text"]])
        try:
            return translated(model.engine, body.pop("text"), body)
        except TypeError as error:  # an unknown option
            _invalid(str(error))

    return api


def translated(engine: Engine, text: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Translates a plain text, like `Engine.document`. Returns its sentences, and what is between translations."""
    language = options.get("source_language", engine.metadata.get("source_language", ""))
    marked = Marked(text).with_placeholders()
    spans = marked.sentences(sentences_in(str(language)))
    sources = [text[start:end] for start, end in spans]
    translations = engine.document(sources, sentences=lambda line: [line], **options)
    between = marked.between(spans, translations)
    return {"sources": sources, "translations": translations, "between": between}


def _answer(model: ServedModel, limits: Limits) -> dict[str, Any]:
    """Answers a request to the API."""
    method, path = request.method, request.path
    match = PATHS[method].fullmatch(path) if method in PATHS else None
    if not match:
        paths = "POST /v1/models/NAME:predict, GET /v1/models/NAME or GET /v1/models/NAME/metadata"
        _invalid(f"expected {paths}, got {method} {path[:200]}")
    name, version, label, action = match.groups()
    version = int(version) if version else None
    if method == "GET" and not action:
        return model.status(name, version)
    model.find(name, version, label)
    if action == "/metadata":
        return metadata(model)
    signature_name, inputs, by_row = read_request(model, request.get_data(), limits)
    outputs = model.predict(signature_name, inputs)
    return rows(outputs) if by_row else columns(outputs)


def metadata(model: ServedModel) -> dict[str, Any]:
    """Returns the response of GetModelMetadata. Like the server, it omits the defaults of inputs."""
    options = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
    signatures = {name: MessageToDict(signature, **options) for name, signature in model.signatures.items()}
    for signature in signatures.values():
        signature.pop("defaults", None)
    spec = {"name": model.name, "signature_name": "", "version": str(model.version)}
    return {"model_spec": spec, "metadata": {"signature_def": {"signature_def": signatures}}}


def read_request(model: ServedModel, body: bytes, limits: Limits) -> tuple[str, dict[str, tf.Tensor], bool]:
    """Converts JSON to a signature's name, tensors by name, and whether request and response are row by row."""
    content = parsed(body)
    if not isinstance(content, dict) or len(content.keys() & {"instances", "inputs"}) != 1:
        _invalid(f"expected an object with either instances or inputs, got {_shown(content)}")
    name = content.get("signature_name", "")
    name = DEFAULT_SIGNATURE if name == "" else name
    known = sorted(each for each, signature in model.signatures.items() if signature.inputs)  # not TensorFlow's own
    if name not in known:
        _invalid(f"signature_name: expected one of {', '.join(known)}, got {_shown(name)}")
    dtypes = {key: tf.dtypes.as_dtype(info.dtype) for key, info in sorted(model.signatures[name].inputs.items())}
    by_row = "instances" in content
    values = _columns_of(content["instances"], list(dtypes)) if by_row else _named(content["inputs"], list(dtypes))
    if missing := dtypes.keys() - values.keys():
        _invalid(f"inputs: expected values for {', '.join(dtypes)}, got none for {', '.join(sorted(missing))}")
    read = {key: _read(key, values[key], dtype) for key, dtype in dtypes.items()}
    for key, (shape, flat) in read.items():
        is_text = dtypes[key] == tf.string
        limits.check([text.decode("utf-8", "replace") for text in flat] if is_text else [""] * (shape or [1])[0])
    return name, {key: tf.constant(flat, dtypes[key], shape) for key, (shape, flat) in read.items()}, by_row


def parsed(body: bytes) -> Any:
    """Returns the JSON of a body."""
    try:
        # Like TensorFlow Serving, pass through bytes that are not UTF-8.
        return json.loads(body.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        _invalid(f"expected JSON, got something else: {error}")


def _columns_of(instances: Any, names: list[str]) -> dict[str, list[Any]]:
    """Converts [{input: value}, ...], or [value, ...] for a single input, to lists of values by input."""
    if not isinstance(instances, list) or not instances:
        _invalid(f"instances: expected a list of rows, got {_shown(instances)}")
    rows = [_named(row, names) if _is_object(row) == _is_object(instances[0]) else {} for row in instances]
    for i, row in enumerate(rows):
        if sorted(row) != names:
            expected = f"a row with {', '.join(names)}, as the others"
            _invalid(f"instances[{i}]: expected {expected}, got {_shown(instances[i])}")
    return {name: [row[name] for row in rows] for name in names}


def _named(value: Any, names: list[str]) -> dict[str, Any]:
    """Returns {input: value}. A bare value is that of a single input."""
    if _is_object(value):
        return dict(value)
    return {names[0]: value} if len(names) == 1 else {}


def _read(label: str, value: Any, dtype: tf.DType) -> tuple[list[int], list[Any]]:
    """Returns the shape of a value or of nested lists, and the values in order."""
    if not isinstance(value, list):
        return [], [_value(label, value, dtype)]
    read = [_read(f"{label}[{i}]", each, dtype) for i, each in enumerate(value)]
    inner = read[0][0] if read else []
    if any(shape != inner for shape, _ in read):
        _invalid(f"{label}: expected values of one shape, got {_shown(value)}")
    return [len(value), *inner], [one for _, values in read for one in values]


def _value(label: str, value: Any, dtype: tf.DType) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        if dtype == tf.string and isinstance(value, str):
            return value.encode("utf-8", "surrogateescape")
        if dtype == tf.string and _is_base64(value):
            return base64.b64decode(value["b64"], validate=True)
        if dtype.is_floating and is_number:
            return float(value)
        if dtype.is_integer and is_number and isinstance(value, int) and dtype.min <= value <= dtype.max:
            return value
    # Half of a surrogate pair, letters that base64 does not use, or an integer of 400 digits.
    except (ValueError, OverflowError):
        pass
    _invalid(f"{label}: expected {dtype.name}, got {_shown(value)}")


def rows(outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns {"predictions": [row, ...]}. A row is the value of the only output, or an object with all outputs."""
    lists = {name: written(name, value) for name, value in outputs.items()}
    if len(lists) == 1:
        return {"predictions": next(iter(lists.values()))}
    return {"predictions": [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]}


def columns(outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns {"outputs": value} for a single output, or {"outputs": {output: value}}."""
    lists = {name: written(name, value) for name, value in outputs.items()}
    return {"outputs": lists if len(lists) > 1 else next(iter(lists.values()))}


def written(name: str, value: np.ndarray) -> Any:
    """Converts an output to lists for JSON."""
    if value.dtype == object:

        def text(item: bytes) -> Any:
            return {"b64": base64.b64encode(item).decode()} if name.endswith("_bytes") else item.decode()

        return np.vectorize(text, otypes=[object])(value).tolist() if value.size else value.tolist()
    if value.dtype == np.float32:  # 0.6, not 0.6000000238418579
        return value.astype(str).astype(float).tolist()
    return value.tolist()


def _is_base64(item: Any) -> bool:
    return isinstance(item, dict) and list(item) == ["b64"] and isinstance(item["b64"], str)


def _is_object(item: Any) -> bool:
    return isinstance(item, dict) and not _is_base64(item)


def _shown(item: Any) -> str:
    """Returns JSON for an error message: at most 256 characters, all ASCII."""
    return json.dumps(item, separators=(",", ":"))[:256]


def _invalid(message: str) -> NoReturn:
    raise ServingError("INVALID_ARGUMENT", message)
