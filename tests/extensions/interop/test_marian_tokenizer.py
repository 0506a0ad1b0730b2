"""Compares MarianMT's tokenizer with SentencePiece's engine and a dictionary, and with `transformers.MarianTokenizer`
if it is installed (pip install "transformers<6").
"""

import importlib.util
import json
import random
import re
import shutil
import sys

import hostile
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from checkpoints import MARIAN
from conftest import TEXTS

from tf_transformer.config import BadInput
from tf_transformer.data import toy_corpus
from tf_transformer.extensions.interop.engines import litert_client
from tf_transformer.extensions.interop.families.marian.family import checkpoint_in

CODES = [">>fra<< Good.", ">>fra<<Good", ">> fra << x", " >>fra<< x", ">>fra<< >>deu<< x", ">><<", ">>", ">>a\nb<<c"]
CODES += ["x >>fra<< y", ">>fra<", ">>fra<<", ">>xyz<< x", ">></s><<a", "<<>>fra<<", ">>>>fra<<", ">>東京<< x"]
CODES += [">>fra<< a\nb"]
KINDS: dict[str, dict] = {
    "unigram": {},
    "bpe": {"model_type": "bpe"},
    "bytes": {"model_type": "bpe", "byte_fallback": True},
}


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    """SentencePiece models of two languages, and a vocabulary without some of their tokens."""
    path = tmp_path_factory.mktemp("tokenizer")
    pairs = toy_corpus.corpus(train=499, dev=0, test=0)["train"]
    vocabulary = ["</s>", "<unk>", ">>fra<<", ">>deu<<"]
    extra = ["1000 00000 000 Δελφοί", "東京 に 京 100,000", "<pad> </s>"] * 3
    for name, sentences in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([*sentences, *(extra if name == "target" else [])]),
            model_prefix=str(path / name),
            vocab_size=331,
            hard_vocab_limit=False,
            minloglevel=2,
            **KINDS[request.param],
        )
        (path / f"{name}.model").rename(path / f"{name}.spm")
        engine = sentencepiece.SentencePieceProcessor(model_file=str(path / f"{name}.spm"))
        pieces = [engine.id_to_piece(id) for id in range(3, engine.vocab_size()) if id % 17]
        vocabulary += [piece for piece in pieces if piece not in vocabulary]
    vocabulary.append("<pad>")
    size = len(vocabulary)
    (path / "vocab.json").write_text(json.dumps({piece: id for id, piece in enumerate(vocabulary)}))
    config = {"vocab_size": size, "pad_token_id": size - 1, "decoder_start_token_id": size - 1, "eos_token_id": 0}
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def tokenizer(folder):
    return checkpoint_in(folder).tokenizer()


class Oracle:
    """Computes ids of the checkpoint from its files."""

    def __init__(self, folder):
        self.engines = {
            side: sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
            for side in ("source", "target")
        }
        self.ids = json.loads((folder / "vocab.json").read_text())
        self.pieces = {id: piece for piece, id in self.ids.items()}

    def encode(self, text, side):
        code = []
        if text.startswith(">>") and "<<" in text:
            end = text.index("<<") + 2
            code, text = [text[:end]], text[end:]
        pieces = code + self.engines[side].encode(text, out_type=str)
        return [self.ids.get(piece, self.ids["<unk>"]) for piece in pieces]

    def decode(self, ids):
        """Merges the marks that SentencePiece writes for each byte of an invalid sequence."""
        pieces = [self.pieces[id] for id in ids if self.pieces[id] not in ("</s>", "<unk>", "<pad>")]
        return re.sub("\ufffd+", "\ufffd", self.engines["source"].decode_pieces(pieces).replace("▁", " ").strip())


@pytest.fixture(scope="module")
def oracle(folder):
    return Oracle(folder)


def tokenize(tokenizer, texts, side):
    return (tokenizer.tokenize if side == "source" else tokenizer.tokenize_target)(tf.constant(texts, tf.string))


def decoded(tokenizer, ids):
    return [re.sub("\ufffd+", "\ufffd", text.decode()) for text in tokenizer.detokenize(ids).numpy()]


def readable(text) -> str:
    """Replaces bytes that are not UTF-8 by spaces, and removes trailing whitespace."""
    valid = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace", replacement_char=ord(" "))
    return valid.numpy().decode().rstrip()


def hostile_texts():
    draw = random.Random(1)
    return [*TEXTS, *CODES, *(kind(draw) for kind in hostile.KINDS for _ in range(11))]


@pytest.mark.parametrize("side", ["source", "target"])
def test_ids_and_texts(folder, tokenizer, oracle, side):
    rows, pairs = checkpoint_in(folder).target.rows, toy_corpus.corpus(train=0, dev=97, test=0)["dev"]
    texts = [*hostile_texts(), *(text for pair in pairs for text in pair)]
    ids = tokenize(tokenizer, texts, side)
    expected = [oracle.encode(readable(text), side) for text in texts]
    assert [[rows[id] for id in row] for row in ids.to_list()] == expected
    assert decoded(tokenizer, ids) == [oracle.decode(row) for row in expected]
    assert ids.to_list() == (tokenizer.encode if side == "source" else tokenizer.encode_target)(texts)
    assert tokenizer.decode(ids.to_list()) == [text.decode() for text in tokenizer.detokenize(ids).numpy()]
    if importlib.util.find_spec("transformers"):
        from transformers import MarianTokenizer as Theirs

        files = [str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")]
        theirs = Theirs(*files, split_special_tokens=True)
        argument = "text" if side == "source" else "text_target"
        ids = theirs(**{argument: [readable(text) for text in texts]}, add_special_tokens=False)["input_ids"]
        assert ids == expected
        texts = [re.sub("\ufffd+", "\ufffd", text) for text in theirs.batch_decode(ids, skip_special_tokens=True)]
        assert texts == [oracle.decode(row) for row in expected]


SPACES = [chr(code) for code in range(sys.maxunicode) if chr(code).isspace()]


def test_trailing_white_space_is_ignored(tmp_path):
    """With a model that does not normalize texts."""
    tokenizer = checkpoint_in(MARIAN).tokenizer()
    for name, content in (tokenizer.files | tokenizer.vocabularies).items():
        (tmp_path / name).write_bytes(content)
    client = litert_client._Pieces(tmp_path)
    texts = ["", *SPACES, "\r\n", "\n" * 97] + [f"a\u3000b{space}" for space in ["", *SPACES, "\r\n"]]
    expected = [[] if not text.strip() else tokenizer.tokenize(["a\u3000b"]).to_list()[0] for text in texts]
    assert tokenizer.tokenize(texts).to_list() == expected == [client.encode(text) for text in texts]
    assert tokenizer.encode(texts) == expected
    assert tokenizer.tokenize(["\u200b", "\na"]).to_list() == [client.encode("\u200b"), client.encode("\na")]
    assert len(expected[-1]) > 1 and tokenizer.tokenize(["\na"]).to_list() != tokenizer.tokenize(["a"]).to_list()


def test_any_ids_become_texts(folder, tokenizer, oracle):
    rows, draw = checkpoint_in(folder).target.rows, np.random.default_rng(1)
    whole = [id for id in range(tokenizer.vocab_size) if not oracle.pieces[rows[id]].startswith("<0x")]  # no bytes
    ids = draw.choice(whole, (300, 11))
    expected = [oracle.decode([rows[id] for id in row]) for row in ids]
    assert decoded(tokenizer, ids) == expected
    assert tokenizer.decode(ids.tolist()) == [text.decode() for text in tokenizer.detokenize(ids).numpy()]
    assert decoded(tokenizer, ids[:1]) == [tokenizer.detokenize(ids[0]).numpy().decode()]


def test_a_code_is_one_token_and_controls_are_text(tokenizer):
    with_code, plain = tokenizer.tokenize([">>fra<< a door", " a door"]).to_list()
    assert with_code[1:] == plain and tokenizer.pieces([with_code[:1]]).numpy() == b">>fra<<"
    listed = tf.ragged.boolean_mask(ids := tokenizer.tokenize(["The old woman", ""]), ids > 3)
    assert tokenizer.ids(tokenizer.pieces(listed)).to_list() == listed.to_list()
    assert len(set(tokenizer.pieces(range(tokenizer.vocab_size)).numpy())) == tokenizer.vocab_size
    ids = tokenizer.tokenize(["</s> <pad> <s> <unk>", ">></s><< a"]).to_list()
    assert not {id for row in ids for id in row} & {0, 1, 2}
    assert tokenizer.ids(tf.ragged.constant([["</s>", "<pad>", "no piece"]])).to_list() == [[3, 3, 3]]


def test_added_codes(folder, tmp_path):
    """A code has the id in the files."""
    extended = shutil.copytree(folder, tmp_path / "extended")
    size = json.loads((folder / "config.json").read_text())["vocab_size"]

    def add(ids, rows=5):
        config = json.loads((folder / "config.json").read_text()) | {"vocab_size": size + rows}
        (extended / "config.json").write_text(json.dumps(config))
        (extended / "added_tokens.json").write_text(json.dumps(ids))
        return checkpoint_in(extended).target

    vocabulary = add({"</s>": 0, ">>tyv<<": size + 3})
    ids = checkpoint_in(extended).tokenizer().tokenize([">>tyv<< a", "a"]).to_list()
    rows = [[vocabulary.rows[id] for id in row] for row in ids]
    assert rows == [[size + 3, *Oracle(folder).encode(" a", "source")], Oracle(folder).encode("a", "source")]
    for ids, rows, message in (
        ({">>tyv<<": size}, 0, f">>tyv<<: expected an id below vocab_size={size}, got {size}"),
        ({">>tyv<<": 5}, 0, "expected an id for each token, got 5 for .* and >>tyv<<"),
        ({">>fra<<": 5}, 0, ">>fra<<: expected the id 2 of vocab.json, got 5"),
    ):
        with pytest.raises(BadInput, match=message):
            add(ids, rows)
