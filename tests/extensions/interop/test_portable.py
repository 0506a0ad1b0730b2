"""Tests exports to LiteRT and ONNX in these engines, and the client of both."""

import json
import math
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import random_model
from exported import LONG, agree, onnx_export, sentences, trained
from programs import ROOT, without_the_package

import tf_transformer as tt
from tf_transformer.extensions.conformance.products import products_of
from tf_transformer.extensions.interop.engines.litert_client import LiteRTTranslator, ONNXTranslator, opened
from tf_transformer.extensions.interop.formats.portable import Portable

pytestmark = pytest.mark.filterwarnings("ignore:more tokens than the model reads")
FORMATS = {"litert": LiteRTTranslator, "onnx": ONNXTranslator}
NEEDED = {"litert": ["ai_edge_litert"], "onnx": ["onnxruntime", "tf2onnx"]}


@pytest.fixture(scope="module", params=FORMATS)
def format(request):
    for package in NEEDED[request.param]:
        pytest.importorskip(package)
    return request.param


@pytest.fixture(scope="module")
def folder(format, translator, request, made_once):
    return request.getfixturevalue("lite") if format == "litert" else onnx_export(translator, made_once)


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "1")


@pytest.fixture(scope="module")
def expected(translator):
    texts = [*sentences(5), *LONG]
    return texts, translator.replace(length_penalty=2.0).n_best(texts, 3)


def test_the_search_is_ours(expected, format, folder):
    texts, outputs = (column[: -len(LONG)] if format == "litert" else column for column in expected)
    agree(outputs, folder, texts, 3, fresh=2 * (format == "litert"), length_penalty=2.0)


def test_files_and_metadata(format, folder):
    file = FORMATS[format].MODEL
    assert sorted(path.name for path in folder.iterdir()) == ["model.json", file, "tokenizer.model"]
    metadata = json.loads((folder / "model.json").read_text())
    assert metadata["ids"] == {"padding": 0, "start": 1, "end": 2, "unknown": 3}
    sizes = ("beam_size", "extra_length", "max_source_length", "max_length")
    assert [metadata[name] for name in sizes] == [3, 7, 41, 48]
    assert (metadata["source_language"], metadata["license"], metadata["dtype"]) == ("en", "apache-2.0", "float32")


def test_options_are_clipped_to_their_limits(folder):
    client = opened(folder)
    assert [len(ids) for ids in client.ids("Two doors.", 3, max_length=5)] == [5, 5, 5]
    assert max(len(ids) for ids in client.ids("door " * 3000, 3)) <= 41 + 7
    with pytest.warns(UserWarning, match=r"more tokens than the model reads; .*: 'door door"):
        client("door " * 3000)
    for value in (math.nan, math.inf, 2**40, 10**400):
        assert client.ids("Two doors.", 3, max_length=value) == client.ids("Two doors.", 3)
    assert client("Two doors.", max_length=-(2**40)) == client("Two doors.", max_length=1)
    assert client("Two doors.", length_penalty=10**400) == client("Two doors.", length_penalty=5)
    assert client("Two doors.", length_penalty=math.nan) == client("Two doors.")
    assert client.n_best("Two doors.", -1) == client.n_best("Two doors.", 0) == client.n_best("Two doors.", 1)
    assert client.n_best("Two doors.", 2**40) == client.n_best("Two doors.", 3)
    with pytest.raises(TypeError, match="expected length_penalty, .*, as the export fixes others; got beam_size"):
        client("Two doors.", beam_size=2)
    with pytest.raises(TypeError, match="^max_length: expected a number, got '9'$"):
        client("Two doors.", max_length="9")
    with pytest.raises(TypeError, match="^texts: expected strings, got None$"):
        client(["Two doors.", None])


def test_nan_means_the_files_default(folder):
    """Without the client, which replaces NaN itself."""
    client = opened(folder)
    source, options = [*client.source_ids("Two doors."), client.metadata["ids"]["end"]], client.options | {"n_best": 3}
    scores = [
        client._signatures[0]([source], options | more)[0]["scores"] for more in ({}, {"length_penalty": math.nan})
    ]
    assert scores[0].tolist() == scores[1].tolist() and scores[0][0] > -1e8


@pytest.mark.parametrize("name", ["model.json", "the model", "a weight", "empty model", "tokenizer.model"])
def test_a_damaged_folder_raises_one_line(name, format, copy):
    """With a changed weight the file would still load, and translate differently."""
    model, metadata = copy / FORMATS[format].MODEL, json.loads((copy / "model.json").read_text())
    if name == "a weight":
        contents = bytearray(model.read_bytes())
        contents[len(contents) // 2] ^= 1
        model.write_bytes(contents)
    elif name == "empty model":  # with a correct checksum
        model.write_bytes(b"")
        empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        (copy / "model.json").write_text(json.dumps(metadata | {"sha256": empty}))
    else:
        (model if name == "the model" else copy / name).write_bytes(b"[1]")
    message = f"1: expected {FORMATS[format].KIND}, got something else: ."
    message += "*with SHA-256 .*, where model.json says" * (name == "a weight")
    for load, kind in ((opened, ValueError), (tt.load, tt.BadInput)):
        with pytest.raises(kind, match=message) as error:
            load(copy)
        assert "\n" not in str(error.value)


def test_rejected_options_and_missing_packages(format, translator, tmp_path, monkeypatch):
    with pytest.raises(tt.BadInput, match="dtype: expected one of float32, int8 for .*, got 'int4'"):
        translator.save(tmp_path / "1", format=format, dtype="int4")
    with pytest.raises(tt.BadInput, match="max_length: expected a positive whole number below 2..31, got 0"):
        translator.save(tmp_path / "1", format=format, max_length=0)
    with pytest.raises(FileNotFoundError, match="export or of its versions, found no model"):
        FORMATS[format](tmp_path)
    for package in NEEDED[format]:
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(tt.BadInput, match=rf'takes {package}: pip install "tf-transformer\[{format}\]"'):
            translator.save(tmp_path / "1", format=format, checked=True)
    assert not list(tmp_path.iterdir())


class Unnamed(tt.Transformer):
    """A model whose encoder layers have no names, so Keras numbers them."""

    def make_encoder_layers(self):
        return [tt.layers.EncoderLayer(**self.layer_options()) for _ in range(self.config.num_layers)]


# test_matrix.py runs other models in LiteRT.
SLOWER = [pytest.param("litert", marks=pytest.mark.slow), pytest.param("onnx", marks=pytest.mark.program)]


@pytest.mark.parametrize("format", SLOWER, indirect=True, scope="module")
def test_another_model(format, translator, tmp_path):
    """Another order, activation and depth. LiteRT: unnamed layers, greedy. ONNX: learned positions, rules."""
    texts, sizes = sentences(3), {"num_decoder_layers": 1, "norm_first": True, "activation": "gelu"}
    options, kind, beams = {"max_source_length": 16}, Unnamed, 1
    if format == "onnx":
        sizes, kind, beams = sizes | {"positions": "learned"}, tt.Transformer, 2
        options = {"min_length": 5, "no_repeat_ngram_size": 2}
    other = translator.replace(model=random_model(350, 2, 0.0, sizes, kind), beam_size=beams, **options)
    other.save(tmp_path / "1", format=format)
    agree(other.n_best(texts, beams), tmp_path / "1", texts, beams)


@pytest.mark.program
def test_eight_bits(format, tmp_path):
    """The file has one embedding table, and few translations differ from those in float32."""
    translator, texts = trained(max_source_length=16), sentences(41)
    translator.save(tmp_path / "int8", format=format, dtype="int8")
    contents = (tmp_path / "int8" / FORMATS[format].MODEL).read_bytes()
    assert len(contents) < 1.1 * translator.model.count_params() + 400_000
    client = opened(tmp_path / "int8")
    assert client.metadata.get("max_int8_pair") == {"onnx": 128}.get(format)
    if format == "onnx":
        assert not [wrong for _, _, wrong in products_of(tmp_path / "int8") if wrong]
    pairs = zip(translator(texts), client(texts), strict=True)
    # This model is so small that onnxruntime changes a third.
    assert np.mean([exact == rounded for exact, rounded in pairs]) > 0.55
    table = translator.model.embedding
    table.quantize("int8")  # Keras's integers are those of LiteRT.
    if format == "litert":
        assert contents.count(np.asarray(table.embeddings).tobytes()) == 1
    with pytest.raises(
        tt.BadInput, match="expected weights of 16 or 32 bits, which quantization can convert, got int8"
    ):
        translator.save(tmp_path / "1", format=format)


@pytest.mark.program
def test_hostile_texts_without_tensorflow_and_this_package(folder, tmp_path):
    command = [sys.executable, "-W", "ignore", str(ROOT / "tests/hostile.py"), str(folder), "--count", "97"]
    assert subprocess.run(command, env=without_the_package(tmp_path)).returncode == 0


@pytest.mark.program
def test_a_check_that_fails_publishes_nothing(format, translator, tmp_path, monkeypatch):
    for kind in Portable.__subclasses__():
        monkeypatch.setattr(kind, "_converted", lambda *_: bytes(9_000))
    with pytest.raises(tt.BadInput, match="expected an export that passes the checks, so nothing was published"):
        translator.save(tmp_path / "1", format=format, checked=True)
    assert not list(tmp_path.iterdir())
