"""`--directions FILE`: several language pairs in one run, from text or from records."""

import csv
import re
from unittest import mock

import numpy as np
import pytest
from checkpoints import M2M100
from programs import fails, trainer_of

import tf_transformer as tt
from trainers import prepare, publishing, translation


@pytest.fixture(scope="module")
def translator():
    return tt.Translator.from_pretrained(M2M100)


@pytest.fixture
def loaded(translator, monkeypatch):
    """Loads the checkpoint once."""
    replaced = lambda path, **options: translator.replace(**options)  # noqa: E731
    monkeypatch.setattr(tt.Translator, "from_pretrained", replaced)


def columns(text, part, swapped=False):
    sides = [f"{text / part}.en", f"'{text / part}.de'"]  # quotes as in a shell
    return " ".join(sides[::-1] if swapped else sides)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("en de {train}", "--directions: expected dev files in a line, or a share such as --dev 0.02; got neither"),
        ("en de train.en", "line 2: expected LANGUAGE LANGUAGE SOURCE TARGET .*, got 3 columns"),
        ("en de {train} {dev} 1 2", "line 2: expected LANGUAGE .*, got 8 columns"),
        ("en xx {train} {dev}", "line 2: target_language: expected one of 100 languages, .*; got 'xx'"),
        ("en de nowhere.en nowhere.de {dev}", "line 2: expected a text file, found none at .*/nowhere.en"),
        ("en de {train} {dev} 0", "line 2: weight: expected a positive number that float32 holds, got 0"),
        ("en de {train} {dev} -1", "line 2: weight: expected a positive number that float32 holds, got -1"),
        ("en de {train} {dev} -0.5", "line 2: weight: expected a positive number that float32 holds, got -0.5"),
        ("en de {train} {dev} twice", "line 2: weight: expected a positive number that float32 holds, got 'twice'"),
        ("en de 'train.en {dev}", "line 2: No closing quotation"),
        ("# en de", "expected lines of LANGUAGE .*, got none"),
    ],
)
def test_a_bad_line_is_named(line, message, loaded, text, tmp_path, capsys):
    file = tmp_path / "directions"
    file.write_text(f"# source target\n{line}\n".format(train=columns(text, "train"), dev=columns(text, "dev")))
    argv = ["--from", M2M100, "--directions", file, "--run", tmp_path / "run"]
    error = fails(translation, argv, capsys)
    start = "" if message.startswith("--") else f"{file}(: |, )"
    assert re.fullmatch(f"error: {start}{message}", error), error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--directions", "a"], "--directions: expected --from MODEL, a multilingual model"),
        (["--directions", "a", "--from", "b", "--train", "c", "d"], "expected one of --train, --tfds, --directions"),
        (["--directions", "a", "--from", "b", "--test", "c", "d"], "--test: cannot be combined with --directions"),
        (["--directions", "a", "--from", "b", "--dev", "c", "d"], "--dev: expected a share or a number of pairs, got"),
        (["--temperature", "5"], "--temperature: expected --directions as well"),
        (["--source-language", "en"], "--target-language: expected --from MODEL, a multilingual model"),
    ],
)
def test_options_that_need_others(argv, message, capsys):
    assert message in fails(translation, argv, capsys)


def test_languages_and_directions_arrive_at_the_trainer(loaded, text, tmp_path):
    file, pairs = tmp_path / "directions", [str(text / f"train.{side}") for side in ("en", "de")]
    file.write_text(
        f"de en {columns(text, 'train', True)} {columns(text, 'dev', True)}\nen de {columns(text, 'dev')}\n"
    )

    def trainer(*argv):
        return trainer_of(translation, ["--from", M2M100, "--run", tmp_path / "run", *argv])

    languages = ["--source-language", "en", "--target-language", "de"]
    single = trainer("--train", *pairs, "--dev", "0.05", "--filter", "duplicates", *languages)
    assert single.start.tokenizer.current_languages() == ("en", "de")
    assert single.corpus.describe()["filters"] == {"duplicates": True}
    both = trainer("--directions", file, "--temperature", 2)
    assert both.start.tokenizer.current_languages() == ("de", "en") and set(both.corpus.dev.sets) == {"de-en"}
    assert both.corpus.train.weights == pytest.approx((1, (900 / 23) ** 0.5))
    held_out = trainer("--directions", file, "--dev", 31, *languages)
    assert held_out.start.tokenizer.current_languages() == ("en", "de")
    assert set(held_out.corpus.dev.sets) == {"de-en", "en-de"}


@pytest.mark.program
def test_a_run_of_directions_has_a_score_for_each(translator, text, tmp_path, monkeypatch):
    """Records of the same directions have the same pairs and dev sets. test_directions.py compares their ids."""
    monkeypatch.setattr(publishing, "score_and_publish", lambda *args: None)
    file = tmp_path / "directions"
    lines = [
        f"{pair} {columns(text, 'train', swapped)} {columns(text, 'dev', swapped)} {weight}"
        for pair, swapped, weight in (("en de", False, 1), ("de en", True, 1.5))
    ]
    file.write_text("\n".join(lines))
    argv = ["--from", str(M2M100), "--directions", str(file)]
    train = [*argv, "--steps", "1", "--eval-every", "1", "--batch-tokens", "512", "--base", str(tmp_path / "exports")]
    translation.main([*train, "--run", str(tmp_path / "run")])
    sides = [(text / f"dev.{side}").read_text().splitlines() for side in ("en", "de")]
    expected = []
    for languages in (("en", "de"), ("de", "en")):
        source, references = sides if languages[0] == "en" else sides[::-1]
        start = translator.replace(source_language=languages[0], target_language=languages[1], beam_size=1)
        expected.append(tt.bleu.bleu(start(source), references).value)
    with open(tmp_path / "run/history.csv") as rows:
        for row in csv.DictReader(rows):
            scores = [float(row[f"dev_bleu_{pair}"]) for pair in ("en-de", "de-en")]
            assert scores == pytest.approx(expected)  # a step of warm-up changes nothing
            assert float(row["dev_bleu"]) == pytest.approx(sum(expected) / 2)
    prepare.main([*argv, "--to", str(tmp_path / "records")])
    others = ["--run", tmp_path / "other", "--prepared", tmp_path / "records"]
    prepared = trainer_of(translation, [*train, *others]).corpus
    assert set(prepared.dev.sets) == {"en-de", "de-en"}
    assert sum(len(block.read().lines) for block in prepared.train.blocks()) == 900 + 1350


def test_the_score_is_the_mean_of_the_dev_sets(translator, tmp_path):
    """For callbacks and at the end, where each set is translated in its languages."""
    texts = ["a b c d", "e f g h"]
    pairs = {("en", "de"): texts, ("de", "en"): ["a b c d", "x"]}  # of the second set, one of two is right
    dev = [tt.sources.DirectedSource(tt.sources.MemorySource(texts, texts), pair) for pair in pairs]
    corpus = tt.Corpus(dev[0], tt.sources.JoinedSource(dev))
    trainer = tt.Trainer(tmp_path, translator.model.config, corpus, start=translator)
    outputs = lambda _, source_language, target_language: pairs[source_language, target_language]  # noqa: E731
    scores = {name: score.value for name, score in trainer.evaluate(translator=outputs).items() if "BLEU" in name}
    half = tt.bleu.bleu(pairs["de", "en"], texts).value
    assert 0 < half < 99
    assert scores == pytest.approx({"BLEU": (100 + half) / 2, "BLEU en-de": 100, "BLEU de-en": half})
    names, outputs = ["en-de", "de-en"], [lambda texts, pair=pair: pairs[pair] for pair in pairs]
    sets = dict.fromkeys(names, tt.callbacks.DevText(tt.Metric("BLEU"), texts, texts))
    score, logs = tt.callbacks.DevScore(dict(zip(names, outputs, strict=True)), sets), {}
    score.set_model(mock.Mock(optimizer=mock.Mock(iterations=np.int64(7))))
    score.on_epoch_end(0, logs)
    assert logs == pytest.approx({"dev_bleu_en-de": 100, "dev_bleu_de-en": half, "dev_bleu": (100 + half) / 2})
