"""A trained checkpoint of MarianMT as a translator, against what `transformers` answers with it.

tests/marian/trained holds one and its answers, made by tests/marian/train.py.
"""

import json
import math
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import sentencepiece
from conftest import TEXTS, array
from served import Served

import tf_transformer as tt
from tf_transformer.families.marian.files import read_vocabulary
from tf_transformer.families.marian.tokenizer import MarianTokenizer

pytest.importorskip("safetensors")

TRAINED = Path(__file__).parent / "marian" / "trained"
ANSWERS = json.loads((TRAINED / "answers.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer():
    return MarianTokenizer.from_checkpoint(TRAINED)


def translator(beam_size):
    return tt.Translator.from_pretrained(TRAINED, beam_size=beam_size, length_penalty=0.0, patience=math.inf)


@pytest.mark.parametrize("side", ["source", "target"])
def test_ids_and_texts_are_those_of_transformers(tokenizer, side):
    tokenize = tokenizer.tokenize if side == "source" else tokenizer.tokenize_target
    ids, rows = tokenize(ANSWERS["texts"]), read_vocabulary(TRAINED).rows
    assert [[rows[id] for id in row] + [0] for row in ids.to_list()] == ANSWERS[f"{side}_ids"]
    assert [text.decode() for text in tokenizer.detokenize(ids).numpy()] == ANSWERS[f"of_{side}"]


@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_translations_and_log_probabilities_are_those_of_transformers(search):
    found = translator(1 if search == "greedy" else 4).n_best(ANSWERS["sentences"], 1)
    assert [best[0].text for best in found] == ANSWERS[search]
    assert all(best[0].finished for best in found)
    if search == "beam":
        np.testing.assert_allclose([best[0].log_prob for best in found], ANSWERS["log_probs"], atol=1e-4)


def test_a_code_chooses_the_target_language():
    """Its text is one token, wherever the text goes on; the model was taught two."""
    german, english = translator(4)([">>deu<< The women do not sing.", ">>eng<<The women do not sing."])
    assert german == "Die Frauen singen nicht." and english == "The women do not sing."


def test_the_checkpoint_s_beam_size_is_the_default():
    assert tt.Translator.from_pretrained(TRAINED).beam_size == 3
    assert translator(2).beam_size == 2


def test_given_targets_are_read_with_the_target_s_pieces(tokenizer):
    """What the search found scores as much when it is given: its pieces are not those of the source's model."""
    ours = translator(4)
    texts = ANSWERS["sentences"]
    best = [found[0] for found in ours.n_best(texts, 1)]
    same = [i for i, found in enumerate(best) if found.text in ANSWERS["of_target"]]
    source, *_ = ours.source(texts)
    target, *_ = ours.with_end(tokenizer.tokenize_target([found.text for found in best]))
    log_probs = ours.force(source, target)
    sums = np.where(array(target) > 0, array(log_probs), 0).sum(axis=1)
    assert len(same) >= 10
    np.testing.assert_allclose(sums[same], [best[i].log_prob for i in same], atol=1e-4)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("savedmodels") / "marian" / "1"
    translator(3).save(path, max_length=64, source_language="en", target_language="de")
    return path


@pytest.mark.program
def test_the_export_answers_as_the_translator(saved):
    ours, served = translator(3), Served(saved)
    texts = [*ANSWERS["sentences"], *(text for text in TEXTS if len(text) < 100)]  # the longest come back cut
    found = served({"text": texts})["translation"]
    assert [text.decode() for text in found] == ours(texts)
    pieces = served({"text": [">>eng<< He sings.", "He sings."]}, "tokenize")["tokens"]
    assert pieces[0].decode() == ">>eng<< " + pieces[1].decode()
    german = "Die Frauen singen nicht."
    tokens = served({"text": [ANSWERS["sentences"][0]]}, "translate_details")["tokens"][:, 0]
    assert served({"tokens": tokens}, "detokenize")["text"][0].decode() == ours(ANSWERS["sentences"][:1])[0]
    given = served({"source": ["The women do not sing."], "target": [german]}, "score")
    assert given["length"][0] == len(ours.tokenizer.tokenize_target([german])[0])
    info = served({"key": ["vocab_size", "origin", "license", "max_length"]}, "model_info")["value"]
    assert info.tolist() == [b"387", b"trained", b"", b"64"]
    served.close()


@pytest.mark.program
def test_a_translator_of_the_export(saved):
    found = tt.Translator.from_pretrained(saved)
    assert found(ANSWERS["sentences"]) == translator(3)(ANSWERS["sentences"])
    assert isinstance(found.tokenizer, MarianTokenizer) and type(found.model.config) is type(translator(3).model.config)
    assert (found.beam_size, found.length_penalty) == (3, 0.0)
    facts = {"origin": "trained", "source_language": "en", "target_language": "de"}
    assert found.export_options == facts | {"n_best": 4, "max_beam_size": 16, "max_length": 64}


@pytest.mark.parametrize("quantization", [None, "float16"])
def test_ctranslate2_translates_alike(tmp_path, quantization):
    ctranslate2 = pytest.importorskip("ctranslate2")
    from tf_transformer.exports.ctranslate2 import save

    save(translator(4), tmp_path / "model", quantization)
    engine = ctranslate2.Translator(str(tmp_path / "model"), intra_threads=1, compute_type="float32")
    pieces = {
        side: sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "model" / f"{side}.spm"))
        for side in ("source", "target")
    }
    sources = []
    for sentence in ANSWERS["sentences"]:
        code, text = sentence.split(" ", 1)
        sources.append([code] * (code != "") + pieces["source"].encode(text, out_type=str))
    results = engine.translate_batch(
        sources, beam_size=4, length_penalty=0, min_decoding_length=0, return_scores=True, return_end_token=True
    )
    found = [pieces["target"].decode(result.hypotheses[0][:-1]) for result in results]
    agree = [text == expected for text, expected in zip(found, ANSWERS["beam"], strict=True)]
    if quantization is None:
        assert all(agree)
        np.testing.assert_allclose([result.scores[0] for result in results], ANSWERS["log_probs"], atol=1e-4)
    assert np.mean(agree) > 0.9


@pytest.mark.program
def test_it_can_be_trained_further(tokenizer):
    """With the paper's loss, which smooths over padding and start, too; neither becomes an output."""
    model = tt.load_marian(TRAINED)
    pairs = [("The women do not sing.", "Er ist müde."), ("He is tired.", "Wir singen.")] * 8
    batches = tt.data.token_batches(pairs, tokenizer, batch_tokens=100, max_length=40, repeat=True)
    model.compile(keras.optimizers.Adam(1e-3), loss=tt.SmoothedCrossEntropy(0.1), metrics=[tt.Perplexity()])
    history = model.fit(batches, steps_per_epoch=20, epochs=2, verbose=0).history
    assert 1 < history["loss"][1] < history["loss"][0] < 12
    assert tt.Translator(model, tokenizer, beam_size=1)(["He is tired."]) == ["Wir singen."]


def test_what_is_not_there_is_said(tmp_path):
    for missing in ("source.spm", "target.spm", "vocab.json"):
        folder = tmp_path / missing
        shutil.copytree(TRAINED, folder)
        (folder / missing).unlink()
        with pytest.raises(tt.BadInput, match=f"found no {missing} in"):
            tt.Translator.from_pretrained(folder)
    (tmp_path / "vocab.json/source.spm").write_bytes(b"broken")
    shutil.copy(TRAINED / "vocab.json", tmp_path / "vocab.json")
    with pytest.raises(tt.BadInput, match="source.spm: expected a SentencePiece model, got 6 bytes that are none"):
        MarianTokenizer.from_checkpoint(tmp_path / "vocab.json")


def test_a_tokenizer_is_one_file(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.model")
    again = MarianTokenizer.load(tmp_path / "tokenizer.model")
    assert again.fingerprint == tokenizer.fingerprint == MarianTokenizer.from_checkpoint(TRAINED).fingerprint
    keras.utils.set_random_seed(3)  # which throws away what has no name of its own
    assert again.tokenize(ANSWERS["texts"]).to_list() == tokenizer.tokenize(ANSWERS["texts"]).to_list()
    with pytest.raises(tt.BadInput, match="tokenizer.model: expected a SentencePiece model"):
        tt.Tokenizer.load(tmp_path / "tokenizer.model")
    with pytest.raises(tt.BadInput, match="answers.json: .*expected a tokenizer of MarianMT"):
        MarianTokenizer.load(TRAINED / "answers.json")
