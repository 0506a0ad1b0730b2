"""Tests LiteRT's signatures, and the client of exports, which needs nothing else of this package."""

import io
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from checkpoints import M2M100
from conftest import TEXTS
from exported import MARIAN, checkpoint, hostile_texts
from programs import ROOT
from test_marian_tokenizer import CODES

import tf_transformer as tt
from tf_transformer.extensions.interop.engines import litert_client, portable
from tf_transformer.extensions.interop.engines.litert_client import LiteRTTranslator
from tf_transformer.extensions.interop.families.m2m100.family import M2M100Checkpoint
from tf_transformer.extensions.interop.families.m2m100.tokenizer import IDS, M2M100Tokenizer
from tf_transformer.extensions.interop.families.marian.family import checkpoint_in
from tf_transformer.extensions.interop.families.marian.tokenizer import MarianTokenizer
from tf_transformer.extensions.interop.families.pieces import ADDED as TOKENS
from tf_transformer.extensions.interop.families.pieces import archive_of
from tf_transformer.utils.terminal import quiet_stderr

ADDED = ["<term>", "<term>s", "a+", "東"]  # tokens to add

pytest.importorskip("ai_edge_litert")
pytestmark = pytest.mark.filterwarnings("ignore:more tokens than the model reads")


@pytest.fixture
def folder(lite):
    return lite


def test_signatures_have_fixed_sizes(folder):
    client = LiteRTTranslator(folder)
    assert [(part.tokens, part.steps) for part in client._signatures] == [(16, 24), (41, 48)]
    outputs = client._signatures[1]([[5, 2]], client.metadata | {"n_best": 2})[0]
    shapes = {name: list(part.shape) for name, part in outputs.items()}
    assert shapes == {"ids": [3, 48], "scores": [3], "log_probs": [3], "lengths": [3], "finished": [3]}


PI_4, PI_5 = "fp asimd evtstrm crc32 cpuid", "fp asimd evtstrm aes crc32 atomics fphp cpuid asimddp"


@pytest.mark.parametrize(
    ("machine", "lines", "older"),
    [
        ("aarch64", [f"Features\t: {PI_4}"] * 4, True),
        ("aarch64", [f"Features\t: {PI_5}"] * 4, False),
        ("aarch64", [f"Features\t: {PI_5}", f"Features\t: {PI_4}"], True),  # a small core and a large one
        ("aarch64", [f"Features\t: {PI_5.removesuffix(' asimddp')}"], True),
        ("aarch64", None, False),  # not Linux
        ("x86_64", [f"Features\t: {PI_4}"], False),
    ],
)
def test_older_processors_of_arm_use_another_interpreter(machine, lines, older, folder, tmp_path, monkeypatch):
    """The accelerator that `CompiledModel` loads ends the process on a Raspberry Pi 4."""
    expected = LiteRTTranslator(folder).n_best(TEXTS, 2)
    if lines is not None:
        (tmp_path / "cpuinfo").write_text("\n".join(["processor\t: 0", *lines, ""]))
    monkeypatch.setattr(litert_client.platform, "machine", lambda: machine)
    monkeypatch.setattr(litert_client, "PROCESSOR", tmp_path / "cpuinfo")
    if older:
        monkeypatch.setattr("ai_edge_litert.compiled_model.CompiledModel.from_file", None)
    client = LiteRTTranslator(folder)
    assert {type(part) for part in client._signatures} == {litert_client._Runner if older else litert_client._Signature}
    results = client.n_best(TEXTS, 2)
    assert [[one.text for one in best] for best in results] == [[one.text for one in best] for best in expected]
    scores = [[one.score for best in each for one in best] for each in (results, expected)]
    np.testing.assert_allclose(*scores, rtol=1e-5, atol=1e-5)


def test_threads_that_share_a_translator_wait(folder, monkeypatch):
    """Every call of a signature uses the same memory for inputs and outputs."""
    client, call, texts = LiteRTTranslator(folder), litert_client._Signature.__call__, ["Two doors.", "The dog sleeps."]
    expected, inside, counts = client(texts), [], []

    def slow(signature, *arguments):
        inside.append(signature)
        counts.append(len(inside))
        time.sleep(0.01)
        outputs = call(signature, *arguments)
        inside.pop()
        return outputs

    monkeypatch.setattr(litert_client._Signature, "__call__", slow)
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(client, texts * 3)) == expected * 3
    assert max(counts) == 1


@pytest.mark.parametrize(("first", "second"), itertools.product([litert_client._quiet, quiet_stderr], repeat=2))
def test_threads_that_load_a_model_keep_standard_error(first, second):
    assert litert_client.STANDARD_ERROR is portable.STANDARD_ERROR  # by its import
    before, entered, resume = os.fstat(2), threading.Event(), threading.Event()

    def quiet():
        with second():
            entered.set()
            resume.wait()

    thread = threading.Thread(target=quiet)
    with first():
        thread.start()
        entered.wait(0.1)
    resume.set()
    thread.join()
    assert os.path.samestat(os.fstat(2), before)


@pytest.mark.parametrize(
    "kind", ["ours", "one vocabulary", "two vocabularies", "m2m100", "added", "silent", "bytes in the target"]
)
def test_the_client_spells_as_the_tokenizer(kind, translator, tmp_path):
    """Except for the language at the start of M2M100's sources."""
    if kind == "ours":
        tokenizer = translator.tokenizer
    elif kind == "m2m100":
        tokenizer = M2M100Checkpoint(M2M100).tokenizer().with_languages("en", "de")
    elif kind == "added":
        checkpoint(2, tmp_path / "checkpoint")
        tokenizer = tt.vocabularies.with_tokens(tt.Translator.from_pretrained(tmp_path / "checkpoint"), ADDED).tokenizer
    elif kind == "silent":
        added = tt.vocabularies.with_tokens(tt.Translator.from_pretrained(M2M100), ADDED).tokenizer
        description = added.description | {"silent": [*added.description["silent"], added.target.ids["<term>"]]}
        tokenizer = M2M100Tokenizer(
            archive_of({**added.contents, IDS: description, TOKENS: {token: len(token) < 3 for token in ADDED}})
        ).with_languages("en", "de")
    elif kind == "bytes in the target":
        tokenizer = MarianTokenizer(bytes_of_the_target())
    else:
        tokenizer = checkpoint_in(checkpoint(1 + (kind != "one vocabulary"), tmp_path / "checkpoint")).tokenizer()
    for name, content in (tokenizer.files | tokenizer.vocabularies).items():
        (tmp_path / name).write_bytes(content)
    client = (litert_client._SentencePiece if kind == "ours" else litert_client._Pieces)(tmp_path)
    joined = [mark.join(ADDED) for mark in ("", ".+", " \t")]
    texts = [*TEXTS, *CODES, "__de__ <mask>", "<0x41>", *ADDED, *joined, *hostile_texts(30)]
    texts = [text.encode() if isinstance(text, str) else text for text in texts]
    expected = tokenizer.tokenize(tf.constant(texts)).to_list()
    assert [client.encode(litert_client._text(text)) for text in texts] == [
        ids[tokenizer.num_language_tokens :] for ids in expected
    ]
    outputs = np.random.default_rng(3).integers(0, tokenizer.vocab_size, (97, 7)).tolist()
    texts = [text.decode() for text in tokenizer.detokenize(tf.constant(outputs)).numpy()]
    assert [client.decode(ids) for ids in outputs] == texts


def bytes_of_the_target():
    """Returns the archive of a tokenizer with byte pieces in the target's model only."""
    contents = {"source.spm": (MARIAN / "source.spm").read_bytes()}
    target, texts = io.BytesIO(), (target for _, target in tt.toy_corpus.corpus(train=500)["train"])
    options = {"vocab_size": 400, "byte_fallback": True, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=texts, model_writer=target, **options)
    contents["target.spm"] = target.getvalue()
    for side, name in (("source", "source_vocabulary.json"), ("target", "vocabulary.json")):
        engine = sentencepiece.SentencePieceProcessor(model_proto=contents[f"{side}.spm"])
        pieces = [engine.id_to_piece(id) for id in range(3, engine.vocab_size())]
        contents[name] = json.dumps(["<pad>", "<s>", "</s>", "<unk>", *pieces]).encode()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name, content in contents.items():
            file.writestr(name, content)
    return archive.getvalue()


def test_the_client_prints_translations(folder, capsys, monkeypatch):
    lines, client = ["Two doors.", "", "The dog sleeps."], LiteRTTranslator(folder)

    def printed(*options):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\r\n".join(lines).encode("utf-8-sig"))))
        litert_client.main([str(folder.parent), *options])
        return capsys.readouterr().out

    assert printed() == "".join(f"{text}\n" for text in client(lines))
    expected = [(i, best) for i, text in enumerate(lines) for best in client.n_best(text, 2, length_penalty=1)]
    outputs = printed("--n-best", "2", "--option", "length_penalty=1")
    assert outputs == "".join(f"{i}\t{best.score:.4f}\t{best.text}\n" for i, best in expected)
    texts, two_lines = [], [litert_client.Translation("a\nb", 0.0, 0.0, True, 1)]
    one_by_one = lambda _, batch, *more: [texts.append(text.decode()) or two_lines for text in batch]  # noqa: E731
    monkeypatch.setattr(LiteRTTranslator, "n_best", one_by_one)
    assert printed() == "a b\n" * 3 and texts == lines
    with pytest.raises(SystemExit):
        printed("--n-best", "0")
    assert "--n-best: expected a positive number, got 0" in capsys.readouterr().err


def test_the_program_translates_without_tensorflow(folder, tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('TensorFlow')\n")
    (tmp_path / "text").write_text("Two doors.\n\nThe dog sleeps.\n")
    paths = os.pathsep.join(map(str, (tmp_path, ROOT)))
    command = [sys.executable, "-m", "trainers.translate", str(folder.parent), str(tmp_path / "text")]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONPATH": paths})
    expected = LiteRTTranslator(folder)(["Two doors.", "", "The dog sleeps."])
    assert done.stdout.decode() == "".join(f"{text}\n" for text in expected), done.stderr


@pytest.mark.parametrize("name", ["model.json", "tokenizer.model"])
def test_a_too_large_file_is_not_read(name, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "1")
    os.truncate(tmp_path / "1" / name, 2**26 + 1)
    with pytest.raises(ValueError, match=f"{name}: expected at most 67,108,864 bytes, got 67,108,865$"):
        LiteRTTranslator(tmp_path / "1")


WRONG = {
    "a value of another type in it$": lambda metadata: {**metadata, "ids": 3},
    "no 'end' in it": lambda metadata: {**metadata, "ids": {}},
    r"beam_size: expected a whole number, got \[3\]$": lambda metadata: {**metadata, "beam_size": [3]},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_metadata_raises_one_line(message, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "1")
    metadata = json.loads((folder / "model.json").read_text())
    (tmp_path / "1/model.json").write_text(json.dumps(WRONG[message](metadata)))
    with pytest.raises(ValueError, match=f"1: expected a LiteRT export, got something .*{message}"):
        LiteRTTranslator(tmp_path / "1")


def test_numbers_must_be_positive(folder):
    for name in ("threads", "batch_size"):
        with pytest.raises(ValueError, match=f"^{name}: expected a positive number, got 0$"):
            LiteRTTranslator(folder, **{name: 0})


def test_a_process_without_standard_error(folder, monkeypatch):
    """As in a service or with `2>&-`: the model translates, and writes nothing to another file of this number."""
    expected = LiteRTTranslator(folder)("Two doors.")
    for name in ("stderr", "__stderr__"):
        monkeypatch.setattr(sys, name, None)
        if name == "__stderr__":
            monkeypatch.setattr(os, "dup", None)  # raises if called
        assert LiteRTTranslator(folder)("Two doors.") == expected
    command = ["sh", "-c", '"$0" "$@" 2>&-', sys.executable, litert_client.__file__, str(folder), "--n-best", "2"]
    done = subprocess.run(command, input=b"Two doors.\n", capture_output=True)
    assert done.returncode == 0 and done.stdout.decode().splitlines()[0].endswith(f"\t{expected}")
    command[2] = '"$0" "$@"'
    done = subprocess.run([*command, "--n-best", "3"], input=b"Two doors.\n", capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")  # prints nothing when it ends
    line = "error: options: expected length_penalty, max_length, as the export fixes others; got nothing"
    done = subprocess.run([*command, "--option", "nothing=1"], input=b"Two doors.\n", capture_output=True)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (2, b"", f"{line}\n")


def test_only_the_start_of_a_huge_text_is_tokenized(folder):
    client = LiteRTTranslator(folder)
    tokens, encoded = client.metadata["max_source_length"], []
    whole = client.source_ids("The old woman opens the red door. " * 99)
    encode, client._tokenizer.encode = client._tokenizer.encode, lambda text: encoded.append(text) or encode(text)
    for text in ("The old woman opens the red door. " * 9_999, "東京 " * 9_999, "Two" + " \x00\t" * 9_999 + "doors."):
        ids, expected = client.source_ids(text), encode(text)
        assert ids[:tokens] == expected[:tokens] and (len(ids) > tokens) == (len(expected) > tokens)
        assert len(encoded.pop().encode()) <= 64 * (tokens + 1)
    assert client.source_ids("The old woman opens the red door. " * 9_999)[:tokens] == whole[:tokens]


def test_a_memory_error_does_not_blame_the_folder(folder, monkeypatch):
    def fails(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr("ai_edge_litert.interpreter.Interpreter", fails)
    with pytest.raises(MemoryError):
        LiteRTTranslator(folder)


def test_lines_are_read_as_they_arrive():
    chunks = iter([b"a\n", b"b", b"c\r\nd\n\n", b"e\n", b"f"])
    lines = litert_client._lines(SimpleNamespace(read1=lambda size: next(chunks, b"")))
    assert list(lines) == [[b"a"], [b"bc\r", b"d", b""], [b"e"], [b"f"]]
