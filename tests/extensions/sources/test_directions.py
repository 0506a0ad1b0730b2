"""Several sources in one corpus: weights, language pairs by row, and a dev set that is held out of all of them."""

import itertools
import math
import pickle

import numpy as np
import pytest
from checkpoints import M2M100

import tf_transformer as tt
from tf_transformer.data import toy_corpus
from tf_transformer.data.corpus import Batching
from tf_transformer.extensions.sources import (
    DirectedSource,
    HeldOut,
    JoinedSource,
    MemorySource,
    ParquetSource,
    TaggedSource,
    TextSource,
    temperature_weights,
)

PAIRS = [(source, target) for source, target in toy_corpus.corpus(train=211, dev=0, test=0)["train"]]
ENGLISH, GERMAN = (list(side) for side in zip(*PAIRS, strict=True))
FRENCH = [f"le {text}" for text in ENGLISH]


@pytest.fixture(scope="module")
def tokenizer():
    return tt.Translator.from_pretrained(M2M100, source_language="en", target_language="de").tokenizer


def numbered(count, letter="a"):
    texts = [f"{letter}{number}" for number in range(1, count + 1)]
    return MemorySource(texts, texts)


def test_weights_are_copies_of_pairs():
    joined = JoinedSource([numbered(2), numbered(3, "b"), numbered(5, "c")], weights=[1, 2.5, 0.4])
    # floor(2.5 n) is 2, 5, 7, and floor(0.4 n) is 0, 0, 1, 1, 2.
    expected = ["a1", "a2", "b1", "b1", "b2", "b2", "b2", "b3", "b3", "c3", "c5"]
    assert [source.decode() for _, source, _ in joined.rows()] == expected
    assert [number for number, *_ in joined.rows()] == [1, 2, 3, 3, 4, 4, 4, 5, 5, 8, 10]
    assert [source.decode() for source, _ in joined.pairs()] == expected
    tagged = TaggedSource({"<2de>": numbered(2), "<2fr>": numbered(1)}, [1, 3])
    assert [source.decode() for source, _ in tagged.pairs()] == ["<2de> a1", "<2de> a2", *["<2fr> a1"] * 3]
    others = [JoinedSource([numbered(2), numbered(3)], weights) for weights in (None, [1, 2], [1, 2.5])]
    assert len({str(source.contents()) for source in others}) == 3
    for weights in ([1], [1, 0], [1, -2], [1, math.nan], "ab"):
        with pytest.raises(tt.BadInput, match="^weights: expected "):
            JoinedSource([numbered(2), numbered(3)], weights)


def test_temperature_weights_are_powers_of_sizes():
    """Of 8 pairs and 1, T=3 makes 8 : 4, that is the cube roots 2 : 1."""
    sources = [numbered(8), numbered(1)]
    for temperature, expected in ((1, 1), (3, 4), (math.inf, 8)):
        assert temperature_weights(sources, temperature) == pytest.approx([1, expected])
    with pytest.raises(tt.BadInput, match="^temperature: expected at least 1, got 0.5$"):
        temperature_weights(sources, 0.5)
    with pytest.raises(tt.BadInput, match="^sources: expected pairs in each, got none at index 1$"):
        temperature_weights([numbered(8), MemorySource([], [])], 5)


def directions():
    german, french = MemorySource(ENGLISH, GERMAN), MemorySource(ENGLISH[:83], FRENCH[:83])
    return JoinedSource([DirectedSource(german, ("en", "de")), DirectedSource(french, ("en", "fr"))], [1, 2.5])


def test_rows_have_the_ids_of_their_language_pair(tokenizer, tmp_path):
    """In memory, in a run that resumes, and in records, whose workers unpickle the source."""
    corpus = tt.Corpus(directions(), directions())
    batching = Batching(tokenizer, 512, 3, folder=tmp_path / "ids")
    copies = [index for index in range(83) for _ in range(int((index + 1) * 2.5) - int(index * 2.5))]
    french, german = tokenizer.with_languages("en", "fr"), tokenizer.with_languages("en", "de")
    targets = german.encode_target(GERMAN) + [french.encode_target(FRENCH[index : index + 1])[0] for index in copies]
    sources = german.encode(ENGLISH) + [french.encode(ENGLISH[index : index + 1])[0] for index in copies]
    lines = [*range(1, 212), *(212 + index for index in copies)]

    def check(ids):
        assert ids.lines.tolist() == lines
        for side, expected in ((ids.source, sources), (ids.target, targets)):
            assert [row.tolist() for row in np.split(side.ids, side.starts[1:-1])] == expected

    ids = corpus.ids(batching)
    check(ids)
    corpus.keep_ids(batching, corpus.batches(batching))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemorySource, "pairs", lambda self: pytest.fail("read it again"))
        check(corpus.ids(batching))
    work = pickle.loads(pickle.dumps(tt.Preparation(directions(), tmp_path / "records")))
    work.run(work.source.parts(53, work.folder), tokenizer)
    (block,) = tt.Records(work.folder).blocks()
    assert block.skipped == 0
    check(block.read())


def test_duplicates_are_those_of_a_language_pair(tokenizer, tmp_path):
    """Copies of a weight are none."""
    once, more = MemorySource(["a dog"], ["c"]), MemorySource(["two dogs", "a dog"], ["d", "c"])
    sources = [
        DirectedSource(once, ("en", "de")),
        DirectedSource(more, ("en", "fr")),
        DirectedSource(more, ("en", "de")),
    ]
    joined, filters = JoinedSource(sources, [3, 1, 2]), tt.Filters(duplicates=True)
    expected = [1, 1, 1, 2, 3, 4, 4]
    assert [row[0] for row in tt.Corpus(joined, (["a"], ["b"]), filters=filters).train.rows()] == expected
    work = tt.Preparation(joined, tmp_path / "records", filters)
    work.run(joined.parts(1, tmp_path), tokenizer)
    (block,) = tt.Records(work.folder).blocks()
    assert block.read().lines.tolist() == expected and tt.Records(work.folder).filtered == {"duplicates": 1}


def test_unknown_languages(tokenizer, tmp_path):
    source = DirectedSource(numbered(3), ("en", "xx"))
    for read in (
        lambda: tt.Corpus(source, (["a"], ["b"])).batches(Batching(tokenizer, 512, 3)),
        lambda: tt.Preparation(source, tmp_path / "records").run(source.parts(3, tmp_path), tokenizer),
    ):
        with pytest.raises(tt.BadInput, match="^target_language: expected one of 100 languages, .* got 'xx'$"):
            read()
    with pytest.raises(tt.BadInput, match="^source: expected one without languages, got one from en to xx$"):
        DirectedSource(source, ("en", "de"))


@pytest.mark.parametrize("kind", ["tags", "languages"])
def test_a_held_out_pair_is_held_out_everywhere(kind, tokenizer, tmp_path):
    sources = [MemorySource(ENGLISH, GERMAN), MemorySource(ENGLISH, FRENCH), MemorySource(GERMAN, ENGLISH)]
    pairs, weights = (("en", "de"), ("en", "fr"), ("de", "en")), [1, 3, 0.7]
    if kind == "tags":
        joined = TaggedSource([(f"<2{pair[1]}>", source) for source, pair in zip(sources, pairs, strict=True)], weights)
    else:
        joined = JoinedSource(list(map(DirectedSource, sources, pairs)), weights)
    corpus = tt.Corpus(joined, dev=0.1)
    assert set(corpus.dev.sets) == ({""} if kind == "tags" else {"en-de", "en-fr", "de-en"})

    def plain(text):
        return text.split("> ")[-1]

    dev = [(plain(source), target) for source, target in zip(*corpus.dev, strict=True)]
    train = [(plain(source.decode()), target.decode()) for _, source, target in corpus.train.rows()]
    german, french = (sum(pair in pairs for pair in dev) for pairs in (PAIRS, [*zip(ENGLISH, FRENCH, strict=True)]))
    assert 10 < german == french  # a pair with a weight of 3 is there once
    assert {source for source, _ in dev}.isdisjoint(source for source, _ in train)
    assert {(target, source) for source, target in dev}.isdisjoint(train)
    parts = pickle.loads(pickle.dumps(corpus.train)).parts(53, tmp_path)
    assert [row for part in parts for row in corpus.train.rows(part)] == list(corpus.train.rows())


def test_every_source_has_a_share_and_filters(tmp_path, capsys):
    """Filters in memory keep what those of records keep."""
    from pyarrow import Table, parquet

    pairs = [*PAIRS[:97], *PAIRS[:13], ("Taxi", "Taxi"), ("Taxi", " Taxi")]
    sides = [list(side) for side in zip(*pairs, strict=True)]
    for side, texts in zip(("en", "de"), sides, strict=True):
        (tmp_path / f"text.{side}").write_text("".join(f"{line}\n" for line in texts))
    parquet.write_table(Table.from_pydict(dict(zip(("en", "de"), sides, strict=True))), tmp_path / "text.parquet")
    files, memory = (tmp_path / "text.en", tmp_path / "text.de"), MemorySource(*sides)
    tagged = TaggedSource({"<2de>": memory})
    filters = tt.Filters(duplicates=True, identical=True)
    learned = tt.Tokenizer.train_from_iterator([*itertools.chain(*sides)], 400, user_defined_symbols=["<2de>"])
    of_files = tt.TextCorpus(files, dev=0.1, filters=filters)
    expected = [row[0] for row in of_files.train.rows()]
    repeated = len(pairs) - len({(source, target.strip()) for source, target in pairs})
    assert capsys.readouterr().out == f"filters dropped {repeated} duplicates, 1 identical\n"
    work = tt.Preparation(HeldOut(TextSource(*files), 0.1), tmp_path / "records", filters)
    work.run(work.source.parts(29, work.folder), learned)
    (ids,) = (block.read() for block in tt.Records(work.folder).blocks())
    assert expected == ids.lines.tolist() and 70 < len(expected) < len({*pairs})
    for source in (ParquetSource(tmp_path / "text.parquet", ("en", "de")), memory, tagged, JoinedSource([memory])):
        corpus = tt.Corpus(source, dev=0.1, filters=filters)
        assert [row[0] for row in corpus.train.rows()] == expected
        assert [source.removeprefix("<2de> ") for source in corpus.dev[0]] == of_files.dev[0]
        assert corpus.describe() != tt.Corpus(source, dev=0.1).describe()
    with pytest.raises(tt.BadInput, match="^filters: expected none, since records are filtered by `prepare`$"):
        tt.Corpus(tt.Records(work.folder), of_files.dev, filters=filters)
    with pytest.raises(tt.BadInput, match="^dev: expected a list of 2 lists, a Source or a dictionary, got 0.1$"):
        tt.Corpus(tt.Records(work.folder), 0.1)


def test_dev_sets_have_names():
    dev = {"news": (["a", "b"], ["c", "d"]), "captions": DirectedSource(numbered(3), ("en", "de"))}
    corpus = tt.Corpus(numbered(3), dev)
    assert corpus.dev == corpus.test == (["a", "b", "a1", "a2", "a3"], ["c", "d", "a1", "a2", "a3"])
    assert [(name, one.languages) for name, one in corpus.dev.sets.items()] == [
        ("news", ()),
        ("captions", ("en", "de")),
    ]
    for bad in ({}, {"news": ([], [])}, {"news": ["a"]}, {"news": directions()}):
        with pytest.raises(tt.BadInput, match="^dev: expected "):
            tt.Corpus(numbered(3), bad)
