"""The tokenizer against SentencePiece's own Python engine."""

import copy
import html
import itertools
import pickle
import re
import runpy
import sys
import unicodedata
from types import SimpleNamespace

import keras
import numpy as np
import pages
import pytest
import sentencepiece
import tensorflow as tf
from conftest import HAS_EXTENSIONS, TEXTS
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import ROOT

import tf_transformer as tt
from tf_transformer.data import toy_corpus
from tf_transformer.inference.savedmodel import SavedModel
from tf_transformer.tokenizers.strings import truncate_in_graph, truncate_texts, valid, valid_text
from tf_transformer.tokenizers.tokenizer import MANY

PERSIAN = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"  # "I want": a zero width non-joiner stands inside
CLEAN = [text for text in TEXTS if isinstance(text, str) and "\0" not in text]
CLEAN += ["  folded   white space  ", "<s> <0x41>", "ﬁ ligature, e\u0301 accent, \u200bzero width, 👩‍👩‍👧"]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def pair(request):
    sentences = [text for pair in toy_corpus.corpus(train=1500, dev=0, test=0)["train"] for text in pair]
    tokenizer = tt.Tokenizer.train_from_iterator(sentences, 500, request.param)
    return tokenizer, sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)


def test_ids_agree_with_sentencepiece(pair):
    tokenizer, oracle = pair
    assert tokenizer.vocab_size == oracle.vocab_size() == 500
    assert tokenizer.tokenize(CLEAN).to_list() == [oracle.encode(text) for text in CLEAN]


def ten_of(texts):
    """Batches texts, since a call is slower than a text."""
    return st.lists(texts, min_size=10, max_size=10)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(ten_of(st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=40)))
def test_nothing_is_lost(pair, texts):
    tokenizer, oracle = pair
    result = [text.decode() for text in tokenizer.detokenize(tokenizer.tokenize(texts)).numpy()]
    assert result == [oracle.normalize(text).replace("▁", " ").strip() for text in texts]


def test_invalid_bytes_and_controls_separate_words(pair):
    """They are whitespace, like lone surrogates, which Python strings may have and UTF-8 may not."""
    tokenizer, oracle = pair
    expected = oracle.encode("two doors")
    assert expected != oracle.encode("twodoors")
    for separator in (b"\xff", b"\xc3", b"\xe6\x9d", b"\x80\x80\xfe", b"\x00\x1f"):
        assert tokenizer.tokenize([b"two" + separator + b"doors"]).to_list() == [expected]
    for texts in (["two\ud83ddoors"], ("two\udcffdoors",), np.array(["two\ude00doors"]), tf.constant(["two doors"])):
        assert tokenizer.tokenize(texts).to_list() == [expected]
    assert tokenizer.tokenize("two\ud83ddoors").numpy().tolist() == expected
    with_halves, without = (tt.Tokenizer.train_from_iterator([f"red{half}door"] * 9, 268) for half in ("\ud83d", " "))
    assert with_halves.tokenize(["red door"]).to_list() == without.tokenize(["red door"]).to_list()
    assert tokenizer.tokenize(["", "  ", "\t\n", "\x00\x01", "\u3000"]).to_list() == [[], [], [], [], []]
    ids = tokenizer.tokenize(["a door"]).to_list()[0]
    assert tokenizer.detokenize([[1, *ids, 2, 0, 0]]).numpy().tolist() == [b"a door"]


CONTROLS = [*map(chr, range(33)), "\x7f\x85\xa0\u2028"]
ODD = ["<s>", "<0x41>", "\u2581", "\ufffd", "e\u0301", "\U0001f469\u200d\U0001f467", *CONTROLS]
ANYTHING = st.text(st.characters()) | st.binary() | st.lists(st.sampled_from(ODD)).map("".join)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(ten_of(ANYTHING))
def test_lists_and_tensors_agree(pair, texts):
    tokenizer, _ = pair
    ids = tokenizer.encode(texts)
    assert ids == tokenizer.encode_target(texts) == tokenizer.tokenize(texts).to_list()
    assert not {0, 1, 2} & set(itertools.chain(*ids))  # control ids are unreachable
    assert tokenizer.decode(ids) == [text.decode() for text in tokenizer.detokenize(tokenizer.tokenize(texts)).numpy()]
    assert [valid(text).encode() for text in texts] == valid_text(texts).numpy().tolist()


def test_any_ids_and_many_texts_agree(pair):
    tokenizer, _ = pair
    rows = np.random.default_rng(5).integers(0, [[500], [250]] * 100, (200, 11), "int32")  # half of them mostly bytes
    assert tokenizer.decode(rows.tolist()) == [text.decode() for text in tokenizer.detokenize(rows).numpy()]
    texts = [text.replace("\n", " ") for text in CLEAN] * 101
    assert len(texts) >= MANY and tokenizer.encode(texts) == tokenizer.tokenize(texts).to_list()
    assert (tokenizer.encode([]), tokenizer.decode([]), tokenizer.decode([[], [5]])[0]) == ([], [], "")
    with pytest.raises(tt.BadInput, match="texts: expected a list, got 'a door'"):
        tokenizer.encode("a door")


FAMILIES = ("ours", *(("marian", "marian separate", "m2m100") if HAS_EXTENSIONS else ()))


@pytest.fixture(scope="module", params=FAMILIES)
def of_family(request, tmp_path_factory):
    if request.param == "ours":
        return tt.Tokenizer.train_from_iterator(["The red door.", "Die rote Tür."] * 99, 290)
    if request.param == "marian separate":
        folder = tmp_path_factory.mktemp("separate") / "checkpoint"
        runpy.run_path(str(ROOT / "tests/marian/separate.py"))["split"](folder)
        return tt.Translator.from_pretrained(folder).tokenizer
    return tt.Translator.from_pretrained(ROOT / "tests" / request.param / "trained").tokenizer


@pytest.mark.parametrize("wrong", [-100, -1, 500, 10**6, 2**40, 1.5, "a", None])
def test_ids_outside_of_the_vocabulary_raise(wrong, of_family):
    size = of_family.vocab_size
    assert of_family.decode([[size - 1]]) and of_family.pieces([[size - 1]]).shape == (1, 1) and size < 500
    row, is_number = [5, wrong], isinstance(wrong, int)
    # A source of MarianMT may have a vocabulary of its own.
    numbers, lists = rf"0 to \d+, those of the vocabulary, got {wrong}", "lists of whole numbers"
    message = f"^ids: expected {numbers if is_number else lists}"
    calls = [lambda: of_family.decode([[5], row])]
    calls += [lambda: of_family.tokens(row), lambda: of_family.source_tokens(row)]
    for call in calls:
        with pytest.raises(tt.BadInput, match=message):
            call()
    if wrong in ("a", None):  # TensorFlow's own error
        return
    message = message if is_number else "^ids: expected whole numbers, got float32"
    for method in (of_family.detokenize, of_family.pieces, of_family.source_pieces):
        for ids in ([row], tf.constant([row]), tf.ragged.constant([[5], row])):
            with pytest.raises(tt.BadInput, match=message):
                method(ids)


def test_ids_outside_of_the_vocabulary_are_unknown_in_a_graph(of_family):
    """There no value raises."""
    size, kinds = of_family.vocab_size, (tf.int32, tf.int64)
    for kind in kinds:
        graph = tf.function(lambda ids: [getattr(of_family, name)(ids) for name in ("pieces", "detokenize")])
        for ids in ([[5, size, -1, 6]], [[5, kind.max, kind.min, 6]]):
            ids = tf.constant(ids, kind)
            for one, other in zip(graph(ids), graph(tf.constant([[5, 3, 3, 6]], kind)), strict=True):
                assert one.numpy().tolist() == other.numpy().tolist()


def test_a_tokenizer_can_be_pickled_and_copied(pair):
    tokenizer, expected = pair[0], pair[0].encode(CLEAN)
    for other in (pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy(tokenizer)):
        assert other.tokenize(CLEAN).to_list() == other.encode(CLEAN) == expected


def test_resources_outlive_graphs_and_seeds(pair):
    """Whatever function needs them first, and whenever the eager kernels are deleted."""
    tokenizer, expected = tt.Tokenizer(pair[0].model), pair[0].encode(["a door"])
    first, second = (tf.function(lambda texts, n=n: tokenizer.tokenize(texts[n:]).to_tensor()) for n in range(2))
    assert first(tf.constant(["a door"])).numpy().tolist() == expected
    for set_seed in (keras.utils.set_random_seed, tf.random.set_seed):
        set_seed(7)
        assert tokenizer.tokenize(["a door"]).to_list() == expected
    assert second(tf.constant(["", "a door"])).numpy().tolist() == expected


def documented():
    """Yields the examples in docs/reference/vocabulary.md: texts and their normal forms."""
    page = pages.read("docs/reference/vocabulary.md")
    for texts, normal in re.findall(r"^\| [^|]+ \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)[1:]:
        texts = re.sub(r" \(U\+\w+\)", "", texts)
        yield from zip(*(html.unescape(side).split(", ") for side in (texts, normal)), strict=True)


def test_what_is_documented_becomes_of_texts(pair):
    tokenizer, _ = pair
    rows = list(documented())
    assert len(rows) > 30 and ("10\u00b2 m", "102 m") in rows
    for text, expected in rows:
        assert tokenizer.detokenize(tokenizer.tokenize([text])).numpy()[0].decode() == expected, ascii(text)


def test_no_other_character_changes(pair):
    spaces = [0x61C, 0x1680, 0x200B, 0x200C, 0x200E, 0x200F, 0x2028, 0x2029, 0xFEFF, 0xFFFD, 0x2581, *range(32)]
    changes = dict.fromkeys(map(chr, spaces), " ") | dict.fromkeys("\x7f\x8f\x9f", "") | {"\uff5e": "\uff5e"}
    every = [one for one in map(chr, range(0x110000)) if unicodedata.category(one) not in ("Cn", "Co", "Cs")]
    every = [one for one in every if one != "\u2603" and not unicodedata.combining(one)]
    read = valid_text("\u2603".join(f"x{one}x" for one in every)).numpy().decode()
    normal = pair[1].normalize(read).replace("\u2581", " ").strip().split("\u2603")
    for one, result in zip(every, normal, strict=True):
        assert result == f"x{changes.get(one, unicodedata.normalize('NFKC', one))}x", ascii(one)
    assert len(every) > 140_000


def test_a_vocabulary_may_keep_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    toy_corpus.write_corpus(".", train=300, dev=3, test=0)
    names = pages.run_blocks("docs/reference/vocabulary.md", {"vocab_size=8_000": "vocab_size=400"})
    tokenizer = names["trainer"].tokenizer
    assert tokenizer.fingerprint == tt.Tokenizer.load("records/tokenizer.model").fingerprint
    signs = "10\u00b2 m H\u2082O \u00bd \ufb01 \u2460 \u2103 \u2026"
    for text in (signs, PERSIAN, "e\u0301 \u200e\uff5e", "\uff21\u3000\uff11"):
        assert tokenizer.detokenize(tokenizer.tokenize([f" {text}\t"])).numpy()[0].decode() == text
    nfkc = tt.Tokenizer.train(names["train"], 400, normalization="nfkc")
    assert nfkc.detokenize(nfkc.tokenize([f"{PERSIAN} 10\u00b2"])).numpy()[0].decode() == f"{PERSIAN} 102"
    with pytest.raises(tt.BadInput, match="normalization: expected one of nmt_nfkc, nfkc, identity; got 'nfc'"):
        tt.Tokenizer.train(names["train"], 400, normalization="nfc")


MUCH = ["a little text", "and some more"] * 20


@pytest.mark.parametrize(
    ("sentences", "vocab_size", "kind", "message"),
    [
        ([], 500, "bpe", "expected sentences to learn a vocabulary from, got none"),
        (["text"], 100, "bpe", "expected at least 261 .* got 100"),
        (["text"], 500, "words", "kind: expected 'bpe' or 'unigram', got 'words'"),
        (MUCH, 262, "bpe", r"expected at least \d+ for this text, got 262"),
        (MUCH, 262, "unigram", r"expected at least \d+ for this text, got 262"),
        (MUCH, 9000, "bpe", r"expected at most \d+ for this text, got 9000"),
        (MUCH, 9000, "unigram", r"expected at most \d+ for this text, got 9000"),
    ],
)
def test_wrong_training(sentences, vocab_size, kind, message):
    with pytest.raises(tt.BadInput, match=message):
        tt.Tokenizer.train_from_iterator(sentences, vocab_size, kind)


def test_files_that_are_not_a_tokenizer(tmp_path):
    (tmp_path / "bad.model").write_bytes(b"not a model")
    with pytest.raises(tt.BadInput, match=r"bad\.model: expected a SentencePiece model"):
        tt.Tokenizer.load(tmp_path / "bad.model")
    with pytest.raises(FileNotFoundError, match="expected a SentencePiece model file"):
        tt.Tokenizer.load(tmp_path / "none.model")


def test_controls_have_the_first_ids_and_no_text_makes_them():
    names = ["(NP", ")NP", ",", "door"]
    lines = ["The door , (NP opens )NP .", "door (NP , door"] * 5
    tokenizer = tt.Tokenizer.train_from_iterator(lines, 310, control_tokens=names)
    assert tokenizer.control_tokens == names
    assert tokenizer.ids(tf.ragged.constant([[" (NP", " door"]])).to_list() == [[4, 7]]
    assert tokenizer.tokenize(lines).flat_values.numpy().min() >= 4 + len(names)
    assert tokenizer.detokenize(tokenizer.tokenize(lines[:1])).numpy() == [lines[0].encode()]
    with pytest.raises(tt.BadInput, match="expected at least 265"):
        tt.Tokenizer.train_from_iterator(lines, 264, control_tokens=names)
    assert tt.Tokenizer.train_from_iterator(lines, 300).control_tokens == []


USER_DEFINED = ["<2de>", "<2fr>", "a,b", '"', "\ufb01x"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_symbols_are_one_piece_for_every_engine(kind, tmp_path):
    """In Python, in a SavedModel, for the client of LiteRT, and by the pieces that CTranslate2 has."""
    lines = [text for pair in toy_corpus.corpus(train=331, dev=0, test=0)["train"] for text in pair]
    lines = [f"{name} {line}" for line, name in zip(lines, itertools.cycle(USER_DEFINED))]
    tokenizer = tt.Tokenizer.train_from_iterator(
        lines, 370, kind, user_defined_symbols=iter(USER_DEFINED), control_tokens=["(NP"]
    )
    oracle = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    ids = range(5, 5 + len(USER_DEFINED))
    assert (tokenizer.control_tokens, tokenizer.ids(USER_DEFINED).numpy().tolist()) == (["(NP"], [*ids])
    assert tokenizer.first_piece == 5 + len(USER_DEFINED) + 256

    forms = ["{} The door.", "{}The door.", "The{}door {}", "{}", "  {}{} \ufb02", "{} \u6771"]
    texts, expected = [], []
    for form, (name, id) in itertools.product(forms, zip(USER_DEFINED, ids, strict=True)):
        texts.append(form.replace("{}", name))
        expected.append([id] * form.count("{}"))
    rows = tokenizer.tokenize(texts)
    result = rows.to_list()
    assert [[id for id in row if id in ids] for row in result] == expected
    assert result == [oracle.encode(text) for text in texts]
    back = [text.decode() for text in tokenizer.detokenize(rows).numpy()]
    assert back == [oracle.decode(row) for row in result]
    assert back[: len(USER_DEFINED)] == [f"{name} The door." for name in USER_DEFINED]

    module = tf.Module()
    module.op = tokenizer.op
    module.ids = tf.function(lambda texts: module.op.tokenize(texts), [tf.TensorSpec([None], tf.string)])
    tf.saved_model.save(module, tmp_path / "saved")
    assert tf.saved_model.load(tmp_path / "saved").ids(tf.constant(texts)).to_list() == result
    for name, content in tokenizer.files.items():
        (tmp_path / name).write_bytes(content)
    if HAS_EXTENSIONS:
        from tf_transformer.extensions.interop.engines import litert_client

        client = litert_client._SentencePiece(tmp_path)
        assert ([client.encode(text) for text in texts], [client.decode(row) for row in result]) == (result, back)
    vocabulary = [piece.decode() for piece in tokenizer.pieces(range(tokenizer.vocab_size)).numpy()]
    assert [[vocabulary.index(piece) for piece in oracle.encode(text, out_type=str)] for text in texts] == result


@pytest.mark.parametrize(
    ("strings", "message"),
    [
        ("<2de>", "user_defined_symbols: expected a list, got '<2de>'"),
        (["<2de>", ""], "user_defined_symbols: expected printable text without whitespace, such as '<2de>'; got ''"),
        (["to de"], "user_defined_symbols: expected printable text .* got 'to de'"),
        (["a\u2003b"], "user_defined_symbols: expected printable text .* got 'a.u2003b'"),
        (["\u2581de"], "user_defined_symbols: expected printable text .* got '\u2581de'"),
        (["\ud83d"], "user_defined_symbols: expected printable text .* got '.ud83d'"),
        ([7], "user_defined_symbols: expected printable text .* got 7"),
        (["<2de>", "<2fr>", "<2de>"], "user_defined_symbols: expected unique strings, got '<2de>' twice"),
        (["<s>"], "user_defined_symbols: expected text other than reserved tokens, got '<s>'"),
        (["<0x41>"], "user_defined_symbols: expected text other than reserved tokens, got '<0x41>'"),
        ([f"<{n}>" for n in range(50)], r"vocab_size: expected at least 311 \(symbols, bytes, a piece\), got 310"),
    ],
)
def test_wrong_user_defined_symbols(strings, message):
    with pytest.raises(tt.BadInput, match=f"^{message}$"):
        tt.Tokenizer.train_from_iterator(["The door"] * 9, 310, user_defined_symbols=strings)


def test_without_tensorflow_text_one_line_says_so(pair, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    minor, tokenizer = re.escape(".".join(tf.__version__.split(".")[:2])), tt.Tokenizer(pair[0].model)
    assert tokenizer.decode(tokenizer.encode(["a door"])) == ["a door"]
    for needs_text in (lambda: tokenizer.tokenize(["a door"]), lambda: SavedModel(tmp_path)):
        with pytest.raises(tt.BadInput, match=rf"^text: expected tensorflow-text {minor}, .*tensorflow_text.*$"):
            needs_text()


LONG = ["The old woman opens the red door. ", "東京 ", "½ ﬁ 각 😀", "door\t\n ", "ü" * 16]


@pytest.mark.parametrize("text", LONG)
def test_truncation_keeps_the_first_tokens(text, translator):
    tokenizer, most = translator.tokenizer, 64 * 42  # for 41 tokens
    for size in (1, most, most + 1, 17 * most):
        whole = (text.encode() * size)[:size]
        left, cut = truncate_in_graph([whole], 41)
        assert truncate_texts([whole], 41)[0] == (left[0].numpy().decode() if size > most else whole, cut[0])
        before, after = (tokenizer.tokenize(each)[0, :41].numpy().tolist() for each in ([whole], left))
        assert after == before
        assert len(left[0].numpy()) <= most and (size > most or left[0].numpy() == whole)
        ids, length, truncated = translator.source([whole, "Two doors."])
        assert [id for id in ids[0].numpy() if id > 2] == before
        assert bool(truncated[0]) == (len(tokenizer.tokenize([whole])[0]) > 41) and int(length[1]) < 12
        assert bool(cut[0]) == (size > most + 1) or size == most + 1


@pytest.mark.extensions
@pytest.mark.parametrize(
    "text", ["a\x85b ", "\x1c\x1da", "d\u00fc\u00df", "\u3000\u72d7\u200a", "\x7f\ufeffa\t", "\U0001f600"]
)
def test_the_client_of_exports_truncates_as_a_graph(text):
    whole = [(shift + text * 4_000).encode() for shift in ("", "x", "xy", "xyz")]
    export = SimpleNamespace(_signatures=[SimpleNamespace(tokens=41)], _tokenizer=SimpleNamespace(encode=str))
    from tf_transformer.extensions.interop.engines import litert_client

    client = [litert_client._Translator.source_ids(export, each) for each in whole]
    assert [each.encode() for each in client] == truncate_in_graph(whole, 41)[0].numpy().tolist()


def test_white_space_does_not_truncate_a_text(translator):
    for middle in (b" " * 9_999, b"\n\x00\x85" * 3_333, "\u3000".encode() * 3_333, b"\xff" * 9_999):
        text = b"Two" + middle + b"doors." + middle
        (read,), (cut,) = truncate_in_graph([text], 41)
        assert truncate_texts([text], 41)[0] == (read.numpy().decode(), cut)
        ids, length, truncated = translator.source([text])
        expected = translator.source(["Two doors."])
        assert ids.numpy().tolist() == expected[0].numpy().tolist() and not truncated[0] and length == expected[1]
    assert translator.source([b" " * 9_999])[1:] == (0, False)
    ids, length, truncated = translator.source(["Two" + "\u200c" * 9_999 + " doors."])  # normalization drops U+200C
    assert truncated[0] and ids.numpy().tolist() == translator.source(["Two"])[0].numpy().tolist()
    assert truncate_texts(["a" * 127 + "東" * 7], 1)[0] == ("a" * 127 + " ", True)
    left, cut = truncate_in_graph(["a" * 127 + "東" * 7], 1)
    assert cut[0] and left[0].numpy() == b"a" * 127 + b" "
