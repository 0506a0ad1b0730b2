"""Runs trainers.parsing like a user."""

import json
import random
import re
from pathlib import Path

import pytest
from programs import fails

import tf_transformer as tt
from tf_transformer.extensions.parsing.corpus import mixed
from tf_transformer.extensions.parsing.treebank import read_tree
from tf_transformer.serving import saving
from trainers import export as trainer_export
from trainers import parsing, translate

NOUNS = ["cat", "dog", "door", "woman", "(", "tree"]


def write_trees(path, count, seed):
    draw = random.Random(seed).choice
    lines = []
    for _ in range(count):
        first, second = (f"(NP (DT {draw(['the', 'a'])}) (NN {draw(NOUNS).replace('(', '-LRB-')}))" for _ in "ab")
        end = draw([f"(NP-TMP {second})", second, "(NP (-NONE- *))"])
        lines.append(f"( (S (NP-SBJ {first}) (VP (VBZ {draw(['sees', 'has'])}) {end}) (. .)))\n")
    path.write_text("".join(lines))
    return str(path)


@pytest.fixture
def files(tmp_path):
    return [write_trees(tmp_path / f"{name}.trees", count, seed=count) for name, count in (("train", 211), ("dev", 23))]


@pytest.mark.slow
def test_a_run_from_trees_to_a_savedmodel_that_parses(files, tmp_path, capsys, monkeypatch):
    checked = []  # test_check.py tests the checks.
    monkeypatch.setattr(saving, "check_export", lambda folder, path: checked.append(Path(path).name))
    run, export = tmp_path / "run", tmp_path / "exports"
    extra = write_trees(tmp_path / "extra.trees", 97, seed=5)
    argv = ["--train", files[0], "--dev", files[1], "--extra", extra, "--extra-ratio", "0.5", "--preset", "tiny"]
    argv += ["--vocab-size", "300", "--batch-tokens", "512", "--warmup-steps", "40", "--eval-every", "20"]
    argv += ["--run", str(run), "--base", str(export.parent), "--name", export.name]
    parsing.main([*argv, "--steps", "20"])
    parsing.main([*argv, "--steps", "80"])  # resumes
    printed = capsys.readouterr().out
    assert "going on from the checkpoint at step 20 of 80" in printed
    assert printed.count("dev F1") == 4  # at every checkpoint
    assert "EVALB with COLLINS.prm" in printed
    assert "without the grammar" in printed
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["steps"] == 80
    assert metrics["test_f1"] > 50
    assert 0 <= metrics["ill_formed_without_grammar"] <= 1
    assert "dev_f1" in (run / "history.csv").read_text().splitlines()[0]
    assert checked == ["1", "2"]

    text, output = tmp_path / "text", tmp_path / "trees"
    text.write_text("the cat sees ( the ) .\n\na door\n")
    translate.main([str(export / "2"), str(text), "--output", str(output)])
    lines = output.read_text().split("\n")
    assert read_tree(lines[0]).leaves() == ["the", "cat", "sees", "(", "the", ")", "."] and lines[1] == ""
    parsing.main([*argv, "--steps", "80"])
    assert "this run is complete" in capsys.readouterr().out
    for dry in ([], ["--dry-run", "8x9.5"]):
        assert "corpus.extra_ratio was 0.5, now 2.0" in fails(parsing, [*argv, "--extra-ratio", "2", *dry], capsys)

    models = tmp_path / "models"
    trainer_export.main(["--run", str(run), "--name", "again", "--base", str(models), "--beam-size", "2"])
    printed = capsys.readouterr().out
    assert f"F1 {metrics['test_f1']:.2f} in float32, of the dev set, at the end of training" in printed
    metadata = json.loads((models / "again/1/assets.extra/tf_transformer.json").read_text())
    expected = {"f1": metrics["test_f1"], "beam_size": 2, "length_penalty": 0.3, "step": 80}
    assert {name: metadata[name] for name in expected} == expected
    assert metadata["f1_text"] == metrics["test_f1_text"] == "the dev set"
    assert read_tree(tt.load(models / "again/1")("a door")).leaves() == ["a", "door"]
    more = ["--name", "half", "--base", str(models), "--dtype", "bfloat16", "--dev", files[1]]
    trainer_export.main(["--run", str(run), *more])
    assert re.findall(r"^F1 [\d.]+ in (\w+)  EVALB", capsys.readouterr().out, re.M) == ["float32", "bfloat16"]
    error = fails(trainer_export, ["--run", run, "--name", "m", "--base", models, "--n-best", 2], capsys)
    assert error.endswith("expected options of the run's task, parsing, got a translator's")


def test_wrong_arguments(files, tmp_path, capsys):
    train, dev = files
    bad = tmp_path / "bad.trees"
    bad.write_text("( (S (N a)))\n(S (N b)\n")
    empty = tmp_path / "empty.trees"
    empty.write_text("(S (-NONE- *))\n")
    files_argv = ["--train", train, "--dev", dev]
    for argv, message in [
        ([], "expected either --wsj DIR or --train FILE"),
        ([*files_argv, "--wsj", tmp_path], "expected either --wsj DIR or --train FILE"),
        (["--train", train], "--train: expected --dev FILE"),
        (["--wsj", tmp_path, "--test", dev], "--wsj: cannot be combined with --dev or --test"),
        (["--wsj", tmp_path], "expected wsj_NNNN.mrg of the sections 02 to 21, found none of 02, 03"),
        ([*files_argv, "--extra-ratio", 0], "expected a number above 0, got 0"),
        ([*files_argv, "--min-length", 3], "unrecognized arguments: --min-length"),
        (
            [*files_argv, "--base", Path(train).parent, "--name", Path(train).name],
            f"{train}: expected a directory to write",
        ),
        (["--train", "nowhere.trees", "--dev", dev], "nowhere.trees"),
        (["--train", train, bad, "--dev", dev], "line 2: expected a bracketed tree, got one without its last 1"),
        ([*files_argv, "--test", empty], "expected trees with words in the test files, got none"),
        ([*files_argv, "--vocab-size", 270], "vocab_size: expected at least"),
    ]:
        # A dry run trains no vocabulary, of which the last one is too small.
        for dry in ([], ["--dry-run", "8x9.5"])[: 1 + ("--vocab-size" not in argv)]:
            assert message in fails(parsing, [*argv, "--run", tmp_path / "run", *dry], capsys), (argv, dry)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "ratio, expected",
    [  # of 3 gold trees and 7 others, by hand
        (1.0, "ggg" * 2 + "eeeeee"),
        (2.0, "ggg" + "eeeeee"),
        (9.0, "ggg" + "eeeeeee"),
        (0.5, "ggg" * 5 + "eeeeeee"),
    ],
)
def test_extra_trees_are_mixed_in_at_a_ratio(ratio, expected):
    assert "".join(mixed(["g"] * 3, ["e"] * 7, ratio)) == expected
