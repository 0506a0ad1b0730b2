"""Tests pretrained checkpoints from a directory or the hub, their metadata, and fine-tuning them.

The hub is a cache of huggingface_hub, without a network.
"""

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from programs import fails, options

import tf_transformer as tt
from tf_transformer.extensions.interop.families import hub
from tf_transformer.serving.formats import formats
from trainers import export, prepare, translation

huggingface_hub = pytest.importorskip("huggingface_hub")
pytest.importorskip("safetensors")

TRAINED = Path(__file__).parents[2] / "marian" / "trained"
SENTENCES = json.loads((TRAINED / "answers.json").read_text(encoding="utf-8"))["sentences"]
CARD = """---
language:
- en
- no
license: cc-by-4.0
tags: [translation]
---
# A model
license: none
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cached model without a network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--Helsinki-NLP--opus-mt-en-no"
    shutil.copytree(TRAINED, folder / "snapshots" / ("5" * 40))
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("5" * 40)
    (folder / "snapshots" / ("5" * 40) / "README.md").write_text(CARD)
    (folder / "snapshots" / ("5" * 40) / "tokenizer_config.json").write_text('{"source_lang": "eng"}')
    return folder / "snapshots" / ("5" * 40)


@pytest.mark.parametrize("name", ["opus-mt-en-no", pytest.param("Helsinki-NLP/opus-mt-en-no", marks=pytest.mark.slow)])
def test_a_model_of_the_hub(cache, name):
    """Weights, tokenizer and options equal those from a directory."""
    translator, expected = tt.Translator.from_pretrained(name), tt.Translator.from_pretrained(TRAINED)
    assert (translator.model.config, translator.options) == (expected.model.config, expected.options)
    for weight, other in zip(translator.model.get_weights(), expected.model.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, other)
    ids = translator.tokenizer.encode(SENTENCES[:3])
    assert all(ids) and ids == expected.tokenizer.encode(SENTENCES[:3])
    assert translator.tokenizer.fingerprint == expected.tokenizer.fingerprint
    assert translator.beam_size == 3
    metadata = {"origin": name, "languages": "en, no", "license": "cc-by-4.0", "source_language": "eng"}
    metadata |= {"commit": "5" * 40}
    assert translator.export_options == metadata | {"max_length": 127}  # without BOS
    assert translator.astype("bfloat16").export_options == translator.export_options


@pytest.mark.parametrize("existing", hub.WEIGHTS)
def test_one_file_of_weights_is_downloaded(existing, tmp_path, monkeypatch):
    patterns = []

    def snapshot_download(name, revision, allow_patterns):
        assert (name, revision) == ("somebody/model", "v2")
        patterns.extend(allow_patterns)
        (tmp_path / existing).write_bytes(b"") if existing in allow_patterns else None
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert hub.folder_of("somebody/model", revision="v2") == tmp_path
    assert [name for name in patterns if name in hub.WEIGHTS] == list(hub.WEIGHTS[: hub.WEIGHTS.index(existing) + 1])
    assert {"*.json", "*.spm", "README.md"} <= set(patterns)


def test_unknown_names(cache, monkeypatch):
    message = "found none at opus-mt-xx; or a model's name on the .* hub, got no model Helsinki-NLP/opus-mt-xx: "
    with pytest.raises(tt.BadInput, match=message) as no:
        tt.Translator.from_pretrained("opus-mt-xx")
    assert "\n" not in str(no.value)
    with pytest.raises(tt.BadInput, match="or a checkpoint, found nothing at ../missing/folder"):
        tt.Translator.from_pretrained("../missing/folder")
    (cache / "model.safetensors").unlink()
    with pytest.raises(tt.BadInput, match=r"Helsinki-NLP/opus-mt-en-no: expected one of model.safetensors, .* none"):
        tt.Translator.from_pretrained("opus-mt-en-no")
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(tt.BadInput, match=r'found none at opus-mt-en-no; .* pip install "tf-transformer\[hub\]"'):
        tt.Translator.from_pretrained("opus-mt-en-no")


def test_a_mistyped_path_is_not_looked_up(tmp_path, monkeypatch):
    """The hub may have a model of this name."""
    names = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: names.append(name) or 1 / 0)
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    opens = (tt.load, tt.Translator.from_pretrained, lambda path: tt.load(path, family="marian"))
    for path in ("runs/mine", "data/mine", "./mine", *(f"{format.base}/demo" for format in formats().values())):
        for load in opens:
            with pytest.raises(tt.BadInput, match=f"expected .*, found nothing at {Path(path)}$"):
                load(path)
    assert not names
    for path, revision in (("somebody/mine", None), ("runs-of/mine", None), ("data/mine", "main")):
        with pytest.raises(tt.BadInput, match=f"got no model {path}"):
            tt.load(path, revision=revision)
        assert names.pop() == path


def test_a_folder_of_versions_means_the_newest(tmp_path):
    """As for other exports."""
    for version in ("2", "11"):
        shutil.copytree(TRAINED, tmp_path / "name" / version)
    (tmp_path / "name/2/model.safetensors").write_bytes(b"")
    expected = tt.Translator.from_pretrained(TRAINED)
    for load in (tt.load, lambda path: tt.load(path, family="marian")):
        translator = load(tmp_path / "name")
        for weight, other in zip(translator.model.get_weights(), expected.model.get_weights(), strict=True):
            np.testing.assert_array_equal(weight, other)
        assert translator.export_options["origin"] == "name"


ALIASES = "\n".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9))
ALIASES = f"a0: &a0 [x]\n{ALIASES}\nlanguage: *a8\n"
HOSTILE = [ALIASES, "language: " + "[" * 30_000, "language: [en" * 20, "\n" * 60_000, "a" * 10**6]


@pytest.mark.parametrize(
    ("card", "metadata"),
    [
        ("no front matter", {}),
        ("---\nlicense: [\n---\n", {}),
        ("---\nlanguage: no\n---\n", {"languages": "no"}),
        ("---\n- a\n---", {}),
        *((f"---\n{head}\n---\n", {}) for head in HOSTILE),
    ],
)
def test_metadata_of_a_card(card, metadata, tmp_path):
    (tmp_path / "README.md").write_text(card)
    assert hub.origin_of(tmp_path, tmp_path) == {"origin": tmp_path.name} | metadata


def test_yaml_of_aliases_or_too_deep():
    yaml = pytest.importorskip("yaml")
    for text, message in (
        (ALIASES, "without aliases"),
        ("[" * 60 + "]" * 60, "nested at most 50"),
        ("a: [", "while"),
        ("- a", "list"),
    ):
        with pytest.raises(ValueError, match=message):
            hub.parse_yaml(yaml, text.encode())
    assert hub.parse_yaml(yaml, b"a: [1, no, &b ~]") == {"a": ["1", "no", "~"]}


RECIPE = dataclasses.replace(tt.RECIPES["finetune"], steps=5, epochs=None, batch_tokens=512, dev_sentences=3)


@pytest.mark.program
def test_a_run_starts_with_the_weights_and_stores_them(unscored, corpus, tmp_path, capsys):
    """With a learning rate of 0. The run resumes without the checkpoint."""
    start = tt.Translator.from_pretrained(TRAINED, beam_size=1)
    config = dataclasses.replace(start.model.config, dropout=0.3)
    recipe = dataclasses.replace(RECIPE, steps=2, eval_every=2, learning_rate=None, warmup_steps=4_000)

    def still():
        return {"recipe": recipe, "optimizer": keras.optimizers.SGD(0.0)}

    trainer = tt.Trainer(tmp_path / "run", config, corpus, start=start, **still())
    (row,) = trainer.fit()
    assert row["val_loss"] < 3  # 6 with random weights
    loaded = tt.load(tmp_path / "run", beam_size=1)
    for weight, other in zip(loaded.model.get_weights(), start.model.get_weights(), strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-6)  # a mean of equal weights
    assert loaded.tokenizer.fingerprint == start.tokenizer.fingerprint
    assert loaded.export_options == start.export_options == {"origin": "trained", "max_length": 127}
    assert tt.Trainer(tmp_path / "run", config, corpus, **still()).fit() == [row]
    assert "nothing to train: this run is at step 2 of 2. To train more, pass more steps" in capsys.readouterr().out
    other = tt.Translator.from_pretrained(TRAINED)
    other = other.replace(export_options={"origin": "another"})
    with pytest.raises(tt.BadInput, match='start.origin was "trained", now "another"'):
        tt.Trainer(tmp_path / "run", config, corpus, start=other, **still()).fit()


def test_a_start_of_other_sizes(corpus, tmp_path):
    start = tt.Translator.from_pretrained(TRAINED)
    with pytest.raises(tt.BadInput, match="config: expected the sizes of the model to start from, num_layers=2"):
        tt.Trainer(tmp_path, dataclasses.replace(start.model.config, num_layers=3), corpus, start=start)
    with pytest.raises(tt.BadInput, match="num_decoder_layers=1, .*; got .*num_decoder_layers=None"):
        tt.Trainer(tmp_path, tt.PRESETS["tiny"], corpus, start=start)
    both = tt.Translator(tt.Ensemble([start.model, start.model]), start.tokenizer)
    with pytest.raises(tt.BadInput, match="start: expected one model, got an ensemble of 2"):
        tt.Trainer(tmp_path, start.model.config, corpus, start=both)


@pytest.mark.parametrize("more", [["--preset", "tiny"], ["--vocab-size", "7"], ["--tokenizer", "a"], ["--dry-run"]])
def test_the_checkpoint_determines_the_sizes(more, capsys):
    with pytest.raises(SystemExit):
        translation.main(["--from", str(TRAINED), *more])
    assert "--from: cannot be combined with --preset, " in capsys.readouterr().err


def test_the_program_hands_it_over(text, tmp_path, capsys, monkeypatch):
    trainers = []
    monkeypatch.setattr(tt.Trainer, "fit", lambda self: trainers.append(self) or 1 / 0)
    for more, recipe in (([], tt.RECIPES["finetune"]), (["--steps", "5", "--batch-tokens", "512"], RECIPE)):
        argv = [*options(text, "--from", TRAINED, "--dropout", "0.2", "--run", tmp_path / "run"), *more]
        with pytest.raises(ZeroDivisionError):
            translation.main(argv)
        assert trainers[-1].recipe == dataclasses.replace(recipe, dev_sentences=500)
        assert trainers[-1].config == dataclasses.replace(trainers[-1].start.model.config, dropout=0.2)
    parser = SimpleNamespace(tokenizer=SimpleNamespace(control_tokens=["(NP"]))
    monkeypatch.setattr(tt.Translator, "from_pretrained", lambda path: parser)
    assert "expected a model that translates, got a parser" in fails(translation, ["--from", tmp_path], capsys)
    argv = ["--train", tmp_path, tmp_path, "--to", tmp_path / "records", "--from", tmp_path]
    assert "expected a model that translates, got a parser" in fails(prepare, argv, capsys)
    monkeypatch.undo()
    assert "found nothing at no/such/folder" in fails(translation, ["--from", "no/such/folder"], capsys)


def test_export_of_a_checkpoint(tmp_path, capsys):
    ctranslate2 = pytest.importorskip("ctranslate2")
    argv = ["--pretrained", f"{TRAINED}/", "--base", str(tmp_path), "--format", "ctranslate2"]  # named as its folder
    piece = next(piece for piece in json.loads((TRAINED / "vocab.json").read_text()) if piece.startswith("▁"))
    (tmp_path / "lex").write_text(f"{piece} {piece} 0.5\n")
    export.main([*argv, "--shortlist", str(tmp_path / "lex"), "12", "3"])
    printed = capsys.readouterr().out
    assert "a shortlist of 16 tokens, and up to " in printed
    assert "; 54,639 parameters\nwriting ...\npublished " in printed
    assert ctranslate2.Translator(str(tmp_path / "trained/1")) and (tmp_path / "trained/1/source.spm").exists()
    assert (tmp_path / "trained/1/vmap.txt").exists()
    for more, message in (
        (["--shortlist", "lex", "many"], "--shortlist: expected a file and up to two numbers, got lex many"),
        (["--shortlist", "lex", "--format", "transformers"], "shortlist"),
        (["--run", "x"], "not allowed with"),
        (["--average-last", "3"], "--average-last: expected --run"),
        (["--pretrained", "/"], "--name: expected one, since / has none for a server"),
    ):
        with pytest.raises(SystemExit):
            export.main([*argv, *more])
        assert message in capsys.readouterr().err
