"""Compares trained MarianMT checkpoints with `transformers`.

tests/marian/train.py made the checkpoint tests/marian/trained and the expected outputs. tests/marian/separate.py makes
one with two vocabularies of it, and wrote the expected outputs of that.
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
from conftest import array

import tf_transformer as tt
from tf_transformer.extensions.interop.families.marian.family import checkpoint_in
from tf_transformer.extensions.interop.families.marian.model import MarianConfig
from tf_transformer.extensions.interop.families.marian.tokenizer import MarianTokenizer

pytest.importorskip("safetensors")

separate = SimpleNamespace(**runpy.run_path(str(MARIAN.parent / "separate.py")))
EXPECTED = json.loads((MARIAN / "answers.json").read_text(encoding="utf-8"))
EXPECTED_OF_SEPARATE = json.loads((MARIAN.parent / "separate.json").read_text(encoding="utf-8"))
SENTENCES = EXPECTED["sentences"]


@pytest.fixture(scope="module", params=["one vocabulary", "two"])
def case(request, tmp_path_factory):
    """A checkpoint, expected outputs, and a translator with the search of `transformers`."""
    folder, expected = MARIAN, EXPECTED
    if request.param == "two":
        folder, expected = tmp_path_factory.mktemp("separate"), EXPECTED | EXPECTED_OF_SEPARATE
        separate.split(folder)
    options = {"beam_size": 4, "length_penalty": 0.0, "patience": math.inf}
    translator = tt.Translator.from_pretrained(folder, **options)
    return SimpleNamespace(checkpoint=checkpoint_in(folder), folder=folder, expected=expected, translator=translator)


# A page of the docs fine-tunes the one with one vocabulary.
with_two = pytest.mark.parametrize("case", ["two"], indirect=True, scope="module")


def pieces_of(sentence):
    """Returns the tokens of a source by SentencePiece's engine, code included."""
    code, text = sentence.split(" ", 1)
    engine = sentencepiece.SentencePieceProcessor(model_file=str(MARIAN / "source.spm"))
    return [code] * (code != "") + engine.encode(text, out_type=str)


@pytest.mark.program
def test_the_head_that_was_trained_to_align_aligns(tmp_path):
    """The first head of the last layer, if README.md contains transformer-align like OPUS-MT's."""
    shutil.copytree(MARIAN, tmp_path / "opus")
    (tmp_path / "opus/README.md").write_text("### opus\n\n* source languages: en\n* model: transformer-align\n")
    plain, aligning = (tt.Translator.from_pretrained(path, beam_size=2) for path in (MARIAN, tmp_path / "opus"))
    assert (plain.model.config.alignment_heads, aligning.model.config.alignment_heads) == (None, 1)
    (output,) = aligning.aligned(SENTENCES[1:2])
    scores = plain.attention(SENTENCES[1], output.text).scores.cross[-1][0]
    scores = scores[:, : len(output.tokens), : len(output.source_tokens)]
    assert list(output.links) == np.argmax(scores[0], 1).tolist() != np.argmax(np.mean(scores, 0), 1).tolist()


@pytest.mark.parametrize("side", ["source", "target"])
def test_ids_and_texts_are_those_of_transformers(case, side):
    tokenizer, vocabulary = case.translator.tokenizer, getattr(case.checkpoint, side)
    ids = (tokenizer.tokenize if side == "source" else tokenizer.tokenize_target)(EXPECTED["texts"])
    assert [[vocabulary.rows[id] for id in row] + [0] for row in ids.to_list()] == case.expected[f"{side}_ids"]
    if side == "target" or case.checkpoint.shared:
        assert [text.decode() for text in tokenizer.detokenize(ids).numpy()] == case.expected[f"of_{side}"]


@pytest.mark.parametrize("case", ["one vocabulary"], indirect=True, scope="module")
def test_translations_and_log_probabilities_are_those_of_transformers(case):
    """test_marian_native.py compares the search with two vocabularies to CTranslate2's."""
    best = [outputs[0] for outputs in case.translator.n_best(SENTENCES, 1)]
    assert [output.text for output in best] == EXPECTED["beam"] and all(output.finished for output in best)
    np.testing.assert_allclose([output.log_prob for output in best], EXPECTED["log_probs"], atol=1e-4)
    assert case.translator.replace(beam_size=1)(SENTENCES) == EXPECTED["greedy"]


def test_targets_have_the_scores_of_transformers(case):
    """They are read with the target's SentencePiece model, which splits texts differently from the source's."""
    ours, texts, expected = case.translator, case.expected["beam"], case.expected["log_probs"]
    same = [i for i, text in enumerate(texts) if text in case.expected["of_target"]]
    source, *_ = ours.source(SENTENCES)
    target, *_ = ours.append_eos(ours.tokenizer.tokenize_target(texts))
    sums = np.where(array(target) > 0, array(ours.score_targets(source, target)), 0).sum(axis=1)
    assert len(same) >= 10
    np.testing.assert_allclose(sums[same], [expected[i] for i in same], atol=1e-4)


def test_attention_has_the_tokens_of_both_sides(case):
    pair = case.translator.attention(SENTENCES[1], case.expected["beam"][1])
    assert pair.source == [*pieces_of(SENTENCES[1]), "</s>"]
    engine = sentencepiece.SentencePieceProcessor(model_file=str(MARIAN / "target.spm"))
    assert engine.decode(pair.target[:-1]) == case.expected["beam"][1]


@pytest.mark.slow
@with_two
def test_fine_tuning(case):
    """The paper's loss also smooths over padding and BOS. Neither becomes an output."""
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
    assert (config.source_vocab_size, config.vocab_size) == (253, 251)  # with BOS
    for vocabulary in (checkpoint.source, checkpoint.target):
        assert vocabulary.rows[:4] == [separate.PAD, separate.PAD, 0, 1]
        assert vocabulary.pieces[:4] == ["<pad>", "<s>", "</s>", "<unk>"] != vocabulary.pieces[1:5]


def test_one_vocabulary_for_two_matrices(tmp_path):
    """A native model can share one vocabulary between two embedding tables."""
    separate.split(tmp_path)
    expected = checkpoint_in(tmp_path).source
    (tmp_path / "target_vocab.json").unlink()
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"decoder_vocab_size": settings["vocab_size"]}))
    with pytest.raises(tt.BadInput, match="found no target_vocab.json in"):
        checkpoint_in(tmp_path).model()
    (tmp_path / "tokenizer_config.json").unlink()
    assert checkpoint_in(tmp_path).target == expected


def test_sizes_and_ids_that_do_not_fit(tmp_path):
    def fails(message, **config):
        (tmp_path / "config.json").write_text(json.dumps(settings | config))
        with pytest.raises(tt.BadInput, match=message):
            checkpoint_in(tmp_path).model()

    separate.split(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
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
    keras.utils.set_random_seed(3)  # deletes unnamed resources
    assert again.tokenize(EXPECTED["texts"]).to_list() == tokenizer.tokenize(EXPECTED["texts"]).to_list()
    with pytest.raises(tt.BadInput, match="tokenizer.model: expected a SentencePiece model"):
        tt.Tokenizer.load(tmp_path / "tokenizer.model")
    with pytest.raises(tt.BadInput, match="answers.json: .*expected a tokenizer of MarianMT"):
        MarianTokenizer.load(MARIAN / "answers.json")
