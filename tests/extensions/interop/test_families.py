"""Tests the registry of families, which recognizes configurations, tokenizers and directories."""

import dataclasses
import json

import keras
import numpy as np
import pytest
from checkpoints import MAKERS, MARIAN
from conftest import array

import tf_transformer as tt
from tf_transformer.extensions.interop.families.marian.model import MarianConfig, MarianTransformer
from tf_transformer.models.families import (
    _kind_of,
    build_model,
    config_of,
    families,
    family_of_folder,
    tokenizer_of,
)
from tf_transformer.registry import find

SMALL = {"num_layers": 1, "d_model": 12, "d_ff": 17, "num_heads": 3, "vocab_size": 41}


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_a_configuration_has_a_family(family):
    """JSON with its fields restores it, and determines the model."""
    sizes = {field.name: 3 for field in dataclasses.fields(family.config) if field.name.startswith("num_decoder")}
    config = family.config(**SMALL, **sizes)
    assert config_of(json.loads(json.dumps(config.to_dict()))) == config
    assert type(build_model(config)) is family.model


def test_a_custom_configuration_has_its_parents_family():
    @dataclasses.dataclass(frozen=True)
    class Mine(MarianConfig):
        pass

    assert type(build_model(Mine(**SMALL, num_decoder_heads=3))) is MarianTransformer


def test_fields_of_no_family():
    with pytest.raises(tt.BadInput, match="fields of a model's configuration, got also colour$"):
        config_of({**SMALL, "colour": "red"})


def test_tokenizers_and_folders_have_a_family(translator, tmp_path):
    assert type(tokenizer_of(translator.tokenizer.model)) is tt.Tokenizer
    marian = tt.Translator.from_pretrained(MARIAN).tokenizer
    assert type(tokenizer_of(marian.model)) is type(marian)
    assert family_of_folder(MARIAN).name == "marian" and family_of_folder(tmp_path) is None


def test_the_family_is_found_by_the_files(tmp_path):
    named = tt.Translator.from_pretrained(MARIAN, family="marian")
    assert type(named.model) is MarianTransformer
    loaded = tt.load(MARIAN)
    assert type(loaded.model) is MarianTransformer and loaded.model.config == named.model.config
    assert (loaded.tokenizer.fingerprint, loaded.options) == (named.tokenizer.fingerprint, named.options)
    for weight, expected in zip(loaded.model.get_weights(), named.model.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, expected)
    with pytest.raises(tt.BadInput, match="expected a SavedModel, a run or a checkpoint, found no config.json"):
        tt.Translator.from_pretrained(tmp_path)
    with pytest.raises(tt.BadInput, match="family: expected one of transformer, m2m100, ssru, marian, got 'mbart'"):
        tt.Translator.from_pretrained(MARIAN, family="mbart")


KINDS = [
    "marian",
    pytest.param("separate", marks=pytest.mark.program),
    pytest.param("m2m100", marks=pytest.mark.program),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_keras_holds_the_model(kind, tmp_path):
    MAKERS[kind](folder := tmp_path / "checkpoint")
    model = family_of_folder(folder).load(folder).model
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    ids = np.array([[5, 6, 249, 2], [7, 2, 0, 0]]), np.array([[1, 5, 250], [1, 8, 9]])
    np.testing.assert_array_equal(array(again(ids)), array(model(ids)))
    assert again.config == model.config and type(again) is type(model)


class Plain(tt.Tokenizer):
    """A tokenizer of a plug-in that accepts any file."""


@dataclasses.dataclass(frozen=True)
class Same(tt.TransformerConfig):
    """A configuration of a plug-in without more fields."""


@pytest.fixture
def plugin(monkeypatch):
    mine = dataclasses.replace(find("families", "transformer"), name="mine", config=Same, tokenizer=Plain)
    before, find_one = families(), find
    monkeypatch.setattr("tf_transformer.models.families.families", lambda: [mine, *before])
    one = lambda kind, name: mine if name == "mine" else find_one(kind, name)  # noqa: E731
    monkeypatch.setattr("tf_transformer.registry.find", one)


def test_a_plugin_takes_nothing_from_other_families(plugin, translator, tmp_path):
    """Whatever is stored without a family's name is read as without the plug-in."""
    assert type(config_of(SMALL)) is tt.TransformerConfig and type(config_of(SMALL, "mine")) is Same
    assert type(tokenizer_of(translator.tokenizer.model)) is tt.Tokenizer
    assert type(tokenizer_of(translator.tokenizer.model, "mine")) is Plain
    archive = b"PK\3\4" + bytes(26)
    names = {"m2m100": archive + b"languages.json", "marian": archive + b"vocab"}
    for name, model in names.items():
        for family in (None, "mine", name):
            kind = _kind_of(model, family)
            assert kind is find("families", name).tokenizer, (name, family)


def test_a_run_stores_its_family(plugin, translator, corpus, tmp_path):
    for name, config in (("transformer", tt.TransformerConfig(**SMALL)), ("mine", Same(**SMALL))):
        trainer = tt.Trainer(tmp_path / name, config, corpus)
        assert trainer.settings["family"] == name
        trainer.run.begin(trainer.settings)
        assert trainer.run.exists(trainer.settings) and trainer.run.settings()["family"] == name
        former = {key: value for key, value in trainer.settings.items() if key != "family"}
        trainer.run.begin(former)  # of an earlier version
        assert trainer.run.exists(trainer.settings)
