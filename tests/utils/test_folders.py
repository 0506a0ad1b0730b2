"""Kinds of model folders, whatever else is in them."""

import re

import pytest
from programs import fails

import tf_transformer as tt
from tf_transformer.training.run import Run
from tf_transformer.utils.folders import (
    EXPORTS,
    LITERT_FILE,
    ONNX_FILE,
    SAVED_MODEL_FILE,
    find_saved_model,
    model_folder,
    needs_no_tensorflow,
    newest,
    saved_model_of,
    what_is_in,
)


def put(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


@pytest.mark.parametrize("file", [SAVED_MODEL_FILE, LITERT_FILE, ONNX_FILE])
def test_a_models_folder_means_its_newest_version(file, tmp_path):
    name = tmp_path / "name"
    for version in ("9", "010", "10", "x", "10x", "-11", "1" * 19, ".12-tmp"):
        put(name / version, file)
    for version in ("11", "²"):  # being written, and not a number
        put(name / version, "another")
    put(name / "10/99", file)
    (name / "13").touch()
    (name / "14" / file).mkdir(parents=True)
    assert newest(name, file) == model_folder(name) == name / "10"
    for folder in ("10", "x", "9/"):
        assert model_folder(f"{name}/{folder}") == name / folder
    assert needs_no_tensorflow(name) == needs_no_tensorflow(name / "x") == (file != SAVED_MODEL_FILE)
    assert find_saved_model(name) == (name / "10" if file == SAVED_MODEL_FILE else None)


def test_the_newest_of_both_kinds(tmp_path):
    for version, file in enumerate([LITERT_FILE, SAVED_MODEL_FILE, ONNX_FILE, LITERT_FILE], 1):
        put(tmp_path / str(version), file)
        assert model_folder(tmp_path) == tmp_path / str(version)
        assert needs_no_tensorflow(tmp_path) == (file != SAVED_MODEL_FILE)
    assert saved_model_of(tmp_path) == tmp_path / "2" and newest(tmp_path, LITERT_FILE) == tmp_path / "4"
    assert not needs_no_tensorflow("gs://bucket/model")


@pytest.mark.extensions
def test_a_folder_without_a_model_is_one_line(tmp_path):
    pytest.importorskip("ai_edge_litert")
    from tf_transformer.extensions.interop.engines import litert_client
    from tf_transformer.extensions.interop.engines.portable import LiteRT

    put(tmp_path / "1")
    for folder, reason in ((tmp_path, "found no {} in "), (tmp_path / "nowhere", "found nothing at ")):
        for take, files in (
            (saved_model_of, SAVED_MODEL_FILE),
            (model_folder, " or ".join(EXPORTS)),
            (LiteRT, "model.tflite"),
            (litert_client.opened, "model.tflite or model.onnx"),
        ):
            is_client = take in (LiteRT, litert_client.opened)
            kind, message = (FileNotFoundError, "found no {} in ") if is_client else (tt.BadInput, reason)
            with pytest.raises(kind, match=f"or of its versions, {message.format(files)}{folder}"):
                take(folder)
        assert not needs_no_tensorflow(folder)


@pytest.mark.extensions
def test_what_another_folder_is_and_what_opens_it(tmp_path, capsys):
    from trainers import translate

    put(tmp_path / "saved/7", SAVED_MODEL_FILE)
    put(tmp_path / "litert/7", LITERT_FILE, "model.json", "source.spm", "target.spm")
    put(tmp_path / "onnx/7", ONNX_FILE, "model.json", "tokenizer.model")
    put(tmp_path / "ctranslate2/7", "model.bin", "source.spm", "target.spm")
    put(tmp_path / "records", "records.json")
    put(tmp_path / "marian", "source.spm", "config.json")
    put(tmp_path / "run", "tokenizer.model")
    Run(tmp_path / "run").begin({"kind": "translation", "model": {}, "recipe": {}, "corpus": {}})
    (tmp_path / "file").touch()
    onnx = "an ONNX export, .*/7, which tt.load"
    lite, engine = "a LiteRT export, .*/7, which tt.load", "an export for CTranslate2, .*/7, which ctranslate2.Transl"
    of_run, of_checkpoint = "export --run .*/run --name", "a pretrained checkpoint, .* --pretrained .*/marian --name"
    expected = {
        tt.load: {"ctranslate2": engine, "records": "tt.Records", "file": "a file, no directory"},
        tt.Translator.from_pretrained: {"litert/7": lite, "onnx/7": onnx, "ctranslate2/7": engine},
        saved_model_of: {"run": of_run, "litert": lite, "marian": of_checkpoint, "ctranslate2": engine},
        model_folder: {"run": of_run, "marian": of_checkpoint, "nowhere": "found nothing at", "records": "prepared"},
    }
    for take, folders in expected.items():
        for name, reason in folders.items():
            with pytest.raises(tt.BadInput, match=f"expected .*, .*{reason}") as error:
                take(tmp_path / name)
            assert len(str(error.value).splitlines()) == 1
    assert re.search("found nothing at", fails(translate, [tmp_path / "nowhere"], capsys))
    assert "a SavedModel, " in what_is_in(tmp_path / "saved", LITERT_FILE)
