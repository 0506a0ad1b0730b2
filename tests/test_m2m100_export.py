"""The exports of a model of several languages, against what `transformers` answers with the checkpoint."""

import json
import math

import numpy as np
import pytest
from checkpoints import M2M100 as TRAINED
from programs import fails
from served import Served

import tf_transformer as tt
from tf_transformer.conformance.check import check
from trainers import evaluate, export, translate

pytest.importorskip("safetensors")

ANSWERS = json.loads((TRAINED / "answers.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def translator():
    options = {"beam_size": 4, "length_penalty": 0.0, "patience": math.inf}
    return tt.Translator.from_pretrained(TRAINED, target_language="de", **options)


@pytest.fixture(scope="module")
def saved(translator, tmp_path_factory):
    path = tmp_path_factory.mktemp("savedmodels") / "many" / "1"
    translator.save(path, max_length=64)
    return path


@pytest.mark.slow
def test_its_export_passes_every_check(saved):
    findings = check(saved)
    assert [finding for finding in findings if finding.level != "ok"] == []
    assert "translate: options out of range give" in "".join(finding.message for finding in findings)


@pytest.mark.program
def test_the_languages_are_inputs(saved):
    """Of all rows, of each row, or the export's own; a row with an unknown one is empty and says so."""
    served, (forth, back) = Served(saved), ANSWERS.values()
    assert {"source_language", "target_language"} <= served.signatures["score"][0].keys()
    texts = [*forth["sentences"], *back["sentences"], "a", "a"]
    languages = {"source_language": ["en"] * 30 + ["de"] * 30 + ["en", "xx"]}
    languages |= {"target_language": ["de"] * 30 + ["en"] * 30 + ["\udcff", "de"]}
    languages = {name: [code.encode(errors="surrogateescape") for code in codes] for name, codes in languages.items()}
    found = served({"text": texts, **languages}, "translate")
    assert [text.decode() for text in found["translations"][:, 0]] == [*forth["beam"], *back["beam"], "", ""]
    np.testing.assert_allclose(found["log_probs"][:60, 0], forth["log_probs"] + back["log_probs"], atol=1e-4)
    assert found["truncated"].tolist() == [False] * 60 + [True] * 2 and found["source_length"][60:].tolist() == [0, 0]
    assert [text.decode() for text in served({"text": texts[:30]})["translation"]] == forth["beam"]

    details = served({"text": texts[:1], **{name: codes[:1] for name, codes in languages.items()}}, "translate_details")
    assert details["source_tokens"][0].startswith(b"__en__ ") and not details["tokens"][0, 0].startswith(b"__")
    sums = np.sum(details["token_scores"][0, 0])  # without the end symbol's
    assert found["log_probs"][0, 0] < sums < 0
    assert served({"tokens": details["tokens"][:, 0]}, "detokenize")["text"][0].decode() == forth["beam"][0]
    given = {"source": texts[30:32], "target": back["beam"][:2], "source_language": [b"de"], "target_language": [b"en"]}
    scored = served(given, "score")
    np.testing.assert_allclose(scored["log_prob"], back["log_probs"][:2], atol=1e-4)
    info = served({"key": ["source_language", "target_language", "languages"]}, "model_info")["value"]
    assert info[:2].tolist() == [b"en", b"de"] and info[2].startswith(b"af, am, ar, ")
    served.close()


@pytest.mark.program
def test_clients_choose_languages(saved, tmp_path, capsys):
    _, back = ANSWERS.values()
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
    assert "--source-language: expected --model with it" in capsys.readouterr().err
    again = tt.Translator.from_pretrained(saved)
    assert again.tokenizer.spoken() == ("en", "de") and again(back["sentences"], **languages) == back["beam"]
    assert again.replace(target_language="fr").export().facts["target_language"] == "fr"


@pytest.mark.program
def test_many_files_in_another_language(saved, tmp_path, capsys):
    pytest.importorskip("apache_beam")
    _, back = ANSWERS.values()
    (tmp_path / "text").write_text("\n".join(back["sentences"]), encoding="utf-8")
    argv = [str(saved), "--input", str(tmp_path / "text"), "--output", str(tmp_path / "out"), "--source-language=de"]
    translate.main([*argv, "--target-language", "en"])
    assert (tmp_path / "out-00000-of-00001.txt").read_text("utf-8").splitlines() == back["beam"]
    line = "out: it has output of other settings: "
    assert line in fails(translate, [*argv, "--target-language", "fr"], capsys)
    argv[4] = str(tmp_path / "other")
    line = "target_language: expected one of 100 languages, such as af, am, ar, ast, az; got 'xx'"
    assert line in fails(translate, [*argv, "--target-language", "xx"], capsys)


@pytest.mark.program
def test_a_rest_client_learns_the_languages(saved, monkeypatch):
    """Over REST every input must be sent; the playground's page sends them, too."""
    pytest.importorskip("flask")
    from savedmodels.clients import rest as client_module
    from savedmodels.playground import rest
    from savedmodels.playground.model import ServedModel

    playground, client = rest.app(ServedModel(saved)).test_client(), client_module.Client(name="many")

    def ask(what, body=None):
        path = f"/v1/models/many{what}"
        return (playground.post(path, data=json.dumps(body)) if body else playground.get(path)).get_json()

    monkeypatch.setattr(client, "_ask", ask)
    options = client.options()
    assert (options["source_language"], options["target_language"]) == ("en", "de")
    options |= dict([client_module.option("source_language=de"), client_module.option("target_language=en")])
    _, back = ANSWERS.values()
    lines = client_module.translated(client, back["sentences"][:3], options, 0, 1)
    assert [line.split("\t")[2] for line in lines] == back["beam"][:3]
    page = playground.get("/").get_data(as_text=True)
    assert 'id="target_language"' in page and 'const languages = ["source_language", "target_language"]' in page


def test_litert_refuses_several_languages_before_anything_is_loaded(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tt.Translator, "from_pretrained", None)
    argv = ["--pretrained", TRAINED, "--name", "many", "--base", tmp_path, "--format", "litert"]
    line = "error: a folder for LiteRT: expected none of several languages, which it cannot hold"
    assert fails(export, argv, capsys) == line and not list(tmp_path.iterdir())
