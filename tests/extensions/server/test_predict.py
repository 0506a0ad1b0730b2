"""The server's REST predict against TensorFlow Serving's sources and the outputs of TensorFlow's C++ loader."""

import base64
import functools
import json
import re
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from conftest import TEXTS
from hypothesis import given, settings
from serving import OPTIONS, REQUEST, asking, with_signature
from test_documents import Words

import tf_transformer as tt

pytest.importorskip("flask")

from tf_transformer.extensions.server import predict
from tf_transformer.extensions.server.app import app
from tf_transformer.extensions.server.model import ServedModel


@pytest.fixture(scope="module")
def model(saved):
    return ServedModel(saved)


@pytest.fixture(scope="module")
def client(model):
    return app(model).test_client()


@pytest.fixture(scope="module")
def ask(client):
    return asking(client)


# Answers


def test_rows_and_columns_of_the_default_signature(ask, served):
    texts = [text for text in TEXTS if isinstance(text, str)]
    status, rows = ask({"instances": texts})
    assert (status, list(rows)) == (200, ["predictions"])
    expected = served({"text": texts})  # TensorFlow's C++ loader, in another process
    assert [row["translation"].encode() for row in rows["predictions"]] == list(expected["translation"])
    np.testing.assert_allclose([row["score"] for row in rows["predictions"]], expected["score"], rtol=1e-5)
    assert [row["truncated"] for row in rows["predictions"]] == ["door door" in text for text in texts]

    status, columns = ask({"inputs": texts})
    assert (status, list(columns)) == (200, ["outputs"])
    assert columns == ask({"inputs": {"text": texts}})[1]
    named = {name: [row[name] for row in rows["predictions"]] for name in rows["predictions"][0]}
    assert columns["outputs"] == named
    assert ask({"instances": [{"text": text} for text in texts], "signature_name": "serving_default"})[1] == rows
    assert ask({"signature_name": "", "instances": texts}, "/v1/models/name/versions/1:predict")[1] == rows


def test_rows_and_columns_with_options(ask, served):
    rows = [{"text": TEXTS[0], **OPTIONS}, {"text": TEXTS[8], **OPTIONS, "beam_size": 1, "length_penalty": 2}]
    status, by_row = ask({"signature_name": "translate", "instances": rows})
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    assert status == 200
    found = ask({"signature_name": "translate", "inputs": columns})[1]["outputs"]
    assert {name: [row[name] for row in by_row["predictions"]] for name in found} == found

    dtypes = {"text": object} | {name: option.dtype for name, option in REQUEST.items()}
    expected = served({name: np.array(each, dtypes[name]) for name, each in columns.items()}, "translate")
    assert set(found) == set(expected)
    for name, values in expected.items():
        if values.dtype == object:
            assert found[name] == [[text.decode() for text in row] for row in values]
        else:
            np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)
            assert np.array(found[name]).shape == values.shape
    one = {"inputs": columns | {name: [value] for name, value in OPTIONS.items()}}
    status, shared = ask(one | {"signature_name": "translate"})
    assert status == 200
    assert shared["outputs"]["translations"][0] == found["translations"][0]


def test_one_output_is_a_bare_list(ask):
    keys = ["n_best", "nothing"]
    assert ask({"signature_name": "model_info", "instances": keys}) == (200, {"predictions": ["4", ""]})
    assert ask({"signature_name": "model_info", "inputs": keys}) == (200, {"outputs": ["4", ""]})
    assert ask({"signature_name": "model_info", "inputs": []}) == (200, {"outputs": []})


def test_base64(ask):
    coded = [{"b64": base64.b64encode(text).decode()} for text in (b"Two doors.", b"\xff\xfe broken \xc3")]
    status, found = ask({"inputs": {"text": coded}})
    assert status == 200
    translations = found["outputs"]["translation"]
    assert ask({"instances": coded}) == ask({"instances": [{"text": each} for each in coded]})
    # Bytes that are not UTF-8 may stand in the JSON itself; the server does not look.
    plain = ask(b'{"inputs": ["Two doors.", "\xff\xfe broken \xc3"]}')[1]["outputs"]
    assert plain["translation"] == translations and translations[0] != translations[1] != ""


def test_numbers_are_the_shortest_that_are_read_back_as_they_were():
    values = np.array([0.6, -1e9, 1 / 3, 1e-7], np.float32)
    text = json.dumps(predict.json_value("x", values))
    assert (np.array(json.loads(text), np.float32) == values).all()
    assert text.startswith("[0.6, -1000000000.0, 0.33333334,")
    assert predict.json_value("x_bytes", np.array([[b"\xff"]], object)) == [[{"b64": "/w=="}]]


@pytest.mark.parametrize(
    ("value", "status", "expected"),
    [
        (tf.constant([b"\xff", b"a"]), 400, "UTF-8, got other bytes"),
        (tf.constant([[b"a", b"\xed\xa0\x80"]]), 400, "UTF-8, got other bytes"),
        (tf.constant(["\u00fc"]), 200, ["\u00fc"]),
        (tf.constant([1 + 2j]), 400, "texts or real numbers, got complex128"),
        (tf.constant([1 + 2j], tf.complex64), 400, "texts or real numbers, got complex64"),
        (tf.constant([1.5, -2.0], tf.bfloat16), 200, [1.5, -2.0]),
        (tf.constant([1.5, -2.0], tf.float16), 200, [1.5, -2.0]),
        (tf.constant([True]), 200, [True]),
        (tf.constant([2**64 - 1], tf.uint64), 200, [2**64 - 1]),
        (tf.constant([float("inf"), -float("inf")]), 200, [float("inf"), -float("inf")]),
    ],
)
def test_outputs_of_any_type_are_json_or_one_line(value, status, expected):
    """A SavedModel from elsewhere may have any. NaN and Infinity are TensorFlow Serving's."""
    model = with_signature(Words())
    model.engine = None  # as of such a SavedModel
    model._loaded = SimpleNamespace(signatures={"serving_default": lambda text: {"y": value}})
    response = app(model).test_client().post("/v1/models/model:predict", json={"inputs": ["a"]})
    assert response.status_code == status
    if status == 200:
        assert response.get_json() == {"outputs": expected}
    else:
        assert expected in response.get_json()["error"] and "\n" not in response.get_json()["error"]


def test_nan_is_written_as_by_the_server():
    assert json.dumps(predict.json_value("y", np.array([np.nan], np.float32))) == "[NaN]"


def test_status_and_metadata_are_the_servers_protos(client, model):
    json_format = pytest.importorskip("google.protobuf.json_format")
    status_pb2 = pytest.importorskip("tensorflow_serving.apis.get_model_status_pb2")
    metadata_pb2 = pytest.importorskip("tensorflow_serving.apis.get_model_metadata_pb2")
    for path in ("/v1/models/name", "/v1/models/name/versions/1"):
        response = client.get(path)
        assert response.status_code == 200
        (version,) = json_format.Parse(response.data, status_pb2.GetModelStatusResponse()).model_version_status
        assert (version.version, version.state) == (1, status_pb2.ModelVersionStatus.AVAILABLE)

    metadata = client.get("/v1/models/name/metadata").get_json()
    assert metadata["model_spec"] == {"name": "name", "signature_name": "", "version": "1"}
    signatures = json_format.ParseDict(metadata["metadata"]["signature_def"], metadata_pb2.SignatureDefMap())
    assert set(signatures.signature_def) == set(model.signatures)
    for name, signature in signatures.signature_def.items():
        assert dict(signature.inputs) == dict(model.signatures[name].inputs)
        assert dict(signature.outputs) == dict(model.signatures[name].outputs)
        assert not signature.defaults
    text = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]["text"]
    assert (text["dtype"], text["tensor_shape"]["dim"]) == ("DT_STRING", [{"size": "-1", "name": ""}])


# Errors

ROW = {"text": "a", **OPTIONS}
TWO_SIZES = {name: [value] for name, value in OPTIONS.items()} | {"text": ["a", "b", "c"], "beam_size": [1, 2]}
EITHER = "expected an object with either instances or inputs, got "
WRONG = [
    (b"", "expected JSON, got something else: Expecting value: line 1 column 1 (char 0)"),
    (b'{"instances": ["\\ud800"]}', r'text: expected string in lists of one shape, got ["\ud800"]'),
    (b"[" * 100_000, "expected JSON of few lists within each other, got too many"),
    (["a"], EITHER + '["a"]'),
    ({"signature_name": 3, "inputs": ["a"]}, "expected one of detokenize, model_info, .*, translate_details, got 3"),
    ({"inputs": ["a"], "instances": ["a"]}, EITHER + '{"inputs": ["a"], "instances": ["a"]}'),
    ({"instances": []}, "instances: expected a list of rows, got []"),
    ({"instances": ["a", 7]}, 'text: expected string in lists of one shape, got ["a", 7]'),
    ({"instances": ["a", ["a"]]}, 'text: expected string in lists of one shape, got ["a", ["a"]]'),
    ({"inputs": "a"}, "Shape of tensor .* [] is not compatible with expected shape [?]"),
    pytest.param(
        {"instances": [["a"]]},
        "Shape of tensor .* [1,1] is not compatible with expected shape [?]",
        marks=pytest.mark.program,
    ),
    ({"instances": [{"b64": "?"}]}, 'text: expected string in lists of one shape, got [{"b64": "?"}]'),
    ({"inputs": {"texts": ["a"]}}, 'inputs: expected values for text, got {"texts": ["a"]}'),
    ({"signature_name": "translate", "inputs": ["a"]}, f"inputs: expected values for {', '.join(sorted(ROW))}, got"),
    ({"signature_name": "translate", "instances": [ROW | {"x": 1}]}, "instances[0]: expected values for beam_size, "),
    (
        {"signature_name": "translate", "instances": [ROW | {"beam_size": 4.0}]},
        "beam_size: expected int32 in .*, got [4.0]",
    ),
    ({"signature_name": "translate", "instances": [ROW | {"beam_size": 2**31}]}, "expected int32 in .*, got [214748"),
    ({"signature_name": "translate", "instances": [ROW | {"length_penalty": 10**400}]}, "float32 in .*, got [1000"),
    ({"signature_name": "translate", "inputs": TWO_SIZES}, "beam_size: expected a vector of length 1 or of the batch"),
]


@pytest.mark.parametrize(("body", "message"), WRONG)
def test_what_the_server_would_refuse(ask, body, message):
    status, response = ask(body)
    assert (status, list(response)) == (400, ["error"])
    assert re.search(re.escape(message).replace(r"\.\*", ".*"), response["error"]), response
    assert len(response["error"]) < 1000


LATEST, METHOD = "Servable not found for request: Latest(other)", "The method is not allowed for the requested URL."


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("POST", "/v1/models/other:predict", 404, LATEST),
        ("POST", "/v1/models/name/versions/2:predict", 404, "Servable not found for request: Specific(name, 2)"),
        ("POST", "/v1/models/name/labels/stable:predict", 400, "Unrecognized servable version label: stable"),
        ("POST", "/v1/models/name", 405, METHOD),
        ("GET", "/v1/models/other", 404, LATEST),
        ("GET", "/v1/models/name/versions/2", 404, "Servable not found for request: Specific(name, 2)"),
        ("GET", "/v1/models/name/labels/stable/metadata", 400, "Unrecognized servable version label: stable"),
        ("GET", "/v2", 404, "The requested URL was not found"),
    ],
)
def test_other_models_and_paths(client, method, path, status, message):
    response = client.open(path, method=method, data=b'{"instances": ["a"]}')
    assert response.status_code == status
    assert response.get_json()["error"].startswith(message)


names = st.sampled_from(["text", "b64", "x"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=2),
    max_leaves=6,
)


@settings(max_examples=100)
@given(st.fixed_dictionaries({"signature_name": st.just("tokenize")}, optional={"instances": values, "inputs": values}))
def test_no_json_is_a_bug(ask, body):
    status, response = ask(body)
    assert status in (200, 400)
    assert ("error" in response) == (status == 400)


# Documents and the program


def test_a_text_of_several_sentences_is_translated_whole(ask, served):
    sources = ["The old woman opens the red door.", "Two dogs.", "The child sleeps."]
    outputs = [text.decode() for text in served({"text": sources})["translation"]]
    between = ["\n ", "  ", "\r\n\n\t", "\n"]
    text = "".join(part for pair in zip(between, [*sources, ""], strict=True) for part in pair)
    found = {"sources": sources, "translations": outputs, "between": between}
    assert ask({"text": text}, "/document") == (200, found)
    status, greedy = ask({"text": text, "beam_size": 1, "length_penalty": 2}, "/document")
    rows = {**OPTIONS, "max_length": 256, "beam_size": 1, "length_penalty": 2.0}
    rows = [{"text": source, **rows} for source in sources]
    expected = ask({"signature_name": "translate", "instances": rows})[1]["predictions"]
    assert (status, greedy["translations"]) == (200, [row["translations"][0] for row in expected])
    assert ask({"text": " \n"}, "/document")[1] == {"sources": [], "translations": [], "between": [" \n"]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (["a"], 'expected an object with a text and options, got ["a"]'),
        ({"text": 3}, 'expected an object with a text and options, got {"text": 3}'),
        ({"text": "a", "beam_size": 17}, "beam_size: expected 1 to 16, got 17"),
        ({"text": "a", "beam": 2}, "options of a call: expected beam_size, "),
    ],
)
def test_what_a_document_is_refused_for(ask, body, message):
    status, response = ask(body, "/document")
    assert status == 400 and response["error"].startswith(message), response


def test_it_warms_up_each_signature(model, monkeypatch):
    """With the inputs that the export has no defaults for, since a first response takes seconds."""
    asked = {}
    monkeypatch.setattr(model, "_run", lambda name, inputs: asked.setdefault(name, {**inputs}) and {})
    signatures = dict(model.signatures)
    signatures["complete"] = type(signatures["translate"]).FromString(signatures["translate"].SerializeToString())
    signatures["complete"].inputs["prefix"].CopyFrom(signatures["translate"].inputs["text"])
    monkeypatch.setattr(model, "signatures", signatures)
    model.warm_up()
    assert set(asked) == {name for name, signature in signatures.items() if signature.inputs} >= {"complete", "score"}
    assert set(asked["complete"]) == {"text", "prefix", *REQUEST}
    assert set(asked["translate"]) == {"text", *REQUEST} and asked["tokenize"]["text"].numpy().tolist() == [b"a"]


def test_a_model_has_its_folders_name_and_version(saved, tmp_path):
    engine = Words()
    engine.loaded = None
    served = functools.partial(ServedModel, opened=lambda path: engine)  # loading an export takes a second
    for path in (saved, saved.parent):
        assert (served(path).name, served(path).version) == ("name", 1)
    (tmp_path / "x").symlink_to(saved)
    assert served(tmp_path / "x").name == "name" and served(saved, "other").name == "other"
    with pytest.raises(tt.BadInput, match="found nothing at .*nowhere"):
        ServedModel(tmp_path / "nowhere")
