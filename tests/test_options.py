"""What a user asks the programs for, and everything that can be wrong with it."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import types
import warnings

import pytest
from programs import ROOT, fails, options

import tf_transformer as tt
from tf_transformer.files import write_text
from tf_transformer.runs.callbacks import Stopped
from tf_transformer.serving.options import SEARCH_OPTIONS
from trainers import attention, evaluate, export, learning, translate, translation
from trainers.command import in_parts, languages, run_program


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
        (["--export", "README.md"], "README.md: expected a folder to write models to"),
        (["--bidirectional-steps", "-1"], "--bidirectional-steps: expected 0 or more, got -1"),
        (["--cooldown-steps", "-1"], "--cooldown-steps: expected 0 or more, got -1"),
        (["--dropout-steps", "-1"], "--dropout-steps: expected 0 or more, got -1"),
        (["--teachers", "one", "--epochs", "3"], "expected --steps beside --teachers"),
        (["--student-dropout", "0"], "--student-dropout: expected --teachers beside it, got none"),
        (["--ensemble"], "--ensemble: expected --teachers beside it, got none"),
        (["--student-dropout", "1"], "--student-dropout: expected a rate in [0, 1), got 1.0"),
        (["--word-dropout", "1"], "--word-dropout: expected a rate in [0, 1), got 1.0"),
        (["--clip-norm", "0"], "--clip-norm: expected a positive number, got 0"),
        (["--factor", "nan"], "--factor: expected a positive number, got nan"),
        (["--alpha", "5.1"], "--alpha: expected a number from 0 to 5, got 5.1"),
        (["--seed", "-1"], "--seed: expected 0 to 4294967295, got -1"),
    ],
)
def test_bad_options(text, tmp_path, capsys, change, message):
    assert SEARCH_OPTIONS["length_penalty"].highest == learning.MAX_ALPHA
    argv = options(text, "--run", tmp_path / "run", *change)
    assert message in fails(translation, argv, capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("is_chief", [True, False])
def test_of_several_processes_the_chief_alone_has_to_be_able_to_write(is_chief, monkeypatch):
    monkeypatch.setattr(tt.distribution, "is_chief", lambda strategy: is_chief)
    args = types.SimpleNamespace(export=ROOT / "README.md")
    with pytest.raises(tt.BadInput, match="folder to write models to") if is_chief else contextlib.nullcontext():
        learning.choose_export(tt, args, None, tt.run.Run("runs/name"))


def test_what_is_beyond_the_paper_arrives_at_the_training(text, tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(translation, "learn", lambda *given: found.append(given))
    argv = options(text, "--run", tmp_path / "run")
    translation.main(argv)
    translation.main([*argv, "--word-dropout", "0.2", "--bidirectional-steps", "7"])
    wanted = [
        {"bidirectional_steps": 0, "word_dropout": 0.0},
        {"bidirectional_steps": 7, "word_dropout": 0.2},
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
    lost = [*nothing, "--output", tmp_path / "no" / "where"]
    assert "--output: expected a file in a folder that exists, got" in fails(evaluate, lost, capsys)
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_a_signal_stopped_says_how_to_go_on(number, capsys):
    def stopped():
        raise Stopped("stopped after saving step 7", number)

    with pytest.raises(SystemExit) as ended:
        run_program(stopped)
    assert ended.value.code == 128 + number
    assert "stopped after saving step 7; start it again with the same options to go on" in capsys.readouterr().err


def test_a_warning_is_one_line(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", None)  # for it to be as before afterwards
    run_program(lambda: None)
    assert warnings.formatwarning(UserWarning("texts are long"), UserWarning, "x.py", 3) == "warning: texts are long\n"


def test_long_texts_are_translated_part_by_part(capsys):
    parts = []

    def upper(texts):
        parts.append(len(texts))
        return [text.upper() for text in texts]

    texts = [f"line {number}" for number in range(17)]
    assert list(in_parts(upper, texts, 7)) == [text.upper() for text in texts]
    assert parts == [7, 7, 3]
    said = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in said] == [f"{done} of 17 sentences" for done in (7, 14, 17)]
    assert list(in_parts(upper, texts, 17)) == [text.upper() for text in texts]
    assert list(in_parts(upper, [], 17)) == []
    assert capsys.readouterr().err == ""


def test_what_was_translated_before_an_error_is_kept(tmp_path):
    def translator(texts):
        if texts[0] == "c":
            raise OSError("no more")
        return texts

    with pytest.raises(OSError, match="no more"):
        write_text(tmp_path / "out", in_parts(translator, ["a", "b", "c"], 2))
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "out.tmp").read_text() == "ab"


def test_help_fits_a_screen():
    programs = ("translation", "parsing", "prepare", "variations", "evaluate", "translate", "export", "attention")
    for program in programs:
        command = [sys.executable, "-m", f"trainers.{program}", "--help"]
        lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        assert len(lines) <= 43
        assert max(map(len, lines)) <= 120


def test_programs_have_onednn_on_if_not_told_otherwise(monkeypatch):
    """Which TensorFlow has only with AVX-512."""
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    run_program(lambda: None)
    assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == "0"
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")
    run_program(lambda: None)
    assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == "1"
