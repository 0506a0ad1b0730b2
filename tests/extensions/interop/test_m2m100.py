"""Compares M2M100 and NLLB-200 with `transformers`.

tests/m2m100/m2m100_make.py made the checkpoint tests/m2m100/trained and the expected outputs.
"""

import copy
import itertools
import json
import math
import shutil
import sys
from types import SimpleNamespace

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

EXPECTED = json.loads((TRAINED / "answers.json").read_text(encoding="utf-8"))
DIRECTIONS = [tuple(name.split("-")) for name in EXPECTED]
COLUMNS = ("sentences", "beam", "log_probs")


@pytest.fixture(scope="module")
def translator():
    return tt.Translator.from_pretrained(TRAINED, target_language="de")


@pytest.fixture(scope="module")
def exact(translator):
    """A translator with the search of `transformers` without a length penalty."""
    return translator.replace(beam_size=4, length_penalty=0.0, patience=math.inf)


def languages(source, target):
    return {"source_language": source, "target_language": target}


def of_checkpoint(folder, rows):
    order = M2M100Checkpoint(folder).target.rows
    return [[order[id] for id in row] for row in rows]


@pytest.mark.parametrize("source, target", DIRECTIONS)
def test_ids_and_texts(translator, source, target):
    expected = EXPECTED[f"{source}-{target}"]
    tokenizer = translator.tokenizer.with_languages(source, target)
    ids = tokenizer.tokenize(expected["texts"])
    assert of_checkpoint(TRAINED, ids.to_list()) == [row[:-1] for row in expected["ids"]]  # without EOS
    reversed_ids = tokenizer.with_languages(target, source).tokenize_target(expected["texts"])
    assert reversed_ids.to_list() == ids.to_list() == tokenizer.encode(expected["texts"])
    assert tokenizer.with_languages(target, source).encode_target(expected["texts"]) == ids.to_list()
    assert tokenizer.decode(ids.to_list()) == expected["decoded"]
    assert [text.decode() for text in tokenizer.detokenize(ids).numpy()] == expected["decoded"]
    assert tokenizer.ids(tokenizer.pieces(ids[:5])).to_list() == ids[:5].to_list()


def ours(folder, ids):
    """Converts a checkpoint's target ids to ours."""
    order = {row: id for id, row in enumerate(M2M100Checkpoint(folder).target.rows)} | {make.END: EOS_ID}
    converted = np.vectorize(order.get)(ids)
    converted[:, 0] = BOS_ID
    return converted


def test_logits(translator):
    expected = np.load(TRAINED / "logits.npz")
    source, target = DIRECTIONS[-1]
    text = EXPECTED[f"{source}-{target}"]["sentences"][:5]
    ids, *_ = translator.with_languages(source, target).source(tf.constant(text))
    logits = array(translator.model((ids, ours(TRAINED, expected["target"]))))
    rows = M2M100Checkpoint(TRAINED).target.rows
    np.testing.assert_allclose(logits[..., EOS_ID:], expected["logits"][..., rows[EOS_ID:]], atol=1e-5)
    assert logits[..., :EOS_ID].max() < -15  # our padding and BOS


def test_a_batch_of_several_languages(exact):
    """Each row has its languages. A row with an unknown one is empty and marked as truncated."""
    rows = [
        (text, *pair, best, log_prob)
        for pair in DIRECTIONS
        for text, best, log_prob in zip(*(EXPECTED["-".join(pair)][key] for key in COLUMNS), strict=True)
    ]
    count, english = len(rows), rows[0][0]
    rows += [(english, "en", "xx", "", 0), (english, "", "de", "", 0), ("", "en", "de", "", 0)]
    text, source, target, best, log_probs = (list(column) for column in zip(*rows, strict=True))
    model = exact.with_languages(tf.constant(source), tf.constant(target))
    ids, length, unread = model.source(tf.constant(text))
    outputs = model.search(ids, length)
    assert [output.decode() for output in model.texts(outputs.ids)[:, 0].numpy()] == best
    np.testing.assert_allclose(outputs.log_probs[:count, 0], log_probs[:count], atol=1e-4)
    assert unread.numpy().tolist()[-4:] == [False, True, True, False]
    assert length.numpy().tolist()[-3:] == [0, 0, 0] == outputs.lengths[-3:, 0].numpy().tolist()

    scored = model.score_targets(ids, outputs.ids[:, 0])
    sums = np.sum(np.where(outputs.ids[:, 0] > 0, scored, 0), axis=1)
    np.testing.assert_allclose(sums[:count], log_probs[:count], atol=1e-4)
    translator = exact.replace(source_language="en", target_language="de")
    output = outputs.ids[0, 0, : outputs.lengths[0, 0]].numpy().tolist()
    attention = translator.attention_of(ids[:1].numpy(), output)
    assert (attention.source[0], attention.target[0]) == ("__en__", "__de__")
    assert attention.scores.cross[-1].shape[2:] == (len(attention.target), len(attention.source))


@pytest.mark.program
def test_prefixes_and_samples(translator):
    text = EXPECTED["en-de"]["sentences"][0]
    ((best, *_),) = translator.n_best([text], 1, prefixes=["Wir"], target_language="de")
    assert best.text.startswith("Wir")
    assert translator.sample([text], temperature=1e-3) == EXPECTED["en-de"]["greedy"][:1]


def test_unknown_and_missing_languages(translator):
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


def test_a_tokenizer_stores_its_languages(translator, tmp_path, monkeypatch):
    other, archives = translator.replace(target_language="en", source_language="de").tokenizer, []
    monkeypatch.setattr(tokenizers, "archive_of", lambda contents: archives.append(1) or archive_of(contents))
    other.save(tmp_path / "tokenizer.model")
    again = load_tokenizer(tmp_path / "tokenizer.model")
    assert type(again) is M2M100Tokenizer is type(tokenizer_of(other.model))
    assert again.current_languages() == ("de", "en") and again.fingerprint == other.fingerprint
    assert len(archives) == 1
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


def test_a_run_s_export_has_the_languages_of_training(translator, tmp_path, monkeypatch):
    """The corpus may have other names of them, such as .en and .fr for NLLB-200."""
    exports, score = [], SimpleNamespace(value=7.0, signature="none")
    monkeypatch.setattr(publishing, "publish", lambda run, export, *more: exports.append(export))
    corpus = SimpleNamespace(languages=("english", "fr"), dev=([], []), test=([], []))
    trainer = SimpleNamespace(run=None, corpus=corpus, evaluate=lambda translator: {"BLEU": score, "chrF": score})
    publishing.score_and_publish(trainer, translator, tmp_path)
    assert [exports[0].metadata[f"{side}_language"] for side in ("source", "target")] == ["en", "de"]
    marian = tt.Translator.from_pretrained(MARIAN)
    assert publishing.language_facts(marian, corpus.languages) == languages("english", "fr")
    assert publishing.language_facts(marian, None) == {}


@pytest.fixture(scope="module")
def nllb(tmp_path_factory):
    """The files of an NLLB checkpoint, with SentencePiece's default normalization."""
    folder = tmp_path_factory.mktemp("nllb")
    sentences = [
        *itertools.chain(*toy_corpus.corpus(train=300, dev=0, test=0)["train"]),
        "東京 に 京 100,000 Δελφοί",
    ] * 2
    engine = make.learn_pieces(folder / make.PIECES, sentences, 330, "nmt_nfkc")
    size = engine.vocab_size() + 1 + len(NLLB.split()) + 1 + 2  # a mask, and two tokens without a name
    (folder / "config.json").write_text(json.dumps({"model_type": "m2m_100", "vocab_size": size}))
    config = {"tokenizer_class": "NllbTokenizer", "src_lang": "eng_Latn", "tgt_lang": "fra_Latn"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


NATURAL = ["The old woman opens the door.", "½ ﬁ é 東京", "Δελφοί 100,000", "x y  z", "unknown 😀😀", "eng_Latn a"]


def test_nllb_s_vocabulary(nllb):
    """Four control tokens, SentencePiece's tokens, 202 languages, the mask."""
    engine = sentencepiece.SentencePieceProcessor(model_file=str(nllb / make.PIECES))
    tokenizer = M2M100Checkpoint(nllb).tokenizer()
    assert tokenizer.current_languages() == ("eng_Latn", "fra_Latn") and list(tokenizer.languages) == NLLB.split()
    count = engine.vocab_size() + 1

    def expected(text, code):
        ids = (id + 1 if id else make.UNKNOWN for id in engine.encode(text))  # fairseq's offset
        return [count + NLLB.split().index(code), *ids]

    texts = [*NATURAL, *make.HOSTILE]
    sources = of_checkpoint(nllb, tokenizer.tokenize(texts).to_list())
    assert sources == [expected(text, "eng_Latn") for text in texts]
    targets = tokenizer.with_languages("ace_Arab", "zul_Latn").tokenize_target(texts[:3]).to_list()
    assert of_checkpoint(nllb, targets) == [expected(text, "zul_Latn") for text in texts[:3]]
    pieces = [piece.decode() for piece in tokenizer.pieces(range(tokenizer.vocab_size)).numpy()]
    assert len(set(pieces)) == len(pieces) and pieces[-3:] == ["<mask>", "madeupword0", "madeupword1"]
    assert tokenizer.detokenize([list(range(len(pieces) - 205, len(pieces)))]).numpy() == [b""]


def added(ids, special=True):
    """Returns added_tokens_decoder of tokenizer_config.json."""
    return {str(id): {"content": token, "special": special, "lstrip": False} for token, id in ids.items()}


@pytest.fixture
def extended(nllb, tmp_path):
    """Adds rows and files to a copy of `nllb`. Returns its directory and the first language's id."""

    def extend(rows, files):
        folder = tmp_path / "extended"
        shutil.copytree(nllb, folder)
        first = sentencepiece.SentencePieceProcessor(model_file=str(nllb / make.PIECES)).vocab_size() + 1
        for name, content in ({"config.json": {"vocab_size": first + 203 + rows}} | files(first)).items():
            before = json.loads((folder / name).read_text()) if (folder / name).is_file() else {}
            (folder / name).write_text(json.dumps(before | content))
        return folder, first

    return extend


def ids_of_languages(first, **more):
    """Returns the ids of NLLB's languages and of others, whose indices start after SentencePiece's tokens."""
    return {code: first + index for code, index in ({c: i for i, c in enumerate(NLLB.split())} | more).items()}


CONFIG, JSON, ADDED = "tokenizer_config.json", "tokenizer.json", "added_tokens.json"
NEW = {"tyv_Cyrl": 203, "abc_Latn": 204}  # indices after NLLB's mask


@pytest.mark.parametrize(
    "files",
    [
        lambda first: {CONFIG: {"added_tokens_decoder": added(ids_of_languages(first, **NEW))}},
        lambda first: {
            JSON: {
                "added_tokens": [
                    {"content": c, "id": i, "special": True} for c, i in ids_of_languages(first, **NEW).items()
                ]
            }
        },
        lambda first: {ADDED: {code: first + index for code, index in NEW.items()}},
    ],
)
def test_added_languages_have_separate_rows(extended, files):
    folder, first = extended(3, files)
    tokenizer = M2M100Checkpoint(folder).tokenizer()
    vocabulary = M2M100Checkpoint(folder).target
    ids = {code: vocabulary.rows[id] for code, id in vocabulary.languages.items()}
    assert ids == ids_of_languages(first, **NEW) and list(tokenizer.languages) == [*NLLB.split(), *NEW]
    ids = tokenizer.with_languages("tyv_Cyrl", "abc_Latn").tokenize(["a b"])
    assert vocabulary.rows[ids[0, 0]] == first + 203 and tokenizer.detokenize(ids[:, :1]).numpy() == [b""]


def test_the_files_of_a_tokenizer_override_ids(extended):
    """A language before the mask, two with other ids, a control token, and fewer languages than NLLB's."""
    indices = {"zul_Latn": 0, "eng_Latn": 1, "tyv_Cyrl": 2, "<mask>": 3, "<sep>": 4}

    def files(first):
        return {CONFIG: {"added_tokens_decoder": added({code: first + index for code, index in indices.items()})}}

    folder, first = extended(-198, files)
    vocabulary = M2M100Checkpoint(folder).target
    rows = {code: vocabulary.rows[id] - first for code, id in vocabulary.languages.items()}
    assert rows == {code: index for code, index in indices.items() if code[0] != "<"}


def test_a_file_may_list_nllb_s_languages(extended):
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
def test_conflicting_and_missing_ids(extended, message):
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
    (folder / ADDED).write_text(
        json.dumps({"__tyv__": first})
    )  # the id of transformers 5.24, which is also that of Afrikaans
    with pytest.raises(tt.BadInput, match=f"expected an id for each token, got {first} for __af__ and __tyv__"):
        M2M100Checkpoint(folder).tokenizer()
