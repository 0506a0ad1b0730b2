"""The model and its search in onnxruntime, an engine that we did not write."""

import hashlib
import json
import math
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import TEXTS, random_model
from exported import LONG, MARIAN, agree, checkpoint, hostile_texts, sentences, trained
from programs import ROOT, without_the_package

import tf_transformer as tt
from tf_transformer.extensions.interop.engines.litert_client import ONNXTranslator, _Graph, opened
from tf_transformer.extensions.interop.engines.onnx_export import ONNX

onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tf_transformer.extensions.interop.formats import onnx as exports  # noqa: E402
from tf_transformer.extensions.interop.formats.onnx import fuse_norms, graphs_in, store_integers, take_from_state  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:more tokens than the model reads")


@pytest.fixture(scope="module")
def folder(translator, tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "name" / "1"
    translator.save(path, format="onnx", source_language="en", license="apache-2.0", max_length=97)
    return path


def run(model, **inputs):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def graph_of(folder):
    return onnx.load(folder / "model.onnx").graph


@pytest.mark.program
def test_the_search_is_ours(translator, folder):
    agree(translator, folder, [*sentences(17), *LONG], 3, length_penalty=2.0)


def test_a_call_takes_sources_of_any_lengths(folder):
    """In any order. None changes the outputs of another."""
    client, texts = ONNXTranslator(folder), ["", LONG[0], "Two doors.", "", LONG[2]]
    (graph,), values = client._signatures, client.options | {"n_best": 2}
    sources = [[*client.source_ids(text), 2] for text in texts]
    for source, found in zip(sources, graph(sources, values), strict=True):
        (alone,) = graph([source], values)
        assert found["lengths"].tolist() == alone["lengths"].tolist()
        assert [ids[ids > 0].tolist() for ids in found["ids"]] == [ids[ids > 0].tolist() for ids in alone["ids"]]
        np.testing.assert_allclose(found["scores"], alone["scores"], rtol=1e-5)


def test_an_engine_makes_batches(folder, monkeypatch):
    """Of texts of similar length, as large as it is told."""
    texts = [*sentences(7), *LONG]
    expected = [*map(ONNXTranslator(folder), texts)]
    call, rows = _Graph.__call__, []
    monkeypatch.setattr(_Graph, "__call__", lambda graph, *given: rows.append(len(given[0])) or call(graph, *given))
    assert tt.load(folder, batch_size=7)(texts) == expected
    assert rows == [1, 7, 7, len(texts) - 14]  # the first when it was opened


@pytest.mark.parametrize("kind", ["int8", "earlier"])
def test_some_files_take_one_text(kind, folder, tmp_path):
    """In int8 the texts of a call would change each other's outputs. Files of earlier versions have one row."""
    shutil.copytree(folder, tmp_path / "1")
    facts, file = json.loads((tmp_path / "1/model.json").read_text()), tmp_path / "1/model.onnx"
    if kind == "earlier":
        model = onnx.load(file)
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
        onnx.save(model, file)
        facts["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (tmp_path / "1/model.json").write_text(json.dumps(facts | ({"dtype": kind} if kind == "int8" else {})))
    one, five = (tt.load(path, batch_size=5) for path in (tmp_path / "1", folder))
    assert (one.batch_size, five.batch_size) == (1, 5)
    assert one(sentences(5)) == five(sentences(5))


def test_a_folder_has_what_a_client_needs(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["model.json", "model.onnx", "tokenizer.model"]
    facts = json.loads((folder / "model.json").read_text())
    assert [facts[name] for name in ("beam_size", "max_source_length", "max_length")] == [3, 41, 48]
    assert (facts["source_language"], facts["license"], facts["dtype"]) == ("en", "apache-2.0", "float32")
    graph = graph_of(folder)
    kinds = {TensorProto.INT32: "int32", TensorProto.FLOAT: "float", TensorProto.BOOL: "bool"}

    def described(ports):
        shapes = {one.name: [dim.dim_value or None for dim in one.type.tensor_type.shape.dim] for one in ports}
        return {one.name: (kinds[one.type.tensor_type.elem_type], *shapes[one.name]) for one in ports}

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
    """Weights are no state of the loop, a norm is one node, and the table of embeddings is there once."""
    graph = graph_of(folder)
    (loop,) = (node for node in graph.node if node.op_type == "Loop")
    weights = [one for part in graphs_in(graph) for one in part.initializer if len(one.dims) == 2]
    assert all(math.prod(one.dims) < 24 for one in graph.initializer if one.name in loop.input)
    assert sum(math.prod(one.dims) for one in weights) < 1.1 * translator.model.count_params()
    layers = len(translator.model.encoder_layers) * 2 + len(translator.model.decoder_layers) * 3
    norms = [node for part in graphs_in(graph) for node in part.node if node.op_type == "LayerNormalization"]
    assert len(norms) == layers
    (body,) = (attribute.g for attribute in loop.attribute if attribute.name == "body")
    assert [node.op_type for node in body.node].count("Not") == 1  # a choice that is a sum of products has one, too
    assert [list(one.dims) for one in weights].count([350, 24]) == 1
    assert not [one for one in weights if list(one.dims) == [24, 350]]


def test_no_text_raises_an_error(folder):
    client = ONNXTranslator(folder)
    for text in [*TEXTS, *hostile_texts(5)]:
        client(text).encode()
    assert client([b"\xff", "\ud800", ""]) == ["", "", ""]


def test_outputs_keep_their_limits(folder):
    client = ONNXTranslator(folder)
    assert [len(ids) for ids in client.ids("Two doors.", 3, max_length=5)] == [5, 5, 5]
    assert max(len(ids) for ids in client.ids("door " * 3000, 3)) <= 41 + 7
    for value in (math.nan, math.inf, 2**40, 10**400):
        assert client.ids("Two doors.", 3, max_length=value) == client.ids("Two doors.", 3)
    assert client("Two doors.", length_penalty=10**400) == client("Two doors.", length_penalty=5)
    assert client.n_best("Two doors.", 2**40) == client.n_best("Two doors.", 3)
    source, options = [*client.source_ids("Two doors."), 2], client.options | {"n_best": 3}
    found = [client._signatures[0]([source], options | more)[0] for more in ({}, {"length_penalty": math.nan})]
    assert found[0]["scores"].tolist() == found[1]["scores"].tolist() and found[0]["scores"][0] > -1e8


def test_threads_share_a_translator(folder):
    client, texts = ONNXTranslator(folder), ["Two doors.", "The dog sleeps.", "The old woman opens the red door."]
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(client, texts * 7)) == client(texts) * 7


@pytest.mark.parametrize("name", ["model.json", "model.onnx", "tokenizer.model"])
def test_a_damaged_folder_is_one_line(name, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "1")
    contents = bytearray((tmp_path / "1" / name).read_bytes())
    contents[len(contents) // 2] ^= 1  # of a weight, or of a piece: it would load, and translate otherwise
    (tmp_path / "1" / name).write_bytes(contents if name == "model.onnx" else b"[1]")
    for load, kind in ((opened, ValueError), (ONNX, tt.BadInput)):
        with pytest.raises(kind, match="1: expected an ONNX export, got something else: .") as error:
            load(tmp_path / "1")
        assert "\n" not in str(error.value)


def test_what_no_engine_reads_is_one_line(folder, tmp_path):
    """Its checksum is right, but it is no model."""
    shutil.copytree(folder, tmp_path / "1")
    facts = json.loads((tmp_path / "1/model.json").read_text())
    (tmp_path / "1/model.onnx").write_bytes(b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    (tmp_path / "1/model.json").write_text(json.dumps(facts | {"sha256": empty}))
    with pytest.raises(ValueError, match="1: expected an ONNX export, got something else: .") as error:
        opened(tmp_path / "1")
    assert "\n" not in str(error.value)


def test_what_is_too_large_is_one_line(translator, tmp_path, monkeypatch):
    """Before hours of work and of memory."""
    size = 4 * translator.model.count_params()
    monkeypatch.setattr(exports, "MOST", size)
    with pytest.raises(tt.BadInput, match=r"expected weights of less than .* GiB in float32 for ONNX, got .* GiB$"):
        translator.save(tmp_path / "1", format="onnx")
    monkeypatch.setattr(exports, "MOST", size + 1)
    with pytest.raises(tt.BadInput, match="got 'int4'"):
        translator.save(tmp_path / "1", format="onnx", dtype="int4")
    assert not list(tmp_path.iterdir())


def test_what_it_cannot_write(translator, tmp_path, monkeypatch):
    with pytest.raises(tt.BadInput, match="dtype: expected one of float32, int8 for ONNX, got 'int4'"):
        translator.save(tmp_path / "1", format="onnx", dtype="int4")
    for module in ("onnxruntime", "tf2onnx"):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(tt.BadInput, match=rf'takes {module}: pip install "tf-transformer\[onnx\]"'):
            translator.save(tmp_path / "1", format="onnx")
    assert not list(tmp_path.iterdir())


def loop_of(state):
    """A model that adds a weight and an input to a number, five times; all three are in the loop's state."""
    scalar = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [])  # noqa: E731
    body = helper.make_graph(
        [
            helper.make_node("Add", ["inside_x", "inside_weight"], ["sum"]),
            helper.make_node("Add", ["sum", "inside_input"], ["x_after"]),
            helper.make_node("Identity", ["inside_weight"], ["weight_after"]),
            helper.make_node("Identity", ["inside_input"], ["input_after"]),
            helper.make_node("Identity", ["going"], ["going_after"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            *map(scalar, ("inside_x", "inside_weight", "inside_input")),
        ],
        [
            helper.make_tensor_value_info("going_after", TensorProto.BOOL, []),
            *map(scalar, ("x_after", "weight_after", "input_after")),
        ],
    )
    used = helper.make_node("Add", ["x_last", "input_last" if state == "used" else "x_last"], ["result"])
    loop = helper.make_node("Loop", ["count", "", "x", "weight", "given"], ["x_last", "weight_last", "input_last"])
    loop.attribute.append(helper.make_attribute("body", body))
    constants = [
        numpy_helper.from_array(np.array(5, np.int64), "count"),
        numpy_helper.from_array(np.array(3, np.float32), "x"),
        numpy_helper.from_array(np.array(7, np.float32), "weight"),
    ]
    graph = helper.make_graph([loop, used], "main", [scalar("given")], [scalar("result")], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("state", "kept"), [("used", 2), ("unused", 1)])
def test_what_no_step_changes_leaves_the_state(state, kept):
    """But for what is read after the loop. The model computes the same."""
    model = loop_of(state)
    (before,) = run(model, given=np.array(11, np.float32))
    take_from_state(model.graph)
    onnx.checker.check_model(model)
    (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
    assert len(loop.input) - 2 == len(loop.output) == kept
    assert (
        run(model, given=np.array(11, np.float32)) == [before] == [3 + 5 * (7 + 11) + (11 if state == "used" else 93)]
    )


def test_what_all_steps_compute_alike_is_computed_before_them():
    """But for what goes into the state. The model computes the same."""
    model = loop_of("unused")
    take_from_state(model.graph)
    (body,) = (attribute.g for attribute in model.graph.node[0].attribute if attribute.name == "body")
    body.initializer.append(numpy_helper.from_array(np.array(13, np.float32), "factor"))
    body.node[1].output[0] = "sum_of_three"
    body.node.insert(2, helper.make_node("Add", ["sum_of_three", "product"], ["x_after"]))
    body.node[-1].input[0] = "always"  # as the loop's condition
    body.node.insert(0, helper.make_node("Mul", ["given", "factor"], ["product"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "always"))
    (before,) = run(model, given=np.array(11, np.float32))
    assert before == 2 * (3 + 5 * (7 + 11 + 11 * 13))
    exports.take_from_steps(model.graph)
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["Mul", "Loop", "Add"]
    assert [node.op_type for node in model.graph.node[1].attribute[0].g.node] == ["Add"] * 3 + ["Identity"]
    assert run(model, given=np.array(11, np.float32)) == [before]


@pytest.mark.parametrize("sizes", [2, 1])
def test_a_size_that_is_computed_is_left_to_the_engine(sizes):
    """If it is the only one. The model computes the same."""
    numbers = [numpy_helper.from_array(np.array([one], np.int64), f"at_{one}") for one in range(4)]
    nodes = [helper.make_node("Shape", ["x"], ["sizes"])]
    for i in range(sizes):
        nodes.append(helper.make_node("Slice", ["sizes", f"at_{i}", f"at_{i + 1}"], [f"some_{i}"]))
        nodes.append(helper.make_node("Squeeze", [f"some_{i}"], [f"one_{i}"]))
        nodes.append(helper.make_node("Unsqueeze", [f"one_{i}", "at_0"], [f"size_{i}"]))
    new = ["size_0", "at_2", "at_3"] if sizes == 1 else ["size_0", "size_1", "at_1"]
    nodes += [helper.make_node("Concat", new, ["shape"], axis=0), helper.make_node("Reshape", ["x", "shape"], ["y"])]
    ports = [helper.make_tensor_value_info(*port) for port in (("x", 1, [None, 6]), ("y", 1, [None] * 3))]
    graph = helper.make_graph(nodes, "main", ports[:1], ports[1:], numbers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.arange(30, dtype="float32").reshape(5, 6)
    exports.infer_sizes(model.graph)
    assert len(model.graph.node) == (1 if sizes == 1 else 9)
    assert run(model, x=x)[0].tolist() == x.reshape([5, 2, 3] if sizes == 1 else [5, 6, 1]).tolist()


@pytest.mark.parametrize("is_norm", [True, False])
def test_a_norm_becomes_one_node(is_norm):
    """And nothing that only looks like one."""
    make = helper.make_node
    nodes = [
        make("Mul", ["x", "x"], ["another"]),
        make("ReduceMean", ["x" if is_norm else "another"], ["mean"], axes=[-1]),
        make("Sub", ["x", "mean"], ["centred"]),
        make("Mul", ["centred", "centred"], ["square"]),
        make("ReduceMean", ["square"], ["variance"], axes=[-1]),
        make("Add", ["variance", "epsilon"], ["more"]),
        make("Sqrt", ["more"], ["deviation"]),
        make("Reciprocal", ["deviation"], ["inverse"]),
        make("Mul", ["centred", "inverse"], ["unit"]),
        make("Mul", ["unit", "gamma"], ["gained"]),
        make("Add", ["gained", "beta"], ["y"]),
    ]
    draw = np.random.default_rng(3)
    constants = {"gamma": draw.normal(size=5), "beta": draw.normal(size=5), "epsilon": np.array(0.01)}
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3, 5]) for name in "xy"]
    weights = [numpy_helper.from_array(value.astype("float32"), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "main", ports[:1], ports[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = draw.normal(size=(2, 3, 5)).astype("float32")
    (before,) = run(model, x=x)
    fuse_norms(model.graph)
    assert len(model.graph.node) == (1 if is_norm else 11)
    np.testing.assert_allclose(run(model, x=x)[0], before, rtol=1e-5, atol=1e-6)


def test_a_table_of_integers_has_a_scale_by_row():
    """One that has no copy among the products' weights."""
    table = np.random.default_rng(5).normal(size=(11, 3)).astype("float32") * np.arange(11)[:, None].astype("float32")
    ids = helper.make_tensor_value_info("ids", TensorProto.INT32, [1, 7])
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, [1, 7, 3])
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"])]
    graph = helper.make_graph(nodes, "main", [ids], [rows], [numpy_helper.from_array(table, "table")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    store_integers(model.graph, "table", "")
    places = np.array([[0, 10, 3, 7, 1, 1, 5]], np.int32)
    error = np.abs(run(model, ids=places)[0] - table[places])
    assert (error <= np.abs(table[places]).max(axis=2, keepdims=True) / 253).all()


@pytest.mark.slow
def test_another_model(translator, tmp_path):
    """Not the paper's order, activation, positions and depths; a search with rules."""
    sizes = {"num_decoder_layers": 1, "norm_first": True, "activation": "gelu", "positions": "learned"}
    other = translator.replace(
        model=random_model(350, 2, 0.0, sizes), beam_size=2, min_length=5, no_repeat_ngram_size=2
    )
    other.save(tmp_path / "1", format="onnx")
    agree(other, tmp_path / "1", sentences(11), 2)


@pytest.mark.program
@pytest.mark.parametrize("vocabularies", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_marian_against_transformers(vocabularies, tmp_path):
    """What `transformers` answers is stored beside the checkpoints. Hostile texts give what the translator gives."""
    sources = json.loads((MARIAN / "answers.json").read_text(encoding="utf-8"))
    stored = {1: sources, 2: json.loads((MARIAN.parent / "separate.json").read_text(encoding="utf-8"))}[vocabularies]
    options = {"beam_size": 4, "length_penalty": 0.0, "patience": math.inf, "max_source_length": 61}
    translator = tt.Translator.from_pretrained(checkpoint(vocabularies, tmp_path / "checkpoint"), **options)
    translator.save(tmp_path / "1", format="onnx", max_length=128)
    client = ONNXTranslator(tmp_path / "1")
    best = [client.n_best(text, 1)[0] for text in sources["sentences"]]
    assert [one.text for one in best] == stored["beam"]
    np.testing.assert_allclose([one.log_prob for one in best], stored["log_probs"], atol=1e-4)
    texts = [*sources["texts"], *hostile_texts(5)]
    agree(translator, tmp_path / "1", [text for text in texts if len(text) < 99], 2)


@pytest.mark.program
def test_hostile_texts_where_neither_tensorflow_nor_this_package_is(folder, tmp_path):
    command = [sys.executable, "-W", "ignore", str(ROOT / "tests/hostile.py"), str(folder), "--count", "300"]
    assert subprocess.run(command, env=without_the_package(tmp_path)).returncode == 0


@pytest.mark.program
def test_eight_bits(tmp_path):
    """The table of embeddings is in the file once, and few translations differ from those in float32."""
    translator = trained()
    for dtype in ("float32", "int8"):
        translator.save(tmp_path / dtype, format="onnx", dtype=dtype)
    size = (tmp_path / "int8/model.onnx").stat().st_size
    assert size < 1.1 * translator.model.count_params() + 400_000
    texts = sentences(97)
    pairs = zip(*(opened(tmp_path / dtype)(texts) for dtype in ("float32", "int8")), strict=True)
    assert np.mean([one == other for one, other in pairs]) > 0.7
