"""Tests of shortlists: candidates, searches among them, files, and exports."""

import gzip
import itertools
import math
from collections import defaultdict

import keras
import numpy as np
import pytest
from conftest import array
from exported import agree, sentences, trained
from programs import ROOT
from promises import tensorflow_only

import tf_transformer as tt
from tf_transformer.decoding.shortlist import BLOCK, Shortlist
from tf_transformer.extensions.interop.engines.litert_client import opened
from tf_transformer.extensions.interop.formats import litert
from tf_transformer.extensions.interop.shortlist import read_shortlist, vocabulary_map, write_lexicon
from tf_transformer.inference.loading import load

FIRST = 20
M2M100 = ROOT / "tests/m2m100/trained"
SHORT = ["A dog.", "Two dogs sleep here.", "", "The red door."]


def random_shortlist(translator, first=FIRST, each=3, seed=1):
    """Some tokens, and others for each source token."""
    config, random = translator.model.config, np.random.default_rng(seed)
    size = getattr(config, "source_vocab_size", None) or config.vocab_size
    lists = random.integers(first, config.vocab_size, (size, each))
    lists[0] = lists[:, 1] = 0  # fewer for each
    return Shortlist(np.arange(first, dtype="int32"), lists.astype("int32"))


@pytest.fixture(scope="module")
def short(translator):
    return translator.replace(shortlist=random_shortlist(translator))


def test_candidates_of_a_sentence_are_its_own(short):
    shortlist, random = short.shortlist, np.random.default_rng(2)
    source, prefix = random.integers(1, 350, (3, 9)).astype("int32"), np.array([[5, 300, 0], [0, 0, 0], [300, 301, 0]])
    source[0, 4:] = source[1, :] = 0
    for fixed in (True, False) if short.fixed_shapes(np.zeros((1, 4)), 1) is None else (True,):
        found, has_more = map(array, shortlist.candidates(source, prefix.astype("int32"), fixed))
        assert not has_more.any()
        assert found.shape[1] % BLOCK == 0
        for row, ids, more in zip(found, source, prefix, strict=True):
            expected = {*range(FIRST), *shortlist.lists[ids].ravel().tolist(), *more.tolist()}
            assert row[:FIRST].tolist() == [*range(FIRST)]
            assert [*filter(None, row[FIRST:])] == sorted(expected - {*range(FIRST)}, reverse=True)
    source = np.tile(np.arange(4, 54, dtype="int32"), (2, 1))
    source[1, 3:] = 0
    found, has_more = map(array, shortlist.candidates(source, None, True, 30))
    assert found.shape == (2, BLOCK) and has_more.tolist() == [True, False]


def test_the_best_output_is_that_of_the_masked_softmax(translator):
    """Among all outputs of up to three tokens, by the whole model without a cache and NumPy's softmax."""
    lists = np.zeros((350, 1), "int32")
    lists[100:350] = np.arange(100, 350)[:, None]
    short = translator.replace(shortlist=Shortlist(np.array([0, 1, 2, 3, 40, 41], "int32"), lists))
    options = {"beam_size": 81, "patience": math.inf, "length_penalty": 1.0}
    source, length = np.array([[120, 7, 2, 0], [130, 131, 120, 2]], "int32"), np.array([2, 3], "int32")
    found = short.search(source, length, max_length=3, n_best=5, **options)
    for row in range(2):
        tokens = [0, 1, 2, 3, 40, 41, *(id for id in source[row] if id >= 100)]
        middle = [id for id in tokens if id != 2]
        outputs = [(*start, 2) for n in range(3) for start in itertools.product(middle, repeat=n)]
        target = np.array([[1, *output, 0, 0][:3] for output in outputs])
        model = translator.model
        memory, mask, _ = model.encode(source[row : row + 1])
        every = [np.repeat(array(part), len(outputs), axis=0) for part in (memory, mask)]
        logits = array(model.decode(target, *every)[0]).astype("float64")[:, :, tokens]
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        scores = [
            sum(log_probs[i, k, tokens.index(id)] for k, id in enumerate(output)) / ((5 + len(output)) / 6)
            for i, output in enumerate(outputs)
        ]
        # A target hides padding, so outputs that continue after it are not comparable.
        best = [i for i in np.argsort(scores)[::-1] if 0 not in outputs[i]][:3]
        ours = [tuple(ids[:n]) for ids, n in zip(array(found.ids)[row], array(found.lengths)[row], strict=True)]
        ranks = [k for k, output in enumerate(ours) if 0 not in output][:3]
        assert [ours[k] for k in ranks] == [outputs[i] for i in best]
        np.testing.assert_allclose(array(found.scores)[row][ranks], [scores[i] for i in best], atol=1e-4)


def ids_of(translator, texts):
    """Returns padded ids and lengths."""
    rows = [[*ids, 2] for ids in translator.tokenizer.encode(texts)]
    return keras.utils.pad_sequences(rows, padding="post"), np.array([len(row) - 1 for row in rows], "int32")


def test_a_shortlist_of_all_tokens_changes_nothing(translator):
    """Nor do rules for tokens, whose ids are indices of candidates."""
    lists = np.tile(np.arange(349, 149, -1, dtype="int32"), (350, 1))  # not in the order of ids
    lists[0] = 0
    every, texts = translator.replace(shortlist=Shortlist(np.arange(150, dtype="int32"), lists)), SHORT[:2]
    prefix = np.array([[300, 20], [0, 0]], "int32")
    for options in ({"min_length": 3, "no_repeat_ngram_size": 1}, {"prefix": prefix}):
        options |= {"n_best": 2, "max_length": 4}
        ours, theirs = (each.search(*ids_of(each, texts), **options) for each in (every, translator))
        assert array(ours.ids).tolist() == array(theirs.ids).tolist()
        np.testing.assert_allclose(array(ours.scores), array(theirs.scores), atol=1e-4)
        assert array(ours.ids).max() > 150


def test_a_text_in_a_batch(short):
    """Rows leave, others have more candidates, and a prefix outside of the candidates is kept."""
    source, length = ids_of(short, [SHORT[1], SHORT[0], SHORT[3]])
    prefix = np.array([[0, 0], [345, 346], [0, 0]], "int32")
    most = np.array([4, 3, 2], "int32")
    together = short.search(source, length, prefix=prefix, max_length=most)
    for row in range(2):
        ids, one = source[row : row + 1, : length[row] + 1], slice(row, row + 1)
        alone = short.search(ids, length[one], prefix=prefix[one], max_length=most[one])
        n = int(array(alone.lengths)[0, 0])
        assert n == array(together.lengths)[row, 0]
        assert array(alone.ids)[0, 0, :n].tolist() == array(together.ids)[row, 0, :n].tolist()
        np.testing.assert_allclose(array(alone.scores)[0], array(together.scores)[row], atol=1e-4)
    assert array(together.ids)[1, 0, :2].tolist() == [345, 346]


@pytest.mark.slow
def test_calls_of_a_translator(short):
    """Compiled, with strings."""
    assert short(SHORT) == [short(text) for text in SHORT]
    assert [link.text for link in short.aligned(SHORT)] == short(SHORT)
    assert short.sample(SHORT, seed=3) != short.replace(shortlist=None).sample(SHORT, seed=3)
    several = tt.load(M2M100, beam_size=2, max_source_length=16, source_language="en", target_language="de")
    several = several.replace(shortlist=random_shortlist(several))
    assert several(SHORT) == [several(text) for text in SHORT]
    size = several.model.config.vocab_size
    lists = np.tile(np.arange(10, size, dtype="int32"), (size, 1))
    lists[0] = 0
    every = several.replace(shortlist=Shortlist(np.arange(10, dtype="int32"), lists))
    assert every(SHORT) == several.replace(shortlist=None)(SHORT) != several(SHORT)


def test_files(translator, tmp_path):
    tokenizer, path = translator.tokenizer, tmp_path / "lex.s2t.gz"
    pieces = tokenizer.tokens(range(350))
    lines = [
        (pieces[300], pieces[310], "0.25"),
        (pieces[301], pieces[310], "0.5"),
        (pieces[302], pieces[310], "0.125"),
        (pieces[303], "NULL", "0.5"),
        (pieces[304], "elsewhere", "0.5"),
        (pieces[305], pieces[311], "0"),
    ]
    path.write_bytes(gzip.compress("".join("\t".join(line) + "\n" for line in lines).encode()))
    with pytest.warns(UserWarning, match="1 of 5 lines have other tokens than this model, and are ignored"):
        shortlist = read_shortlist(path, translator, first=2, best=2)
    pieces_of_text = [id for id in range(4, 350) if not pieces[id].startswith("<0x")]
    assert shortlist.always.tolist() == [0, 1, 2, 3, *pieces_of_text[:2]]
    assert shortlist.lists[310].tolist() == [310, 301, 300]  # and its own text
    assert shortlist.lists[311].tolist() == [311, 0, 0] and not shortlist.lists[:4].any()
    vmap = dict(line.split("\t") for line in vocabulary_map(shortlist, tokenizer).splitlines())
    assert vmap[pieces[310]].split(" ") == [pieces[310], pieces[301], pieces[300]]
    assert vmap[""].split(" ") == [pieces[id] for id in shortlist.always[1:]]


BAD = {
    "two columns": "▁a ▁b\n",
    "a word": "▁a ▁b c\n",
    "above one": "▁a ▁b 1.5\n",
    "no number": "▁a ▁b nan\n",
    "four columns": "▁a ▁b 0.5 0.5\n",
    "empty": "\n",
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_refused(name, translator, tmp_path):
    (tmp_path / "lex").write_text(f"▁a ▁a 0.5\n{BAD[name]}", encoding="utf-8")
    with pytest.raises(tt.BadInput, match="lex: line 2: expected a target, a source and a probability, got ") as raised:
        read_shortlist(tmp_path / "lex", translator)
    assert "\n" not in str(raised.value)


def test_a_lexicon_is_of_texts(translator, tmp_path):
    for sources, targets in (([1], ["a"]), (["a"], [b"a"]), (["a"], [])):
        with pytest.raises(tt.BadInput, match="^(sources|targets): expected "):
            write_lexicon(tmp_path / "lex", translator.tokenizer, sources, targets)
    assert not (tmp_path / "lex").exists()


def test_what_does_not_fit_is_refused(translator, tmp_path):
    pieces = translator.tokenizer.tokens(range(350))
    known = f"{pieces[300]} {pieces[310]} 0.5\n"
    for text, got in (("nothing known 0.5\n", "0 of 1"), (known + 2 * "nothing known 0.5\n", "1 of 3")):
        (tmp_path / "lex").write_text(text)
        with pytest.raises(tt.BadInput, match=f"lex: expected lines with tokens of the vocabularies, got {got}"):
            read_shortlist(tmp_path / "lex", translator)
    (tmp_path / "lex").write_text(known)
    assert read_shortlist(tmp_path / "lex", translator, best=10**9).lists.shape[1] <= 2
    always, lists = np.arange(9, dtype="int32"), np.full((350, 1), 30, "int32")
    lists[0] = 0
    for parts, message in (
        ((always[1:], lists), "always: expected different ids that begin with 0, 1, 2, 3"),
        ((always, np.where(lists, 5, lists)), "lists: expected ids .* that are not in `always`"),
        ((always, lists + np.eye(350, 1, dtype="int32")), "lists: expected ids .*, and zeros for padding"),
        ((always.astype("int64"), lists), "expected ids in int32, got int64"),
    ):
        with pytest.raises(tt.BadInput, match=message):
            Shortlist(*parts)
    with pytest.raises(tt.BadInput, match="shortlist: expected a Shortlist of 350 source tokens, got 9 tokens"):
        translator.replace(shortlist=Shortlist(always, lists[:-1]))
    with pytest.raises(tt.BadInput, match="shortlist: expected ids below 350, got 350"):
        translator.replace(shortlist=Shortlist(always, np.where(lists == 30, 350, 0).astype("int32")))

    class OwnLogits(tt.Transformer):
        def logits(self, x, softmax_weights=None):
            return super().logits(x) * 2

    model = OwnLogits(translator.model.config)
    with pytest.raises(tt.BadInput, match="shortlist: expected a model with the logits of Transformer, got OwnLogits"):
        tt.Translator(model, translator.tokenizer, shortlist=Shortlist(always, lists))


def test_formats_without_a_shortlist_refuse_it(short, tmp_path):
    for format in ("transformers", "argos"):
        pytest.importorskip({"transformers": "safetensors"}.get(format, "ctranslate2"))
        with pytest.raises(tt.BadInput, match="shortlist: expected None, since .* has none, got a Shortlist") as raised:
            short.save(tmp_path / "1", format=format)
        assert "\n" not in str(raised.value)


def test_a_lexicon_is_that_of_model_1(translator, tmp_path):
    """Against loops over sentences (Brown et al. 1993, section 4.1)."""
    tokenizer = translator.tokenizer
    pairs = [("The red door.", "Die rote Tür."), ("The door.", "Die Tür."), ("A dog.", "Ein Hund.")]
    write_lexicon(tmp_path / "lex", tokenizer, *map(list, zip(*pairs, strict=True)), iterations=3)
    rows = [(tokenizer.encode([source])[0] + [0], tokenizer.encode([target])[0]) for source, target in pairs]
    table = defaultdict(lambda: 1.0)
    for _ in range(3):
        counts, totals = defaultdict(float), defaultdict(float)
        for source, target in rows:
            for t in target:
                total = sum(table[t, s] for s in source)
                for s in source:
                    counts[t, s] += table[t, s] / total
                    totals[s] += table[t, s] / total
        table = defaultdict(float, {(t, s): count / totals[s] for (t, s), count in counts.items()})
    found = [line.split() for line in (tmp_path / "lex").read_text(encoding="utf-8").splitlines()]
    pieces = tokenizer.tokens(range(350))
    expected = {(pieces[t], pieces[s]): p for (t, s), p in table.items() if s >= 4 and t >= 4 and p >= 1e-3}
    assert {(t, s) for t, s, _ in found} == expected.keys()
    for t, s, p in found:
        assert abs(float(p) - expected[t, s]) < 1e-5
    with pytest.raises(tt.BadInput, match="targets: expected one for each of 1 sources, at least one, got 0"):
        write_lexicon(tmp_path / "no", tokenizer, ["a"], [])


@tensorflow_only
@pytest.mark.slow
def test_ctranslate2_gets_the_same_candidates(short, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    short.save(tmp_path / "1", format="ctranslate2")
    engine = ctranslate2.Translator(str(tmp_path / "1"))
    tokens = [short.tokenizer.tokens(ids) for ids in short.tokenizer.encode(SHORT[:1])]
    options = {"beam_size": 3, "num_hypotheses": 3, "length_penalty": 0, "patience": 9, "max_decoding_length": 6}
    (result,) = engine.translate_batch(tokens, use_vmap=True, return_scores=True, min_decoding_length=0, **options)
    ours = short.replace(length_penalty=0, patience=9).n_best(SHORT[:1], 3, max_length=6)[0]
    scores = [best.log_prob for best in ours if best.finished]
    np.testing.assert_allclose(result.scores[: len(scores)], scores, atol=1e-3)


@tensorflow_only
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("format", ["litert", "onnx"])
def test_portable_exports_search_alike(format, dtype, tmp_path, monkeypatch):
    pytest.importorskip({"litert": "ai_edge_litert", "onnx": "tf2onnx"}[format])
    monkeypatch.setattr(litert, "LENGTHS", (8,))  # with less room than some sentences need
    monkeypatch.setattr(litert, "CANDIDATES", 10)
    short = trained(max_source_length=16, extra_length=9, beam_size=3)
    short = short.replace(shortlist=random_shortlist(short, each=20))
    short.save(tmp_path / "1", format=format, dtype=dtype)
    assert opened(tmp_path / "1").metadata["shortlist"] == repr(short.shortlist)
    texts = [text for text in sentences(30) if len(text) < 40]
    if dtype == "float32":
        agree(short.n_best(texts, 3), tmp_path / "1", texts, 3)
    else:
        same = [ours == theirs for ours, theirs in zip(short(texts), load(tmp_path / "1")(texts), strict=True)]
        assert np.mean(same) > 0.55


@tensorflow_only
@pytest.mark.slow
def test_a_savedmodel_keeps_its_shortlist(short, tmp_path):
    import tensorflow as tf

    for dtype in (None, "int8"):
        path = tmp_path / str(dtype) / "1"
        short.save(path, dtype=dtype, completions=True)
        expected, rebuilt = short if dtype is None else short.astype(dtype), tt.Translator.from_pretrained(path)
        for name in ("always", "lists"):
            assert np.array_equal(*(getattr(each.shortlist, name) for each in (short, rebuilt)))
        client = tt.load(path)
        assert client.metadata["shortlist"] == repr(short.shortlist)
        assert client(SHORT) == expected(SHORT) == rebuilt(SHORT) == [client(text) for text in SHORT]
        exported = tf.saved_model.load(str(path))
        completed = exported.complete(SHORT, ["The", "", "", "Two"])["translations"]
        outputs = expected.n_best(SHORT, 1, ["The", "", "", "Two"])
        assert [text.decode() for text in completed.numpy()[:, 0]] == [best.text for (best, *_) in outputs]
