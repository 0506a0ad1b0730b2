"""Tests which exports in int8 are known to saturate, for lists of a processor's flags as Linux shows them."""

import json
import shutil
from pathlib import Path

import pytest

import tf_transformer as tt
from tf_transformer.utils import processor

FLAGS = {
    "AMD Zen 3": ("flags\t\t: fpu sse2 ssse3 fma avx avx2 vaes", True),
    "Intel Skylake": ("flags\t\t: fpu avx2 avx512f avx512dq avx512bw avx512vl", True),
    "Intel Cascade Lake": ("flags\t\t: fpu avx2 avx512f avx512bw avx512_vnni", False),
    "Intel Alder Lake": ("flags\t\t: fpu avx2 avx_vnni", False),
    "arm64": ("Features\t: fp asimd asimddp", False),
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(processor, "lacks_vnni", processor.lacks_vnni.__wrapped__)  # without its cache


@pytest.mark.parametrize("name", FLAGS)
def test_flags(name, monkeypatch):
    line, expected = FLAGS[name]
    monkeypatch.setattr(Path, "read_text", lambda path: f"processor\t: 0\n{line}\nbugs\t\t: none\n")
    assert processor.lacks_vnni() == expected
    wide, narrow = {"dtype": "int8"}, {"dtype": "int8", "max_int8_pair": 128}
    for metadata, can_saturate in ((wide, True), (narrow, False), ({"dtype": "float32"}, False), ({}, False)):
        assert processor.saturates(metadata) == (expected and can_saturate)


def test_another_system(monkeypatch):
    def read_text(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", read_text)
    assert not processor.lacks_vnni() and not processor.saturates({"dtype": "int8"})


def test_a_limit_of_onednn(monkeypatch):
    monkeypatch.setattr(processor, "lacks_vnni", lambda: False)
    for limit, expected in {"avx2": True, "AVX512_CORE": True, "AVX512_CORE_VNNI": False, "": False}.items():
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
        assert processor.saturates({"dtype": "int8"}, onednn=True) == expected
        assert not processor.saturates({"dtype": "int8"})


@pytest.mark.parametrize("format", ["savedmodel", pytest.param("onnx", marks=pytest.mark.extensions)])
def test_an_engine_warns_once(format, translator, made_once, saved, tmp_path, monkeypatch):
    monkeypatch.setattr(processor, "lacks_vnni", lambda: True)
    folder = saved
    if format == "onnx":
        from exported import onnx_export

        folder = onnx_export(translator, made_once)
    file = tmp_path / "1" / ("assets.extra/tf_transformer.json" if format == "savedmodel" else "model.json")
    shutil.copytree(folder, tmp_path / "1")
    # As in an export of an earlier version.
    file.write_text(json.dumps(json.loads(file.read_text()) | {"dtype": "int8"}))
    with pytest.warns(
        UserWarning, match="int8 weights whose pairs add up to at most 128, since others saturate.* again$"
    ) as caught:
        tt.load(tmp_path / "1")
    assert len(caught) == 1 and caught[0].filename == __file__
