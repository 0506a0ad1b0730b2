"""Untrusted files do not hang, exhaust memory, end in a traceback, or read other files."""

import io
import os
import re
import tracemalloc
import zipfile
from types import SimpleNamespace
from unittest.mock import Mock

import h5py
import numpy as np
import pytest
import sentencepiece

import tf_transformer as tt
from tf_transformer.config import TransformerConfig
from tf_transformer.models.families import build_model
from tf_transformer.serving import saving
from tf_transformer.serving.saving import warmup_records
from tf_transformer.training import tasks
from tf_transformer.training.recipe import Recipe
from tf_transformer.training.run import Run
from tf_transformer.utils import reading


def assert_rejected(function, message):
    """Checks that a call raises one line before it takes much memory."""
    tracemalloc.start()
    try:
        with pytest.raises((tt.BadInput, FileNotFoundError), match=message) as error:
            function()
        assert len(str(error.value).splitlines()) == 1
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


# JSON and configurations


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"\xff{}",
        b'"a\nb"',
        b"[" * 10**5,
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"\\ud800": 1}',
        b'{"a": "\\udfff"}',
    ],
)
def test_json_of_another_kind(tmp_path, content):
    file = tmp_path / "a.json"
    file.write_bytes(content)
    assert_rejected(lambda: reading.read_json(file), "^[^ ]*a.json: expected a JSON object, got something else: ")
    os.truncate(file, 2**40)
    assert_rejected(lambda: reading.read_json(file), r"a.json: expected at most 67,108,864 bytes, got 1,099,")


def test_values_of_json_become_those_of_their_kinds():
    assert reading.made_of(Recipe, {"factor": 2, "steps": None, "of another version": 3}) == Recipe(
        learning_rate_factor=2
    )
    values, kinds = {"step": 3.0, "seconds": 2.5, "more": None}, {"step": int, "seconds": int | float, "seeds": list}
    converted = reading.check_kinds(values, kinds)
    assert converted == values and type(converted["step"]) is int
    for value in (True, None, "3", 2.5, [3]):
        assert_rejected(
            lambda value=value: reading.check_kinds({"step": value}, kinds),
            rf"^step: expected a whole number, got {re.escape(repr(value))}$",
        )
    assert_rejected(lambda: reading.check_kinds({"seeds": {"a": 1}}, kinds), "^seeds: expected a list, got {'a': 1}$")
    assert_rejected(
        lambda: reading.made_of(TransformerConfig, {"vocab_size": [10**12]}), "^vocab_size: expected a positive"
    )


def of_marian():
    from tf_transformer.extensions.interop.families.marian.model import MarianConfig

    return MarianConfig(3, 14, 23, 2, vocab_size=29, num_decoder_layers=1, num_decoder_heads=7, source_vocab_size=31)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TransformerConfig(2, 14, 23, 2, d_k=5, d_v=3, vocab_size=29, positions="learned"),
        pytest.param(of_marian, marks=pytest.mark.extensions),
    ],
)
def test_matrix_weights_are_those_of_the_model(make):
    config = make()
    matrices = [weight for weight in build_model(config).weights if len(weight.shape) == 2]
    assert config.matrix_weights == sum(int(np.prod(weight.shape)) for weight in matrices)
    config.check_stored(config.matrix_weights)
    assert_rejected(lambda: config.check_stored(config.matrix_weights - 1), "expected sizes of a model that fit the ")


# Archives and arrays


def test_archives_that_become_larger(tmp_path):
    zeros, path = np.zeros(10**6, "uint8"), tmp_path / "a.npz"
    np.savez_compressed(path, zeros)
    assert_rejected(lambda: reading.read_npz(path), "a.npz: expected arrays .*: expected an archive without compr")
    np.savez(path, zeros, name=np.asfortranarray(np.arange(6).reshape(2, 3)))
    arrays = reading.read_npz(path)
    assert arrays.keys() == {"name", "arr_0"} and reading.read_npz(path, ["name"]).keys() == {"name"}
    np.testing.assert_array_equal(arrays["name"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(arrays["arr_0"], zeros)

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", "a" * 1000)
        archive.filelist *= 9  # nine entries of the same bytes
    with pytest.raises(ValueError, match="expected an archive of at most .* bytes unpacked, got"):
        reading.check_archive(io.BytesIO(file.getvalue()))


@pytest.mark.parametrize("header", ["(10**12,)", "(10**4, 10**9)", "(3, -1)", "'a'"])
def test_arrays_that_are_larger_than_their_file(tmp_path, header):
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {header}, }}".replace("10**", "1" + "0" * 9 + "")
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(64)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", content)
    assert_rejected(
        lambda: reading.read_npz(tmp_path / "a.npz"), "a.npz: expected arrays of NumPy, got something else: "
    )


def test_weights_in_hdf5_lie_in_their_file(tmp_path):
    with h5py.File(tmp_path / "whole.h5", "w") as file:
        file["a/b"] = np.arange(7.0)
    reading.check_h5(tmp_path / "whole.h5")
    with h5py.File(tmp_path / "empty.h5", "w") as file:
        file.create_dataset("a/b", (10**12,), "f4", chunks=(7,))
    with h5py.File(tmp_path / "packed.h5", "w") as file:
        file.create_dataset("a/b", data=np.zeros(10**6), compression="gzip")
    (tmp_path / "secret").write_bytes(bytes(64))
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file.create_dataset("a/b", (8,), "f4", external=[(str(tmp_path / "secret"), 0, 32)])
    with h5py.File(tmp_path / "linked.h5", "w") as file:
        file["a/b"] = h5py.ExternalLink(str(tmp_path / "whole.h5"), "/a/b")
    larger, elsewhere = r"expected arrays of at most [\d,]+ bytes", "expected arrays that lie in the file, got a/b"
    for name, problem in (("empty", larger), ("packed", larger), ("other", elsewhere), ("linked", elsewhere)):
        message = f"{name}.h5: expected weights in HDF5, .*: {problem}"
        assert_rejected(lambda name=name: reading.check_h5(tmp_path / f"{name}.h5"), message)
    assert_rejected(lambda: reading.check_h5(tmp_path / "secret"), "secret: expected weights in HDF5")


# Tokenizers


CONTROLS = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "minloglevel": 2}


def foreign_model(text, **options):
    """Returns a SentencePiece model that `Tokenizer.train` would not make."""
    file, files = io.BytesIO(), f"{text / 'train.en'},{text / 'train.de'}"
    sentencepiece.SentencePieceTrainer.train(input=files, model_writer=file, **CONTROLS | options)
    return file.getvalue()


def test_a_sentencepiece_model_without_bytes(text):
    tokenizer = tt.Tokenizer(foreign_model(text, model_type="char", vocab_size=60, hard_vocab_limit=False))
    assert (tokenizer.first_piece, tokenizer.control_tokens) == (4, [])
    ids = tokenizer.tokenize(["Two doors.", "Two \u4e1c doors."])
    assert tokenizer.detokenize(ids).numpy().tolist()[0] == b"Two doors."
    assert ids[1].numpy().tolist().count(3) == 1  # no piece and no bytes
    model = tt.Transformer(tt.TransformerConfig(1, 6, 7, 2, vocab_size=tokenizer.vocab_size))
    model.build()
    export = tt.Translator(model, tokenizer).export()
    export.describe(name="char")
    assert warmup_records(export)


def test_other_control_tokens_are_not_those_of_trees(text):
    options = {"control_symbols": ["<2de>", "<2fr>"], "model_type": "bpe", "vocab_size": 350}
    tokenizer = tt.Tokenizer(foreign_model(text, byte_fallback=True, **options))
    assert (tokenizer.first_piece, tokenizer.control_tokens) == (6 + 256, [])
    ours = tt.Tokenizer.train(sorted(text.glob("train.*")), 350, control_tokens=["(NP", ")NP"])
    assert (ours.first_piece, ours.control_tokens) == (6 + 256, ["(NP", ")NP"])


def test_models_with_other_controls_or_pieces_that_are_not_utf_8(text):
    model = foreign_model(text, model_type="char", vocab_size=60, hard_vocab_limit=False)
    assert_rejected(
        lambda: tt.Tokenizer(model.replace("▁".encode(), b"\xff\xfe\xfd")), "expected a SentencePiece model, got"
    )
    other = foreign_model(text, pad_id=3, unk_id=0, model_type="char", vocab_size=60)
    assert_rejected(lambda: tt.Tokenizer(other), "pad, bos, eos, unk")


def test_other_errors_pass(tmp_path, translator, saved, monkeypatch):
    passing = (MemoryError, TypeError, AttributeError, IndexError, NameError, AssertionError, KeyboardInterrupt)
    for kind in passing:
        with pytest.raises(kind), reading.reading("a", "b"):
            raise kind("c")
    for error in (KeyError("c"), EOFError("c"), OSError("c"), RecursionError("c"), zipfile.BadZipFile("c")):
        message = "^a: expected b, got something else: (c|no 'c' in it)$"
        with pytest.raises(tt.BadInput, match=message), reading.reading("a", "b"):
            raise error
    run = Run(tmp_path)
    settings = {"kind": "translation", "recipe": {}, "corpus": {}, "model": translator.model.config.to_dict()}
    run.begin(settings)
    translator.tokenizer.save(tmp_path / "tokenizer.model")
    model = build_model(translator.model.config)
    model.compile("adam")
    run.save(model, 1, target_tokens=0, seconds=0.0)
    optimizer = SimpleNamespace(built=False, build=lambda variables: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        run.restore(SimpleNamespace(optimizer=optimizer, trainable_variables=()))
    for kind in (MemoryError, TypeError, ValueError):
        for module in (saving, tasks):
            monkeypatch.setattr(module, "build_model", Mock(side_effect=kind("no room")))
        for load in (lambda: tt.load(tmp_path), lambda: tt.Translator.from_pretrained(saved)):
            with pytest.raises(kind, match="^no room$"):
                load()
