"""The model and its search in LiteRT, an engine that we did not write; and the client, which needs nothing else."""

import io
import json
import math
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
from conftest import TEXTS, random_model
from exported import LONG, MARIAN, agree, checkpoint, hostile_texts, sentences, trained
from programs import ROOT, without_the_package
from test_marian_tokenizer import CODES

import tf_transformer as tt
from tf_transformer.extensions.interop.engines import litert_client
from tf_transformer.extensions.interop.engines.litert import LiteRT
from tf_transformer.extensions.interop.engines.litert_client import LiteRTTranslator
from tf_transformer.extensions.interop.families.m2m100.files import M2M100Checkpoint
from tf_transformer.extensions.interop.families.marian.family import checkpoint_in
from tf_transformer.extensions.interop.families.marian.tokenizer import MarianTokenizer
from tf_transformer.extensions.interop.formats import litert
from tf_transformer.utils.terminal import quiet_stderr

pytest.importorskip("ai_edge_litert")
pytestmark = pytest.mark.filterwarnings("ignore:more tokens than the model reads")


@pytest.fixture
def folder(lite):
    return lite


def test_the_search_is_ours(translator, folder):
    agree(translator, folder, sentences(17), 2, fresh=9, length_penalty=2.0)


def test_a_folder_has_what_a_client_needs(translator, folder):
    assert sorted(path.name for path in folder.iterdir()) == ["model.json", "model.tflite", "tokenizer.model"]
    facts = json.loads((folder / "model.json").read_text())
    assert facts["ids"] == {"padding": 0, "start": 1, "end": 2, "unknown": 3}
    sizes = ("beam_size", "extra_length", "max_source_length", "max_length")
    assert [facts[name] for name in sizes] == [3, 7, 41, 48]
    assert (facts["source_language"], facts["license"], facts["dtype"]) == ("en", "apache-2.0", "float32")
    signatures = LiteRTTranslator(folder)._signatures
    assert [(one.tokens, one.steps) for one in signatures] == [(16, 24), (32, 48), (41, 48)]
    shapes = {name: list(part.shape) for name, part in signatures[1]([[5, 2]], facts | {"n_best": 2})[0].items()}
    assert shapes == {"ids": [3, 48], "scores": [3], "log_probs": [3], "lengths": [3], "finished": [3]}


def test_outputs_keep_their_limits(folder):
    client = LiteRTTranslator(folder)
    assert [len(ids) for ids in client.ids("Two doors.", 3, max_length=5)] == [5, 5, 5]
    assert max(len(ids) for ids in client.ids("door " * 3000, 3)) <= 41 + 7
    with pytest.warns(UserWarning, match=r"more tokens than the model reads; .*: 'door door"):
        client("door " * 3000)
    for value in (math.nan, math.inf, 2**40, 10**400):
        assert client.ids("Two doors.", 3, max_length=value) == client.ids("Two doors.", 3)
    assert client("Two doors.", max_length=-(2**40)) == client("Two doors.", max_length=1)
    assert client("Two doors.", length_penalty=10**400) == client("Two doors.", length_penalty=5)
    assert client("Two doors.", length_penalty=math.nan) == client("Two doors.")
    assert client.n_best("Two doors.", -1) == client.n_best("Two doors.", 0) == client.n_best("Two doors.", 1)
    assert client.n_best("Two doors.", 2**40) == client.n_best("Two doors.", 3)
    with pytest.raises(TypeError, match="expected length_penalty, .*, as the export fixes others; got beam_size"):
        client("Two doors.", beam_size=2)
    with pytest.raises(TypeError, match="^max_length: expected a number, got '9'$"):
        client("Two doors.", max_length="9")
    with pytest.raises(TypeError, match="^texts: expected strings, got None$"):
        client(["Two doors.", None])


def test_threads_that_share_a_translator_wait(folder, monkeypatch):
    """As those of a worker of Beam: a signature's inputs and outputs are the same memory in every call."""
    client, call, texts = LiteRTTranslator(folder), litert_client._Signature.__call__, ["Two doors.", "The dog sleeps."]
    expected, inside, most = client(texts), [], []

    def slow(signature, *given):
        inside.append(signature)
        most.append(len(inside))
        time.sleep(0.01)
        found = call(signature, *given)
        inside.pop()
        return found

    monkeypatch.setattr(litert_client._Signature, "__call__", slow)
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(client, texts * 3)) == expected * 3
    assert max(most) == 1


@pytest.mark.parametrize("first", [litert_client._quiet, quiet_stderr])
@pytest.mark.parametrize("second", [litert_client._quiet, quiet_stderr])
def test_threads_that_load_a_model_keep_standard_error(first, second):
    before, entered, go_on = os.fstat(2), threading.Event(), threading.Event()

    def quiet():
        with second():
            entered.set()
            go_on.wait()

    thread = threading.Thread(target=quiet)
    with first():
        thread.start()
        entered.wait(0.1)
    go_on.set()
    thread.join()
    assert os.path.samestat(os.fstat(2), before)


def test_no_text_raises_an_error(folder):
    client = LiteRTTranslator(folder)
    for text in [*TEXTS, *hostile_texts(5)]:
        client(text).encode()
    assert client([b"\xff", "\ud800", ""]) == ["", "", ""]


def test_the_client_spells_as_the_model_s_tokenizer(translator, folder):
    check_spelling(LiteRTTranslator(folder)._tokenizer, translator.tokenizer, TEXTS)


@pytest.mark.parametrize("vocabularies", [1, 2])
def test_the_client_spells_as_marian_s_tokenizer(vocabularies, tmp_path):
    tokenizer = checkpoint_in(checkpoint(vocabularies, tmp_path / "checkpoint")).tokenizer()
    for name, content in (tokenizer.files | tokenizer.vocabularies).items():
        (tmp_path / name).write_bytes(content)
    assert (tmp_path / "source_vocabulary.json").exists() == (vocabularies == 2)
    check_spelling(litert_client._Pieces(tmp_path), tokenizer, [*TEXTS, *CODES])


def test_the_client_spells_as_m2m100_s_tokenizer(tmp_path):
    """But for the language that its sources begin with."""
    tokenizer = M2M100Checkpoint(M2M100).tokenizer().for_languages("en", "de")
    for name, content in (tokenizer.files | tokenizer.vocabularies).items():
        (tmp_path / name).write_bytes(content)
    texts = [*TEXTS, *CODES, "__de__ <mask>"]
    check_spelling(litert_client._Pieces(tmp_path), tokenizer, texts)


def test_the_client_spells_bytes_of_the_target_s_model_alone(tmp_path):
    """The source's model knows no bytes."""
    made = {"source.spm": (MARIAN / "source.spm").read_bytes()}
    target, sentences = io.BytesIO(), (target for _, target in tt.toy_corpus.corpus(train=500)["train"])
    options = {"vocab_size": 400, "byte_fallback": True, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=sentences, model_writer=target, **options)
    made["target.spm"] = target.getvalue()
    for side, name in (("source", "source_vocabulary.json"), ("target", "vocabulary.json")):
        engine = sentencepiece.SentencePieceProcessor(model_proto=made[f"{side}.spm"])
        pieces = [engine.id_to_piece(id) for id in range(3, engine.vocab_size())]
        made[name] = json.dumps(["<pad>", "<s>", "</s>", "<unk>", *pieces]).encode()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name, content in made.items():
            file.writestr(name, content)
            (tmp_path / name).write_bytes(content)
    check_spelling(litert_client._Pieces(tmp_path), MarianTokenizer(archive.getvalue()), [*TEXTS, "<0x41>"])


def check_spelling(client, tokenizer, texts):
    texts = [text.encode() if isinstance(text, str) else text for text in [*texts, *hostile_texts(30)]]
    expected = tokenizer.tokenize(tf.constant(texts)).to_list()
    assert [client.encode(litert_client._text(text)) for text in texts] == [ids[tokenizer.codes :] for ids in expected]
    outputs = np.random.default_rng(3).integers(0, tokenizer.vocab_size, (97, 7)).tolist()
    assert [client.decode(ids) for ids in outputs] == [
        text.decode() for text in tokenizer.detokenize(tf.constant(outputs)).numpy()
    ]


def test_the_client_prints_translations(folder, capsys, monkeypatch):
    lines, client = ["Two doors.", "", "The dog sleeps."], LiteRTTranslator(folder)

    def said(*options):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\r\n".join(lines).encode("utf-8-sig"))))
        litert_client.main([str(folder.parent), *options])
        return capsys.readouterr().out

    assert said() == "".join(f"{text}\n" for text in client(lines))
    expected = [(i, one) for i, text in enumerate(lines) for one in client.n_best(text, 2, length_penalty=1)]
    found = said("--n-best", "2", "--option", "length_penalty=1")
    assert found == "".join(f"{i}\t{one.score:.4f}\t{one.text}\n" for i, one in expected)
    seen, two_lines = [], [litert_client.Translation("a\nb", 0.0, 0.0, True, 1)]
    one_by_one = lambda _, texts, *more: [seen.append(text.decode()) or two_lines for text in texts]  # noqa: E731
    monkeypatch.setattr(LiteRTTranslator, "n_best", one_by_one)
    assert said() == "a b\n" * 3 and seen == lines


def test_the_program_translates_without_tensorflow(folder, tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('TensorFlow')\n")
    (tmp_path / "text").write_text("Two doors.\n\nThe dog sleeps.\n")
    paths = os.pathsep.join(map(str, (tmp_path, ROOT)))
    command = [sys.executable, "-m", "trainers.translate", str(folder.parent), str(tmp_path / "text")]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONPATH": paths})
    expected = LiteRTTranslator(folder)(["Two doors.", "", "The dog sleeps."])
    assert done.stdout.decode() == "".join(f"{text}\n" for text in expected), done.stderr


def test_what_it_cannot_write(translator, tmp_path):
    with pytest.raises(tt.BadInput, match="dtype: expected one of float32, int8 for LiteRT, got 'int4'"):
        translator.save(tmp_path / "1", format="litert", dtype="int4")
    with pytest.raises(tt.BadInput, match="max_length: expected a positive whole number below 2..31, got 0"):
        translator.save(tmp_path / "1", format="litert", max_length=0)
    with pytest.raises(FileNotFoundError, match="of a LiteRT export or of its versions, found no model.tflite in"):
        LiteRTTranslator(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["model.json", "model.tflite", "tokenizer.model"])
def test_a_damaged_folder_is_one_line(name, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "1")
    (tmp_path / "1" / name).write_bytes(b"[1]")
    for load, kind in ((LiteRTTranslator, ValueError), (LiteRT, tt.BadInput)):
        with pytest.raises(kind, match="1: expected a LiteRT export, got something else: .") as error:
            load(tmp_path / "1")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["model.json", "tokenizer.model"])
def test_a_file_that_is_too_large_is_not_read(name, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "1")
    os.truncate(tmp_path / "1" / name, 2**26 + 1)
    with pytest.raises(ValueError, match=f"{name}: expected at most 67,108,864 bytes, got 67,108,865$"):
        LiteRTTranslator(tmp_path / "1")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda facts: [facts], "a value of another type in it"),
        (lambda facts: {**facts, "ids": 3}, "a value of another type in it"),
        (lambda facts: {**facts, "ids": {}}, "no 'end' in it"),
        (lambda facts: {name: value for name, value in facts.items() if name != "beam_size"}, "no 'beam_size' in it"),
        (lambda facts: {**facts, "beam_size": [3]}, r"beam_size: expected a whole number, got \[3\]$"),
        (lambda facts: {**facts, "length_penalty": "x"}, "a value of another type in it"),
    ],
)
def test_a_wrong_fact_is_said_without_words_of_python(changed, message, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "1")
    facts = json.loads((folder / "model.json").read_text())
    (tmp_path / "1/model.json").write_text(json.dumps(changed(facts)))
    with pytest.raises(ValueError, match=f"1: expected a LiteRT export, got something else: {message}"):
        LiteRTTranslator(tmp_path / "1")


@pytest.mark.parametrize("name", ["threads", "batch_size"])
def test_the_client_takes_positive_numbers(name, folder):
    with pytest.raises(ValueError, match=f"^{name}: expected a positive number, got 0$"):
        LiteRTTranslator(folder, **{name: 0})


def test_a_process_without_standard_error(folder, monkeypatch):
    """A service, or `2>&-`: the model answers as ever, and what another file is under the number 2 gets nothing."""
    expected = LiteRTTranslator(folder)("Two doors.")
    for name in ("stderr", "__stderr__"):
        monkeypatch.setattr(sys, name, None)
        if name == "__stderr__":
            monkeypatch.setattr(os, "dup", None)  # nothing is sent elsewhere
        assert LiteRTTranslator(folder)("Two doors.") == expected
    command = ["sh", "-c", '"$0" "$@" 2>&-', sys.executable, litert_client.__file__, str(folder), "--n-best", "2"]
    done = subprocess.run(command, input=b"Two doors.\n", capture_output=True)
    assert done.returncode == 0 and done.stdout.decode().splitlines()[0].endswith(f"\t{expected}")
    command[2] = '"$0" "$@"'
    done = subprocess.run([*command, "--n-best", "3"], input=b"Two doors.\n", capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")  # nothing at the process's end
    line = "error: options: expected length_penalty, max_length, as the export fixes others; got nothing"
    done = subprocess.run([*command, "--option", "nothing=1"], input=b"Two doors.\n", capture_output=True)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (2, b"", f"{line}\n")


def test_a_huge_text_takes_no_more_than_its_beginning(folder):
    client = LiteRTTranslator(folder)
    tokens, read = client.facts["max_source_length"], []
    whole = client.source_ids("The old woman opens the red door. " * 99)
    encode, client._tokenizer.encode = client._tokenizer.encode, lambda text: read.append(text) or encode(text)
    for text in ("The old woman opens the red door. " * 9_999, "東京 " * 9_999, "Two" + " \x00\t" * 9_999 + "doors."):
        ids, expected = client.source_ids(text), encode(text)
        assert ids[:tokens] == expected[:tokens] and (len(ids) > tokens) == (len(expected) > tokens)
        assert len(read.pop().encode()) <= 64 * (tokens + 1)
    assert client.source_ids("The old woman opens the red door. " * 9_999)[:tokens] == whole[:tokens]


def test_an_error_of_another_kind_is_no_fault_of_the_folder(folder, monkeypatch):
    def full(*arguments, **options):
        raise MemoryError("no more")

    monkeypatch.setattr(litert_client, "_compiled", full)
    with pytest.raises(MemoryError):
        LiteRTTranslator(folder)
    monkeypatch.setattr(litert_client.os, "dup", lambda number: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        LiteRTTranslator(folder)


def test_a_changed_weight_is_seen(folder, tmp_path):
    """The file would load, and translate otherwise."""
    shutil.copytree(folder, tmp_path / "1")
    contents = bytearray((tmp_path / "1/model.tflite").read_bytes())
    contents[len(contents) // 2] ^= 1
    (tmp_path / "1/model.tflite").write_bytes(contents)
    with pytest.raises(ValueError, match="model.tflite with SHA-256 .*, where model.json says"):
        LiteRTTranslator(tmp_path / "1")


def test_the_file_takes_its_default_for_what_is_not_a_number(folder):
    """Whatever calls it: the client itself asks for the default."""
    client = LiteRTTranslator(folder)
    source, options = [*client.source_ids("Two doors."), client.facts["ids"]["end"]], client.options | {"n_best": 3}
    found = [client._signatures[0]([source], options | more)[0] for more in ({}, {"length_penalty": math.nan})]
    assert found[0]["scores"].tolist() == found[1]["scores"].tolist() and found[0]["scores"][0] > -1e8


def test_lines_are_read_as_they_come():
    """As many as there are, so that a person who types has an answer after each."""
    pieces = iter([b"a\n", b"b", b"c\r\nd\n\n", b"e\n", b"f"])
    lines = litert_client._lines(SimpleNamespace(read1=lambda most: next(pieces, b"")))
    assert list(lines) == [[b"a"], [b"bc\r", b"d", b""], [b"e"], [b"f"]]


def test_the_client_refuses_no_translations(folder, capsys):
    with pytest.raises(SystemExit):
        litert_client.main([str(folder), "--n-best", "0"])
    assert "--n-best: expected a positive number, got 0" in capsys.readouterr().err


def test_a_missing_engine_is_one_line(translator, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    with pytest.raises(tt.BadInput, match=r'takes ai_edge_litert: pip install "tf-transformer\[litert\]"'):
        translator.save(tmp_path / "1", format="litert", checked=True)


class Unnamed(tt.Transformer):
    """Of encoder layers without names, which Keras numbers."""

    def make_encoder_layers(self):
        return [tt.layers.EncoderLayer(**self.layer_options()) for _ in range(self.config.num_layers)]


@pytest.mark.program
def test_another_model(translator, tmp_path):
    """Not the paper's order, activation and depths; layers without names; greedy."""
    sizes = {"num_decoder_layers": 1, "norm_first": True, "activation": "gelu"}
    other = translator.replace(model=random_model(350, 2, 0.0, sizes, Unnamed), beam_size=1, max_source_length=16)
    other.save(tmp_path / "1", format="litert")
    agree(other, tmp_path / "1", sentences(19), 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "patience, beam_size, min_length",
    [
        (math.inf, 2, 27),
        pytest.param(1.0, 4, 0, marks=pytest.mark.slow),
        pytest.param(2.0, 1, 0, marks=pytest.mark.slow),
    ],
)
def test_marian_with_other_searches(patience, beam_size, min_length, tmp_path):
    """Two SentencePiece models and another order of ids; outputs of 27 symbols are longer than short sources allow."""
    rules = {"min_length": min_length, "no_repeat_ngram_size": 3}
    translator = trained(patience=patience, beam_size=beam_size, **rules)
    translator.save(tmp_path / "1", format="litert", max_length=31 + 50)
    texts = [text for text in [*sentences(199), *LONG] if len(text) < 999]  # of hundreds of steps, ties decide
    agree(translator, tmp_path / "1", texts, beam_size, fresh=31, length_penalty=1.0)


@pytest.mark.program
@pytest.mark.parametrize("vocabularies", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_marian_against_transformers(vocabularies, tmp_path):
    """What `transformers` answers is stored beside the checkpoints. Hostile texts give what the translator gives."""
    sources = json.loads((MARIAN / "answers.json").read_text(encoding="utf-8"))
    stored = {1: sources, 2: json.loads((MARIAN.parent / "separate.json").read_text(encoding="utf-8"))}[vocabularies]
    options = {"beam_size": 4, "length_penalty": 0.0, "patience": math.inf, "max_source_length": 61}
    translator = tt.Translator.from_pretrained(checkpoint(vocabularies, tmp_path / "checkpoint"), **options)
    translator.save(tmp_path / "1", format="litert", max_length=128)
    client = LiteRTTranslator(tmp_path / "1")
    best = [client.n_best(text, 1)[0] for text in sources["sentences"]]
    assert [one.text for one in best] == stored["beam"]
    np.testing.assert_allclose([one.log_prob for one in best], stored["log_probs"], atol=1e-4)
    texts = [*sources["texts"], *hostile_texts(5)]
    agree(translator, tmp_path / "1", [text for text in texts if len(text) < 99], 2)


@pytest.mark.program
def test_eight_bits(tmp_path):
    """The table of embeddings is in the file once, and few translations differ from those in float32."""
    translator = trained(max_source_length=16)
    for dtype in ("float32", "int8"):
        translator.save(tmp_path / dtype, format="litert", dtype=dtype)
    contents = (tmp_path / "int8/model.tflite").read_bytes()
    table = translator.model.embedding
    table.quantize("int8")  # Keras's own, whose integers are the converter's
    assert contents.count(np.asarray(table.embeddings).tobytes()) == 1
    assert len(contents) < 1.1 * translator.model.count_params() + 400_000
    texts = sentences(97)
    pairs = zip(*(LiteRTTranslator(tmp_path / dtype)(texts) for dtype in ("float32", "int8")), strict=True)
    assert np.mean([one == other for one, other in pairs]) > 0.7
    with pytest.raises(tt.BadInput, match="expected a model in another dtype than int8 to convert to float32"):
        translator.save(tmp_path / "1", format="litert")


@pytest.mark.program
def test_hostile_texts_where_neither_tensorflow_nor_this_package_is(folder, tmp_path):
    """test_matrix.py has the checks of an export, and what the client gives there."""
    command = [sys.executable, "-W", "ignore", str(ROOT / "tests/hostile.py"), str(folder), "--count", "300"]
    assert subprocess.run(command, env=without_the_package(tmp_path)).returncode == 0


@pytest.mark.program
def test_a_check_that_fails_publishes_nothing(translator, tmp_path, monkeypatch):
    monkeypatch.setattr(litert.LiteRTFolder, "_converted", lambda *_: bytes(9_000))
    with pytest.raises(tt.BadInput, match="expected an export that passes the checks, so nothing was published"):
        translator.save(tmp_path / "1", format="litert", checked=True)
    assert not list(tmp_path.iterdir())
