"""Compares exports of a multilingual model with the checkpoint in `transformers`."""

import functools
import io
import json
import math
import sys

import numpy as np
import pytest
import tensorflow as tf
from checkpoints import M2M100 as TRAINED
from programs import fails
from served import Served

import tf_transformer as tt
from tf_transformer.extensions.interop.engines import litert_client
from tf_transformer.extensions.interop.engines.litert_client import opened
from trainers import evaluate, export, translate

pytest.importorskip("safetensors")

EXPECTED = json.loads((TRAINED / "answers.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def translator():
    options = {"beam_size": 4, "length_penalty": 0.0, "patience": math.inf}
    return tt.Translator.from_pretrained(TRAINED, target_language="de", **options)


@pytest.fixture(scope="module")
def saved(translator, tmp_path_factory):
    path = tmp_path_factory.mktemp("savedmodels") / "many" / "1"
    translator.save(path, max_length=64)
    return path


@pytest.fixture(scope="module", autouse=True)
def load_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf.saved_model, "load", functools.cache(tf.saved_model.load))
        yield


@pytest.mark.program
def test_the_languages_are_inputs(saved):
    """For all rows, per row, or by default. A row with an unknown one is empty and marked as truncated."""
    served, (forth, back) = Served(saved), EXPECTED.values()
    assert {"source_language", "target_language"} <= served.signatures["score"][0].keys()
    texts = [*forth["sentences"], *back["sentences"], "a", "a"]
    languages = {"source_language": ["en"] * 30 + ["de"] * 30 + ["en", "xx"]}
    languages |= {"target_language": ["de"] * 30 + ["en"] * 30 + ["\udcff", "de"]}
    languages = {name: [code.encode(errors="surrogateescape") for code in codes] for name, codes in languages.items()}
    outputs = served({"text": texts, **languages}, "translate")
    assert [text.decode() for text in outputs["translations"][:, 0]] == [*forth["beam"], *back["beam"], "", ""]
    np.testing.assert_allclose(outputs["log_probs"][:60, 0], forth["log_probs"] + back["log_probs"], atol=1e-4)
    assert outputs["truncated"].tolist() == [False] * 60 + [True] * 2 and outputs["source_length"][60:].tolist() == [
        0,
        0,
    ]
    assert [text.decode() for text in served({"text": texts[:30]})["translation"]] == forth["beam"]

    details = served({"text": texts[:1], **{name: codes[:1] for name, codes in languages.items()}}, "translate_details")
    assert details["source_tokens"][0].startswith(b"__en__ ") and not details["tokens"][0, 0].startswith(b"__")
    sums = np.sum(details["token_scores"][0, 0])  # without EOS
    assert outputs["log_probs"][0, 0] < sums < 0
    assert served({"tokens": details["tokens"][:, 0]}, "detokenize")["text"][0].decode() == forth["beam"][0]
    pairs = {"source": texts[30:32], "target": back["beam"][:2], "source_language": [b"de"], "target_language": [b"en"]}
    scored = served(pairs, "score")
    np.testing.assert_allclose(scored["log_prob"], back["log_probs"][:2], atol=1e-4)
    info = served({"key": ["source_language", "target_language", "languages"]}, "model_info")["value"]
    assert info[:2].tolist() == [b"en", b"de"] and info[2].startswith(b"af, am, ar, ")
    served.close()


@pytest.mark.program
def test_clients_choose_languages(saved, tmp_path, capsys):
    _, back = EXPECTED.values()
    client, languages = tt.load(saved), {"source_language": "de", "target_language": "en"}
    assert client(back["sentences"], **languages) == back["beam"]
    with pytest.raises(tt.BadInput, match="^target_language: expected one of 100 languages, such as af, .*; got 'xx'$"):
        client("A", target_language="xx")
    (tmp_path / "source").write_text("\n".join(back["sentences"]), encoding="utf-8")
    chosen = ["--source-language", "de", "--target-language", "en"]
    translate.main([str(saved), str(tmp_path / "source"), *chosen])
    assert capsys.readouterr().out.splitlines() == back["beam"]
    files = [f"--{name}={tmp_path / name}" for name in ("source", "reference", "output")]
    (tmp_path / "reference").write_text("\n".join(back["beam"]), encoding="utf-8")
    evaluate.main([f"--model={saved}", *files, "--samples=7", *chosen])
    assert (tmp_path / "output").read_text("utf-8").splitlines() == back["beam"]
    with pytest.raises(SystemExit):
        evaluate.main([files[1], "--translations", str(tmp_path / "output"), *chosen])
    assert "--source-language: expected --model as well" in capsys.readouterr().err
    again = tt.Translator.from_pretrained(saved)
    assert again.tokenizer.current_languages() == ("en", "de") and again(back["sentences"], **languages) == back["beam"]
    assert again.replace(target_language="fr").export().metadata["target_language"] == "fr"


@pytest.mark.program
def test_many_files_in_another_language(saved, tmp_path, capsys):
    pytest.importorskip("apache_beam")
    _, back = EXPECTED.values()
    (tmp_path / "text").write_text("\n".join(back["sentences"]), encoding="utf-8")
    argv = [str(saved), "--input", str(tmp_path / "text"), "--output", str(tmp_path / "out"), "--source-language=de"]
    translate.main([*argv, "--target-language", "en"])
    assert (tmp_path / "out-00000-of-00001.txt").read_text("utf-8").splitlines() == back["beam"]
    line = "out: it has output of other settings: "
    assert line in fails(translate, [*argv, "--target-language", "fr"], capsys)
    argv[4] = str(tmp_path / "other")
    line = "target_language: expected one of 100 languages, such as af, am, ar, ast, az; got 'xx'"
    assert line in fails(translate, [*argv, "--target-language", "xx"], capsys)


@pytest.fixture(scope="module")
def portable(translator, tmp_path_factory):
    """Export to ONNX, from German to English by default. LiteRT has the same client."""
    pytest.importorskip("tf2onnx")
    path = tmp_path_factory.mktemp("onnx") / "many" / "1"
    metadata = {"source_language": "de", "target_language": "en"}
    translator.replace(max_source_length=31).save(path, format="onnx", max_length=64, **metadata)
    return path


@pytest.mark.program
def test_the_client_chooses_languages(portable, tmp_path, capsys, monkeypatch):
    forth, back = EXPECTED.values()
    client, languages = opened(portable), {"source_language": "en", "target_language": "de"}
    assert client(back["sentences"]) == back["beam"]
    best = [client.n_best(text, 2, **languages)[0] for text in forth["sentences"]]
    assert [output.text for output in best] == forth["beam"]
    np.testing.assert_allclose([output.log_prob for output in best], forth["log_probs"], atol=1e-4)
    assert client.options.keys() == {"length_penalty", "max_length", "source_language", "target_language"}
    for code in ("xx", None, ["de"], 7):
        with pytest.raises(ValueError, match="^source_language: expected one of 100 languages, such as af, .*; got "):
            client("A", source_language=code)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(forth["sentences"][0].encode())))
    chosen = [text for pair in languages.items() for text in ("--option", "=".join(pair))]
    litert_client.main([str(portable), *chosen])
    assert capsys.readouterr().out == f"{forth['beam'][0]}\n"


@pytest.mark.program
def test_an_engine_chooses_languages(portable, translator):
    """By default the export's, or those of the engine or of a call."""
    forth, back = EXPECTED.values()
    engine, languages = tt.load(portable), {"source_language": "en", "target_language": "de"}
    assert list(engine.languages) == list(translator.tokenizer.languages)
    assert engine(back["sentences"][:3]) == back["beam"][:3]
    assert engine(forth["sentences"][:3], **languages) == forth["beam"][:3]
    assert tt.load(portable, **languages)(forth["sentences"][:3]) == forth["beam"][:3]
    texts = ["Two doors.", "", "door " * 31]
    ours = translator.replace(max_source_length=31)
    replies, expected = (model.replies(texts, **languages) for model in (engine, ours))
    pairs = zip(replies, expected, strict=True)
    assert all((reply.length, reply.truncated) == (other.length, other.truncated) for reply, other in pairs)
    with pytest.raises(tt.BadInput, match="^target_language: expected one of 100 languages, such as af, .*; got 'xx'$"):
        engine("A", target_language="xx")


@pytest.mark.program
def test_the_server_takes_the_languages_of_such_an_export(portable):
    pytest.importorskip("flask")
    from tf_transformer.extensions.server.app import app
    from tf_transformer.extensions.server.model import ServedModel

    forth, back = EXPECTED.values()
    client, languages = app(ServedModel(portable)).test_client(), {"source_language": "en", "target_language": "de"}
    for text, best, options in (
        (back["sentences"][0], back["beam"][0], {}),
        (forth["sentences"][0], forth["beam"][0], languages),
    ):
        assert client.post("/document", json={"text": text, **options}).get_json()["translations"] == [best]
    assert '<input id="source_language" list="codes" value="de" required>' in client.get("/").get_data(as_text=True)


def test_an_export_needs_a_target_language(tmp_path, capsys):
    argv = ["--pretrained", TRAINED, "--name", "many", "--base", tmp_path, "--format", "onnx", "--no-check"]
    line = "error: target_language: expected one of 100 languages, such as af, am, ar, ast, az; got none"
    assert fails(export, argv, capsys) == line and not list((tmp_path / "many").glob("[0-9]*"))
