"""Contents of an export's directory, which appears atomically and checked."""

import datetime
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tensorflow as tf

import tf_transformer as tt
from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.serving import formats
from tf_transformer.serving import saving as publish
from tf_transformer.serving.contract import Export, Root
from tf_transformer.serving.formats import next_version
from tf_transformer.serving.saving import BATCH_SIZES, new_folder, save_export


def test_saving_is_atomic(translator, saved, monkeypatch):
    with pytest.raises(FileExistsError, match="expected a new directory"):
        translator.save(saved)
    assert [path.name for path in saved.parent.iterdir()] == ["1"]

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tf.saved_model, "save", full)
    with pytest.raises(OSError, match="No space left"):
        translator.save(saved.parent / "2")
    assert [path.name for path in saved.parent.iterdir()] == ["1"]


@pytest.mark.extensions
def test_a_failed_check_publishes_nothing(translator, tmp_path, monkeypatch, capsys):
    from tf_transformer.extensions.conformance import check as checking
    from tf_transformer.extensions.conformance.check import Finding

    checked = []

    def check(path):
        assert (path / "saved_model.pb").exists()
        checked.append(path)
        return [Finding("ok", "good"), Finding("FAIL", "weights are stored once, but: a = b")]

    monkeypatch.setattr(checking, "check", check)
    monkeypatch.setattr(tf.saved_model, "save", lambda _, path, **__: Path(path, "saved_model.pb").touch())
    monkeypatch.setattr(publish, "compact", lambda path: None)
    with pytest.raises(tt.BadInput, match=r"(?s)nothing was published:\n  FAIL weights are stored once, but: a = b$"):
        save_export(Export(translator), tmp_path / "name" / "3", checked=True)
    assert checked[0].name == "3"  # the final name
    assert list((tmp_path / "name").iterdir()) == []
    assert capsys.readouterr().out == "checking that it can be used ...\n"


def test_a_check_that_is_asked_for_is_there_or_an_error(translator, tmp_path, monkeypatch):
    monkeypatch.setattr("tf_transformer.registry.everything", lambda kind: {})
    monkeypatch.setattr(tf.saved_model, "save", lambda _, path, **__: Path(path, "saved_model.pb").touch())
    monkeypatch.setattr(publish, "compact", lambda path: None)
    with pytest.raises(tt.BadInput, match="^checked: expected a check of exports, .* found none$"):
        save_export(Export(translator), tmp_path / "name" / "3", checked=True)
    assert list((tmp_path / "name").iterdir()) == []


def test_a_directory_appears_when_it_is_complete(tmp_path):
    """A server loads any directory named by an integer. Renaming to an existing name fails."""
    path = tmp_path / "name" / "1"
    with new_folder(next_version(tmp_path / "name")) as folder:
        (folder / "file").touch()
        assert not [path for path in (tmp_path / "name").iterdir() if path.name.isdigit()]
    assert next_version(tmp_path / "name") == tmp_path / "name/2" and [file.name for file in path.iterdir()] == ["file"]
    path = tmp_path / "other" / "1"
    with pytest.raises(OSError), new_folder(path) as folder:
        (folder / "mine").touch()
        path.mkdir()
        (path / "theirs").touch()
    assert [file.name for file in path.iterdir()] == ["theirs"]
    assert [file.name for file in path.parent.iterdir()] == ["1"]


def test_next_version(tmp_path):
    assert next_version(tmp_path / "nowhere").name == "1"
    for name in ("1", "09", "10x", ".export-11-5"):
        (tmp_path / name).mkdir()
    assert next_version(tmp_path).name == "10"


def test_next_version_of_an_unwritable_path(tmp_path, monkeypatch):
    (tmp_path / "file").touch(0o755)
    for path in (tmp_path / "file", tmp_path / "file/deeper"):
        with pytest.raises(
            tt.BadInput, match=rf"{path}: expected a directory to write models to, got .*/file, which is not"
        ):
            next_version(path)
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path or mode & os.W_OK == 0)
    with pytest.raises(tt.BadInput, match=rf"expected a directory to write models to, got {tmp_path}, which is not"):
        next_version(tmp_path / "nowhere/at/all")
    monkeypatch.chdir(tmp_path / "..")
    assert next_version("nowhere/at/all") == Path("nowhere/at/all/1")


def test_a_savedmodel_needs_a_version(light, translator, tmp_path):
    for name in ("mine", "v1", "1.0", "-1", "²", "1" * 19, "1 "):
        with pytest.raises(tt.BadInput, match=r"path: expected a directory <name>/<integer version>, .* got .*models/"):
            save_export(light(), tmp_path / "models" / name)
    with pytest.raises(tt.BadInput, match="expected a directory <name>/<integer version>"):
        translator.save(tmp_path / "models" / "mine")
    assert not list(tmp_path.iterdir())


def test_description(translator, saved):
    description = json.loads((saved / "assets.extra" / "tf_transformer.json").read_text())
    assert tt.TransformerConfig(**description.pop("config")) == translator.model.config
    created = datetime.datetime.fromisoformat(description.pop("created"))
    assert created.utcoffset() == datetime.timedelta(0)
    assert abs(datetime.datetime.now(datetime.UTC) - created) < datetime.timedelta(hours=1)
    assert description == {
        **{"name": "name", "version": "1", "source_language": "en", "target_language": "de", "step": 29},
        **{"contract": "1", "dtype": "float32", "framework_version": tt.__version__, "tf_version": tf.__version__},
        **{name: option.default for name, option in SEARCH_OPTIONS.items()},
        **{"beam_size": 3, "max_beam_size": 16, "n_best": 4, "length_penalty": 0.6, "max_length": 256},
        **{"max_source_length": 41, "vocab_size": 350, "tokenizer": translator.tokenizer.fingerprint},
        "extra_length": 7,
        "parameters": translator.model.count_params(),
        "family": "transformer",
    }


def test_warm_up_records(translator, saved, served):
    """tensorflow-serving-api reads the records, and the export runs them."""
    apis = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    records = tf.data.TFRecordDataset(str(saved / "assets.extra" / "tf_serving_warmup_requests"))
    kinds = set()
    for record in records.as_numpy_iterator():
        log = apis.PredictionLog.FromString(record)
        assert log.WhichOneof("log_type") == "predict_log"
        assert not log.FindInitializationErrors()
        request = log.predict_log.request
        assert request.model_spec.name == "name"
        inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
        signature, rows = request.model_spec.signature_name, len(inputs["text"])
        expected = {"serving_default": {"text"}, "translate": set(served.signatures["translate"][0])}
        assert inputs.keys() == expected[signature]
        assert all(value.shape == (rows,) for value in inputs.values())
        for name, value in inputs.items():
            if name != "text":
                assert (value == served.signatures["translate"][2][name]).all()
        result = served(inputs, signature)
        assert all(len(value) == rows for value in result.values())
        length = len(translator.tokenizer.tokenize(inputs["text"][:1])[0])
        kinds.add((signature, rows, "long" if length > 20 else "short" if 1 < length < 9 else length))
    assert kinds == {(s, n, text) for s in expected for n in (1, BATCH_SIZES[-1]) for text in ("short", "long")}


@pytest.fixture
def light(translator):
    """Makes an export without signatures, which is written quickly."""
    return lambda: Root(translator.model, translator.tokenizer, (), {})


def writer(export):
    """Returns an argument of `publish` that writes an export."""
    return lambda path: publish.save_export(export, path)


def versions_in(path):
    """Returns the versions in the description and in `model_info` of an export."""
    description = json.loads((path / "assets.extra" / "tf_transformer.json").read_text())["version"]
    result = tf.saved_model.load(str(path)).model_info(tf.constant(["version"]))["value"].numpy()[0].decode()
    return description, result


@pytest.mark.program
def test_a_version_taken_by_another_process(light, tmp_path, monkeypatch):
    root, save, taken = tmp_path / "name", tf.saved_model.save, ["3", "4"]
    (root / "2").mkdir(parents=True)

    def slowly(*args, **kwargs):
        save(*args, **kwargs)
        if taken:
            theirs = root / taken.pop(0)
            theirs.mkdir()
            if theirs.name == "3":  # 4 is empty
                (theirs / "theirs").touch()

    monkeypatch.setattr(tf.saved_model, "save", slowly)
    path = formats.publish(writer(light()), root)
    assert path == root / "5" and versions_in(path) == ("5", "5")
    assert sorted(folder.name for folder in root.iterdir()) == ["2", "3", "4", "5"]
    assert [[file.name for file in (root / name).iterdir()] for name in "34"] == [["theirs"], []]

    taken.append("7")
    with pytest.raises(FileExistsError, match="name/7 exists by now"):
        formats.publish(writer(light()), root, version=7)
    with pytest.raises(FileExistsError, match="name/7 exists$"):
        formats.publish(writer(light()), root, version=7)
    assert sorted(folder.name for folder in root.iterdir()) == ["2", "3", "4", "5", "7"]


def test_two_that_publish_at_once(light, tmp_path, monkeypatch):
    """Both are published, and each stores its version."""
    save, both, calls = tf.saved_model.save, threading.Barrier(2), iter(range(9))

    def at_once(*args, **kwargs):
        save(*args, **kwargs)
        if next(calls) < 2:
            both.wait(60)

    monkeypatch.setattr(tf.saved_model, "save", at_once)
    exports = [light(), light()]
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda export: formats.publish(writer(export), tmp_path / "name"), exports))
    assert (
        sorted(path.name for path in paths) == sorted(path.name for path in (tmp_path / "name").iterdir()) == ["1", "2"]
    )
    for path, export in zip(paths, exports, strict=True):
        assert versions_in(path) == (path.name, path.name) and export.metadata["version"] == path.name
    assert next(calls) == 3  # the later one wrote twice
