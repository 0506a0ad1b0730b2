"""Pages whose shell commands run as written, in this process: from text to a released model, and back."""

import dataclasses
import importlib
import re
import shlex
import shutil
import subprocess
from types import SimpleNamespace

import pages
import pytest

import tf_transformer as tt
from tf_transformer.extensions.conformance import check
from tf_transformer.serving import saving
from trainers import publishing
from trainers.__main__ import PROGRAMS

SMALL = "--preset tiny --steps 2 --vocab-size 500"
SMALLER = {"--preset base --prepared": "--preset tiny --steps 2 --prepared", "--vocab-size 37000": "--vocab-size 500"}
PAGES = {"low-bleu": {}, "production": SMALLER, "distillation": {"--preset multi30k": SMALL}}
NOT_HERE = ("docker", "curl")  # TensorFlow Serving's image


@pytest.fixture
def folder(page, saved, unscored, tmp_path, monkeypatch):
    """Returns a folder with text and SavedModels, in which exports are not checked by other processes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(tt.PRESETS, "tiny", dataclasses.replace(tt.PRESETS["tiny"], num_layers=1, d_model=16, d_ff=8))
    tt.toy_corpus.write_corpus("text", train=400, dev=7, test=5)
    for name in ("mine", "teacher"):
        shutil.copytree(saved, f"savedmodels/{name}/1")
    if page == "low-bleu":
        corpus = tt.TextCorpus(("text/train.en", "text/train.de"), ("text/dev.en", "text/dev.de"))
        tt.Trainer("runs/mine", tt.TransformerConfig(1, 16, 32, 2, vocab_size=500), corpus, tt.Recipe(steps=2)).fit()
    save = saving.save_export
    monkeypatch.setattr(saving, "save_export", lambda export, path, checked: save(export, path, checked=False))
    monkeypatch.setattr(check, "main", lambda argv: None)  # test_check.py
    fresh = SimpleNamespace(run=lambda _, input, **options: SimpleNamespace(returncode=0, stdout=input))
    monkeypatch.setattr(publishing, "subprocess", fresh)
    return tmp_path


def run_command(line):
    words = shlex.split(line, comments=True)
    if words[:1] == ["tf-transformer"]:
        _, name, *argv = words
        assert name in PROGRAMS
        home = "tf_transformer.extensions.conformance" if name == "check" else "trainers"
        importlib.import_module(f"{home}.{name}").main(argv)
    elif words and words[0] not in NOT_HERE:
        status = subprocess.run(["bash", "-uc", line]).returncode
        assert status <= (words[0] == "grep")  # 1: no line matches


@pytest.mark.parametrize(
    "page",
    [pytest.param(name, marks=getattr(pytest.mark, "slow" if name == "distillation" else "program")) for name in PAGES],
)
def test_the_commands_of_a_page_run_as_written(page, folder):
    script = "\n".join(pages.blocks(f"docs/guides/{page}.md", "sh"))
    for slow, quick in PAGES[page].items():
        assert slow in script
        script = script.replace(slow, quick)
    for line in re.sub(r"\\\n *", "", script).splitlines():
        run_command(line)
    if page == "production":
        assert [path.name for path in (folder / "savedmodels/mine").iterdir()] == ["1"]
        assert (folder / "candidates/mine/withdrawn-2/saved_model.pb").exists()
    elif page == "distillation":
        assert (folder / "savedmodels/student/2/saved_model.pb").exists() and (folder / "litert/student/1").exists()
    else:
        assert len((folder / "out.jsonl").read_text().splitlines()) == 5
