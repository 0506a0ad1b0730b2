"""Programs that train, publish, translate and score: whole runs, some of which are killed."""

import csv
import dataclasses
import functools
import json
import random
import re
import subprocess
import sys
import threading
import time
from unittest import mock

import h5py
import numpy as np
import pytest
from programs import ROOT, fails, options

import tf_transformer as tt
from tf_transformer.extensions.conformance import check as checking
from tf_transformer.serving import saving as publish
from tf_transformer.training.run import Run
from tf_transformer.utils import folders
from trainers import evaluate, export, translate, translation


class Killed(BaseException):
    pass


@pytest.fixture
def killed_after_3_steps(monkeypatch):
    """Returns a function that runs a training program until it has saved its first checkpoint."""
    make_model, save = tt.Trainer.make_model, Run.save

    def make_eager_model(*args):
        model = make_model(*args)
        model.run_eagerly = True  # for three steps this is faster than tracing one
        return model

    def save_and_raise(*args, **state):
        save(*args, **state)
        raise Killed

    def run(argv):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(tt.Trainer, "make_model", make_eager_model)
            patch.setattr(Run, "save", save_and_raise)
            translation.main(argv)

    return run


@pytest.fixture
def loads_once(monkeypatch):
    """Programs open each export once, since loading takes seconds."""
    load = functools.cache(tt.load)
    monkeypatch.setattr(tt, "load", lambda path, **options: load(str(path)))


@pytest.mark.program
def test_a_run_that_is_killed_resumes_and_becomes_a_savedmodel(
    killed_after_3_steps, unscored, loads_once, text, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(tt.PRESETS, "tiny", dataclasses.replace(tt.PRESETS["tiny"], num_layers=1, d_model=16, d_ff=8))
    run, export = tmp_path / "run", tmp_path / "exports"
    argv = options(text, "--run", run, "--base", export.parent, "--name", export.name)
    argv += ["--vocab-size", "400", "--eval-every", "3", "--average-last", "2"]
    argv += ["--test", str(text / "test.en"), str(text / "test.de"), "--beam-size", "17"]
    killed_after_3_steps([*argv, "--steps", "3000"])
    assert [folder.name for folder in run.glob("checkpoints/*")] == ["step-00000003"]

    checked = []  # test_check.py tests the checks
    monkeypatch.setattr(checking, "check", lambda path: checked.append(path.name) or [])
    steps = 10  # epochs of four steps and a shorter last one
    translation.main([*argv, "--steps", str(steps)])
    printed = capsys.readouterr().out
    assert f"going on from the checkpoint at step 3 of {steps}" in printed
    for name in ("config.json", "tokenizer.model", "history.csv", "metrics.json", "logs", "checkpoints"):
        assert (run / name).exists(), name
    rows = (run / "history.csv").read_text().splitlines()
    assert set(rows[0].split(",")) == {
        *("step", "target_tokens", "seconds", "tokens/s", "dev_bleu", "learning_rate", "gradient_norm"),
        *("accuracy", "loss", "perplexity", "val_accuracy", "val_loss", "val_perplexity"),
    }
    assert [int(row.split(",")[0]) for row in rows[1:]] == [3, 4, 8, 10]
    metrics = json.loads((run / "metrics.json").read_text())
    names = "test_bleu test_bleu_signature test_bleu_text test_chrf steps target_tokens seconds parameters"
    assert set(metrics) == set(names.split())
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

    assert checked == ["1"]
    publish_again(tmp_path, text, run, metrics, capsys)

    argv[argv.index("--vocab-size") + 1] = "401"
    assert "model.vocab_size was 400, now 401" in fails(translation, argv, capsys)


@pytest.mark.slow
def test_ten_kills_change_nothing(text, tmp_path):
    """SIGKILL at ten random moments, also while a checkpoint is written: the same weights, the same history."""
    chance = random.Random(3)
    runs = [tmp_path / "whole", tmp_path / "killed"]

    def begin(run):
        argv = options(text, "--run", run, "--base", tmp_path, "--name", f"export-{run.name}", "--vocab-size", 400)
        argv += ["--batch-tokens", "512", "--eval-every", "3", "--average-last", "2", "--steps", "150"]
        command = [sys.executable, "-m", "trainers.translation", *argv]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def resumed_step(lines):
        """Returns the step that a program resumes from, and reads no lines of its training."""
        for line in lines:
            if line.startswith("going on"):
                return int(line.split()[7])
            if line.startswith("a checkpoint and the dev set's score every"):
                return 0

    def saved(run):
        return max((int(path.name[-8:]) for path in run.glob("checkpoints/step-????????")), default=0)

    assert begin(runs[0]).communicate() and (runs[0] / "metrics.json").exists()
    reached = []
    for _ in range(10):
        process = begin(runs[1])
        reached.append(resumed_step(process.stdout))
        threading.Thread(target=process.stdout.read, daemon=True).start()  # otherwise it could not print
        enough = reached[-1] + chance.choice((3, 6, 9))
        while saved(runs[1]) < enough:
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 1))
        process.kill()
        process.wait()
        assert not (runs[1] / "metrics.json").exists()
    process = begin(runs[1])
    reached.append(resumed_step(process.stdout))
    process.communicate()
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
    """Runs trainers.export of the run in another dtype, and of an ensemble, without writing the SavedModels."""
    path = tmp_path / "models/small/1"
    argv = ["--run", str(run), "--name", "small", "--base", str(tmp_path / "models"), "--average-last", "2"]
    dev = ["--dev", str(text / "dev.en"), str(text / "dev.de"), "--beam-size", "2"]
    options = ["--dtype", "bfloat16", "--n-best", "3", "--max-length", "31"]
    save = mock.patch.object(publish, "save_export", side_effect=lambda export, path, checked: path.mkdir(parents=True))
    with save as save, mock.patch.object(folders, "size_of", return_value=0):
        for more in ([*dev, *options], [], ["--run", str(run), str(run), "--no-check"]):
            export.main([*argv, *more])
    printed = capsys.readouterr().out
    assert "--version: expected a new one" in fails(export, [*argv, "--version", 1], capsys)
    assert [call.args[2] for call in save.call_args_list] == [True, True, False]
    small, single, ensemble = (call.args[0].metadata for call in save.call_args_list)
    assert re.findall(r"BLEU [\d.]+ in (\w+)  nrefs:1", printed)[:2] == ["float32", "bfloat16"]
    assert f"published {path}: a SavedModel, bfloat16, " in printed
    assert small["step"] == metrics["steps"]
    assert (small["source_language"], small["target_language"]) == ("en", "de")
    expected = {"dtype": "bfloat16", "beam_size": 2, "n_best": 3, "max_length": 31}
    assert {name: small[name] for name in expected} == expected
    assert f"BLEU {small['bleu']:.2f} in bfloat16  {small['bleu_signature']}, of dev.en, dev.de" in printed
    assert (small["bleu_text"], metrics["test_bleu_text"]) == ("dev.en, dev.de", "the test set")

    # The score of the training is not that of an ensemble.
    assert (single["bleu"], single["parameters"]) == (metrics["test_bleu"], metrics["parameters"])
    assert single["bleu_text"] == "the test set"
    assert ("bleu" in ensemble, ensemble["parameters"]) == (False, 2 * metrics["parameters"])
    assert f"the mean of 2 checkpoints of {run}, and as many of {run}; {ensemble['parameters']:,} param" in printed
