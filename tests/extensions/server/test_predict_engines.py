"""The server with a LiteRT or an ONNX export, against the outputs of TensorFlow's C++ loader for the SavedModel."""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from conftest import TEXTS

import tf_transformer as tt

pytest.importorskip("flask")

from serving import asking, page

from tf_transformer.extensions.server.app import app
from tf_transformer.extensions.server.model import ServedModel, ServingError


@pytest.fixture(scope="module", params=["litert", "onnx"])
def small(translator, tmp_path_factory, request):
    """The folder of its versions."""
    path = tmp_path_factory.mktemp(request.param) / "name"
    if request.param == "litert":
        shutil.copytree(request.getfixturevalue("lite"), path / "3")
    else:
        for package in ("onnxruntime", "tf2onnx"):
            pytest.importorskip(package)
        translator.save(path / "3", format="onnx")
    return path


@pytest.mark.program
def test_an_export_answers_as_the_savedmodel(small, served):
    """What it fixes is no option, and it has as many places as beams."""
    model = ServedModel(small)
    assert (model.name, model.version) == ("name", 3)
    ask, texts = asking(app(model).test_client()), [text for text in TEXTS if isinstance(text, str)]
    values = {"length_penalty": (1.7, 0.6), "max_length": (11, 48)}
    inputs = {"text": texts * 2, **{name: np.repeat(pair, len(texts)).tolist() for name, pair in values.items()}}
    rows = [dict(zip(inputs, row, strict=True)) for row in zip(*inputs.values(), strict=True)]
    status, found = ask({"signature_name": "translate", "instances": rows})
    assert status == 200
    for name, values in served({**inputs, "beam_size": [3]}, "translate").items():
        expected = values[:, :3] if values.ndim == 2 else values
        response = np.array([row[name] for row in found["predictions"]])
        if values.dtype == object:
            assert response.tolist() == [[text.decode() for text in row] for row in expected]
        else:
            np.testing.assert_allclose(response, expected, rtol=1e-5, atol=1e-5, err_msg=name)
    keys = ["length_penalty", "beam_size", "name", "version", "parameters", "nothing"]
    info = ask({"signature_name": "model_info", "instances": keys})[1]["predictions"]
    assert info == ["0.6", "3", "name", "3", str(tt.load(small).metadata["parameters"]), ""]


@pytest.mark.program
def test_an_export_takes_requests_of_any_form(small):
    model = ServedModel(small, "name")
    client = app(model).test_client()
    ask = asking(client)
    with ThreadPoolExecutor(7) as threads:
        texts = ["Two doors.", "The dog sleeps."] * 7
        answers = list(threads.map(lambda text: ask({"instances": [text]})[1]["predictions"][0], texts))
    assert answers == answers[:2] * 7 and answers == ask({"instances": texts})[1]["predictions"]
    document = {"text": " Two doors.\n\nThe dog sleeps.\n", "length_penalty": 0.6}
    found = ask(document, "/document")[1]
    assert found["sources"] == texts[:2] and found["between"] == [" ", "\n\n", "\n"]
    assert found["translations"] == [response["translation"] for response in answers[:2]]
    assert ask({"inputs": []}) == (200, {"outputs": {"score": [], "translation": [], "truncated": []}})
    row = {"text": ["a", "b", "c"], "length_penalty": [0.6], "max_length": [9]}
    empty = ask({"signature_name": "translate", "inputs": row | {"text": []}})[1]["outputs"]
    assert empty["translations"] == empty["truncated"] == []
    for body, message in [
        ({"instances": [["a"]]}, "text: expected string of the shape \\[batch\\], got string of \\(1, 1\\)"),
        ({"signature_name": "translate", "inputs": row | {"max_length": [1, 2]}}, "max_length: expected a vector of"),
        ({"signature_name": "translate_details", "inputs": row}, 'expected one of .*, got "translate_details"'),
    ]:
        status, response = ask(body)
        assert status == 400 and re.search(message, response["error"]), response
    with pytest.raises(ServingError, match="text: expected string of the shape .batch., got int32"):
        model.predict("", {"text": tf.constant([3])})

    fields = re.findall(r'<input id="(\w+)" type="number"', page(client))
    assert fields == ["length_penalty", "max_length"] and "const aligned = false" in page(client)
    assert 'const fixed = ["beam_size", "min_length", "no_repeat_ngram_size"]' in page(client)
    assert "This model has no alignments" in page(client) and 'id="picture"' not in page(client)
    signatures = client.get("/v1/models/name/metadata").get_json()["metadata"]["signature_def"]["signature_def"]
    inputs = signatures["translate"]
    assert set(inputs["inputs"]) == {"text", *fields}
    assert inputs["outputs"]["scores"]["tensor_shape"]["dim"] == [{"size": "-1", "name": ""}, {"size": "3", "name": ""}]
