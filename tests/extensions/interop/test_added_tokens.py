"""Tokens that were added to a published checkpoint: one token each, wherever a text contains them."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from checkpoints import MAKERS, copied, tensors_of
from conftest import array
from test_m2m100 import ADDED, CONFIG, JSON, added, languages

import tf_transformer as tt
from tf_transformer.extensions.interop.engines import litert_client
from tf_transformer.extensions.interop.families.m2m100.family import M2M100Checkpoint
from tf_transformer.extensions.interop.families.marian.family import checkpoint_in
from tf_transformer.models.families import tokenizer_of
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID

safetensors = pytest.importorskip("safetensors.numpy")

PAIRS = {"m2m100": ("en", "de"), "nllb": ("eng_Latn", "deu_Latn")}
NAMES = ["Acme", "AcmePro", "<brand>", "__BRAND__", "do*g (ß)", "東京"]
# Tokens of transformers 5.24.
TOKENS = {
    "A dog Acme runs.": ["▁A", "▁do", "g", "Acme", "▁", "r", "un", "s", "."],
    "xAcmex y": ["▁", "x", "Acme", "▁", "x", "▁", "y"],
    "Acme AcmePro runs": ["Acme", "AcmePro", "▁", "r", "un", "s"],
    "A <brand> dog. ": ["▁A", "<brand>", "▁do", "g", "."],
    "__BRAND__ a": ["__BRAND__", "▁a"],
}
SENTENCES = ["Acme", "The Acme dog <brand>", "A dog"]
OTHERS = ["", " ", "Acme", " Acme\t AcmeAcmePr ", "\x00 Acme", "Acm", "do*g (ß)s do*g (", "a\u2028東京 Δ", "__de__ <s>"]


@pytest.fixture
def with_names(tmp_path):
    """Copies a family's checkpoint with files that add `NAMES`. Returns its directory and their ids."""

    def make_one(family, file, special):
        MAKERS[family](folder := tmp_path / family)
        config = json.loads((folder / "config.json").read_text())
        ids = {name: config["vocab_size"] + index for index, name in enumerate(NAMES)}
        flags = [{"content": name, "id": id, "special": special, "lstrip": True} for name, id in ids.items()]
        content = {ADDED: ids, CONFIG: {"added_tokens_decoder": added(ids, special)}, JSON: {"added_tokens": flags}}[
            file
        ]
        before = json.loads((folder / file).read_text()) if (folder / file).is_file() else {}
        if file == CONFIG:
            content["added_tokens_decoder"] |= before.get("added_tokens_decoder", {})
        (folder / file).write_text(json.dumps(before | content))
        (folder / "config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] + len(NAMES)}))
        if (weights := folder / "model.safetensors").exists():
            tensors = safetensors.load_file(weights)
            for name, tensor in tensors.items():
                if name == "model.shared.weight":
                    tensors[name] = np.concatenate([tensor, tensor[5 : 5 + len(NAMES)] / 2])
                if name == "final_logits_bias":
                    tensors[name] = np.concatenate([tensor, tensor[:, 5 : 5 + len(NAMES)]], axis=1)
            weights.unlink()
            safetensors.save_file(tensors, weights)
        return folder, ids

    return make_one


KINDS = [("m2m100", False, CONFIG), ("m2m100", True, CONFIG), ("nllb", False, JSON), ("marian", False, ADDED)]


@pytest.mark.parametrize(("family", "special", "file"), KINDS)
def test_added_tokens_have_separate_rows(family, special, file, with_names):
    """Compares with a loop that takes the longest at each position. SentencePiece reads the text between them."""
    folder, ids = with_names(family, file, special)
    checkpoint = checkpoint_in(folder) if family == "marian" else M2M100Checkpoint(folder)
    tokenizer = checkpoint.tokenizer()
    if family != "marian":
        tokenizer = tokenizer.with_languages(*list(tokenizer.languages)[:2])
    table = {piece: id for id, piece in enumerate(tokenizer.source.pieces) if id > 2 and piece}

    def expected(text):
        text, parts, rest = text.rstrip(), [], ""
        while text:
            match = max((name for name in NAMES if text.startswith(name)), key=len, default="")
            parts, rest = ([*parts, (rest, False), (match, True)], "") if match else (parts, rest + text[0])
            text = text[len(match) or 1 :]
        engine = tokenizer.source.processor
        rows = ([part] if is_name else engine.encode(part, out_type=str) for part, is_name in [*parts, (rest, False)])
        return [table.get(piece, 3) for row in rows for piece in row]

    texts = [*TOKENS, *OTHERS]
    outputs = [row[tokenizer.num_language_tokens :] for row in tokenizer.encode(texts)]
    assert outputs == [expected(text) for text in texts]
    again = tokenizer_of(tokenizer.model)
    assert again.tokenize(texts).to_list() == tokenizer.encode(texts) and [*again.added] == NAMES
    (row,) = tokenizer.encode(["".join(NAMES[2:])])
    assert [checkpoint.target.rows[id] for id in row[tokenizer.num_language_tokens :]] == [
        ids[name] for name in NAMES[2:]
    ]
    if family == "m2m100":
        assert [tokenizer.tokens(row) for row in outputs[: len(TOKENS)]] == [
            [piece if piece in table else "<unk>" for piece in row] for row in TOKENS.values()
        ]
        rows = tokenizer.encode(["A dog Acme runs.", "<brand>s"])
        decoded = ["A dog runs.", "s"] if special else ["A dog Acme runs.", "<brand> s"]
        assert tokenizer.decode(rows) == decoded
        rows = tf.ragged.constant(rows)
        assert [text.decode() for text in tokenizer.detokenize(rows).numpy()] == decoded


# Tokens of NLLB-200 by transformers 4.57.6, and by 5.24 if it has others. "<brand>" is special, and "東" has lstrip.
NORMALIZERS = [{"type": "Sequence", "normalizers": [{"type": "Strip"}, {"type": "Replace"}]}, None]
SPACES = {
    "A dog Acme runs.": ["▁A ▁do g ▁ Acme ▁ r un s ."],
    "A <brand> dog.": ["▁A <brand> ▁do g .", "▁A ▁ <brand> ▁do g ."],
    "Acme <brand> AcmePro Acme": ["Acme <brand> ▁ AcmePro ▁ Acme", "Acme ▁ <brand> ▁ AcmePro ▁ Acme"],
    "xAcmex y <brand>.": ["▁ x Acme ▁ x ▁ y <brand> ▁ .", "▁ x Acme ▁ x ▁ y ▁ <brand> ▁ ."],
    " Acme a": ["▁ Acme ▁a"],
    "A 東 東a Acme": ["▁A 東 東 ▁a ▁ Acme"],
    "AcmeAcme <brand><brand>": ["Acme Acme <brand> <brand>", "Acme Acme ▁ <brand> <brand>"],
    "A dog.Acme, Acme <brand>": ["▁A ▁do g . Acme ▁ , ▁ Acme <brand>", "▁A ▁do g . Acme ▁ , ▁ Acme ▁ <brand>"],
}


@pytest.mark.parametrize("version", [4, 5])
def test_white_space_before_added_tokens_of_nllb(version, tmp_path):
    MAKERS["nllb"](folder := tmp_path / "nllb")
    config = json.loads((folder / "config.json").read_text())
    flags = {"Acme": {}, "AcmePro": {}, "<brand>": {"special": True, "normalized": False}, "東": {"lstrip": True}}
    default = {"special": False, "normalized": True, "lstrip": False}
    listed = [default | flags[name] | {"content": name, "id": config["vocab_size"] + i} for i, name in enumerate(flags)]
    (folder / JSON).write_text(json.dumps({"normalizer": NORMALIZERS[version - 4], "added_tokens": listed}))
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] + len(flags)}))
    tokenizer = M2M100Checkpoint(folder).tokenizer()
    ids = tokenizer.encode([*SPACES])
    assert [" ".join(tokenizer.tokens(row[1:])) for row in ids] == [rows[4 - version :][0] for rows in SPACES.values()]
    assert tokenizer.tokenize([*SPACES]).to_list() == ids
    assert tokenizer.decode(ids[:1]) == ["A dog Acme runs."]


@pytest.mark.parametrize("family", ["m2m100", "marian", "nllb"])
def test_a_checkpoint_keeps_added_tokens(family, with_names, tmp_path):
    """Also the whitespace before NLLB's."""
    folder, _ = with_names(family, CONFIG, False)
    options = languages(*PAIRS[family]) if family in PAIRS else {}
    translator = tt.Translator.from_pretrained(folder, **options)
    translator.save(tmp_path / "checkpoint", format="transformers", checked=True)  # compares ids and logits
    again = tt.Translator.from_pretrained(tmp_path / "checkpoint", **options).tokenizer
    ids = translator.tokenizer.encode(SENTENCES)
    assert [*again.added] == NAMES and again.encode(SENTENCES) == ids
    assert [again.tokens(row) for row in ids] == [translator.tokenizer.tokens(row) for row in ids]


@pytest.mark.parametrize("family", ["m2m100", "marian", "nllb"])
def test_checkpoints_that_transformers_extended(family, tmp_path):
    """extended.zip has what transformers 5.24 (M2M100, MarianMT) and 4.57 (NLLB-200) wrote after `add_tokens` and
    `resize_token_embeddings`: files, new rows, ids, logits and greedy outputs."""
    MAKERS[family](tmp_path / "source")
    if family == "nllb":
        tt.Translator.from_pretrained(tmp_path / "source").save(tmp_path / "base", format="transformers")
    folder = copied(tmp_path / ("base" if family == "nllb" else "source"), tmp_path / "extended")
    with zipfile.ZipFile(Path(__file__).with_name("extended.zip")) as archive:
        for name in archive.namelist():
            if name.startswith(f"{family}/"):
                (folder / Path(name).name).write_bytes(archive.read(name))
    expected, tensors = json.loads((folder / "expected.json").read_text("utf-8")), tensors_of(folder)
    for name, rows in expected["rows"].items():
        tensors[name] = np.concatenate([tensors[name], rows], int(name == "final_logits_bias"), dtype="float32")
    safetensors.save_file(tensors, folder / "model.safetensors")
    options = dict(zip(("source_language", "target_language"), PAIRS.get(family, ()), strict=False))
    translator = tt.Translator.from_pretrained(folder, beam_size=1, **options)
    target = (checkpoint_in if family == "marian" else M2M100Checkpoint)(folder).target
    ours = {row: id for id, row in enumerate(target.rows)}
    ids = translator.tokenizer.encode(expected["texts"])
    assert [[target.rows[id] for id in row] for row in ids] == [row[:-1] for row in expected["ids"]]
    inputs = [*ids[2], EOS_ID], [BOS_ID, *(ours[id] for id in expected["target"][1:])]
    logits = array(translator.model([np.array([side]) for side in inputs]))[0, :, EOS_ID:]
    is_finite = (wanted := np.array(expected["logits"])[:, target.rows[EOS_ID:]]) > -1e6
    np.testing.assert_allclose(logits[is_finite], wanted[is_finite], atol=3e-5)
    assert translator(expected["texts"]) == expected["greedy"]
    tokenizer = translator.tokenizer
    for name, content in (tokenizer.files | tokenizer.vocabularies).items():
        (tmp_path / name).write_bytes(content)
    client = litert_client._Pieces(tmp_path)
    assert [client.encode(text) for text in expected["texts"]] == [row[tokenizer.num_language_tokens :] for row in ids]
    if family == "nllb":
        assert target.rows[target.languages["mic_Latn"]] == 464
        (folder / "sentencepiece.bpe.model").unlink()  # as transformers 5 saves it
        with pytest.raises(tt.BadInput, match="found no .*sentencepiece.bpe.model. Copy it"):
            tt.Translator.from_pretrained(folder)
