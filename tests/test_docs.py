"""The pages in docs/: their links lead somewhere, their code runs, their tables are those of the code."""

import argparse
import ast
import contextlib
import functools
import gzip
import importlib
import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path

import matplotlib
import pages
import pytest
from test_parsing_program import write_trees

import tf_transformer as tt
from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.training.recipe import CHANGEABLE
from trainers.__main__ import PROGRAMS

ROOT = pages.ROOT


@pytest.mark.parametrize("path", pages.PATHS, ids=str)
def test_links_lead_somewhere(path):
    for target, anchor in pages.links(path):
        file = (ROOT / path.parent / target).resolve() if target else ROOT / path
        assert file.exists(), f"{path}: {target}"
        if anchor:
            assert anchor in pages.anchors(file.relative_to(ROOT)), f"{path}: {target}#{anchor}"


@pytest.mark.parametrize("path", pages.PATHS, ids=str)
def test_no_table_is_cut_in_two(path):
    """An empty line ends a table, and what follows is no table without a head of its own."""
    for block in re.findall(r"(?:^\|.*\n)+", re.sub(pages.FENCED, "", pages.read(path)), re.MULTILINE):
        rows = block.splitlines()
        assert len(rows) > 2 and re.fullmatch(r"[|\s:-]+", rows[1]), f"{path}: {rows[0]}"


class Understood(BaseException):
    """For a program, once it has read its options."""


def run_command(words, monkeypatch):
    """Run a page's command in this process, if it is one of this repository's."""
    if words[0] == "tf-transformer":
        name, *argv = words[1:]
        assert name in PROGRAMS, "no such program"
        name = f"{'tf_transformer.extensions.conformance' if name == 'check' else 'trainers'}.{name}"
    else:
        name, *argv = words[2:] if words[1] == "-m" else words[1:]
    known = ("venv", "http.server", "my_pipeline.py")  # Python's, and the reader's
    if name in known or name.endswith("..."):  # several of ours
        return
    place = Path(name.removesuffix(".py").replace(".", "/"))
    place = (place / "__main__" if (ROOT / place).is_dir() else place).with_suffix(".py")
    assert (ROOT / place).exists(), "no such program"
    main = getattr(importlib.import_module(".".join(place.with_suffix("").parts)), "main", None)
    if main is None:
        monkeypatch.setattr(sys, "argv", [name, *argv])
        runpy.run_path(str(ROOT / place), run_name="__main__")
    elif inspect.signature(main).parameters:
        main(argv)
    else:
        assert set(argv) <= {"..."}, "it has no options"


@pytest.mark.parametrize("path", [path for path in pages.PATHS if path.stem != "CHANGELOG"], ids=str)
def test_programs_know_the_options_that_pages_give_them(path, monkeypatch):
    """A command is one that its program takes; of a part of one the options are known."""

    def understand(parser, argv=None, namespace=None, parse=None):
        argv = sys.argv[1:] if argv is None else argv
        if "..." not in argv:
            parse(parser, argv, namespace)
        assert {word.partition("=")[0] for word in argv if word[:2] == "--"} <= set(parser.format_help().split())
        raise Understood

    def error(parser, message):
        raise AssertionError(message)

    for name in ("parse_args", "parse_intermixed_args"):
        parse = getattr(argparse.ArgumentParser, name)
        monkeypatch.setattr(argparse.ArgumentParser, name, functools.partialmethod(understand, parse=parse))
    monkeypatch.setattr(argparse.ArgumentParser, "error", error)
    for words in pages.commands(path):
        try:
            with contextlib.suppress(Understood):
                run_command(words, monkeypatch)
        except AssertionError as found:
            raise AssertionError(f"{path}: {' '.join(words)}: {found}") from found
        except ModuleNotFoundError as found:
            assert found.name in ("grpc", "requests", "tensorflow_serving", "torch"), found  # of an extra


@pytest.mark.parametrize("path", pages.PATHS, ids=str)
def test_a_page_saves_into_new_folders(path):
    """Its Python into others than its shell, when a reader runs all from top to bottom."""
    ours, theirs = set(), set()
    for language, code in re.findall(r"^```(python|sh)\n(.*?)^```$", pages.read(path), re.DOTALL | re.MULTILINE):
        if language == "python":
            for folder in map(Path, re.findall(r'(?:\.save\((?:\w+, )?|Trainer\()"([\w./-]+)"', code)):
                assert not any(folder in (other, *other.parents) for other in ours | theirs), f"{path}: {folder}"
                ours.add(folder)
            continue
        before = theirs.copy()
        for _, program, *words in pages.calls(code):
            given = {word: next(iter(words[i + 1 :]), "") for i, word in enumerate(words)}
            if program == "export":
                name = given.get("--name") or Path(given.get("--run") or given["--pretrained"]).name
                folder = Path(given.get("--format", "savedmodels")) / name
                theirs.add(folder / f"{1 + sum(folder in other.parents for other in ours | theirs)}")
            elif program in ("translation", "parsing") and "--run" in given:
                run = Path(given["--run"])
                assert run not in ours, f"{path}: {run}"
                theirs |= {run, "savedmodels" / run.relative_to(run.parent) / "1"}
            elif program == "prepare":
                records = Path(given["--to"])
                assert records not in before, f"{path}: {records}"
                theirs.add(records)


@pytest.fixture
def folder(unscored, tmp_path, monkeypatch):
    """Where a page's Python runs: what it wants to download lies there."""
    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "opus-mt-en-de").symlink_to(ROOT / "tests/marian/trained")
    (tmp_path / "facebook").mkdir()
    (tmp_path / "facebook/m2m100_418M").symlink_to(ROOT / "tests/m2m100/trained")
    return tmp_path


def there(folder, *names):
    """Whether the SavedModels of these names are."""
    return all((folder / f"savedmodels/{name}/1/saved_model.pb").exists() for name in names)


GO_ON = {  # with the run runs/mine; and what is quicker in its place
    "tutorials/train": {
        "vocab_size=500": "num_layers=1, d_model=32, d_ff=64, vocab_size=500",
        'translator.save("savedmodels/tutorial/1")': "translator.export()",  # as the README's
    },
    "tutorials/serve": {},
    "guides/search": {},
    "guides/ctranslate2": {},
    "guides/transformers": {},
    "guides/litert": {"max_source_length=64": "max_source_length=16"},
    "guides/onnx": {},
    "guides/formats": {},
    "guides/documents": {'tt.load("savedmodels/demo")': 'tt.load("runs/mine")'},
}
ALONE = ["tutorials/layers", "tutorials/multilingual", "tutorials/parsing", "tutorials/fine-tune", "guides/languages"]
ALONE += ["guides/other-backends", "guides/back-translation", "guides/coming-from", "guides/large-corpora"]
ELSEWHERE = ["guides/beam", "reference/vocabulary"]  # in test_beam.py, test_tokenizer.py


def test_every_tutorial_is_run_by_a_test():
    python = {
        f"{path.parent.name}/{path.stem}" for path in pages.PATHS if path.parts[0] == "docs" and pages.blocks(path)
    }
    assert python == {*GO_ON, *ALONE, *ELSEWHERE}
    here = Path(__file__).read_text(encoding="utf-8")
    assert not [name for name in ALONE if f'run_blocks("docs/{name}.md"' not in here]


@pytest.mark.program
def test_the_pages_that_go_on_with_one_run(folder):
    names = {}
    for name, quicker in GO_ON.items():
        names |= pages.run_blocks(f"docs/{name}.md", quicker)
        if name == "tutorials/train":
            (folder / "runs/mine").symlink_to("tutorial")  # the README's run; the tutorial's is shorter
    assert there(folder, "by-hand", "served")
    assert (folder / "attention.png").exists() and (folder / "attention.html").exists()
    assert names["translated"].count(" --> ") == 2 and names["rows"][1] == {"id": "2", "text": "", "de": ""}
    assert names["results"][0].hypotheses and "sentencepiece.bpe.model" in pages.read("docs/guides/ctranslate2.md")


@pytest.mark.program
def test_the_page_of_layers(folder):
    scores = pages.run_blocks("docs/tutorials/layers.md")["scores"].numpy()
    assert scores.shape == (1, 4, 4, 4)
    assert scores[..., 3].max() == 0  # padding


@pytest.mark.slow
def test_the_page_of_other_backends(folder):
    assert isinstance(pages.run_blocks("docs/guides/other-backends.md")["translator"], tt.Translator)


@pytest.mark.slow
def test_the_page_of_the_parser(folder):
    write_trees(folder / "train.trees", 211, seed=1)
    write_trees(folder / "dev.trees", 23, seed=2)
    quicker = {
        'tt.PRESETS["parsing_small"]': "tt.TransformerConfig(1, 32, 64, 2, vocab_size=300)",
        'tt.RECIPES["parsing_small"]': "tt.Recipe(steps=20, batch_tokens=512, warmup_steps=40)",
        'parser.save("savedmodels/parser/1")': "parser.export()",  # test_parsing.py saves one
    }
    tree = pages.run_blocks("docs/tutorials/parsing.md", quicker)["tree"]
    assert tree.leaves() == ["The", "cat", "slept", "."]
    assert (folder / "tree.svg").exists()


@pytest.mark.slow
def test_the_page_of_several_languages(folder, text):
    (raw := folder / "dataset/data/task1/raw").mkdir(parents=True)
    for part, name in (("train", "train"), ("dev", "val"), ("test", "test_2016_flickr")):
        for language in ("en", "de"):
            lines = (text / f"{part}.{language}").read_bytes()
            for written in {"en": ("en",), "de": ("de", "fr")}[language]:
                (raw / f"{name}.{written}.gz").write_bytes(gzip.compress(lines))
    quicker = {
        'tt.PRESETS["small"]': "tt.TransformerConfig(1, 32, 64, 2, vocab_size=400)",
        "steps=1_200": "steps=4",
        "eval_every=100": "eval_every=4",
    }
    names = pages.run_blocks("docs/tutorials/multilingual.md", quicker)
    assert there(folder, "both")
    assert names["translator"].tokenizer.ids(["<2de>", "<2fr>"]).numpy().tolist() == [4, 5]
    assert len(names["texts"]) == 19 and names["texts"][0].startswith("<2fr> ")


@pytest.mark.program
def test_the_page_of_large_corpora(folder):
    names = pages.run_blocks("docs/guides/large-corpora.md", {"vocab_size=1_000": "vocab_size=400"})
    records = names["records"]
    pairs = sum(sum(shard["lengths"]) for shard in records.shards)
    assert pairs + records.filtered["duplicates"] == sum(part.count for part in names["parts"]) > 25_000


@pytest.mark.slow
def test_the_page_of_back_translation(folder):
    quicker = {'tt.PRESETS["tiny"]': "tt.TransformerConfig(1, 32, 64, 2, vocab_size=400)", "steps=800": "steps=8"}
    names = pages.run_blocks("docs/guides/back-translation.md", quicker | {"train=2_000, dev=100": "train=600, dev=10"})
    assert len(names["sources"]) == len(names["further"]) == 100 and len(set(names["sources"])) > 50
    assert names["trainer"].translator().tokenizer.ids(["<bt>"]).numpy().tolist() == [4]


@pytest.mark.slow
def test_the_page_of_fine_tuning(folder):
    quicker = {
        "train=2_000, dev=40": "train=700, dev=10",
        'start.save("savedmodels/pretrained/1")': "start.export()",  # as the README's
        'tuned.translator().save("savedmodels/tuned/1")': "tuned.translator()",  # as the README's
    }
    names = pages.run_blocks("docs/tutorials/fine-tune.md", quicker)
    assert there(folder, "adapted")
    learns = [weight.path for weight in names["start"].model.trainable_weights]
    assert len(learns) == 2 * 2 * 3 and all("lora" in path for path in learns)  # of two projections of three layers
    sentences = ["The women do not sing.", "He is tired."]
    assert names["adapted"](sentences) == names["start"](sentences)


@pytest.mark.slow
def test_the_page_for_those_who_come_from_elsewhere(folder):
    quicker = {'start.save("savedmodels/tuned/1")': "start.export()"}  # as the README's
    names = pages.run_blocks("docs/guides/coming-from.md", quicker)
    assert tt.load("tuned")(["He is tired."]) == names["start"](["He is tired."])


@pytest.mark.slow
def test_the_page_of_languages(folder):
    names = pages.run_blocks("docs/guides/languages.md", {"max_source_length=64": "max_source_length=16"})
    assert there(folder, "many") and names["tuned"].tokenizer.spoken() == ("en", "de")


# What tools look for under these names.
TOOLS = {".gitignore", ".github", ".pre-commit-config.yaml", "MANIFEST.in", "Makefile", "mkdocs.yml", "pyproject.toml"}
TOOLS |= {"LICENSE", "setup.cfg", "setup.py"}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a clone")
def test_the_root_holds_nothing_that_no_page_names():
    """An empty file that a command left there was committed once."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True, encoding="utf-8").stdout
    named = set(TOOLS)
    for path in pages.PATHS:
        places = [(ROOT / path.parent / target).resolve() for target, _ in pages.links(path)]
        named |= {place.relative_to(ROOT).parts[0] for place in places if ROOT in place.parents}
        spans = re.findall(r"`([^`\n]+)`", re.sub(pages.FENCED, "", pages.read(path)))
        named |= {word.split("/")[0] for span in spans for word in span.split()}
    stray = {name.split("/")[0] for name in listed.splitlines()} - named
    assert not stray, f"remove them, or say in a page what they are: {stray}"


def defines(tree, name):
    """Whether a module's syntax tree defines a class, function or method."""
    for part in name.split("."):
        tree = next((node for node in getattr(tree, "body", []) if getattr(node, "name", None) == part), None)
    return tree is not None


def test_the_paper_table_points_at_what_exists():
    table = pages.read("docs/explanation/paper.md").split("## Where the paper")[0]
    places = re.findall(r"\[`([\w.]+)`\]\(../../tf_transformer/([\w/]+\.py)\)", table)
    assert len(places) == table.count("(../../tf_transformer/")
    for name, path in places:
        tree = ast.parse((ROOT / "tf_transformer" / path).read_text(encoding="utf-8"))
        assert defines(tree, name), f"{path} has no {name}"
    for name in re.findall(r"`(test_\w+\.py)`", table):
        assert list((ROOT / "tests").rglob(name)), name
    sections = re.findall(r"^\| ([\d.]+) \|", table, re.MULTILINE)
    wanted = ["3.1", "3.2.1", "3.2.2", "3.2.3", "3.3", "3.4", "3.5", "5.1", "5.2", "5.3", "5.4", "6.1"]
    assert set(wanted) <= set(sections)


def test_what_works_with_keras_is_tested():
    promises = re.findall(r"`(test_\w+\.py)::(test_\w+)`", pages.read("docs/reference/keras.md"))
    assert len(promises) > 20
    for file, name in promises:
        (path,) = (ROOT / "tests").rglob(file)
        assert defines(ast.parse(path.read_text(encoding="utf-8")), name), f"{file}::{name}"


def test_the_reference_has_every_public_name():
    """Each name of `tf_transformer` is on a page of the API, itself or with its module; of a module some names are."""
    text = "\n".join(pages.read(path) for path in pages.PATHS if path.match("docs/reference/api/*.md"))
    entries = re.findall(r"^::: ([\w.]+)", text, re.MULTILINE)
    for name in set(tt.__all__) - {"__version__", "PRESETS", "layers"}:
        found = getattr(tt, name)
        if inspect.ismodule(found):
            assert any(f"{entry}.".startswith(f"{found.__name__}.") for entry in entries), name
        else:
            home = getattr(found, "__module__", "tf_transformer.training.recipe")
            assert {home, f"{home}.{name}"} & set(entries), name


def test_the_programs_are_the_folders():
    page = pages.read("docs/reference/programs.md")
    assert re.findall(r"^\| `tf-transformer (\w+)`", page, re.MULTILINE) == [*PROGRAMS]
    there = {path.stem for path in (ROOT / "savedmodels").glob("*.py") if "run_program(main)" in path.read_text()}
    assert there <= set(re.findall(r"`python -m savedmodels\.(\w+)`", page))
    for module in re.findall(r"`python -m ([\w.]+\w)`", page):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_what_is_free_to_change_in_a_run():
    sentence = re.search(r"Free to change are (.*?)\.\n", pages.read("docs/reference/run.md"), re.DOTALL)[1]
    assert set(re.findall(r"`(\w+)`", sentence)) == CHANGEABLE


def test_the_search_options_are_the_codes():
    table = re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", pages.read("docs/guides/search.md"), re.MULTILINE)
    options = {name: f"{option.default}" for name, option in SEARCH_OPTIONS.items() if name != "n_best"}
    assert dict(table) == options
