"""The programs, as a user runs them: a whole run that is killed on the way, and everything a user can get wrong."""

import csv
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import h5py
import numpy as np
import pytest

from tf_transformer import grammar
from tf_transformer.run import Stopped
from tf_transformer.serving import publish
from tf_transformer.serving.check import Finding
from trainers import attention, evaluate, export, prepare, translate, translation
from trainers.command import languages, run_program

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    grammar.write_corpus(folder, train=900, dev=23, test=19)
    return folder


def options(text, *more):
    sides = {split: [str(text / f"{split}.en"), str(text / f"{split}.de")] for split in ("train", "dev", "test")}
    return ["--train", *sides["train"], "--dev", *sides["dev"], *map(str, more)]


def fails(program, argv, capsys):
    """The one line that a program ends with, having got something wrong."""
    with pytest.raises(SystemExit) as stopped:
        run_program(lambda: program.main([str(argument) for argument in argv]))
    assert stopped.value.code == 2
    error = capsys.readouterr().err.strip()
    assert "Traceback" not in error
    return error.splitlines()[-1]


def test_a_run_that_is_killed_goes_on_and_ends_in_a_savedmodel(text, tmp_path, capsys, monkeypatch):
    run, export = tmp_path / "run", tmp_path / "exports"
    argv = options(text, "--run", run, "--export", export, "--vocab-size", 400, "--eval-every", 3, "--average-last", 2)
    argv += ["--test", str(text / "test.en"), str(text / "test.de")]
    process = subprocess.Popen(
        [sys.executable, "-m", "trainers.translation", *argv, "--steps", "3000"], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 240
        while not list(run.glob("checkpoints/step-*")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    (newest,) = list(run.glob("checkpoints/step-*"))[-1:]
    step = json.loads((newest / "state.json").read_text())["step"]

    checked = []  # test_check.py has the checks themselves
    monkeypatch.setattr(publish, "check", lambda path: checked.append(path.name) or [])
    steps = step + 6
    translation.main([*argv, "--steps", str(steps)])
    printed = capsys.readouterr().out
    assert f"going on from the checkpoint at step {step:,} of {steps:,}" in printed
    for name in ("config.json", "tokenizer.model", "history.csv", "metrics.json", "logs", "checkpoints"):
        assert (run / name).exists(), name
    rows = (run / "history.csv").read_text().splitlines()
    assert set(rows[0].split(",")) == {
        *("step", "target_tokens", "seconds", "tokens/s", "dev_bleu", "learning_rate", "gradient_norm"),
        *("accuracy", "loss", "perplexity", "val_accuracy", "val_loss", "val_perplexity"),
    }
    assert [int(row.split(",")[0]) for row in rows[1:]] == list(range(3, steps + 1, 3))
    metrics = json.loads((run / "metrics.json").read_text())
    assert set(metrics) == {
        "test_bleu",
        "test_bleu_signature",
        "test_chrf",
        "steps",
        "target_tokens",
        "seconds",
        "parameters",
    }
    assert metrics["steps"] == steps
    assert metrics["test_bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    assert f"saved {export / '1'}" in printed

    translation.main([*argv, "--steps", str(steps)])
    assert "this run is complete" in capsys.readouterr().out

    output = tmp_path / "translations"
    translate.main([str(export / "1"), str(text / "test.en"), "--output", str(output)])
    assert len(output.read_text().splitlines()) == 19
    evaluate.main(["--translations", str(output), "--reference", str(text / "test.de")])
    scored = capsys.readouterr().out
    assert re.search(rf"BLEU 13a +{metrics['test_bleu']:.2f} ± .* nrefs:1\|bs:1000\|seed:12345\|case:mixed", scored)
    assert re.search(rf"chrF +{metrics['test_chrf']:.2f} ± ", scored)
    argv_model = ["--model", str(export / "1"), "--source", str(text / "test.en"), "--reference", str(text / "test.de")]
    evaluate.main([*argv_model, "--translations", str(text / "test.de")])
    _, perfect, model = capsys.readouterr().out.split("\n\n")
    assert "100.00 ± 0.00  nrefs" in perfect
    assert re.sub(r"  p = \d.\d{3}", "", model).splitlines()[1:] == scored.splitlines()[3:]

    publish_again(tmp_path, text, run, metrics, capsys)
    assert checked == ["1"]

    argv[argv.index("--vocab-size") + 1] = "401"
    assert "model.vocab_size was 400, now 401" in fails(translation, argv, capsys)


@pytest.mark.slow
def test_a_prepared_corpus(text, tmp_path, capsys):
    """Prepared once, trained on, and gone on with; the last step names its lines when its loss is not finite."""
    argv = ["--train", str(text / "train.en"), str(text / "train.de"), "--to", str(tmp_path / "records")]
    for _ in range(2):
        prepare.main([*argv, "--vocab-size", "400"])
        assert "900 pairs, " in capsys.readouterr().out
    argv = ["--prepared", str(tmp_path / "records"), *options(text)[3:], "--run", str(tmp_path / "run")]
    argv += ["--export", str(tmp_path / "export"), "--eval-every", "3", "--average-last", "2", "--batch-tokens", "512"]
    translation.main([*argv, "--steps", "3"])
    translation.main([*argv, "--steps", "6"])
    assert "going on from the checkpoint at step 3 of 6" in capsys.readouterr().out
    assert [row.split(",")[0] for row in (tmp_path / "run/history.csv").read_text().splitlines()] == ["step", "3", "6"]
    for more in (["--bidirectional-steps", 5], ["--teachers", tmp_path / "teacher"]):
        assert "expected --bidirectional-steps 0 and no --teachers" in fails(translation, [*argv, *more], capsys)
    assert "expected --vocab-size and --skip-bad-lines at" in fails(translation, [*argv, "--vocab-size", 400], capsys)


@pytest.mark.slow
def test_ten_kills_change_nothing(text, tmp_path):
    """SIGKILL at ten random moments, also while a checkpoint is written: the same weights, the same history."""
    chance = random.Random(3)
    runs = [tmp_path / "whole", tmp_path / "killed"]

    def begin(run):
        argv = options(text, "--run", run, "--export", tmp_path / f"export-{run.name}", "--vocab-size", 400)
        argv += ["--batch-tokens", "512", "--eval-every", "3", "--average-last", "2", "--steps", "150"]
        return subprocess.Popen(
            [sys.executable, "-m", "trainers.translation", *argv], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )

    def going_on(lines):
        """The step that a program goes on from, up to the line that comes before its training."""
        for line in lines:
            if line.startswith("going on"):
                return int(line.split()[7])
            if line.startswith("below"):
                return 0

    def saved(run):
        return max((int(path.name[-8:]) for path in run.glob("checkpoints/step-????????")), default=0)

    assert begin(runs[0]).communicate() and (runs[0] / "metrics.json").exists()
    reached = []
    for _ in range(10):
        process = begin(runs[1])
        reached.append(going_on(process.stdout))
        threading.Thread(target=process.stdout.read, daemon=True).start()  # so that it can go on printing
        enough = reached[-1] + chance.choice((3, 6, 9))
        while saved(runs[1]) < enough:
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 1))
        process.kill()
        process.wait()
        assert not (runs[1] / "metrics.json").exists()
    process = begin(runs[1])
    reached.append(going_on(process.stdout))
    process.communicate()
    print("went on from the steps", *reached)
    assert reached[0] == 0 and all(np.diff(reached) > 0)
    histories = [list(csv.DictReader((run / "history.csv").read_text().splitlines())) for run in runs]
    assert len(histories[0]) == len(histories[1]) == 50
    for row, other in zip(*histories, strict=True):
        for name in set(row) - {"seconds", "tokens/s"}:
            assert row[name] == other[name], (row["step"], name)
    files = [h5py.File(run / "checkpoints/step-00000150/model.weights.h5") for run in runs]
    names = []
    files[0].visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    assert len(names) > 50
    for name in names:
        np.testing.assert_array_equal(files[0][name], files[1][name], err_msg=name)


def publish_again(tmp_path, text, run, metrics, capsys):
    """trainers.export of the same run, in another dtype; and of what the checks refuse."""
    argv = ["--run", str(run), "--name", "small", "--base", str(tmp_path / "models"), "--beam-size", "2"]
    dev = ["--dev", str(text / "dev.en"), str(text / "dev.de")]
    more = ["--average-last", "2", "--dtype", "bfloat16", "--n-best", "3", "--max-length", "31"]
    with mock.patch.object(publish, "check", return_value=[]) as check:
        export.main([*argv, *dev, *more])
    assert check.call_args.args[0].name == "1"
    printed = capsys.readouterr().out
    assert re.findall(r"BLEU [\d.]+ in (\w+)  nrefs:1", printed) == ["float32", "bfloat16"]
    path = tmp_path / "models" / "small" / "1"
    assert re.search(rf"published {re.escape(str(path))}: bfloat16, [\d,]+ bytes, of weights [\d,]+", printed)
    facts = json.loads((path / "assets.extra" / "tf_transformer.json").read_text())
    assert facts["step"] == metrics["steps"]
    assert (facts["source_language"], facts["target_language"]) == ("en", "de")
    assert (facts["dtype"], facts["beam_size"], facts["n_best"], facts["max_length"]) == ("bfloat16", 2, 3, 31)
    assert f"BLEU {facts['bleu']:.2f} in bfloat16  {facts['bleu_signature']}" in printed
    stored = sum(file.stat().st_size for file in (path / "variables").iterdir())
    assert stored < 1.1 * 2 * metrics["parameters"] + 20_000

    pictures = tmp_path / "pictures"
    attention.main(["--model", str(path), "Two doors.", "--html", str(pictures / "page.html")])
    source, target = capsys.readouterr().out.splitlines()[0].split(" -> ")
    given = ["--target", "Zwei Türen.", "--target", target, "--png", str(pictures / "a.png"), "--head", "2", "1"]
    attention.main(["--run", str(run), "The dog sleeps.", "Two doors.", *given])
    assert sorted(file.name for file in pictures.iterdir()) == ["a-1.png", "a-2.png", "page.html"]
    assert json.dumps(source.split())[1:-1].replace(" ", "").replace(">", "\\u003e").replace("<", "\\u003c") in (
        pictures / "page.html"
    ).read_text().replace(" ", "")

    wrong = mock.patch.object(publish, "check", lambda path: [Finding("FAIL", f"{path.name} is wrong")])
    with wrong, mock.patch.object(publish.tf.saved_model, "save"):
        assert fails(export, argv, capsys) == "  FAIL 2 is wrong"
    assert [folder.name for folder in path.parent.iterdir()] == ["1"]
    assert "--version: expected a new one" in fails(export, [*argv, "--version", 1], capsys)


def test_a_corpus_of_tensorflow_datasets(tmp_path, capsys):
    import tensorflow_datasets as tfds

    import tf_transformer as tt

    corpus = grammar.corpus(train=300, dev=11, test=13)

    class GrammarTranslate(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.Translation(["de", "en"]))

        def _split_generators(self, dl_manager):
            names = {"train": "train", "validation": "dev", "test": "test"}
            return {name: self._generate_examples(split) for name, split in names.items()}

        def _generate_examples(self, split):
            for key, (en, de) in enumerate(corpus[split]):
                yield key, {"en": en, "de": de}

    def load(split, languages=("en", "de")):
        return tt.data.tfds_pairs("grammar_translate", split, languages, tmp_path)

    assert sorted(zip(*tt.data.to_lists(load("train")), strict=True)) == sorted(corpus["train"])
    assert int(load("validation").cardinality()) == 11
    german, english = tt.data.to_lists(load("test", ("de", "en")))
    assert sorted(zip(english, german, strict=True)) == sorted(corpus["test"])
    with pytest.raises(tt.BadInput, match="expected languages among .*; got fr"):
        load("train", ("en", "fr"))
    with pytest.raises(tt.BadInput, match="expected one of the splits .*; got 'dev'"):
        load("dev")

    argv = ["--tfds", "grammar_translate", "--tfds-dir", str(tmp_path)]
    args = translation.arguments(argv)
    pairs, sentences, count, dev, test = translation.read_corpus(tt, args)
    assert count == len(list(pairs)) == 300
    assert sorted(sentences()) == sorted(text for pair in corpus["train"] for text in pair)
    assert sorted(zip(*dev, strict=True)) == sorted(corpus["dev"])
    assert sorted(zip(*test, strict=True)) == sorted(corpus["test"])

    prepare.main([*argv, "--to", str(tmp_path / "records"), "--vocab-size", "400"])
    assert "300 pairs, " in capsys.readouterr().out
    assert tt.records.Records(tmp_path / "records").tokenizer.vocab_size == 400
    args = translation.arguments([*argv, "--prepared", str(tmp_path / "records")])
    assert translation.read_corpus(tt, args)[3:] == (dev, test)


def with_line(folder, name, number, line):
    """A copy of the training text with one line exchanged."""
    lines = (folder / name).read_bytes().splitlines(keepends=True)
    lines[number - 1 : number] = [line]
    changed = folder / f"changed.{name}"
    changed.write_bytes(b"".join(lines))
    return changed


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"\n", "changed.train.en, line 7: expected a sentence in UTF-8, got an empty line"),
        (b"caf\xe9\n", "changed.train.en, line 7: expected a sentence in UTF-8, got the byte 0xe9 at column 4"),
        (b"x" * 100_000 + b"\n", "changed.train.en, line 7: expected a sentence in UTF-8, got 100,001 bytes"),
        (b"", "expected as many lines in both files, got 899 in"),
    ],
)
def test_bad_text(text, tmp_path, capsys, line, message):
    argv = options(text, "--run", tmp_path / "run")
    argv[1] = str(with_line(text, "train.en", 7, line))
    assert message in fails(translation, argv, capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--train", "nowhere.en", "nowhere.de"], "expected a text file, found none at nowhere.en"),
        (["--train", os.devnull, os.devnull], "expected sentences, got an empty file"),
        (["--preset", "huge"], "--preset: expected one of base, big, A_h1"),
        (["--vocab-size", "90000"], "which is what this text supports; got 90000"),
        (["--vocab-size", "7"], "vocab_size: expected at least 261"),
        (["--dropout", "1.5"], "dropout: expected a rate in [0, 1), got 1.5"),
        (["--batch-tokens", "5"], "batch_tokens: expected at least max_length=256, got 5"),
        (["--steps", "0"], "--steps: expected a positive number, got 0"),
        (["--tfds", "wmt14_translate/de-en"], "expected --train, or --tfds, or --prepared; got --train and another"),
        (["--dry-run", "3xAbacus"], "devices: expected such as 8xP100, of K80, K40"),
        (["--dry-run", "P100", "--mixed-precision", "bfloat16"], "P100: expected float32"),
        (["--dry-run", "--epochs", "3"], "--dry-run: expected --steps, got --epochs"),
        (["--devices", "gpu:9"], "devices: expected some of cpu:N"),
        (["--bidirectional-steps", "-1"], "--bidirectional-steps: expected 0 or more, got -1"),
        (["--word-dropout-after", "-1"], "--word-dropout-after: expected 0 or more, got -1"),
        (["--word-dropout", "1"], "--word-dropout: expected a rate in [0, 1), got 1.0"),
        (["--clip-norm", "0"], "--clip-norm: expected a positive number, got 0"),
    ],
)
def test_bad_options(text, tmp_path, capsys, change, message):
    argv = options(text, "--run", tmp_path / "run", *change)
    assert message in fails(translation, argv, capsys)
    assert not (tmp_path / "run").exists()


def test_what_is_beyond_the_paper_arrives_at_the_training(text, tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(translation, "learn", lambda *given: found.append(given))
    argv = options(text, "--run", tmp_path / "run")
    translation.main(argv)
    translation.main([*argv, "--word-dropout", "0.2", "--bidirectional-steps", "7", "--word-dropout-after", "11"])
    wanted = [
        {"bidirectional_steps": 0, "word_dropout": 0.0, "word_dropout_after": 0},
        {"bidirectional_steps": 7, "word_dropout": 0.2, "word_dropout_after": 11},
    ]
    for (*_, settings, texts), beyond in zip(found, wanted, strict=True):
        assert {name: getattr(texts, name) for name in beyond} == beyond
        assert {name: settings["training"][name] for name in beyond} == beyond


def test_a_dry_run_says_what_the_paper_needed(tmp_path, capsys):
    translation.main(["--preset", "big", "--dry-run", "--run", str(tmp_path / "run"), "--average-last", "20"])
    printed = capsys.readouterr().out
    for said in ("214,171,648", "steps: 300,000 of 25,000 source", "8 x P100", "one every 600 steps; the last 20"):
        assert said in printed
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("train", "given", "expected"),
    [
        ("grammar", None, ("en", "de")),
        (["data/train.en", "data/train.de.gz"], None, ("en", "de")),
        (["data/source.txt", "data/target.txt"], None, None),
        (["source", "target"], None, None),
        ("wmt14_translate/de-en", None, None),
        ("wmt14_translate/de-en", ["de", "en"], ("de", "en")),
    ],
)
def test_languages(train, given, expected):
    found = languages({"data": {"train": train}}, given)
    assert found == (dict(zip(("source_language", "target_language"), expected, strict=True)) if expected else {})


def test_what_the_other_programs_refuse(text, tmp_path, capsys):
    nothing = ["--model", tmp_path, "--source", text / "dev.en", "--reference", text / "dev.de"]
    assert "found no saved_model.pb" in fails(evaluate, nothing, capsys)
    assert "found no saved_model.pb" in fails(translate, [tmp_path, text / "dev.en"], capsys)
    name = ["--name", "m", "--base", tmp_path / "models"]
    assert "expected a run's folder, found no config.json" in fails(export, ["--run", tmp_path, *name], capsys)
    (tmp_path / "config.json").write_text("[]")
    assert "expected a run's configuration, got something else" in fails(export, ["--run", tmp_path, *name], capsys)
    (tmp_path / "config.json").write_text('{"model": {}, "data": {"train": ["a.en", "a.de"]}}')
    assert "expected checkpoints, found none in" in fails(export, ["--run", tmp_path, *name], capsys)
    assert "--name: expected a name without slashes" in fails(export, ["--run", "r", "--name", "a/b"], capsys)
    assert "--version: expected a positive number" in fails(export, ["--run", "r", *name, "--version", 0], capsys)
    assert not (tmp_path / "models").exists()
    unequal = ["--translations", text / "dev.en", "--reference", text / "train.de"]
    assert "expected as many lines in both files, got 23" in fails(evaluate, unequal, capsys)


def test_what_the_pictures_refuse(saved, tmp_path, capsys, monkeypatch):
    argv = ["--model", saved, "--html", tmp_path / "page.html"]
    for more, message in [
        ([""], "sentence 1: expected a sentence, got an empty text"),
        (["a", "door " * 99], "sentence 2: expected a sentence of at most 41 tokens, got "),
        (["a", "b", "--target", "c"], "--target: expected one for each of 2 sentences, got 1"),
        (["a", "--target", "b", "--png", tmp_path / "a.png", "--layer", "3"], "--layer: expected 1 to 2, got 3"),
        (["a", "--target", "b", "--png", tmp_path / "a.png", "--head", "1", "4"], "--head: expected 1 to 3, got 4"),
        (["a", "--head", "0"], "--head: expected a positive number, got 0"),
        (["a", "--layer", "1"], "expected --png FILE beside them"),
        (["a", "--run", "runs/demo"], "--run: not allowed with argument --model"),
    ]:
        assert message in fails(attention, [*argv, *more], capsys)
    assert "found no saved_model.pb" in fails(attention, ["--model", tmp_path, "a"], capsys)
    assert "found no config.json" in fails(attention, ["--run", tmp_path, "a"], capsys)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "expected a sentence, got none" in fails(attention, argv, capsys)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("sys.stdin", io.StringIO("a\nTwo doors.\n"))
    attention.main([str(argument) for argument in [*argv, "--target", "b", "--target", "c"]])
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_a_program_that_sigterm_stopped_says_how_to_go_on(capsys):
    def stopped():
        raise Stopped("stopped after saving step 7")

    with pytest.raises(SystemExit) as ended:
        run_program(stopped)
    assert ended.value.code == 128 + signal.SIGTERM
    assert "stopped after saving step 7; start it again with the same options to go on" in capsys.readouterr().err


def test_help_fits_a_screen():
    programs = ("translation", "parsing", "prepare", "variations", "evaluate", "translate", "export", "attention")
    for program in programs:
        command = [sys.executable, "-m", f"trainers.{program}", "--help"]
        lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        assert len(lines) <= 42
        assert max(map(len, lines)) <= 120
