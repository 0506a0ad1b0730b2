"""TensorFlow Serving's REST API in JSON, and the page that uses it.

What the server takes and how it answers follows its json_tensor.cc and http_rest_api_handler.cc. What it would refuse
is an error of one line here, in words of our own: what was expected, and what arrived.
"""

import base64
import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf
from flask import Flask, Response, render_template, request
from google.protobuf.json_format import MessageToDict
from werkzeug.exceptions import HTTPException

from savedmodels.playground.model import DEFAULT_SIGNATURE, ServedModel, ServingError
from tf_transformer.config import BadInput
from tf_transformer.decoding.search_options import SEARCH_OPTIONS

MODEL = r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?"
PATHS = {"POST": re.compile(MODEL + "(:predict)"), "GET": re.compile(MODEL + "(/metadata)?")}
HTTP = {"INVALID_ARGUMENT": 400, "FAILED_PRECONDITION": 400, "NOT_FOUND": 404, "RESOURCE_EXHAUSTED": 429}
LOCAL = ["localhost", "127.0.0.1"]
# The page contains its style and script, and connects to this server alone.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


def app(model: ServedModel) -> Flask:
    """The page at /, what it asks besides at /document, the API under /v1/."""
    flask = Flask(__name__, template_folder=".")
    flask.config["TRUSTED_HOSTS"] = LOCAL  # under other names, a foreign page could make a browser send requests here

    @flask.get("/")
    def page() -> Response:
        inputs = model.signatures["translate"].inputs if "translate" in model.signatures else {}
        known = [option for option in SEARCH_OPTIONS.values() if option.request and inputs]
        options = [option for option in known if option.name in inputs]
        fixed = [option.name for option in known if option.name not in inputs]
        aligned, completes = (name in model.signatures for name in ("translate_details", "complete"))
        shown = {"name": model.name, "version": model.version}
        shown["languages"] = [name for name in ("source_language", "target_language") if name in inputs]
        html = render_template("page.html", **shown, options=options, fixed=fixed, aligned=aligned, completes=completes)
        return Response(html, headers={"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"})

    @flask.route("/v1/<path:_>", methods=["GET", "POST"])
    def api(_: str) -> Response:
        return answered(lambda body: _answer(model, request.method, request.path, body))

    @flask.post("/document")
    def document() -> Response:
        return answered(lambda body: _document(model, body))

    def answered(answer_to: Callable[[bytes], dict[str, Any]]) -> Response:
        try:
            answer, status = answer_to(request.get_data()), 200
        except ServingError as error:
            answer, status = {"error": error.message}, HTTP.get(error.code, 500)
        except RecursionError:
            answer, status = {"error": "expected JSON of few lists within each other, got too many"}, 400
        return _json(answer, status)

    @flask.errorhandler(HTTPException)
    def refused(error: HTTPException) -> Response:  # an unknown path, another host's name, a bug
        return _json({"error": error.description}, error.code)

    return flask


def _json(answer: dict[str, Any], status: int | None) -> Response:
    body = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
    return Response(body + b"\n", status, content_type="application/json")


def _answer(model: ServedModel, method: str, path: str, body: bytes) -> dict[str, Any]:
    match = PATHS[method].fullmatch(path)
    if not match:
        paths = "POST /v1/models/NAME:predict, GET /v1/models/NAME or GET /v1/models/NAME/metadata"
        _invalid(f"expected {paths}, got {method} {path}")
    name, version, label, what = match.groups()
    version = int(version) if version else None
    if method == "GET" and not what:
        return model.status(name, version)
    model.find(name, version, label)
    if what == "/metadata":
        return metadata(model)
    signature_name, inputs, by_row = read_request(model, body)
    outputs = model.predict(signature_name, inputs)
    return rows(outputs) if by_row else columns(outputs)


def _document(model: ServedModel, body: bytes) -> dict[str, Any]:
    """A text of any length, translated sentence by sentence: {"sources", "translations", "between"}."""
    asked = _parsed(body)
    if not isinstance(asked, dict) or not isinstance(asked.get("text"), str):
        _invalid(f"expected an object with a text and options, got {_shown(asked)}")
    try:
        return model.document(asked.pop("text"), asked)._asdict()
    except (BadInput, TypeError) as error:
        _invalid(str(error))


def metadata(model: ServedModel) -> dict[str, Any]:
    """The answer of GetModelMetadata; like the server, it leaves out the defaults of inputs."""
    signatures = {}
    for name, signature in model.signatures.items():
        shown = type(signature)()
        shown.CopyFrom(signature)
        shown.ClearField("defaults")
        options = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
        signatures[name] = MessageToDict(shown, **options)
        signatures[name].pop("defaults", None)
    spec = {"name": model.name, "signature_name": "", "version": str(model.version)}
    return {"model_spec": spec, "metadata": {"signature_def": {"signature_def": signatures}}}


# Requests


def read_request(model: ServedModel, body: bytes) -> tuple[str, dict[str, tf.Tensor], bool]:
    """JSON to tensors.

    Returns:
        the signature's name; tensors by name; whether request and answer are row by row.
    """
    asked = _parsed(body)
    if not isinstance(asked, dict) or len(asked.keys() & {"instances", "inputs"}) != 1:
        _invalid(f"expected an object with either instances or inputs, got {_shown(asked)}")
    name = asked.get("signature_name", "")
    name = DEFAULT_SIGNATURE if name == "" else name
    known = sorted(each for each, signature in model.signatures.items() if signature.inputs)  # others are TensorFlow's
    if name not in known:
        _invalid(f"signature_name: expected one of {', '.join(known)}, got {_shown(name)}")
    dtypes = {key: tf.dtypes.as_dtype(info.dtype) for key, info in sorted(model.signatures[name].inputs.items())}
    by_row = "instances" in asked
    given = _columns_of(asked["instances"], list(dtypes)) if by_row else _named(asked["inputs"], list(dtypes))
    if missing := dtypes.keys() - given:
        _invalid(f"inputs: expected values for {', '.join(dtypes)}, got none for {', '.join(sorted(missing))}")
    read = {key: _read(key, given[key], dtype) for key, dtype in dtypes.items()}
    return name, {key: tf.constant(values, dtypes[key], shape) for key, (shape, values) in read.items()}, by_row


def _parsed(body: bytes) -> Any:
    try:
        # Bytes that are not UTF-8 pass through, as they do in the server.
        return json.loads(body.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        _invalid(f"expected JSON, got something else: {error}")


def _columns_of(instances: Any, names: list[str]) -> dict[str, list[Any]]:
    """[{input: value}, ...], or [value, ...] for a single input, as lists of values by input."""
    if not isinstance(instances, list) or not instances:
        _invalid(f"instances: expected a list of rows, got {_shown(instances)}")
    given = [_named(row, names) if _is_object(row) == _is_object(instances[0]) else {} for row in instances]
    for place, row in enumerate(given):
        if sorted(row) != names:
            expected = f"a row with {', '.join(names)}, as the others"
            _invalid(f"instances[{place}]: expected {expected}, got {_shown(instances[place])}")
    return {name: [row[name] for row in given] for name in names}


def _named(given: Any, names: list[str]) -> dict[str, Any]:
    """{input: value}; a value alone is that of a single input."""
    if _is_object(given):
        return dict(given)
    return {names[0]: given} if len(names) == 1 else {}


def _read(place: str, given: Any, dtype: tf.DType) -> tuple[list[int], list[Any]]:
    """A value, or lists of lists of values: shape and values in order."""
    if not isinstance(given, list):
        return [], [_value(place, given, dtype)]
    read = [_read(f"{place}[{i}]", each, dtype) for i, each in enumerate(given)]
    inner = read[0][0] if read else []
    if any(shape != inner for shape, _ in read):
        _invalid(f"{place}: expected values of one shape, got {_shown(given)}")
    return [len(given), *inner], [value for _, values in read for value in values]


def _value(place: str, given: Any, dtype: tf.DType) -> Any:
    number = isinstance(given, int | float) and not isinstance(given, bool)
    try:
        if dtype == tf.string and isinstance(given, str):
            return given.encode("utf-8", "surrogateescape")
        if dtype == tf.string and _is_base64(given):
            return base64.b64decode(given["b64"], validate=True)
        if dtype.is_floating and number:
            return float(given)
        if dtype.is_integer and number and isinstance(given, int) and dtype.min <= given <= dtype.max:
            return given
    except (ValueError, OverflowError):  # half of a surrogate pair, other letters than base64's, a number of 400 digits
        pass
    _invalid(f"{place}: expected {dtype.name}, got {_shown(given)}")


# Answers


def rows(outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """{"predictions": [row, ...]}, where a row is the value of the only output, or an object with all outputs."""
    lists = {name: written(name, value) for name, value in outputs.items()}
    if len(lists) == 1:
        return {"predictions": next(iter(lists.values()))}
    return {"predictions": [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]}


def columns(outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """{"outputs": value} for a single output, or {"outputs": {output: value}}."""
    lists = {name: written(name, value) for name, value in outputs.items()}
    return {"outputs": lists if len(lists) > 1 else next(iter(lists.values()))}


def written(name: str, value: np.ndarray) -> Any:
    """An output as lists for JSON."""
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
    """JSON for an error message: at most 256 characters, all of which can be sent."""
    return json.dumps(item, separators=(",", ":"))[:256]


def _invalid(message: str) -> NoReturn:
    raise ServingError("INVALID_ARGUMENT", message)
