"""M2M100 and NLLB-200 against what `transformers` answers.

tests/m2m100/trained is a checkpoint and its answers, made by tests/m2m100/m2m100_make.py. Where transformers and torch
are installed (pip install torch "transformers<6"), others are made anew.
"""

import copy
import itertools
import json
import math
import shutil
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from checkpoints import M2M100 as TRAINED
from checkpoints import MARIAN, copied
from conftest import array

import tf_transformer as tt
from tf_transformer.data import toy_corpus
from tf_transformer.extensions.interop.families.m2m100 import tokenizer as tokenizers
from tf_transformer.extensions.interop.families.m2m100.family import NLLB, M2M100Checkpoint
from tf_transformer.extensions.interop.families.m2m100.tokenizer import M2M100Tokenizer
from tf_transformer.extensions.interop.families.pieces import archive_of
from tf_transformer.models.families import load_tokenizer, tokenizer_of
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID
from trainers import publishing

pytest.importorskip("safetensors")
pytestmark = pytest.mark.filterwarnings("error:You are using a softmax over axis")  # over the first slot of a cache

sys.path.insert(0, str(TRAINED.parent))
import m2m100_make as make  # noqa: E402

ANSWERS = json.loads((TRAINED / "answers.json").read_text(encoding="utf-8"))
DIRECTIONS = [tuple(name.split("-")) for name in ANSWERS]


@pytest.fixture(scope="module")
def translator():
    return tt.Translator.from_pretrained(TRAINED, target_language="de")


@pytest.fixture(scope="module")
def exact(translator):
    """Searches as `transformers` does without a length penalty."""
    return translator.replace(beam_size=4, length_penalty=0.0, patience=math.inf)


def languages(source, target):
    return {"source_language": source, "target_language": target}


def of_checkpoint(folder, rows):
    order = M2M100Checkpoint(folder).target.rows
    return [[order[id] for id in row] for row in rows]


@pytest.mark.parametrize("source, target", DIRECTIONS)
def test_ids_and_texts(translator, source, target):
    answers = ANSWERS[f"{source}-{target}"]
    tokenizer = translator.tokenizer.with_languages(source, target)
    ids = tokenizer.tokenize(answers["texts"])
    assert of_checkpoint(TRAINED, ids.to_list()) == [row[:-1] for row in answers["ids"]]  # without the end symbol
    reversed_ids = tokenizer.with_languages(target, source).tokenize_target(answers["texts"])
    assert reversed_ids.to_list() == ids.to_list() == tokenizer.encode(answers["texts"])
    assert tokenizer.with_languages(target, source).encode_target(answers["texts"]) == ids.to_list()
    assert tokenizer.decode(ids.to_list()) == answers["decoded"]
    assert [text.decode() for text in tokenizer.detokenize(ids).numpy()] == answers["decoded"]
    assert tokenizer.ids(tokenizer.pieces(ids[:5])).to_list() == ids[:5].to_list()


def ours(folder, ids):
    """Ids of a target as the checkpoint has them, as ours."""
    order = {row: id for id, row in enumerate(M2M100Checkpoint(folder).target.rows)} | {make.END: EOS_ID}
    found = np.vectorize(order.get)(ids)
    found[:, 0] = BOS_ID
    return found


def test_logits(translator):
    answers = np.load(TRAINED / "logits.npz")
    source, target = DIRECTIONS[-1]
    text = ANSWERS[f"{source}-{target}"]["sentences"][:5]
    ids, *_ = translator.with_languages(source, target).source(tf.constant(text))
    found = array(translator.model((ids, ours(TRAINED, answers["target"]))))
    rows = M2M100Checkpoint(TRAINED).target.rows
    np.testing.assert_allclose(found[..., EOS_ID:], answers["logits"][..., rows[EOS_ID:]], atol=1e-5)
    assert found[..., :EOS_ID].max() < -15  # our own padding and start symbol


@pytest.mark.parametrize("source, target", DIRECTIONS)
def test_searches(exact, source, target):
    answers, spoken = ANSWERS[f"{source}-{target}"], languages(source, target)
    found = exact.n_best(answers["sentences"], 1, **spoken)
    assert [best[0].text for best in found] == answers["beam"]
    np.testing.assert_allclose([best[0].log_prob for best in found], answers["log_probs"], atol=1e-4)
    if source == "en":
        assert exact.replace(beam_size=1)(answers["sentences"], **spoken) == answers["greedy"]


def test_a_batch_of_several_languages(exact):
    """Each row has its own; an unknown language is an empty row that says so."""
    parts = {pair: ANSWERS["-".join(pair)] for pair in DIRECTIONS}
    rows = [
        (text, *pair, best)
        for pair, part in parts.items()
        for text, best in zip(part["sentences"], part["beam"], strict=True)
    ]
    rows = [*rows[::7], (rows[0][0], "en", "xx", ""), (rows[0][0], "", "de", ""), ("", "en", "de", "")]
    text, source, target, best = (list(column) for column in zip(*rows, strict=True))
    model = exact.with_languages(tf.constant(source), tf.constant(target))
    ids, length, unread = model.source(tf.constant(text))
    found = model.search(ids, length)
    assert [each.decode() for each in model.texts(found.ids)[:, 0].numpy()] == best
    assert unread.numpy().tolist()[-4:] == [False, True, True, False]
    assert length.numpy().tolist()[-3:] == [0, 0, 0] == found.lengths[-3:, 0].numpy().tolist()


def test_given_translations_have_the_scores_of_the_search(exact):
    (source, target), *_ = DIRECTIONS
    answers = ANSWERS[f"{source}-{target}"]
    model = exact.with_languages(source, target)
    ids, length, _ = model.source(tf.constant(answers["sentences"]))
    searched = model.search(ids, length)
    log_probs = model.score_targets(ids, searched.ids[:, 0])
    found = np.sum(np.where(searched.ids[:, 0] > 0, log_probs, 0), axis=1)
    np.testing.assert_allclose(found, searched.log_probs[:, 0], atol=1e-4)
    np.testing.assert_allclose(found, answers["log_probs"], atol=1e-4)
    found = searched.ids[0, 0, : searched.lengths[0, 0]].numpy().tolist()
    translator = exact.replace(source_language=source, target_language=target)
    shown = translator.attention_of(ids[:1].numpy(), found)
    assert (shown.source[0], shown.target[0]) == (f"__{source}__", f"__{target}__")
    assert shown.scores.cross[-1].shape[2:] == (len(shown.target), len(shown.source))


@pytest.mark.program
def test_prefixes_and_samples(translator):
    text = ANSWERS["en-de"]["sentences"][0]
    ((best, *_),) = translator.n_best([text], 1, prefixes=["Wir"], target_language="de")
    assert best.text.startswith("Wir")
    assert translator.n_best([text], 1, prefixes=[""]) == translator.n_best([text], 1)
    assert translator.sample([text], temperature=1e-3) == translator.replace(beam_size=1)([text])


def test_languages_that_are_no_options(translator):
    with pytest.raises(tt.BadInput, match="^target_language: expected one of 100 languages, such as af, .*; got 'xx'$"):
        translator(["A"], target_language="xx")
    with pytest.raises(tt.BadInput, match="^target_language: expected one of 100 languages, .*; got none$"):
        tt.Translator.from_pretrained(TRAINED)(["A"])
    with pytest.raises(tt.BadInput, match="^source_language: expected one of 100"):
        translator.export(source_language="xx")
    marian = tt.Translator.from_pretrained(MARIAN)
    with pytest.raises(
        tt.BadInput, match="^source_language: expected none, since this model has one pair of languages, got 'en'$"
    ):
        marian(["A"], source_language="en")
    assert marian.tokenizer.with_languages(None, None) is marian.tokenizer


def test_a_tokenizer_keeps_its_languages(translator, tmp_path, monkeypatch):
    other, made = translator.replace(target_language="en", source_language="de").tokenizer, []
    monkeypatch.setattr(tokenizers, "archive_of", lambda contents: made.append(1) or archive_of(contents))
    other.save(tmp_path / "tokenizer.model")
    again = load_tokenizer(tmp_path / "tokenizer.model")
    assert type(again) is M2M100Tokenizer is type(tokenizer_of(other.model))
    assert again.current_languages() == ("de", "en") and again.fingerprint == other.fingerprint
    assert len(made) == 1 and made.clear() is None
    assert (
        translator.tokenizer.current_languages() == ("en", "de")
        and translator.tokenizer.fingerprint != again.fingerprint
    )
    assert again.start(2).numpy().tolist() == [[BOS_ID, again.tokenize_target(["x"]).to_list()[0][0]]] * 2
    assert again.shares_vocabulary(translator.tokenizer) and translator.tokenizer.shares_vocabulary(again)
    marian = tt.Translator.from_pretrained(MARIAN).tokenizer
    assert not again.shares_vocabulary(marian) and not marian.shares_vocabulary(again)
    contents = json.loads(other.contents["vocabulary.json"])
    swapped = copy.copy(other)
    swapped.contents = other.contents | {"vocabulary.json": json.dumps(contents[:-2] + contents[:-3:-1]).encode()}
    assert not swapped.shares_vocabulary(again) and other.shares_vocabulary(again)
    (tmp_path / "broken").write_bytes(other.model[:-30])
    with pytest.raises(tt.BadInput, match="broken: vocabulary: expected a tokenizer of M2M100"):
        load_tokenizer(tmp_path / "broken")


def test_a_run_s_export_has_the_languages_that_it_learned(translator, tmp_path, monkeypatch):
    """Its corpus may name them otherwise, as files for NLLB-200 that end in .en and .fr do."""
    exports, score = [], SimpleNamespace(value=7.0, signature="none")
    monkeypatch.setattr(publishing, "publish", lambda run, export, *more: exports.append(export))
    corpus = SimpleNamespace(languages=("english", "fr"), dev=([], []), test=([], []))
    trainer = SimpleNamespace(run=None, corpus=corpus, evaluate=lambda translator: {"BLEU": score, "chrF": score})
    publishing.score_and_publish(trainer, translator, tmp_path)
    found = [exports[0].metadata[name] for name in ("source_language", "target_language")]
    assert found == ["en", "de"]
    marian = tt.Translator.from_pretrained(MARIAN)
    assert publishing.language_facts(marian, corpus.languages) == languages("english", "fr")
    assert publishing.language_facts(marian, None) == {}


@pytest.mark.slow
def test_fit_learns_a_language_first(translator):
    """A target begins with its language, as in the labels of `transformers`."""
    pairs = list(zip(ANSWERS["en-de"]["sentences"], ANSWERS["en-de"]["beam"], strict=True))
    batches = tt.data.token_batches(pairs, translator.tokenizer, batch_tokens=300, max_length=40, repeat=True)
    (source, target_in), target_out = next(iter(batches))
    code = translator.tokenizer.start(1).numpy()[0]
    assert np.all(array(target_in)[:, :2] == code) and np.all(array(target_out)[:, 0] == code[1])
    assert np.all(array(source)[:, 0] == translator.tokenizer.tokenize(["x"]).to_list()[0][0])
    model = tt.Translator.from_pretrained(TRAINED).model
    model.compile(keras.optimizers.Adam(1e-3), loss=tt.SmoothedCrossEntropy(0.1))
    history = model.fit(batches, steps_per_epoch=4, epochs=2, verbose=0).history
    assert history["loss"][1] < history["loss"][0] < 4


@pytest.fixture(scope="module")
def nllb(tmp_path_factory):
    """The files of a checkpoint of NLLB's kind, with SentencePiece's own normal form."""
    folder = tmp_path_factory.mktemp("nllb")
    sentences = [
        *itertools.chain(*toy_corpus.corpus(train=300, dev=0, test=0)["train"]),
        "東京 に 京 100,000 Δελφοί",
    ] * 2
    engine = make.learn_pieces(folder / make.PIECES, sentences, 330, "nmt_nfkc")
    size = engine.vocab_size() + 1 + len(NLLB.split()) + 1 + 2  # a mask, and two symbols without a name
    (folder / "config.json").write_text(json.dumps({"model_type": "m2m_100", "vocab_size": size}))
    config = {"tokenizer_class": "NllbTokenizer", "src_lang": "eng_Latn", "tgt_lang": "fra_Latn"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


NATURAL = ["The old woman opens the door.", "½ ﬁ é 東京", "Δελφοί 100,000", "x y  z", "unknown 😀😀", "eng_Latn a"]


def test_nllb_s_vocabulary(nllb):
    """Four control symbols, SentencePiece's pieces, 202 languages, the mask."""
    engine = sentencepiece.SentencePieceProcessor(model_file=str(nllb / make.PIECES))
    tokenizer = M2M100Checkpoint(nllb).tokenizer()
    assert tokenizer.current_languages() == ("eng_Latn", "fra_Latn") and list(tokenizer.languages) == NLLB.split()
    count = engine.vocab_size() + 1

    def expected(text, code):
        ids = (id + 1 if id else make.UNKNOWN for id in engine.encode(text))  # fairseq's offset
        return [count + NLLB.split().index(code), *ids]

    texts = [*NATURAL, *make.HOSTILE]
    found = of_checkpoint(nllb, tokenizer.tokenize(texts).to_list())
    assert found == [expected(text, "eng_Latn") for text in texts]
    found = of_checkpoint(nllb, tokenizer.with_languages("ace_Arab", "zul_Latn").tokenize_target(texts[:3]).to_list())
    assert found == [expected(text, "zul_Latn") for text in texts[:3]]
    pieces = [piece.decode() for piece in tokenizer.pieces(range(tokenizer.vocab_size)).numpy()]
    assert len(set(pieces)) == len(pieces) and pieces[-3:] == ["<mask>", "madeupword0", "madeupword1"]
    assert tokenizer.detokenize([list(range(len(pieces) - 205, len(pieces)))]).numpy() == [b""]


def added(ids, special=True):
    """added_tokens_decoder, as `transformers` writes it into tokenizer_config.json."""
    return {str(id): {"content": symbol, "special": special, "lstrip": False} for symbol, id in ids.items()}


@pytest.fixture
def extended(nllb, tmp_path):
    """Adds rows and files to a copy of NLLB's kind of checkpoint; returns its folder and the first language's id."""

    def extend(rows, files):
        folder = tmp_path / "extended"
        shutil.copytree(nllb, folder)
        first = sentencepiece.SentencePieceProcessor(model_file=str(nllb / make.PIECES)).vocab_size() + 1
        for name, content in ({"config.json": {"vocab_size": first + 203 + rows}} | files(first)).items():
            before = json.loads((folder / name).read_text()) if (folder / name).is_file() else {}
            (folder / name).write_text(json.dumps(before | content))
        return folder, first

    return extend


def stated(first, **more):
    """By symbol, the ids of NLLB's languages and the mask, and others: places after the pieces."""
    return {code: first + place for code, place in ({c: i for i, c in enumerate(NLLB.split())} | more).items()}


CONFIG, JSON, ADDED = "tokenizer_config.json", "tokenizer.json", "added_tokens.json"
NEW = {"tyv_Cyrl": 203, "abc_Latn": 204}  # places after NLLB's mask


@pytest.mark.parametrize(
    "files",
    [
        lambda first: {CONFIG: {"added_tokens_decoder": added(stated(first, **NEW))}},
        lambda first: {
            JSON: {"added_tokens": [{"content": c, "id": i, "special": True} for c, i in stated(first, **NEW).items()]}
        },
        lambda first: {ADDED: {code: first + place for code, place in NEW.items()}},
    ],
)
def test_languages_that_were_added_have_their_own_rows(extended, files):
    folder, first = extended(3, files)
    tokenizer = M2M100Checkpoint(folder).tokenizer()
    vocabulary = M2M100Checkpoint(folder).target
    found = {code: vocabulary.rows[id] for code, id in vocabulary.languages.items()}
    assert found == stated(first, **NEW) and list(tokenizer.languages) == [*NLLB.split(), *NEW]
    ids = tokenizer.with_languages("tyv_Cyrl", "abc_Latn").tokenize(["a b"])
    assert vocabulary.rows[ids[0, 0]] == first + 203 and tokenizer.detokenize(ids[:, :1]).numpy() == [b""]


def test_the_files_of_a_tokenizer_have_the_last_word_on_ids(extended):
    """A language before the mask, two that changed their ids, a control symbol, and fewer languages than NLLB's."""
    own = {"zul_Latn": 0, "eng_Latn": 1, "tyv_Cyrl": 2, "<mask>": 3, "<sep>": 4}

    def files(first):
        return {CONFIG: {"added_tokens_decoder": added({code: first + place for code, place in own.items()})}}

    folder, first = extended(-198, files)
    vocabulary = M2M100Checkpoint(folder).target
    rows = {code: vocabulary.rows[id] - first for code, id in vocabulary.languages.items()}
    assert rows == {code: i for code, i in own.items() if code[0] != "<"}


def test_nllb_s_languages_may_be_listed(extended):
    listed = {"additional_special_tokens": ["fra_Latn", {"content": "eng_Latn"}, "<mask>"]}
    folder, _ = extended(0, lambda first: {"special_tokens_map.json": listed})
    assert list(M2M100Checkpoint(folder).tokenizer().languages) == ["fra_Latn", "eng_Latn"]


WRONG = {  # rows, and files by the first language's id
    "tyv_Cyrl: expected an id below vocab_size=.*, got ": (0, lambda first: {ADDED: {"tyv_Cyrl": first + 203}}),
    "an id for each token, got .* for <mask> and tyv_": (1, lambda first: {ADDED: {"tyv_Cyrl": first + 202}}),
    "added_tokens.json: expected the added tokens .* and '5'": (1, lambda first: {ADDED: {"tyv_Cyrl": "5"}}),
    "expected added tokens that are matched anywhere in a text, got one with single_word: 'dog'": (
        1,
        lambda first: {JSON: {"added_tokens": [{"content": "dog", "id": first + 203, "single_word": True}]}},
    ),
    "has the id of the language tyv_Cyrl, f": (1, lambda first: {CONFIG: {"extra_special_tokens": ["tyv_Cyrl"]}}),
    "has the id of the token '<new>', found none": (1, lambda first: {CONFIG: {"extra_special_tokens": ["<new>"]}}),
    "ab_Cyrl: expected one id in all files of a tokenizer, got 1 and 2": (
        1,
        lambda first: {CONFIG: {"added_tokens_decoder": added({"ab_Cyrl": 1})}, ADDED: {"ab_Cyrl": 2}},
    ),
    "<s>: expected the id 0 of .*, got 4": (0, lambda first: {CONFIG: {"added_tokens_decoder": added({"<s>": 4})}}),
    "added tokens of a tokenizer, got some": (0, lambda first: {CONFIG: {"added_tokens_decoder": [1]}}),
    "legacy_behaviour: expected false, .* got True$": (0, lambda first: {CONFIG: {"legacy_behaviour": True}}),
    "tokenizer_class: .* got 'SMALL100": (0, lambda first: {CONFIG: {"tokenizer_class": "SMALL100Tokenizer"}}),
}


@pytest.mark.parametrize("message", WRONG)
def test_tokens_that_leave_an_id_open(extended, message):
    with pytest.raises(tt.BadInput, match=message) as error:
        M2M100Checkpoint(extended(*WRONG[message])[0]).tokenizer()
    assert "\n" not in str(error.value)


def test_a_language_added_to_m2m100(tmp_path):
    folder = copied(TRAINED, tmp_path)
    first = len(json.loads((folder / "vocab.json").read_text()))
    (folder / ADDED).write_text(json.dumps({"__tyv__": first + 101}))
    vocabulary = M2M100Checkpoint(folder).target
    assert vocabulary.rows[vocabulary.languages["tyv"]] == first + 101
    assert vocabulary.rows[vocabulary.languages["zu"]] == first + 99
    (folder / ADDED).write_text(json.dumps({"__tyv__": first}))  # as transformers 5.24 numbers it, like Afrikaans
    with pytest.raises(tt.BadInput, match=f"expected an id for each token, got {first} for __af__ and __tyv__"):
        M2M100Checkpoint(folder).tokenizer()
