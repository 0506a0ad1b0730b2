"""A checkpoint of MarianMT with vocabularies of source and target, against what `transformers` answers with it.

tests/marian/separate.py makes it of the trained one, and wrote down the answers.
"""

import json
import math
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from conftest import array
from served import Served

import tf_transformer as tt
from tf_transformer.families.marian.files import read_vocabulary
from tf_transformer.families.marian.tokenizer import MarianTokenizer

pytest.importorskip("safetensors")

HERE = Path(__file__).parent / "marian"
sys.path.insert(0, str(HERE))
import separate  # noqa: E402

TRAINED = json.loads((HERE / "trained" / "answers.json").read_text(encoding="utf-8"))
ANSWERS = json.loads((HERE / "separate.json").read_text(encoding="utf-8"))
SENTENCES, TEXTS = TRAINED["sentences"], TRAINED["texts"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("separate")
    separate.split(path)
    return path


@pytest.fixture(scope="module")
def translator(folder):
    return tt.Translator.from_pretrained(folder, beam_size=4, length_penalty=0.0, patience=math.inf)


@pytest.fixture(scope="module")
def engines(folder):
    """SentencePiece's own, of sources and of targets."""
    return [
        sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm")) for side in ("source", "target")
    ]


def source_pieces(engines, sentence):
    code, text = sentence.split(" ", 1)
    return [code] * (code != "") + engines[0].encode(text, out_type=str)


def test_sizes_and_first_ids(translator, folder):
    config = translator.model.config
    assert (config.source_vocab_size, config.vocab_size) == (253, 251)  # with a start symbol each
    for side in ("source", "target"):
        vocabulary = read_vocabulary(folder, side)
        assert vocabulary.rows[:4] == [separate.PAD, separate.PAD, 0, 1]
        assert vocabulary.pieces[:5] == ["<pad>", "<s>", "</s>", "<unk>", vocabulary.pieces[4]]


def test_ids_and_texts_are_those_of_transformers(translator, folder):
    tokenizer = translator.tokenizer
    for side, tokenize in (("source", tokenizer.tokenize), ("target", tokenizer.tokenize_target)):
        rows = read_vocabulary(folder, side).rows
        assert [[rows[id] for id in ids] + [0] for ids in tokenize(TEXTS).to_list()] == ANSWERS[f"{side}_ids"]
    ids = tokenizer.tokenize_target(TEXTS)
    assert [text.decode() for text in tokenizer.detokenize(ids).numpy()] == ANSWERS["of_target"]


def test_translations_and_log_probabilities_are_those_of_transformers(translator):
    found = [best[0] for best in translator.n_best(SENTENCES, 1)]
    assert [best.text for best in found] == ANSWERS["beam"]
    np.testing.assert_allclose([best.log_prob for best in found], ANSWERS["log_probs"], atol=1e-4)


def test_attention_has_the_pieces_of_both(translator, engines):
    pair = translator.attention(SENTENCES[1])
    assert pair.source == [*source_pieces(engines, SENTENCES[1]), "</s>"]
    assert engines[1].decode(pair.target[:-1]) == ANSWERS["beam"][1]


def test_ctranslate2_translates_alike(translator, engines, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    tt.ctranslate2.save(translator, tmp_path / "model")
    engine = ctranslate2.Translator(str(tmp_path / "model"), intra_threads=1, compute_type="float32")
    sources = [source_pieces(engines, sentence) for sentence in SENTENCES]
    results = engine.translate_batch(sources, beam_size=4, length_penalty=0, min_decoding_length=0, return_scores=True)
    assert [engines[1].decode(result.hypotheses[0]) for result in results] == ANSWERS["beam"]
    np.testing.assert_allclose([result.scores[0] for result in results], ANSWERS["log_probs"], atol=1e-4)


@pytest.mark.program
def test_export(translator, engines, tmp_path):
    path = tmp_path / "separate" / "1"
    translator.save(path)
    served = Served(path)
    assert [text.decode() for text in served({"text": SENTENCES})["translation"]] == translator(SENTENCES)
    pieces = [" ".join(source_pieces(engines, sentence)).encode() for sentence in SENTENCES[:3]]
    assert served({"text": SENTENCES[:3]}, "tokenize")["tokens"].tolist() == pieces
    details = served({"text": SENTENCES[:3]}, "translate_details")
    assert details["source_tokens"].tolist() == pieces
    back = served({"tokens": details["tokens"][:, 0]}, "detokenize")["text"]
    assert [text.decode() for text in back] == ANSWERS["beam"][:3]
    served.close()
    again = tt.Translator.from_pretrained(path)
    assert again.tokenizer.fingerprint == translator.tokenizer.fingerprint
    assert again.model.config == translator.model.config
    for one, other in zip(again.model.weights, translator.model.weights, strict=True):
        np.testing.assert_array_equal(array(one), array(other), err_msg=one.path)


@pytest.mark.program
def test_it_is_saved_and_trained(translator, tmp_path):
    translator.model.save(tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")
    ids = tf.constant([[5, 6, 252, 2], [7, 2, 0, 0]]), tf.constant([[1, 5, 250], [1, 8, 9]])
    np.testing.assert_array_equal(array(model(ids)), array(translator.model(ids)))
    tokenizer = MarianTokenizer(translator.tokenizer.model)
    pairs = [("The women do not sing.", "Er ist müde."), ("He is tired.", "Wir singen.")] * 8
    batches = tt.data.token_batches(pairs, tokenizer, batch_tokens=100, max_length=40, repeat=True)
    tables = [model.source_embedding.embeddings, model.embedding.embeddings]
    before = [array(table) for table in tables]
    model.compile(keras.optimizers.Adam(1e-3), loss=tt.SmoothedCrossEntropy(0.1))
    model.fit(batches, steps_per_epoch=2, verbose=0)
    assert not any(np.array_equal(array(table), old) for table, old in zip(tables, before, strict=True))


def test_one_vocabulary_for_two_matrices(folder, tmp_path):
    """As of a native model whose source and target share the one and not the other."""
    separate.split(tmp_path)
    (tmp_path / "target_vocab.json").unlink()
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(said | {"decoder_vocab_size": said["vocab_size"]}))
    with pytest.raises(tt.BadInput, match="found no target_vocab.json in"):
        tt.load_marian(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert read_vocabulary(tmp_path, "target") == read_vocabulary(folder, "source")


def test_what_does_not_fit_is_said(tmp_path):
    def fails(message):
        with pytest.raises(tt.BadInput, match=message):
            tt.load_marian(tmp_path)

    separate.split(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(said | {"vocab_size": 260}))
    fails("expected a row for each of vocab_size=260 symbols, got 252")
    (tmp_path / "config.json").write_text(json.dumps(said | {"decoder_vocab_size": 200}))
    fails("target_vocab.json: .*: expected an id below vocab_size=200")
    (tmp_path / "config.json").write_text(json.dumps(said))
    ids = json.loads((tmp_path / "vocab.json").read_text())
    del ids["<pad>"]
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    fails("/vocab.json: <pad>: expected an id below vocab_size=252, got None")
    with pytest.raises(tt.BadInput, match="source_vocab_size: expected a positive whole number .* or None, got 0"):
        tt.families.marian.model.MarianConfig(source_vocab_size=0)
