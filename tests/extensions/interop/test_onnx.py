"""Tests ONNX files: batches, the form of the graph, and the passes over it."""

import hashlib
import json
import math
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from exported import LONG, onnx_export, sentences

import tf_transformer as tt
from tf_transformer.extensions.interop.engines import litert_client
from tf_transformer.extensions.interop.engines.litert_client import ONNXTranslator, _Graph

onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tf_transformer.extensions.interop.formats import onnx as exports  # noqa: E402
from tf_transformer.extensions.interop.formats.onnx import graphs_in, store_integers  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:more tokens than the model reads")


@pytest.fixture(scope="module")
def folder(translator, made_once):
    return onnx_export(translator, made_once)


def test_sources_of_a_call_are_independent(folder):
    """They have any lengths, in any order."""
    client, texts = ONNXTranslator(folder), ["", LONG[0], "Two doors.", "", LONG[2]]
    (graph,), values = client._signatures, client.options | {"n_best": 2}
    sources = [[*client.source_ids(text), 2] for text in texts]
    for source, outputs in zip(sources, graph(sources, values), strict=True):
        (single,) = graph([source], values)
        assert outputs["lengths"].tolist() == single["lengths"].tolist()
        assert [ids[ids > 0].tolist() for ids in outputs["ids"]] == [ids[ids > 0].tolist() for ids in single["ids"]]
        np.testing.assert_allclose(outputs["scores"], single["scores"], rtol=1e-5)


def test_an_engine_makes_batches(folder, monkeypatch):
    """Texts of similar length, `batch_size` at a time, or fewer long ones."""
    texts = [*sentences(7), *LONG]
    expected = [*map(ONNXTranslator(folder), texts)]
    call, rows = _Graph.__call__, []
    monkeypatch.setattr(_Graph, "__call__", lambda graph, *args: rows.append(args[0]) or call(graph, *args))
    assert tt.load(folder, batch_size=7)(texts) == expected
    assert [len(batch) for batch in rows[:2]] == [1, 7]  # the first on opening
    assert sum(map(len, rows[1:])) == len(texts)
    rows.clear()
    monkeypatch.setattr(litert_client, "AVERAGE", 32)
    client = ONNXTranslator(folder, batch_size=7)
    assert client(texts + LONG * 3) == expected + expected[-len(LONG) :] * 3
    assert sum(len(batch) > 1 for batch in rows) > 3
    for batch in rows:
        assert len(batch) == 1 or (len(batch) <= 7 and len(batch) * (max(map(len, batch)) - 1) <= 7 * 32), "tokens"
    assert any(1 < len(batch) < 7 for batch in rows[:-1])


@pytest.mark.parametrize("kind", ["int8", "earlier"])
def test_int8_and_earlier_files_take_one_text(kind, folder, tmp_path):
    """In int8 the texts of a call would change each other's outputs. Files of earlier versions have one row."""
    shutil.copytree(folder, tmp_path / "1")
    metadata, file = json.loads((tmp_path / "1/model.json").read_text()), tmp_path / "1/model.onnx"
    if kind == "earlier":
        model = onnx.load(file)
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
        onnx.save(model, file)
        metadata["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (tmp_path / "1/model.json").write_text(json.dumps(metadata | ({"dtype": kind} if kind == "int8" else {})))
    one, five = (tt.load(path, batch_size=5) for path in (tmp_path / "1", folder))
    assert (one.batch_size, five.batch_size) == (1, 5)
    assert one(sentences(5)) == five(sentences(5))


def test_inputs_and_outputs(folder):
    graph = onnx.load(folder / "model.onnx").graph
    kinds = {TensorProto.INT32: "int32", TensorProto.FLOAT: "float", TensorProto.BOOL: "bool"}

    def described(ports):
        shapes = {port.name: [dim.dim_value or None for dim in port.type.tensor_type.shape.dim] for port in ports}
        return {port.name: (kinds[port.type.tensor_type.elem_type], *shapes[port.name]) for port in ports}

    assert described(graph.input) == {
        "source": ("int32", None, None),
        "n_best": ("int32", 1),
        "length_penalty": ("float", 1),
        "max_length": ("int32", 1),
    }
    numbers = {name: ("float", None) for name in ("scores", "log_probs")}
    assert described(graph.output) == numbers | {
        "ids": ("int32", None, None),
        "lengths": ("int32", None),
        "finished": ("bool", None),
    }


def test_the_graph_is_light(translator, folder):
    """The loop's state has no weights, a norm is one node, and the file has one embedding table."""
    graph = onnx.load(folder / "model.onnx").graph
    (loop,) = (node for node in graph.node if node.op_type == "Loop")
    weights = [tensor for part in graphs_in(graph) for tensor in part.initializer if len(tensor.dims) == 2]
    assert all(math.prod(tensor.dims) < 24 for tensor in graph.initializer if tensor.name in loop.input)
    assert sum(math.prod(tensor.dims) for tensor in weights) < 1.1 * translator.model.count_params()
    layers = len(translator.model.encoder_layers) * 2 + len(translator.model.decoder_layers) * 3
    norms = [node for part in graphs_in(graph) for node in part.node if node.op_type == "LayerNormalization"]
    assert len(norms) == layers
    (body,) = (attribute.g for attribute in loop.attribute if attribute.name == "body")
    assert [node.op_type for node in body.node].count("Not") == 1  # tf2onnx's own choice has another
    assert len(loop.input) < 20 and len(body.node) < 300 and not body.initializer  # 284 nodes
    assert [list(tensor.dims) for tensor in weights].count([350, 24]) == 1
    assert [24, 350] not in [list(tensor.dims) for tensor in weights]


def test_threads_share_a_translator(folder):
    client, texts = ONNXTranslator(folder), ["Two doors.", "The dog sleeps.", "The old woman opens the red door."]
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(client, texts * 5)) == client(texts) * 5


def test_an_8_bit_table_has_a_scale_per_row():
    """A table without a copy among the softmax weights."""
    table = np.random.default_rng(5).normal(size=(11, 3)).astype("float32") * np.arange(11)[:, None].astype("float32")
    ports = [("ids", TensorProto.INT32, [1, 7]), ("rows", TensorProto.FLOAT, [1, 7, 3])]
    inputs, outputs = ([helper.make_tensor_value_info(*port)] for port in ports)
    nodes, weights = [helper.make_node("Gather", ["table", "ids"], ["rows"])], [numpy_helper.from_array(table, "table")]
    graph = helper.make_graph(nodes, "main", inputs, outputs, weights)
    store_integers(graph, "table", "")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    ids = np.array([[0, 10, 3, 7, 1, 1, 5]], np.int32)
    error = np.abs(session.run(None, {"ids": ids})[0] - table[ids])
    assert (error <= np.abs(table[ids]).max(axis=2, keepdims=True) / 253).all()


def test_a_too_large_model_raises_before_the_conversion(translator, tmp_path, monkeypatch):
    size = 4 * translator.model.count_params()
    monkeypatch.setattr(exports, "MAX_BYTES", size)
    with pytest.raises(tt.BadInput, match=r"expected weights of less than .* GiB in float32 for ONNX, got .* GiB$"):
        translator.save(tmp_path / "1", format="onnx")
    assert not list(tmp_path.iterdir())
