"""The registry of families: configurations, tokenizers and folders are recognized by it alone."""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

import tf_transformer as tt
from tf_transformer.families.marian.model import MarianConfig, MarianTransformer
from tf_transformer.families.registry import FAMILIES, build_model, config_of, family_of_folder, tokenizer_of

TRAINED = Path(__file__).parent / "marian/trained"
ROOT = Path(__file__).parents[1]
SMALL = {"num_layers": 1, "d_model": 12, "d_ff": 17, "num_heads": 3, "vocab_size": 41}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_configuration_says_its_family(family):
    """The fields of a configuration, as JSON has them, give it back, and its family's model."""
    own = {field.name: 3 for field in dataclasses.fields(family.config) if field.name.startswith("num_decoder")}
    config = family.config(**SMALL, **own)
    assert config_of(json.loads(json.dumps(config.to_dict()))) == config
    assert type(build_model(config)) is family.model


def test_a_configuration_of_ones_own_is_of_its_parents_family():
    @dataclasses.dataclass(frozen=True)
    class Mine(MarianConfig):
        pass

    assert type(build_model(Mine(**SMALL, num_decoder_heads=3))) is MarianTransformer


def test_fields_of_no_family():
    with pytest.raises(tt.BadInput, match="fields of a model's configuration, got also colour$"):
        config_of({**SMALL, "colour": "red"})


def test_tokenizers_and_folders_say_their_family(translator, tmp_path):
    assert type(tokenizer_of(translator.tokenizer.model)) is tt.Tokenizer
    marian = tt.Translator.from_pretrained(TRAINED).tokenizer
    assert type(tokenizer_of(marian.model)) is type(marian)
    assert family_of_folder(TRAINED).name == "marian" and family_of_folder(tmp_path) is None


def test_the_family_is_found_by_the_files(tmp_path):
    texts = ["Two doors."]
    assert tt.Translator.from_pretrained(TRAINED)(texts) == tt.Translator.from_pretrained(TRAINED)(texts)
    assert tt.load(TRAINED)(texts) == tt.Translator.from_pretrained(TRAINED)(texts)
    with pytest.raises(tt.BadInput, match="expected a checkpoint of a family that loads here, got other files"):
        tt.Translator.from_pretrained(tmp_path)
    with pytest.raises(tt.BadInput, match="family: expected one of m2m100, marian, transformer; got 'mbart'"):
        tt.Translator.from_pretrained(TRAINED, family="mbart")


def test_nothing_but_its_folder_names_a_family():
    """Programs, exports and loading ask the registry; `tt` keeps the short way to MarianMT."""
    command = ["git", "grep", "-il", "marian", "--", "tf_transformer", "trainers"]
    files = set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())
    kin = ("tf_transformer/families/marian/", "tf_transformer/families/m2m100/")  # the latter is made of its parts
    files = {file for file in files if not file.startswith(kin)}
    assert files <= {
        "tf_transformer/__init__.py",  # load_marian
        "tf_transformer/families/registry.py",  # its line
        "tf_transformer/loading.py",  # an example
    }
