"""TensorFlow Serving's REST API, JSON for JSON, and the page that uses it.

Rules and error messages follow the server's json_tensor.cc and http_rest_api_handler.cc. The layout of JSON that an
error quotes may differ.
"""

import base64
import binascii
import json
import re
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf
from flask import Flask, Response, render_template, request
from google.protobuf.json_format import MessageToDict
from werkzeug.exceptions import HTTPException

from savedmodels.playground.model import DEFAULT_SIGNATURE, ServedModel, ServingError
from tf_transformer.text.search_options import SEARCH_OPTIONS

PREDICT = re.compile(r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?:(classify|regress|predict)")
STATUS = re.compile(r"/v1/models(?:/([^/:]+))?(?:/versions/(\d+)|/labels/([^/:]+))?(?:/(metadata))?")
HTTP = {
    **dict.fromkeys(("INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE"), 400),
    **{"NOT_FOUND": 404, "RESOURCE_EXHAUSTED": 429, "UNIMPLEMENTED": 501, "UNAVAILABLE": 503, "DEADLINE_EXCEEDED": 504},
}
NAMES = {tf.float32: "float", tf.float64: "double"}
LOCAL = ["localhost", "127.0.0.1"]
# The page contains its style and script, and connects to this server alone.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


def app(model: ServedModel) -> Flask:
    """The page at /, the API under /v1/."""
    flask = Flask(__name__, template_folder=".")
    flask.config["TRUSTED_HOSTS"] = LOCAL  # under other names, a foreign page could make a browser send requests here

    @flask.get("/")
    def page() -> Response:
        inputs = model.signatures["translate"].inputs if "translate" in model.signatures else {}
        known = [option for option in SEARCH_OPTIONS.values() if option.request and inputs]
        options = [option for option in known if option.name in inputs]
        fixed = [option.name for option in known if option.name not in inputs]
        aligned = "translate_details" in model.signatures
        shown = {"name": model.name, "version": model.version}
        shown["languages"] = [name for name in ("source_language", "target_language") if name in inputs]
        html = render_template("page.html", **shown, options=options, fixed=fixed, aligned=aligned)
        return Response(html, headers={"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"})

    @flask.route("/v1/<path:_>", methods=["GET", "POST"])
    def api(_: str) -> Response:
        try:
            answer, status = _answer(model, request.method, request.path, request.get_data()), 200
        except ServingError as error:
            answer, status = {"error": error.message}, HTTP.get(error.code, 500)
        except RecursionError:
            answer, status = {"error": "JSON Parse error: nested too deeply"}, 400
        return _json(answer, status)

    @flask.errorhandler(HTTPException)
    def refused(error: HTTPException) -> Response:  # an unknown path, another host's name, a bug
        return _json({"error": error.description}, error.code)

    return flask


def _json(answer: dict[str, Any], status: int | None) -> Response:
    body = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
    return Response(body + b"\n", status, content_type="application/json")


def _answer(model: ServedModel, method: str, path: str, body: bytes) -> dict[str, Any]:
    match = (PREDICT if method == "POST" else STATUS).fullmatch(path)
    if not match:
        raise ServingError("INVALID_ARGUMENT", f"Malformed request: {method} {path}")
    name, version, label, what = match.groups()
    version = int(version) if version else None
    if method == "GET" and not name:
        raise ServingError("INVALID_ARGUMENT", "Missing model name in request.")
    if method == "GET" and not what:
        return model.status(name, version)
    model.find(name, version, label)
    if what == "metadata":
        return metadata(model)
    if what != "predict":
        raise ServingError("UNIMPLEMENTED", f"expected :predict, got :{what}, which no export here has")
    signature_name, inputs, by_row = read_request(model, body)
    outputs = model.predict(signature_name, inputs)
    return rows(outputs) if by_row else columns(outputs)


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
        the signature's name, or ""; tensors by name; whether request and answer are row by row.
    """
    if not body:
        _invalid("JSON Parse error: The document is empty")
    try:
        # Bytes that are not UTF-8 pass through, as they do in the server.
        asked = json.loads(body.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        _invalid(f"JSON Parse error: {getattr(error, 'msg', error)} at offset: {getattr(error, 'pos', 0)}")
    if not isinstance(asked, dict):
        _invalid(f"JSON Value: {_shown(asked)} Is not object")
    name = asked.get("signature_name", "")
    if not isinstance(name, str):
        _invalid(f"JSON Value: {_shown(asked)} not formatted correctly. 'signature_name' key must be a string value.")
    if (name or DEFAULT_SIGNATURE) not in model.signatures:
        _invalid(f'Serving signature name: "{name or DEFAULT_SIGNATURE}" not found in signature def')
    signature = model.signatures[name or DEFAULT_SIGNATURE]
    dtypes = {key: tf.dtypes.as_dtype(info.dtype) for key, info in sorted(signature.inputs.items())}
    if not dtypes:
        _invalid(f"Failed to get input map for signature: {name or 'DEFAULT'}")

    if "instances" in asked and "inputs" in asked:
        message = "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist "
        _invalid(f"JSON Value: {_shown(asked)} {message}")
    if "instances" in asked:
        rows = asked["instances"]
        if not isinstance(rows, list):
            _invalid(f"JSON Value: {_shown(asked)} Expecting 'instances' to be an list/array")
        if not rows:
            _invalid(f"JSON Value: {_shown(asked)} No values in 'instances' array")
        return name, _from_rows(rows, dtypes), True
    if "inputs" in asked:
        return name, _from_columns(asked["inputs"], dtypes), False
    _invalid("Missing 'inputs' or 'instances' key")


def _from_rows(given: list[Any], dtypes: dict[str, tf.DType]) -> dict[str, tf.Tensor]:
    """[{input: value}, ...], or [value, ...] for a single input; the values of all rows have the same shape."""
    if len(dtypes) > 1 and not isinstance(given[0], dict):
        _invalid(
            "instances is a plain list, but expecting list of objects as multiple input tensors required as per "
            "tensorinfo_map"
        )
    named = _is_object(given[0])
    (first, *_) = dtypes
    shapes: dict[str, list[int]] = {}
    values: dict[str, list[Any]] = {key: [] for key in dtypes}
    for i, row in enumerate(given):
        if _is_object(row) != named:
            expected = "object but got list" if named else "value/list but got object"
            _invalid(f"Expecting {expected} at item {i} of input list")
        for key, item in row.items() if named else [(first, row)]:
            try:
                if key not in dtypes:
                    _invalid(f"JSON object: does not have named input: {key}")
                shape, flat = _read(item, dtypes[key])
                if shapes.setdefault(key, shape) != shape:
                    _invalid(f"Expecting shape {_shown(shapes[key])} but got: {_shown(shape)}")
            except ServingError as error:
                place = f"element: {i} key: {key}" if named else f"element: {i}"
                _invalid(f"Failed to process {place} of 'instances' list. Error: {error.code}: {error.message}")
            values[key] += flat
        if named and set(row) != set(dtypes):
            keys = f"JSON object: {_shown(row)} keys must be equal to: {','.join(dtypes)}"
            _invalid(f"Failed to process element: {i} of 'instances' list. {keys}")
    return {key: tf.constant(values[key], dtypes[key], [len(given), *shapes[key]]) for key in dtypes}


def _from_columns(given: Any, dtypes: dict[str, tf.DType]) -> dict[str, tf.Tensor]:
    """{input: [value, ...]}, or [value, ...] for a single input; other keys are ignored."""
    if not _is_object(given):
        if len(dtypes) > 1:
            _invalid(
                "inputs is a plain value/list, but expecting an object as multiple input tensors required as per "
                "tensorinfo_map"
            )
        given = {next(iter(dtypes)): given}
    tensors = {}
    for key, dtype in dtypes.items():
        if key not in given:
            _invalid(f"Missing named input: {key} in 'inputs' object.")
        shape, values = _read(given[key], dtype)
        tensors[key] = tf.constant(values, dtype, shape)
    return tensors


def _read(item: Any, dtype: tf.DType) -> tuple[list[int], list[Any]]:
    """A value, or lists of lists of values: shape and values in order."""
    shape, inner = [], item
    while isinstance(inner, list):
        shape.append(len(inner))
        inner = inner[0] if inner else None
    values: list[Any] = []

    def visit(item: Any, level: int) -> None:
        if not isinstance(item, list):
            if level != len(shape):
                at = f"found at incorrect level: {level + 1} in the JSON DOM. Expected at level: {len(shape)}"
                _invalid(f"JSON Value: {_shown(item)} {at}")
            values.append(_value(item, dtype))
        elif level >= len(shape):
            _invalid(f"Encountered list at unexpected level: {level} expected < {len(shape)}")
        elif len(item) != shape[level]:
            sizes = f"{len(item)} at level: {level} expected size: {shape[level]}"
            _invalid(f"Encountered list at unexpected size: {sizes}")
        else:
            for each in item:
                visit(each, level + 1)

    visit(item, 0)
    return shape, values


def _value(item: Any, dtype: tf.DType) -> Any:
    if isinstance(item, dict) and dtype == tf.string:
        if not _is_base64(item):
            _invalid(f"JSON Value: {_shown(item)} not formatted correctly for base64 data")
        try:
            return base64.b64decode(item["b64"], validate=True)
        except (binascii.Error, ValueError):
            _invalid("Unable to base64 decode")
    number = isinstance(item, int | float) and not isinstance(item, bool)
    if dtype == tf.string and isinstance(item, str):
        try:
            return item.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            _invalid("JSON Parse error: The surrogate pair in string is invalid.")
    if (
        (dtype.is_floating and number)
        or (dtype == tf.bool and isinstance(item, bool))
        or (dtype.is_integer and number and isinstance(item, int) and dtype.min <= item <= dtype.max)
    ):
        return item if dtype.is_integer or dtype == tf.bool else _float(item)
    kinds = {dict: "Object", list: "Array", str: "String", int: "Number", float: "Number", type(None): "Null"}
    kind = str(item) if isinstance(item, bool) else kinds[type(item)]
    _invalid(f"JSON Value: {_shown(item)} Type: {kind} is not of expected type: {NAMES.get(dtype, dtype.name)}")


def _float(item: Any) -> float:
    try:
        return float(item)
    except OverflowError:
        _invalid("JSON Parse error: Number too big to be stored in double.")


# Answers


def rows(outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """{"predictions": [row, ...]}, where a row is the value of the only output, or an object with all outputs."""
    sizes = {name: value.shape[0] if value.ndim else None for name, value in outputs.items()}
    size = next(iter(sizes.values()))
    for name, other in sizes.items():
        if other is None:
            _invalid(f"Tensor name: {name} has no shape information ")
        if other != size:
            _invalid(f"Tensor name: {name} has inconsistent batch size: {other} expecting: {size}")
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
