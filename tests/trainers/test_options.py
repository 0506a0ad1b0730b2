"""Options of the programs: values that arrive, and bad ones."""

import io
import json
import os
import re
import shutil
import warnings
from pathlib import Path

import pytest
import sacrebleu
from checkpoints import M2M100
from programs import fails, options, run_python, trainer_of

import tf_transformer as tt
from tf_transformer.data.corpus import languages_of
from tf_transformer.inference.engine import Engine, Hypothesis, TranslationResult
from tf_transformer.serving import formats
from tf_transformer.utils.terminal import Progress
from trainers import attention, evaluate, export, parsing, prepare, translate, translation
from trainers.__main__ import PROGRAMS
from trainers.command import answered, run_program


def with_line(file, folder, number, line):
    """Writes a copy of a file with another line into a folder."""
    lines = file.read_bytes().splitlines(keepends=True)
    lines[number - 1] = line
    (folder / "changed.en").write_bytes(b"".join(lines))
    return folder / "changed.en"


def test_a_bad_line_leaves_no_run(text, tmp_path, capsys):
    argv = options(text, "--run", tmp_path / "run")
    argv[1] = str(with_line(text / "train.en", tmp_path, 7, b"caf\xe9\n"))
    message = "changed.en, line 7: expected a sentence in UTF-8, got the byte 0xe9 at column 4"
    assert message in fails(translation, argv, capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--train", "nowhere.en", "nowhere.de"], "expected a text file, found none at nowhere.en"),
        (["--preset", "huge"], "preset: expected one of base, big, A_h1"),
        (["--vocab-size", "90000"], "for this text, got 90000"),
        (["--tfds", "wmt14_translate/de-en"], "expected one of --train, --tfds, --directions and --prepared, got"),
        (["--dry-run", "8xP100"], "devices: expected their number and the TFLOP/s of one, such as 8x9.5, got '8xP100'"),
        (["--dry-run", "--epochs", "3"], "--dry-run: expected --steps, got --epochs"),
        (["--base", ".", "--name", "README.md"], "README.md: expected a directory to write models to"),
        (["--preset", "parsing_small"], "multi30k; got 'parsing_small'"),
        (["--beam-size", "0"], "beam_size: expected 1 to 1024, got 0"),
        (["--languages", "en", "fr"], "--languages: expected --tfds as well"),
        (["--tfds-dir", "."], "--tfds-dir: expected --tfds as well"),
        (["--warmup", "7"], "unrecognized arguments: --warmup 7"),
    ],
)
def test_bad_options(text, tmp_path, capsys, change, message):
    argv = options(text, "--run", tmp_path / "run", *change)
    assert message in fails(translation, argv, capsys)
    assert not (tmp_path / "run").exists()


def test_a_dry_run_refuses_what_the_start_refuses(text, tmp_path, capsys):
    begun = trainer_of(translation, options(text, "--run", tmp_path / "begun"))
    begun.run.begin(begun.settings)
    shutil.copy(text / "train.de", begun.run.path / "tokenizer.model")  # of another kind
    short = tmp_path / "short.de"
    short.write_bytes(b"".join((text / "train.de").read_bytes().splitlines(keepends=True)[:-1]))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes").touch()
    changes = {
        ("--train", text / "train.en", "nowhere.de"): "found none at nowhere.de",
        ("--train", text / "train.en", short): "expected the same number of lines in both files, got 900 in ",
        ("--train", text / "train.en", short, "--dev", "0.02"): "expected the same number of lines in both files, ",
        ("--dev", "nowhere.en", "nowhere.de"): "found none at nowhere.en",
        ("--test", text / "dev.en", "nowhere.de"): "found none at nowhere.de",
        ("--run", begun.run.path, "--dropout", "0.3"): "holds a run of another configuration: model.dropout was ",
        ("--run", begun.run.path): "tokenizer.model: expected a SentencePiece model",
        ("--run", tmp_path / "full"): "expected a run or an empty directory, got files without config.json",
        ("--prepared", tmp_path / "full", "--dev", text / "dev.en", text / "dev.de"): "records.json",
        ("--base", ".", "--name", "README.md"): "README.md: expected a directory to write models to",
    }
    before = sorted(tmp_path.rglob("*"))
    for change, message in changes.items():
        argv = change if change[0] == "--prepared" else options(text, "--run", tmp_path / "run", *change)
        for dry in ([], ["--dry-run", "8x9.5"]):
            assert message in fails(translation, [*argv, *dry], capsys), (change, dry)
            assert {path.name for path in tmp_path.rglob("*")} - {path.name for path in before} <= {".lock"}, change
    translation.main([*options(text, "--run", tmp_path / "new", "--dry-run", "8x9.5")])
    assert not (tmp_path / "new").exists() and "time on 8 x 9.5" in capsys.readouterr().out


@pytest.mark.parametrize("is_chief", [True, False])
def test_only_the_chief_must_be_able_to_write(is_chief, capsys, monkeypatch):
    monkeypatch.setattr(tt.distribution, "is_chief", lambda strategy: is_chief)
    monkeypatch.setattr(tt, "ToyCorpus", lambda: 1 / 0)  # the next step
    argv = ["--base", ".", "--name", "README.md"]
    if is_chief:
        assert "README.md: expected a directory to write models to" in fails(translation, argv, capsys)
    else:
        with pytest.raises(ZeroDivisionError):
            translation.main(argv)


def test_options_arrive_at_the_trainer(text, tmp_path):
    """They are all fields of a recipe, and others. The preset sets the rest."""
    recipe = {"batch_tokens": 1_000, "warmup_steps": 7, "cooldown_steps": 3}
    recipe |= {"eval_every": 11, "average_last": 2, "tokenizer": "unigram", "mixed_precision": "float16"}
    recipe |= {"num_microbatches": 2, "clip_norm": 0.5, "on_nan": "skip", "jit_compile": "off", "seed": 5}
    recipe |= {"metric": "chrF++", "average": "best"}
    recipe |= {"early_stopping_patience": 3, "ema_momentum": 0.9}
    config = {"dropout": 0.25, "vocab_size": 401}
    given = set(recipe) | {"dev_sentences"}
    for more in ({"steps": 17, "learning_rate": 0.01}, {"epochs": 3, "learning_rate_factor": 0.5}):
        names = {name: name.replace("_", "-") for name in recipe | config | more} | {"tokenizer": "vocab-kind"}
        argv = [f"--{names[name]}={value}" for name, value in (recipe | config | more).items()]
        given |= set(more)
        trainer = trainer_of(translation, [*options(text, "--run", tmp_path / "run"), *argv])
        assert trainer.recipe == tt.Recipe(**recipe, **more)
        assert (trainer.config.dropout, trainer.config.vocab_size, trainer.config.d_model) == (0.25, 401, 128)
    assert given == set(tt.Recipe().to_dict())
    custom = tmp_path / "custom.model"
    tt.Tokenizer.train_from_iterator([line for file in text.iterdir() for line in file.open()], 331).save(custom)
    train = ["--train", text / "train.en", text / "train.de", "--dev", "0.03", "--tokenizer", custom]
    trainer = trainer_of(translation, [*train, "--run", tmp_path / "run"])
    assert (trainer.tokenizer.vocab_size, trainer.config.vocab_size) == (331, 331)
    assert len(trainer.corpus.dev[0]) == 900 - len([*trainer.corpus.train.rows()])
    for preset, expected in {"multi30k": tt.RECIPES["multi30k"], "A_h4": tt.RECIPES["base"]}.items():
        assert trainer_of(translation, options(text, "--run", tmp_path / "run", "--preset", preset)).recipe == expected


def test_a_rate_and_a_factor_are_refused_in_one_line(text, tmp_path, capsys):
    argv = options(text, "--run", tmp_path / "run", "--learning-rate", 0.01, "--learning-rate-factor", 0.5)
    message = "error: learning_rate: cannot be combined with learning_rate_factor=0.5, which is not read then. "
    assert fails(translation, argv, capsys).startswith(message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("more", "expected"), [([], "demo"), (["--run", "runs/x/name"], "name")])
def test_a_savedmodel_without_a_name_has_the_run_s(more, expected, monkeypatch):
    folders = []
    monkeypatch.setattr(formats, "next_version", folders.append)
    trainer_of(translation, more)
    assert folders == [Path("savedmodels") / expected]


def test_a_dry_run_estimates_the_paper_s_cost(tmp_path, capsys):
    translation.main(["--preset", "big", "--dry-run", "8x9.5", "--run", str(tmp_path / "run"), "--average-last", "20"])
    printed = capsys.readouterr().out
    for figure in ("214,171,648", "steps: 300,000 of 25,000 source", "TFLOP/s: 35.4 hours", "600 steps. The last 20"):
        assert figure in printed
    assert printed.splitlines()[-1].startswith("time on 8 x 9.5 TFLOP/s: ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ("grammar", ("en", "de")),
        (["data/train.en", "data/train.de.gz"], ("en", "de")),
        (["source", "target"], None),
        (["a.trees"], None),
        (None, None),
    ],
)
def test_languages_are_the_ends_of_the_files_names(train, expected):
    assert languages_of(train) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--from", "nowhere", "--vocab-kind", "bpe"], "--from: cannot be combined with --vocab-size or --vocab-kind"),
        (["--from", "nowhere", "--tokenizer", "a"], "--from: cannot be combined with --tokenizer"),
        (["--tokenizer", os.devnull], "expected"),
        (["--tokenizer", "a", "--vocab-size", "7"], "--tokenizer: cannot be combined with --vocab-size or"),
        (["--from", os.devnull], "expected a SavedModel, a run or a checkpoint, found a file, no directory"),
        (["--from", M2M100, "--train", "nowhere.en", "nowhere.de"], "target_language: expected one of 100 languages, "),
        (["--vocab-size", "90000"], "for this text, got 90000"),
        (["--columns", "en", "de"], "--columns: expected --parquet as well"),
        (["--languages", "en", "fr"], "--languages: expected --tfds as well"),
        (["--vocab-size", "300", "--max", "3"], "unrecognized arguments: --max 3"),
        (["--vocab-size", "300", "--to", "README.md"], "folder: expected one for the records, found a file at "),
        (["--vocab-size", "300", "--to", "tests"], "tests: expected records or an empty directory, found "),
    ],
)
@pytest.mark.parametrize("exists", [False, True])
def test_bad_options_of_prepare_leave_no_files(text, tmp_path, capsys, change, message, exists):
    if exists:
        (tmp_path / "new").mkdir()
    files = ["--train", text / "train.en", text / "train.de"] * ("--train" not in change)
    before = sorted(Path("tests").iterdir())
    assert message in fails(prepare, [*files, "--to", tmp_path / "new/records", *change], capsys)
    assert [path.name for path in tmp_path.rglob("*")] == ["new"] * exists
    assert sorted(Path("tests").iterdir()) == before


def test_a_bad_line_leaves_no_records(text, tmp_path, capsys):
    """The same folder can be used without the line."""
    argv = [
        "--train",
        with_line(text / "train.en", tmp_path, 7, b"\n"),
        text / "train.de",
        "--to",
        tmp_path / "records",
    ]
    argv += ["--vocab-size", 400]
    assert "changed.en, line 7: expected a sentence in UTF-8, got an empty line" in fails(prepare, argv, capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["changed.en"]
    prepare.main([*map(str, argv), "--skip-bad-lines"])
    assert sum(tt.Records(tmp_path / "records").shards[0]["lengths"]) == 899


def test_records_take_no_options_of_prepare(text, tmp_path, capsys):
    message = "--tokenizer, --skip-bad-lines or --filter. Pass them to tf-transformer prepare"
    options_of_prepare = [["--vocab-size", 300], ["--vocab-kind", "bpe"], ["--tokenizer", "a"], ["--skip-bad-lines"]]
    for option in (*options_of_prepare, ["--filter", "identical"]):
        assert message in fails(translation, ["--prepared", tmp_path, *options(text)[3:], *option], capsys)


def test_bad_options_of_other_programs(text, tmp_path, capsys):
    nothing = ["--model", tmp_path, "--source", text / "dev.en", "--reference", text / "dev.de"]
    assert "found no config.json" in fails(evaluate, nothing, capsys)
    for lost in (tmp_path / "no" / "where", tmp_path):
        message = f"--output: expected a file in a writable directory, got {lost}"
        assert message in fails(evaluate, [*nothing, "--output", lost], capsys)
    twice = ["--translations", "a", "b", "a", "--reference", "c"]
    assert "--translations, --model: expected each name once, got a b a" in fails(evaluate, twice, capsys)
    assert "found no config.json" in fails(translate, [tmp_path, text / "dev.en"], capsys)
    name = ["--name", "m", "--base", tmp_path / "models"]
    assert "expected a run's directory, found no config.json" in fails(export, ["--run", tmp_path, *name], capsys)
    (tmp_path / "config.json").write_text("[]")
    assert "expected a JSON object, got something else: list" in fails(export, ["--run", tmp_path, *name], capsys)
    settings = {"version": 1, "kind": "translation", "model": {}, "recipe": {}, "corpus": {"train": ["a.en", "a.de"]}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert "expected checkpoints, found none in" in fails(export, ["--run", tmp_path, *name], capsys)
    for wrong in ("", ".", "..", "a/b", "../a", "a:b", "a\n"):
        message = f"--name: expected the name of a directory, without slashes and colons, got {wrong!r}"
        assert message in fails(export, ["--run", "r", "--name", wrong], capsys)
    assert "--base: expected a path, got an empty one" in fails(export, ["--run", "r", *name, "--base", ""], capsys)
    assert "--version: expected a positive number" in fails(export, ["--run", "r", *name, "--version", 0], capsys)
    assert not (tmp_path / "models").exists()
    unequal = ["--translations", text / "dev.en", "--reference", text / "train.de"]
    assert "expected the same number of lines in both files, got 23" in fails(evaluate, unequal, capsys)
    ignored = "--source: expected --model as well"
    assert ignored in fails(evaluate, [*unequal, "--source", text / "dev.en"], capsys)
    trees = ["--train", "trees", "--dev", "trees", "--extra-ratio", "2"]
    assert "--extra-ratio: expected --extra as well" in fails(parsing, trees, capsys)
    scored = ["--prepared", tmp_path, "--tfds", "wmt14_translate/de-en", "--test", "a", "b"]
    assert "--dev and --test: cannot be combined with --tfds" in fails(translation, scored, capsys)
    tfds = ["--tfds", "wmt14_translate/de-en", "--skip-bad-lines"]
    assert "--skip-bad-lines: expected --train or --directions as well" in fails(translation, tfds, capsys)
    assert "invalid choice: 'ter'" in fails(evaluate, [*unequal, "--metric", "ter"], capsys)


def test_more_metrics_are_scored(text, capsys):
    argv = ["--translations", text / "dev.en", "--reference", text / "dev.de", "--samples", 2, "--metric", "TER"]
    evaluate.main([*map(str, argv)])
    outputs, references = ((text / f"dev.{language}").read_text().splitlines() for language in ("en", "de"))
    score = sacrebleu.corpus_ter(outputs, [references]).score
    assert re.search(rf"TER +{score:.2f} ± .*tok:tercom", capsys.readouterr().out)


def test_bad_options_of_attention(translator, tmp_path, capsys, monkeypatch):
    assert "a checkpoint, found no config.json" in fails(attention, ["--model", tmp_path, "a"], capsys)
    monkeypatch.setattr("tf_transformer.inference.translator.trained", lambda path: translator)
    argv = ["--model", "saved", "--html", tmp_path / "page.html"]
    for change, message in [
        ([""], "sentence 1: expected a sentence, got an empty text"),
        (["a", "door " * 99], "sentence 2: expected a sentence of at most 41 tokens, got "),
        (["a", "b", "--target", "c"], "--target: expected one for each of 2 sentences, got 1"),
        (["a", "--target", "b", "--png", tmp_path / "a.png", "--layer", "2"], "--layer: expected 1 to 1, got 2"),
        (["a", "--target", "b", "--png", tmp_path / "a.png", "--head", "1", "4"], "--head: expected 1 to 3, got 4"),
        (["a", "--head", "0"], "--head: expected a positive number, got 0"),
        (["a", "--layer", "1"], "expected --png FILE"),
    ]:
        assert message in fails(attention, [*argv, *change], capsys)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    assert "expected a sentence, got none" in fails(attention, argv, capsys)
    assert not list(tmp_path.iterdir())
    text = b"\xef\xbb\xbfcaf\xe9\x85a\r\nTwo\xe2\x80\xa8doors.\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    attention.main([str(argument) for argument in [*argv, "--target", "b", "--target", "c"]])
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert (tmp_path / "page.html").stat().st_size > 10_000
    pictures = ["a", "Two doors.", "--target", "b", "--target", "c", "--png", tmp_path / "a.png", "--head", 2, 1]
    attention.main([str(argument) for argument in ["--model", "saved", *pictures]])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a-1.png", "a-2.png", "page.html"]


def test_a_warning_is_one_line(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", None)  # pytest restores it afterwards
    run_program(lambda: None)
    assert warnings.formatwarning(UserWarning("texts are long"), UserWarning, "x.py", 3) == "warning: texts are long\n"


def test_progress_and_warnings_are_on_standard_error(capsys, monkeypatch):
    class Upper(Engine):
        metadata, batch_size, call_options = {}, 7, ()

        def _replies(self, texts, request):
            return [TranslationResult(text, (Hypothesis(text.upper(), 0.0),), 2, text == "line 5") for text in texts]

    texts = [f"line {number}" for number in range(17)]
    monkeypatch.setattr(Progress, "LOGGED", 0.0)
    with pytest.warns(UserWarning, match="in 1 of 17 texts, truncated: 'line 5..."):
        assert [reply.text for reply in answered(Upper(), texts)] == [text.upper() for text in texts]
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"{done} of 17 sentences" for done in range(1, 17)]
    assert list(answered(Upper(), [])) == []
    assert capsys.readouterr().err == ""


HELP = """
import contextlib, importlib, sys
for name in sys.argv[1:]:
    with contextlib.suppress(SystemExit):
        importlib.import_module(name).main(["--help"])
assert not {"tensorflow", "keras", "numpy"} & set(sys.modules)
"""


def test_help_loads_no_tensorflow():
    programs = [f"trainers.{program}" for program in PROGRAMS if program != "check"]
    programs += ["examples.multi30k.train", "examples.table3.train", "examples.back_translation"]
    assert run_python(HELP, *programs).count("usage: ") == len(programs)


def test_programs_turn_onednn_on_by_default(monkeypatch):
    """TensorFlow turns it on only with AVX-512."""
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    run_program(lambda: None)
    assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == "0"
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")
    run_program(lambda: None)
    assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == "1"
