"""The registry of formats."""

import pytest

import tf_transformer as tt
from tf_transformer.serving.formats import format_of, formats
from trainers import export


@pytest.mark.parametrize("format", formats().values(), ids=lambda format: format.name)
def test_save_writes_every_format(format, translator, tmp_path, monkeypatch, request):
    """`Translator.save` hands path and options to the format, which writes a new directory."""
    for kind in ("litert.LiteRTFolder", "onnx.ONNXFolder"):  # other tests convert
        monkeypatch.setattr(f"tf_transformer.extensions.interop.formats.{kind}._converted", lambda *_: b"a file")
    takes = {
        "ctranslate2": ["ctranslate2"],
        "argos": ["ctranslate2"],
        "onnx": ["onnxruntime", "tf2onnx"],
        "transformers": ["safetensors"],
    }
    for needed in takes.get(format.name, []):
        pytest.importorskip(needed)
    options = {"source_language": "en", "target_language": "de"} if format.name == "argos" else {}
    if format.name == "savedmodel":
        path = request.getfixturevalue("saved")  # the default `format`
    else:
        translator.save(path := tmp_path / "name" / "1", format=format.name, **options)
    assert path.is_dir() and any(path.iterdir())
    with pytest.raises(FileExistsError):
        translator.save(path, format=format.name, **options)


def test_what_a_format_does_not_support():
    ctranslate2, saved_model = format_of("ctranslate2"), format_of("savedmodel")
    assert saved_model.problem("int8", {"tasks": True, "metadata": True, "n_best": 3}) == ""
    assert ctranslate2.problem("int16", {"tasks": False, "n_best": None}) == ""
    wrong = ctranslate2.problem("int8", {"tasks": True, "n_best": 3})
    assert wrong == "a directory for CTranslate2: does not support tasks, n_best"
    wrong = saved_model.problem("int16", {})
    assert wrong == "dtype: expected one of float32, bfloat16, float16, int8 for a SavedModel, got 'int16'"
    with pytest.raises(tt.BadInput, match="format: expected one of savedmodel, .*, transformers, got 'pmml'"):
        format_of("pmml")


def test_the_program_names_no_format():
    with open(export.__file__, encoding="utf-8") as file:
        text = file.read().lower()
    assert not [name for name in formats() if name != "savedmodel" and name in text]
