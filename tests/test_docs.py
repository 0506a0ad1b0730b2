"""Pages in docs/: links have targets, code runs, and tables match the code."""

import argparse
import ast
import contextlib
import functools
import gzip
import importlib
import inspect
import re
import runpy
import shutil
import sys
from pathlib import Path

import keras
import matplotlib
import numpy as np
import pages
import pytest
from checkpoints import MAKERS
from test_floor_plan import CORE, SUBPACKAGES
from test_parsing_program import write_trees
from test_ssru import write as write_ssru

import tf_transformer as tt
from tf_transformer.data import toy_corpus
from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.training.recipe import CHANGEABLE
from trainers.__main__ import PROGRAMS

ROOT = pages.ROOT


@pytest.mark.parametrize("path", pages.PATHS, ids=str)
def test_links_have_targets(path):
    for target, anchor in pages.links(path):
        file = (ROOT / path.parent / target).resolve() if target else ROOT / path
        assert file.exists(), f"{path}: {target}"
        if anchor:
            assert anchor in pages.anchors(file.relative_to(ROOT)), f"{path}: {target}#{anchor}"


@pytest.mark.parametrize("path", pages.PATHS, ids=str)
def test_no_table_is_cut_in_two(path):
    """An empty line ends a table, so that the rows after it have no head."""
    for block in re.findall(r"(?:^\|.*\n)+", re.sub(pages.FENCED, "", pages.read(path)), re.MULTILINE):
        rows = block.splitlines()
        assert len(rows) > 2 and re.fullmatch(r"[|\s:-]+", rows[1]), f"{path}: {rows[0]}"


GENERATED = re.compile(r"^<!-- [\w-]+ -->$.*?^<!-- end -->$", re.DOTALL | re.MULTILINE)
NOT_PROSE = ("|", "<")  # tables and HTML


def test_lines_of_prose_have_at_most_120_characters():
    """Code may have longer ones, and the lists of versions."""
    for path in pages.PATHS:
        prose = GENERATED.sub("", pages.FENCED.sub("", pages.read(path)))
        longest = max((line for line in prose.splitlines() if not line.startswith(NOT_PROSE)), key=len)
        assert len(longest) <= 120 or path.stem == "CHANGELOG", f"{path}: {longest}"


class OptionsParsed(BaseException):
    """Raised when a program has parsed its options."""


def run_command(words, monkeypatch):
    """Runs a page's command in this process, if it is one of this repository's."""
    if words[0] == "tf-transformer":
        name, *argv = words[1:]
        assert name in PROGRAMS, "no such program"
        name = f"{'tf_transformer.extensions.conformance' if name == 'check' else 'trainers'}.{name}"
    else:
        name, *argv = words[2:] if words[1] == "-m" else words[1:]
    elsewhere = ("venv", "http.server")  # not ours
    if name in elsewhere or name.endswith("..."):  # several of ours
        return
    program = Path(name.removesuffix(".py").replace(".", "/"))
    program = (program / "__main__" if (ROOT / program).is_dir() else program).with_suffix(".py")
    assert (ROOT / program).exists(), "no such program"
    main = getattr(importlib.import_module(".".join(program.with_suffix("").parts)), "main", None)
    if main is None:
        monkeypatch.setattr(sys, "argv", [name, *argv])
        runpy.run_path(str(ROOT / program), run_name="__main__")
    elif inspect.signature(main).parameters:
        main(argv)
    else:
        assert set(argv) <= {"..."}, "it has no options"


@pytest.mark.parametrize("path", [path for path in pages.PATHS if path.stem != "CHANGELOG"], ids=str)
def test_programs_have_the_options_on_pages(path, monkeypatch):
    """A program accepts the whole commands, and has the options of parts of commands."""

    def parse_only(parser, argv=None, namespace=None, parse=None):
        argv = sys.argv[1:] if argv is None else argv
        if "..." not in argv:
            parse(parser, argv, namespace)
        assert {word.partition("=")[0] for word in argv if word[:2] == "--"} <= set(parser.format_help().split())
        raise OptionsParsed

    def error(parser, message):
        raise AssertionError(message)

    for name in ("parse_args", "parse_intermixed_args"):
        parse = getattr(argparse.ArgumentParser, name)
        monkeypatch.setattr(argparse.ArgumentParser, name, functools.partialmethod(parse_only, parse=parse))
    monkeypatch.setattr(argparse.ArgumentParser, "error", error)
    for words in pages.commands(path):
        try:
            with contextlib.suppress(OptionsParsed):
                run_command(words, monkeypatch)
        except AssertionError as failure:
            raise AssertionError(f"{path}: {' '.join(words)}: {failure}") from failure
        except ModuleNotFoundError as failure:
            assert failure.name in ("grpc", "requests", "tensorflow_serving", "torch"), failure  # from an extra


@pytest.fixture
def folder(unscored, tmp_path, monkeypatch):
    """Returns the directory in which a page's Python runs, with models that it would download."""
    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "opus-mt-en-de").symlink_to(ROOT / "tests/marian/trained")
    (tmp_path / "facebook").mkdir()
    (tmp_path / "facebook/m2m100_418M").symlink_to(ROOT / "tests/m2m100/trained")
    MAKERS["nllb"](tmp_path / "facebook/nllb-200-distilled-600M")
    write_ssru(tmp_path / "students/en-de")
    return tmp_path


def is_saved(*names):
    return all(Path(f"savedmodels/{name}/1/saved_model.pb").exists() for name in names)


WITH_A_RUN = {  # pages that need the run runs/mine: quicker code
    "tutorials/train": {
        "vocab_size=500": "num_layers=1, d_model=32, d_ff=64, vocab_size=500",
        "train=2_000": "train=700",
        'translator.save("savedmodels/tutorial/1")': "",  # saved by the README's test
        'by_hand.save("savedmodels/by-hand/1")': "",
        'tt.load("savedmodels/by-hand/1")': "by_hand",
    },
    "tutorials/serve": {'translator.save("savedmodels/served/1")': ""},  # by the README's test
    "guides/search": {},
    "guides/ctranslate2": {},
    "guides/transformers": {},
    "guides/litert": {"max_source_length=64": "max_source_length=16"},
    "guides/onnx": {},
    "guides/formats": {},
    "guides/documents": {'tt.load("savedmodels/demo")': 'tt.load("runs/mine")'},
}
CONVERTED = ("guides/litert", "guides/onnx")  # their exports take long
SMALL = "tt.TransformerConfig(1, 32, 64, 2, vocab_size=400)"
LAYER = "x = tt.layers.EncoderLayer(num_heads=4, d_ff=64)(x)"
SEPARATE = {  # independent pages: quicker code, and a check of the names that their Python defines
    "tutorials/layers": (
        {f"{LAYER}\n{LAYER}": LAYER},
        lambda names: (
            names["scores"].numpy()[..., 3].max() == 0  # padding
            and is_saved("classifier")
            and is_saved("tagger")
            and len(names["tagged"]) == len(names["row"].first_tokens) == 6
            and np.allclose(*(names[name].predict(names["rows"]) for name in ("adapted", "classifier")), atol=1e-5)
        ),
    ),
    "tutorials/language-model": (
        {"corpus()": "corpus(train=500)", "range(2)": "range(1)"},
        lambda names: names["saved"](["The old woman"]) == names["generator"](["The old woman"]),
    ),
    "guides/own-encoder": (
        {"corpus()": "corpus(train=500)", "vocab_size=1_000": "vocab_size=400", "epochs=3": "epochs=1"},
        lambda names: (
            tt.load("savedmodels/recurrent")(["He is tired."]) == names["translator"](["He is tired."])
            and type(keras.models.load_model("recurrent.keras")) is names["Recurrent"]
        ),
    ),
    "guides/change-the-architecture": (
        {"corpus()": "corpus(train=500)", "vocab_size=1_000": "vocab_size=400"},
        lambda names: tt.load("savedmodels/rotary")(["He is tired."]) == names["translator"](["He is tired."]),
    ),
    "guides/large-corpora": (
        {"vocab_size=1_000": "vocab_size=400", 'write_corpus("text")': 'write_corpus("text", train=2_000)'},
        lambda names: sum(sum(shard["lengths"]) for shard in names["records"].shards) > 1_900,
    ),
    "guides/other-backends": ({}, lambda names: isinstance(names["translator"], tt.Translator)),
    "tutorials/parsing": (
        {
            'tt.parsing.PRESETS["parsing_small"]': "tt.TransformerConfig(1, 32, 64, 2, vocab_size=300)",
            'tt.parsing.RECIPES["parsing_small"]': "tt.Recipe(steps=20, batch_tokens=512, warmup_steps=40)",
            'parser.save("savedmodels/parser/1")': "parser.export()",  # test_parsing.py saves one
        },
        lambda names: names["tree"].leaves() == ["The", "cat", "slept", "."] and Path("tree.svg").exists(),
    ),
    "tutorials/multilingual": (
        {'tt.PRESETS["small"]': SMALL, "steps=1_200": "steps=4", "eval_every=100": "eval_every=4"},
        lambda names: is_saved("both") and all(text.startswith("<2fr> ") for text in names["texts"]),
    ),
    "guides/back-translation": (
        {'tt.PRESETS["tiny"]': SMALL, "steps=800": "steps=8", "train=2_000, dev=100": "train=600, dev=10"},
        lambda names: len(names["further"]) == 100 and len(set(names["sources"])) > 50,
    ),
    "tutorials/terms": (
        {'tt.PRESETS["tiny"]': SMALL, 'tt.RECIPES["tiny"]': "tt.Recipe(steps=4, batch_tokens=512, warmup_steps=8)"},
        lambda names: names["annotated"] == "The <term> alte Frau </term> opens the <term> Tür </term>.",
    ),
    "guides/casing": (
        {},
        lambda names: names["references"] == [text.upper() for text in names["dev"][1]],
    ),
    "tutorials/fine-tune": (
        {
            "train=2_000, dev=40": "train=700, dev=10",
            'start.save("savedmodels/pretrained/1")': "start.export()",  # saved by the README's test
            'tuned.translator().save("savedmodels/tuned/1")': "tuned.translator()",  # saved by the README's test
        },
        # LoRA on query and value of four attentions
        lambda names: (
            is_saved("adapted")
            and len(names["start"].model.trainable_weights) == 2 * 2 * 4
            and names["adapted"]("He is tired.") == names["start"]("He is tired.")
        ),
    ),
    "guides/coming-from": (
        {'start.save("savedmodels/tuned/1")': "start.export()"},  # saved by the README's test
        lambda names: tt.load("tuned")("He is tired.") == names["start"]("He is tired."),
    ),
    "guides/languages": (
        {"max_source_length=64": "max_source_length=16"},
        lambda names: is_saved("many") and names["tuned"].tokenizer.current_languages() == ("en", "de"),
    ),
}
SEPARATE["guides/new-language"] = (
    {"epochs=10": "epochs=1", "train=500": "train=60"},
    lambda names: (
        names["saved"].metadata["target_language"] == "mic_Latn"
        and names["base"].languages == names["saved"].languages[:-1]
        and [*names["tuned"].tokenizer.added] == ["<term>", "</term>"]
    ),
)
SEPARATE["guides/firefox"] = (
    {},
    lambda names: is_saved("en-de") and all(Path(f"{name}/en-de/1/model.json").exists() for name in ("litert", "onnx")),
)
FAST = ("guides/casing", "tutorials/layers", "tutorials/language-model", "guides/large-corpora")
ELSEWHERE = ["guides/beam", "reference/vocabulary"]  # run by test_beam.py, test_tokenizer.py


def test_every_page_is_run_by_a_test():
    with_python = [path for path in pages.PATHS if path.parts[0] == "docs" and pages.blocks(path)]
    python = {f"{path.parent.name}/{path.stem}" for path in with_python}
    assert python == {*WITH_A_RUN, *SEPARATE, *ELSEWHERE}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.program if name in FAST else pytest.mark.slow) for name in SEPARATE]
)
def test_the_python_of_a_page_runs(name, folder):
    write_trees(folder / "train.trees", 211, seed=1)
    write_trees(folder / "dev.trees", 23, seed=2)
    write_dataset(folder)
    quicker, holds = SEPARATE[name]
    assert holds(pages.run_blocks(f"docs/{name}.md", quicker))


def write_dataset(folder):
    """Lays out a toy corpus as the Multi30k's repository."""
    toy_corpus.write_corpus(folder / "toy", train=900, dev=23, test=19)
    (raw := folder / "dataset/data/task1/raw").mkdir(parents=True)
    for part, name in (("train", "train"), ("dev", "val"), ("test", "test_2016_flickr")):
        for language, copy in (("en", "en"), ("de", "de"), ("de", "fr")):
            lines = (folder / f"toy/{part}.{language}").read_bytes()
            (raw / f"{name}.{copy}.gz").write_bytes(gzip.compress(lines))


@pytest.mark.parametrize(
    "converted", [pytest.param(False, marks=pytest.mark.program), pytest.param(True, marks=pytest.mark.slow)]
)
def test_the_pages_that_share_a_run(converted, folder, saved):
    names = {}
    shutil.copytree(saved, "savedmodels/served/1")
    for name, quicker in WITH_A_RUN.items():
        if name in CONVERTED and not converted:
            continue
        names |= pages.run_blocks(f"docs/{name}.md", quicker)
        if name == "tutorials/train":
            (folder / "runs/mine").symlink_to("tutorial")  # the README's name of the run
    assert (folder / "attention.png").exists() and (folder / "attention.html").exists()
    assert tt.documents.translate(names["translator"], names["srt"], format="srt").count(" --> ") == 2
    assert names["results"][0].hypotheses and "sentencepiece.bpe.model" in pages.read("docs/guides/ctranslate2.md")


def defines(tree, name):
    """Returns whether a module's syntax tree defines a class, function or method."""
    for part in name.split("."):
        tree = next((node for node in getattr(tree, "body", []) if getattr(node, "name", None) == part), None)
    return tree is not None


@pytest.mark.parametrize("path", [path for path in pages.PATHS if path.stem != "CHANGELOG"], ids=str)
def test_files_and_names_on_pages_exist(path):
    text = pages.read(path)
    for file in re.findall(r"`((?!_)\w[\w/]*\.py)`", re.sub(pages.FENCED, "", text)):
        assert "NAME" in file or (ROOT / file).exists() or any(ROOT.glob(f"[a-z]*/**/{file}")), file
    for names in re.findall(r"\btt((?:\.[A-Za-z]\w*)+)", text):
        if not names.startswith(".beam."):  # it needs Apache Beam
            functools.reduce(getattr, names[1:].split("."), tt)
    for name, attribute in re.findall(r"`([A-Z]\w+)\.([a-z]\w*)", text):
        assert name not in tt.__all__ or hasattr(getattr(tt, name), attribute), f"{name}.{attribute}"


def test_the_design_page_has_every_subpackage():
    table = pages.read("docs/explanation/design.md").split("| subpackage |")[1]
    cells = " ".join(re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE))
    listed = [name.removesuffix("/").removesuffix(".py").replace("/", ".") for name in re.findall(r"`([^`]+)`", cells)]
    assert sorted(listed) == sorted([*SUBPACKAGES, *CORE])


def test_the_paper_table_names_code_and_tests():
    table = pages.read("docs/explanation/paper.md").split("## Where the paper")[0]
    entries = re.findall(r"\[`([\w.]+)`\]\(../../tf_transformer/([\w/]+\.py)\)", table)
    assert len(entries) == table.count("(../../tf_transformer/")
    for name, path in entries:
        tree = ast.parse((ROOT / "tf_transformer" / path).read_text(encoding="utf-8"))
        assert defines(tree, name), f"{path} has no {name}"
    for name in re.findall(r"`(test_\w+\.py)`", table):
        assert list((ROOT / "tests").rglob(name)), name
    sections = re.findall(r"^\| ([\d.]+) \|", table, re.MULTILINE)
    expected = ["3.1", "3.2.1", "3.2.2", "3.2.3", "3.3", "3.4", "3.5", "5.1", "5.2", "5.3", "5.4", "6.1"]
    assert set(expected) <= set(sections)


def test_the_keras_page_names_tests():
    promises = re.findall(r"`(test_\w+\.py)::(test_\w+)`", pages.read("docs/reference/keras.md"))
    assert len(promises) > 20
    for file, name in promises:
        (path,) = (ROOT / "tests").rglob(file)
        assert defines(ast.parse(path.read_text(encoding="utf-8")), name), f"{file}::{name}"


def test_the_reference_has_every_public_name():
    """A page of the API has each name of `tf_transformer`, or its module, or names of a module."""
    text = "\n".join(pages.read(path) for path in pages.PATHS if path.match("docs/reference/api/*.md"))
    entries = re.findall(r"^::: ([\w.]+)", text, re.MULTILINE)
    for name in set(tt.__all__) - {"__version__", "PRESETS", "layers"}:
        value = getattr(tt, name)
        if inspect.ismodule(value):
            assert any(f"{entry}.".startswith(f"{value.__name__}.") for entry in entries), name
        else:
            home = getattr(value, "__module__", "tf_transformer.training.recipe")
            assert {home, f"{home}.{name}"} & set(entries), name


def test_the_programs_are_the_folders():
    page = pages.read("docs/reference/programs.md")
    assert re.findall(r"^\| `tf-transformer (\w+)`", page, re.MULTILINE) == [*PROGRAMS]
    programs = {path.stem for path in (ROOT / "savedmodels").glob("*.py") if "run_program(main)" in path.read_text()}
    assert programs <= set(re.findall(r"`python -m savedmodels\.(\w+)`", page))
    for module in re.findall(r"`python -m ([\w.]+\w)`", page):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_the_options_of_a_run_that_can_change():
    sentence = re.search(r"You can change (`steps`.*?)\. ", pages.read("docs/reference/run.md"), re.DOTALL)[1]
    assert set(re.findall(r"`(\w+)`", sentence)) == CHANGEABLE


def test_the_search_options_are_the_codes():
    table = re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", pages.read("docs/guides/search.md"), re.MULTILINE)
    options = {name: f"{option.default}" for name, option in SEARCH_OPTIONS.items() if name != "n_best"}
    assert dict(table) == options
