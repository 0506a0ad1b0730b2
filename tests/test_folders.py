"""What a folder of an exported model holds, whatever lies beside it."""

import pytest

import tf_transformer as tt
from tf_transformer.serving.folders import (
    LITERT,
    SAVED_MODEL,
    find_saved_model,
    is_litert,
    litert_translator,
    model_folder,
    saved_model_of,
)
from tf_transformer.serving.litert_client import newest


def put(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


@pytest.mark.parametrize("file", [SAVED_MODEL, LITERT])
def test_a_models_folder_means_its_newest_version(file, tmp_path):
    name = tmp_path / "name"
    for version in ("9", "010", "10", "x", "10x", "-11", "1" * 19, ".12-tmp"):
        put(name / version, file)
    for version in ("11", "²"):  # being written, and no number
        put(name / version, "another")
    put(name / "10/99", file)
    (name / "13").touch()
    (name / "14" / file).mkdir(parents=True)
    assert newest(name, file) == model_folder(name) == name / "10"
    assert model_folder(name / "10") == name / "10"
    assert model_folder(name / "x") == name / "x"
    assert model_folder(f"{name}/9/") == name / "9"
    assert is_litert(name) == is_litert(name / "x") == (file == LITERT)
    assert find_saved_model(name) == (name / "10" if file == SAVED_MODEL else None)


def test_the_newest_of_both_kinds(tmp_path):
    """A client of one kind takes the newest of its kind; a program that reads both, the newest."""
    for version, file in enumerate([LITERT, SAVED_MODEL, LITERT], 1):
        put(tmp_path / str(version), file)
        assert model_folder(tmp_path) == tmp_path / str(version)
        assert is_litert(tmp_path) == (file == LITERT)
    assert saved_model_of(tmp_path) == tmp_path / "2" and newest(tmp_path, LITERT) == tmp_path / "3"
    assert not is_litert("gs://bucket/model")


def test_a_folder_without_a_model_is_one_line(tmp_path):
    pytest.importorskip("ai_edge_litert")
    put(tmp_path / "1")
    for none in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(tt.BadInput, match="expected the folder of a SavedModel or of its versions, found no saved"):
            saved_model_of(none)
        with pytest.raises(tt.BadInput, match=r"or of its versions, found no saved_model.pb or model.tflite in"):
            model_folder(none)
        with pytest.raises(FileNotFoundError, match="of a LiteRT export or of its versions, found no model.tflite in"):
            litert_translator(none)
        assert not is_litert(none)
