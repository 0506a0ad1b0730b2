"""Another distribution adds an engine, a format, a family, a task and a command, without a change to this package."""

import sys

import pytest

import tf_transformer as tt
from tf_transformer import registry
from tf_transformer.models.families import build_model, config_of, family_of_config
from tf_transformer.training.tasks import task_of
from trainers.__main__ import run

TOY = """
import dataclasses
from pathlib import Path

import tf_transformer as tt
from tf_transformer.inference.engine import Hypothesis, Engine, TranslationResult
from tf_transformer.inference.loading import Opener
from tf_transformer.evaluation.bleu import Metric
from tf_transformer.models.families import Family
from tf_transformer.serving.formats import Format
from tf_transformer.training.tasks import TRANSLATION


class Reversing(Engine):
    call_options, max_values, metadata, options, batch_size, languages = (), {"n_best": 1}, {}, {}, 7, ()

    def _replies(self, texts, request):
        return [TranslationResult(text, (Hypothesis(text[::-1], 0.0),), len(text), False) for text in texts]


@dataclasses.dataclass(frozen=True)
class Config(tt.TransformerConfig):
    toy: int = 3


class Model(tt.Transformer):
    config_class = Config


ENGINE = Opener("a toy", lambda path: path.endswith(".toy"), lambda path, **options: Reversing())
FORMAT = Format("toy", "a toy", "toys", ("float32",), frozenset(),
                lambda model, path, *others, **options: Path(path).write_text(str(model.beam_size)))
FAMILY = Family("toy", Config, Model, tt.Tokenizer)
TASK = dataclasses.replace(TRANSLATION, metric=Metric("chrF"))
"""
POINTS = """
[tf_transformer.engines]
toy = toy_plugin:ENGINE
[tf_transformer.formats]
toy = toy_plugin:FORMAT
broken = missing_plugin:FORMAT
[tf_transformer.families]
toy = toy_plugin:FAMILY
[tf_transformer.tasks]
toy = toy_plugin:TASK
[tf_transformer.commands]
toy = toy_command:print_toy
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    (folder / "toy_plugin-1.0.dist-info").mkdir(parents=True)
    (folder / "toy_plugin.py").write_text(TOY)
    (folder / "toy_command.py").write_text("def print_toy():\n    print('a toy')\n")
    (folder / "toy_plugin-1.0.dist-info/METADATA").write_text("Name: toy-plugin\nVersion: 1.0\n")
    (folder / "toy_plugin-1.0.dist-info/entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(folder)
    registry._plugged_in.cache_clear()
    yield folder
    registry._plugged_in.cache_clear()
    sys.modules.pop("toy_plugin", None)


def test_a_plugin_of_every_kind(plugin, translator, tmp_path):
    import toy_plugin

    assert tt.load(str(tmp_path / "any.toy"))(["ab", "cde"]) == ["ba", "edc"]
    translator.save(tmp_path / "saved", format="toy")
    assert (tmp_path / "saved").read_text() == str(translator.beam_size)
    sizes = {"num_layers": 1, "d_model": 8, "d_ff": 16, "num_heads": 2, "vocab_size": 31}
    config = config_of(sizes | {"toy": 5})
    assert type(build_model(config)) is toy_plugin.Model and family_of_config(config).name == "toy"
    assert type(config_of(sizes)) is tt.TransformerConfig  # built-in families remain
    assert task_of("toy").metric.name == "chrF"


def test_a_plugin_that_cannot_be_imported(plugin, translator, tmp_path):
    with pytest.raises(tt.BadInput, match="^format: cannot load 'broken' from missing_plugin:FORMAT: No module named"):
        translator.save(tmp_path / "saved", format="broken")


TAKEN = {"engines": "run", "formats": "litert", "families": "transformer", "tasks": "translation"}
TAKEN |= {"checks": "conformance", "commands": "check", "keras_classes": "LanguageModel"}


@pytest.mark.extensions
@pytest.mark.parametrize("kind", TAKEN)
def test_a_name_of_two_packages_raises(kind, plugin):
    """Of another distribution and of this one, and of two others."""
    for name, value in {"one": "toy_plugin:ENGINE", "two": "toy_plugin:FORMAT"}.items():
        folder = plugin / f"{name}_plugin-2.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}-plugin\nVersion: 2.0\n")
        taken = f"{TAKEN[kind]} = {value}\n" if name == "one" else ""
        points = f"[tf_transformer.{kind}]\n{taken}shared = {value}\nsame = toy_plugin:FAMILY\n"
        (folder / "entry_points.txt").write_text(points)
    expected = f"{({'families': 'family'}).get(kind, kind[:-1])}: expected one package with "
    with pytest.raises(tt.BadInput) as error:
        registry.find(kind, TAKEN[kind])
    found = "got one-plugin and tf-transformer. Uninstall one-plugin."
    assert str(error.value) == f"{expected}{TAKEN[kind]!r}, {found}"
    with pytest.raises(tt.BadInput, match=f"^{expected}'shared', got (one|two)-plugin and (one|two)-plugin. Uninstall"):
        registry.find(kind, "shared")
    assert registry.find(kind, "same").name == "toy"  # one object under one name
    assert registry.names(kind).count("shared") == 1


def test_a_program_is_not_replaced(plugin, monkeypatch):
    points = "[tf_transformer.commands]\nexport = toy_command:print_toy\n"
    (plugin / "toy_plugin-1.0.dist-info/entry_points.txt").write_text(points)
    monkeypatch.setattr("sys.argv", ["tf-transformer", "export"])
    with pytest.raises(tt.BadInput, match="^command: expected one package with 'export', got toy-plugin and tf-tra"):
        run()


def test_an_error_lists_the_engines(plugin, tmp_path):
    with pytest.raises(tt.BadInput, match="expected a toy, a SavedModel, a run, .* or a checkpoint, found no"):
        tt.load(tmp_path)


def test_a_command_of_a_plugin(plugin, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["tf-transformer", "toy"])
    run()
    assert capsys.readouterr().out == "a toy\n"
