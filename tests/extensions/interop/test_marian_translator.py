"""Trained checkpoints of MarianMT as translators, against what `transformers` answers with them.

tests/marian/trained holds one and its answers, made by tests/marian/train.py. tests/marian/separate.py makes another of
it, with vocabularies of source and target, and wrote down the answers.
"""

import json
import math
import runpy
import shutil
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import sentencepiece
from checkpoints import MARIAN
from conftest import TEXTS, array
from served import Served

import tf_transformer as tt
from tf_transformer.extensions.interop.families.marian.family import checkpoint_in
from tf_transformer.extensions.interop.families.marian.model import MarianConfig
from tf_transformer.extensions.interop.families.marian.tokenizer import MarianTokenizer

pytest.importorskip("safetensors")

separate = SimpleNamespace(**runpy.run_path(str(MARIAN.parent / "separate.py")))
ANSWERS = json.loads((MARIAN / "answers.json").read_text(encoding="utf-8"))
OF_SEPARATE = json.loads((MARIAN.parent / "separate.json").read_text(encoding="utf-8"))
SENTENCES, GERMAN = ANSWERS["sentences"], "Die Frauen singen nicht."


@pytest.fixture(scope="module", params=["one vocabulary", "two"])
def case(request, tmp_path_factory):
    """A checkpoint, the answers and a translator that searches as `transformers` does."""
    folder, answers = MARIAN, ANSWERS
    if request.param == "two":
        folder, answers = tmp_path_factory.mktemp("separate"), ANSWERS | OF_SEPARATE
        separate.split(folder)
    options = {"beam_size": 4, "length_penalty": 0.0, "patience": math.inf}
    translator = tt.Translator.from_pretrained(folder, **options)
    return SimpleNamespace(checkpoint=checkpoint_in(folder), folder=folder, answers=answers, translator=translator)


# test_matrix.py saves the one with one vocabulary; a page of the docs trains it further.
with_two = pytest.mark.parametrize("case", ["two"], indirect=True, scope="module")


def pieces_of(sentence):
    """The source's, code included, as SentencePiece's own engine has them."""
    code, text = sentence.split(" ", 1)
    engine = sentencepiece.SentencePieceProcessor(model_file=str(MARIAN / "source.spm"))
    return [code] * (code != "") + engine.encode(text, out_type=str)


@pytest.mark.program
def test_the_head_that_was_trained_to_align_aligns(tmp_path):
    """The first of the last layer, where README.md says transformer-align, as OPUS-MT's does."""
    shutil.copytree(MARIAN, tmp_path / "opus")
    (tmp_path / "opus/README.md").write_text("### opus\n\n* source languages: en\n* model: transformer-align\n")
    plain, aligning = (tt.Translator.from_pretrained(path, beam_size=2) for path in (MARIAN, tmp_path / "opus"))
    assert (plain.model.config.alignment_heads, aligning.model.config.alignment_heads) == (None, 1)
    (one,), (other,) = plain.aligned(SENTENCES[1:2]), aligning.aligned(SENTENCES[1:2])
    scores = plain.attention(SENTENCES[1], one.text).scores.cross[-1][0, :, : len(one.tokens), : len(one.source_tokens)]
    assert list(one.links) == np.argmax(np.mean(scores, 0), 1).tolist()
    assert list(other.links) == np.argmax(scores[0], 1).tolist() != list(one.links)


@pytest.mark.parametrize("side", ["source", "target"])
def test_ids_and_texts_are_those_of_transformers(case, side):
    tokenizer, vocabulary = case.translator.tokenizer, getattr(case.checkpoint, side)
    ids = (tokenizer.tokenize if side == "source" else tokenizer.tokenize_target)(ANSWERS["texts"])
    assert [[vocabulary.rows[id] for id in row] + [0] for row in ids.to_list()] == case.answers[f"{side}_ids"]
    if side == "target" or case.checkpoint.shared:
        assert [text.decode() for text in tokenizer.detokenize(ids).numpy()] == case.answers[f"of_{side}"]


def test_translations_and_log_probabilities_are_those_of_transformers(case):
    found = [best[0] for best in case.translator.n_best(SENTENCES, 1)]
    assert [best.text for best in found] == case.answers["beam"] and all(best.finished for best in found)
    np.testing.assert_allclose([best.log_prob for best in found], case.answers["log_probs"], atol=1e-4)
    if case.checkpoint.shared:
        assert case.translator.replace(beam_size=1)(SENTENCES) == ANSWERS["greedy"]


def test_a_code_chooses_the_target_language(case):
    """Its text is one token, wherever the text goes on; the model was taught two."""
    german, english = case.translator([">>deu<< The women do not sing.", ">>eng<<The women do not sing."])
    assert german == GERMAN and english == "The women do not sing."


def test_given_targets_are_read_with_the_target_s_pieces(case):
    """What the search found scores as much when it is given: its pieces are not those of the source's model."""
    ours = case.translator
    best = [found[0] for found in ours.n_best(SENTENCES, 1)]
    same = [i for i, found in enumerate(best) if found.text in case.answers["of_target"]]
    source, *_ = ours.source(SENTENCES)
    target, *_ = ours.append_eos(ours.tokenizer.tokenize_target([found.text for found in best]))
    sums = np.where(array(target) > 0, array(ours.score_targets(source, target)), 0).sum(axis=1)
    assert len(same) >= 10
    np.testing.assert_allclose(sums[same], [best[i].log_prob for i in same], atol=1e-4)


def test_attention_has_the_pieces_of_both(case):
    pair = case.translator.attention(SENTENCES[1])
    assert pair.source == [*pieces_of(SENTENCES[1]), "</s>"]
    engine = sentencepiece.SentencePieceProcessor(model_file=str(MARIAN / "target.spm"))
    assert engine.decode(pair.target[:-1]) == case.answers["beam"][1]


@pytest.mark.slow
@with_two
def test_export(case, tmp_path):
    path, ours = tmp_path / "marian" / "1", case.translator
    ours.save(path, max_length=64, source_language="en", target_language="de")
    served = Served(path)
    texts = [*SENTENCES, *(text for text in TEXTS if len(text) < 100)]  # the longest come back cut
    assert [text.decode() for text in served({"text": texts})["translation"]] == ours(texts)
    pieces = [" ".join(pieces_of(sentence)).encode() for sentence in SENTENCES[:3]]
    assert served({"text": SENTENCES[:3]}, "tokenize")["tokens"].tolist() == pieces
    details = served({"text": SENTENCES[:3]}, "translate_details")
    assert details["source_tokens"].tolist() == pieces
    back = served({"tokens": details["tokens"][:, 0]}, "detokenize")["text"]
    assert [text.decode() for text in back] == case.answers["beam"][:3]
    given = served({"source": ["The women do not sing."], "target": [GERMAN]}, "score")
    assert given["length"][0] == len(ours.tokenizer.tokenize_target([GERMAN])[0])
    info = served({"key": ["vocab_size", "origin", "license", "max_length"]}, "model_info")["value"]
    assert info.tolist() == [str(len(case.checkpoint.target.rows)).encode(), case.folder.name.encode(), b"", b"64"]
    served.close()
    again = tt.Translator.from_pretrained(path)
    assert again(SENTENCES) == ours(SENTENCES) and again.tokenizer.fingerprint == ours.tokenizer.fingerprint
    assert (again.beam_size, again.length_penalty, again.model.config) == (4, 0.0, ours.model.config)
    metadata = {"origin": case.folder.name, "source_language": "en", "target_language": "de"}
    assert again.export_options == metadata | {"n_best": 4, "max_beam_size": 16, "max_length": 64}
    for one, other in zip(again.model.weights, ours.model.weights, strict=True):
        np.testing.assert_array_equal(array(one), array(other), err_msg=one.path)


@pytest.mark.slow
@with_two
def test_it_can_be_trained_further(case):
    """With the paper's loss, which smooths over padding and start, too; neither becomes an output."""
    model, tokenizer = case.checkpoint.model(), MarianTokenizer(case.translator.tokenizer.model)
    pairs = [("The women do not sing.", "Er ist müde."), ("He is tired.", "Wir singen.")] * 8
    batches = tt.data.token_batches(pairs, tokenizer, batch_tokens=100, max_length=40, repeat=True)
    tables = [model.embedding.embeddings, model.source_embedding.embeddings]
    before = [array(table) for table in tables]
    model.compile(keras.optimizers.Adam(1e-3), loss=tt.SmoothedCrossEntropy(0.1), metrics=[tt.Perplexity()])
    history = model.fit(batches, steps_per_epoch=20, epochs=2, verbose=0).history
    assert 1 < history["loss"][1] < history["loss"][0] < 12
    assert tt.Translator(model, tokenizer, beam_size=1)(["He is tired."]) == ["Wir singen."]
    assert not any(np.array_equal(array(table), old) for table, old in zip(tables, before, strict=True))


def test_sizes_and_first_ids_of_two_vocabularies(tmp_path):
    separate.split(tmp_path)
    checkpoint = checkpoint_in(tmp_path)
    config = checkpoint.model().config
    assert (config.source_vocab_size, config.vocab_size) == (253, 251)  # with a start symbol each
    for vocabulary in (checkpoint.source, checkpoint.target):
        assert vocabulary.rows[:4] == [separate.PAD, separate.PAD, 0, 1]
        assert vocabulary.pieces[:4] == ["<pad>", "<s>", "</s>", "<unk>"] != vocabulary.pieces[1:5]


def test_one_vocabulary_for_two_matrices(tmp_path):
    """As of a native model whose source and target share the one and not the other."""
    separate.split(tmp_path)
    expected = checkpoint_in(tmp_path).source
    (tmp_path / "target_vocab.json").unlink()
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(said | {"decoder_vocab_size": said["vocab_size"]}))
    with pytest.raises(tt.BadInput, match="found no target_vocab.json in"):
        checkpoint_in(tmp_path).model()
    (tmp_path / "tokenizer_config.json").unlink()
    assert checkpoint_in(tmp_path).target == expected


def test_what_does_not_fit_is_said(tmp_path):
    def fails(message, **config):
        (tmp_path / "config.json").write_text(json.dumps(said | config))
        with pytest.raises(tt.BadInput, match=message):
            checkpoint_in(tmp_path).model()

    separate.split(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    fails("expected a row for each of vocab_size=260 tokens, got 252", vocab_size=260)
    fails("target_vocab.json: .*: expected an id below vocab_size=200", decoder_vocab_size=200)
    ids = json.loads((tmp_path / "vocab.json").read_text())
    del ids["<pad>"]
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    fails("/vocab.json: <pad>: expected an id below vocab_size=252, got None")
    with pytest.raises(tt.BadInput, match="source_vocab_size: expected a positive whole number .* or None, got 0"):
        MarianConfig(source_vocab_size=0)


def test_a_tokenizer_is_one_file(case, tmp_path):
    tokenizer = case.translator.tokenizer
    tokenizer.save(tmp_path / "tokenizer.model")
    again = MarianTokenizer.load(tmp_path / "tokenizer.model")
    assert again.fingerprint == tokenizer.fingerprint == case.checkpoint.tokenizer().fingerprint
    keras.utils.set_random_seed(3)  # which throws away what has no name of its own
    assert again.tokenize(ANSWERS["texts"]).to_list() == tokenizer.tokenize(ANSWERS["texts"]).to_list()
    with pytest.raises(tt.BadInput, match="tokenizer.model: expected a SentencePiece model"):
        tt.Tokenizer.load(tmp_path / "tokenizer.model")
    with pytest.raises(tt.BadInput, match="answers.json: .*expected a tokenizer of MarianMT"):
        MarianTokenizer.load(MARIAN / "answers.json")
