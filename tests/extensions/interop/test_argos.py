"""A package for Argos Translate, which installs it and translates like CTranslate2."""

import json
import subprocess
import sys
import zipfile

import pytest
import sentencepiece
from conftest import random_model

import tf_transformer as tt

ctranslate2 = pytest.importorskip("ctranslate2")
PAIR = {"source_language": "en", "target_language": "de"}
# Its sentence splitter downloads a model at the first text. A line is a sentence here.
INSTALL_AND_TRANSLATE = """
import json, sys
from argostranslate import package, sbd, translate
sbd.MiniSBDSentencizer.split_sentences = lambda self, text: [text]
package.install_from_path(sys.argv[1])
(installed,) = package.get_installed_packages()
assert (installed.from_code, installed.to_code) == ("en", "de"), vars(installed)
print(json.dumps([translate.translate(line, "en", "de") for line in json.load(sys.stdin)]))
"""


@pytest.fixture(scope="module")
def texts():
    return [source for source, _ in tt.toy_corpus.corpus(train=103)["train"]]


@pytest.fixture(scope="module")
def translator(texts):
    tokenizer = tt.Tokenizer.train_from_iterator(texts, 331)
    return tt.Translator(random_model(331, 1, 3.0, {}), tokenizer)


@pytest.fixture(scope="module")
def package(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("argos") / "mine" / "3"
    translator.save(folder, format="argos", **PAIR, license="cc0-1.0")
    (file,) = folder.iterdir()
    return file


def outputs(model, pieces, texts):
    """CTranslate2's outputs with the options of Argos Translate."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(pieces))
    results = ctranslate2.Translator(str(model), intra_threads=1).translate_batch(
        processor.encode(texts, out_type=str), beam_size=4, num_hypotheses=1, length_penalty=0.2, replace_unknowns=True
    )
    return [processor.decode(result.hypotheses[0]).strip() for result in results]


def test_a_package_has_the_files_of_an_export_to_ctranslate2(translator, package, tmp_path):
    """test_matrix.py translates with them."""
    with zipfile.ZipFile(package) as archive:
        archive.extractall(tmp_path)
    root = tmp_path / package.stem
    metadata = json.loads((root / "metadata.json").read_text("utf-8"))
    assert metadata["from_code"] == "en" and metadata["to_code"] == "de" and metadata["package_version"] == "3.0"
    assert "- license: cc0-1.0" in (root / "README.md").read_text("utf-8")
    translator.save(tmp_path / "same", format="ctranslate2")
    files = {"sentencepiece.model": "tokenizer.model"} | {
        f"model/{path.name}": path.name for path in (tmp_path / "same").iterdir() if path.name != "tokenizer.model"
    }
    assert "model/model.bin" in files
    for packed, exported in files.items():
        assert (root / packed).read_bytes() == (tmp_path / "same" / exported).read_bytes(), packed


def test_argos_translate_installs_and_translates(translator, texts, package, tmp_path):
    pytest.importorskip("stanza", reason="argostranslate needs Stanza")
    pytest.importorskip("argostranslate")
    translator.save(tmp_path / "same", format="ctranslate2")
    same = outputs(tmp_path / "same", tmp_path / "same" / "tokenizer.model", texts)
    command = [sys.executable, "-c", INSTALL_AND_TRANSLATE, package]
    environment = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "PATH": "", "ARGOS_COMPUTE_TYPE": "float32"}
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    # It writes a space for each underscore.
    assert [line.strip() for line in json.loads(done.stdout)] == [text.replace("_", " ").strip() for text in same]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "^source_language: expected a code of letters, .* got none. Pass --languages"),
        (PAIR | {"target_language": "de/x"}, "got de/x"),
    ],
)
def test_languages_are_needed(translator, tmp_path, metadata, message):
    with pytest.raises(tt.BadInput, match=message):
        translator.save(tmp_path / "1", format="argos", **metadata)
    assert not list(tmp_path.iterdir())
