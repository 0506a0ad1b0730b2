"""Every source gives the same pairs, to a training and to records; so does a class of one's own."""

import dataclasses
import gzip
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import tf_transformer as tt
from tf_transformer.data import toy_corpus
from tf_transformer.data.batches import Batches, tokenized
from tf_transformer.data.corpus import Batching, read_texts
from tf_transformer.data.datasets import token_batches
from tf_transformer.data.pairs import Source, encoder_of
from tf_transformer.data.records import Records
from tf_transformer.data.sources import HeldOut, MemorySource
from tf_transformer.utils.files import encoded

PAIRS = 211
BAD = (13, 89)  # their places


class Lines(Source):
    """A file of JSON, a pair a line."""

    def __init__(self, path, skip_bad_lines=True):
        self.path, self.skip_bad_lines = path, skip_bad_lines

    def describe(self):
        return {"train": str(self.path)}

    def pairs(self):
        yield from map(json.loads, Path(self.path).read_text().splitlines())


class Trees(MemorySource):
    kind = "parsing"

    def __init__(self):
        super().__init__(["a"], ["b"])


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder with the same text in all forms, its pairs and a tokenizer."""
    folder = tmp_path_factory.mktemp("text")
    pairs = [list(pair) for pair in toy_corpus.corpus(train=PAIRS, dev=0, test=0)["train"]]
    pairs[BAD[0]][0], pairs[BAD[1]][1] = "", " \t"
    for side, language in enumerate(("en", "de")):
        lines = "".join(pair[side] + "\n" for pair in pairs)
        (folder / f"text.{language}").write_text(lines)
        (folder / f"text.{language}.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "text.json").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    tokenizer = tt.Tokenizer.learn_from([text for pair in pairs for text in pair], 400)
    return folder, pairs, tokenizer


def sources(folder, pairs):
    yield tt.sources.TextSource(str(folder / "text.en"), str(folder / "text.de"), skip_bad_lines=True)
    yield tt.sources.TextSource(str(folder / "text.en.gz"), str(folder / "text.de"), skip_bad_lines=True)
    yield MemorySource(*map(list, zip(*pairs, strict=True)))
    yield Lines(folder / "text.json")


def test_all_sources_give_the_same_pairs(text, tmp_path):
    """All at once, and in parts; a bad pair is empty in the first and missing in the second, and keeps its number."""
    folder, pairs, _ = text
    good = [(n, *map(str.encode, pair)) for n, pair in enumerate(pairs, 1) if n - 1 not in BAD]
    for source in sources(folder, pairs):
        rows = list(source.rows())
        assert [row for row in rows if row[1]] == good and len(rows) == PAIRS
        assert [row for row in rows if not row[1]] == [(place + 1, b"", b"") for place in BAD]
        parts = pickle.loads(pickle.dumps(source)).parts(17, tmp_path)
        assert [part.first for part in parts] == list(range(0, PAIRS, 17))
        found = [(part.first + n + 1, *pair) for part in parts for n, *pair in source.good_pairs(part)]
        assert found == good
        assert sorted(source.sentences()) == sorted(text for pair in pairs for text in pair)
        assert list(source.sample(parts, 2 * len(parts)))[2:6] == [*pairs[1], *pairs[17]]


def test_a_source_of_ones_own_trains_and_makes_records(text, tmp_path):
    folder, pairs, tokenizer = text
    of_text, *_, own = sources(folder, pairs)
    batching = Batching(tokenizer, 512, 3)
    batches = tt.Corpus(own, (["a"], ["b"])).batches(batching)
    for row, line in zip(batches[5].source, batches[5].lines, strict=True):
        assert tokenizer.detokenize([row])[0].numpy().decode() == pairs[line - 1][0]
    summary = batches.summary()
    assert (summary.pairs, summary.skipped) == (PAIRS - len(BAD), len(BAD))
    shards = []
    for name, each in (("own", own), ("text", of_text)):
        work = tt.Preparation(each, tmp_path / name)
        shards.append(work.run(each.parts(50, work.folder), tokenizer))
    assert shards[0] == shards[1] and len(shards[0]) == 5
    assert Batches(Records(tmp_path / "own").blocks(), 512).summary() == summary


def test_tagged_sources_are_one_source(text, tmp_path):
    """As a loop would write it: one after the other, a tag before each source text; numbers go on."""
    folder, pairs, _ = text
    of_text, packed, of_memory, own = sources(folder, pairs)
    tagged = {"<2de>": of_text, "": of_memory, "<2it>": tt.sources.TaggedSource({"<old>": packed, "<new>": own})}
    both = pickle.loads(pickle.dumps(tt.sources.TaggedSource(tagged)))
    expected = [
        (f"{tag}{source}".encode(), target.encode())
        for tag in ("<2de> ", "", "<2it> <old> ", "<2it> <new> ")
        for source, target in pairs
    ]
    assert [tuple(map(encoded, pair)) for pair in both.pairs()] == expected
    bad = {start + place for start in range(0, 4 * PAIRS, PAIRS) for place in BAD}
    good = [(n, *pair) for n, pair in enumerate(expected, 1) if n - 1 not in bad]
    rows = list(both.rows())
    assert [row[0] for row in rows] == list(range(1, 4 * PAIRS + 1))
    assert [row for row in rows if row[0] - 1 not in bad] == good
    assert {(row[0] - 1, *row[1:]) for row in rows} - {(n - 1, *pair) for n, *pair in good} == {
        (place, b"", b"") for place in bad
    }
    parts = both.parts(17, tmp_path)
    assert [part.number for part in parts] == list(range(4 * -(-PAIRS // 17)))
    assert [part.first for part in parts] == [
        start + n for start in range(0, 4 * PAIRS, PAIRS) for n in range(0, PAIRS, 17)
    ]
    assert [tuple(map(encoded, pair)) for part in parts for pair in both.read(part)] == expected
    assert [(part.first + n + 1, *pair) for part in parts for n, *pair in both.good_pairs(part)] == good
    assert list(both.sample(parts, 2 * len(parts)))[2:6] == [text.decode() for n in (1, 17) for text in expected[n]]
    assert both.texts() == tuple([pair[side].decode() for _, *pair in good] for side in (0, 1))
    assert both.symbols == ["<2de>", "<2it>", "<old>", "<new>"]
    assert both.describe() != tt.sources.TaggedSource(dict(reversed(tagged.items()))).describe()


def test_joined_sources_are_their_texts_one_after_the_other(text, tmp_path):
    """As files that a shell would join; a source, and a tag, may come twice."""
    folder, pairs, tokenizer = text
    of_text, *_, own = sources(folder, pairs)
    joined = pickle.loads(pickle.dumps(tt.sources.JoinedSource([of_text, own, of_text])))
    for language in ("en", "de"):
        (tmp_path / f"text.{language}").write_bytes((folder / f"text.{language}").read_bytes() * 3)
    whole = tt.sources.TextSource(tmp_path / "text.en", tmp_path / "text.de", skip_bad_lines=True)
    assert list(joined.rows()) == list(whole.rows()) and joined.texts() == whole.texts()
    expected = [tuple(map(encoded, pair)) for pair in pairs] * 3
    assert [tuple(map(encoded, pair)) for pair in joined.pairs()] == expected
    assert sorted(joined.sentences()) == sorted(whole.sentences())
    found = [HeldOut(source, 7.0) for source in (joined, whole)]
    assert found[0].dev() == found[1].dev() and list(found[0].rows()) == list(found[1].rows())
    filled = []
    for name, source in (("joined", joined), ("whole", whole)):
        work = tt.Preparation(source, tmp_path / name, tt.Filters(duplicates=True))
        work.run(source.parts(PAIRS, work.folder), tokenizer)
        records = Records(work.folder)
        filled.append((records.filtered, [records._read([shard]) for shard in records.shards]))
    assert filled[0][0] == filled[1][0] and filled[0][0]["duplicates"] > 2 * (PAIRS - len(BAD)) - 1
    for ids, expected in zip(filled[0][1], filled[1][1], strict=True):
        for side in ("source", "target"):
            assert all(map(np.array_equal, getattr(ids, side), getattr(expected, side)))
        assert np.array_equal(ids.lines, expected.lines)
    twice = tt.sources.TaggedSource([("<2de>", of_text), ["", own], ("<2de>", own)])
    tags = [b"<2de> "] * PAIRS + [b""] * PAIRS + [b"<2de> "] * PAIRS
    assert [encoded(one) for one, _ in twice.pairs()] == [
        tag + encoded(one) for tag, (one, _) in zip(tags, joined.pairs(), strict=True)
    ]
    assert twice.symbols == ["<2de>"] and joined.symbols == []
    with pytest.raises(tt.BadInput, match="^sources: expected sources of pairs by their tags, got \\(\\)$"):
        tt.sources.JoinedSource([])


def test_joined_sources_keep_the_longest_pairs_that_one_of_them_keeps():
    longer = MemorySource(["a"], ["b"])
    object.__setattr__(longer, "max_length", 311)
    assert tt.sources.JoinedSource([MemorySource(["a"], ["b"]), longer]).max_length == 311


@pytest.mark.parametrize("bad", [None, ("a", "b", "c"), ("a", None), "ab", 7, {"a": 1, "b": 2}, {"a", "b"}, ("a",)])
def test_what_is_no_pair_is_named(bad, text, tmp_path):
    """Whether a vocabulary is learned, or given; in a source alone, or in one of several; in a part, or in all."""
    *_, tokenizer = text

    class Own(Source):
        def describe(self):
            return {"train": "own"}

        def pairs(self):
            yield from [("a", "b"), (b"c", np.str_("d")), ["e", "f"], bad]

    dev, message = (["a"], ["b"]), "^pair 4: expected two texts, as str or bytes, got .*. Skip such pairs.$"
    for name, source in (("own", Own()), ("joined", tt.sources.JoinedSource([Own()]))):
        work = tt.Preparation(source, tmp_path / name)
        for read in (
            lambda source=source: tt.Corpus(source, dev).learn_tokenizer(300, "bpe"),
            lambda source=source: tt.Corpus(source, dev).batches(Batching(tokenizer, 512, 3)),
            lambda work=work: work.run(work.source.parts(3, work.folder), tokenizer),
            lambda source=source: list(source.sample(source.parts(3, tmp_path), 99)),
            lambda source=source: token_batches(source.pairs(), tokenizer),
        ):
            with pytest.raises(tt.BadInput, match=message):
                read()


@pytest.mark.parametrize("model", ["tests/marian/trained", "tests/m2m100/trained", "learned"])
def test_tags_that_a_tokenizer_lacks_are_refused(model, text, tmp_path):
    """A direction would be lost, silently. Every door: a start, a tokenizer, records."""
    options, pair = {}, MemorySource(["a dog"], ["b"])
    if model == "learned":
        tokenizer, config = text[2], dataclasses.replace(tt.PRESETS["tiny"], vocab_size=400)
    else:
        options = {"source_language": "en", "target_language": "de"} if "m2m100" in model else {}
        start = tt.Translator.from_pretrained(Path(__file__).parents[2] / model, **options)
        tokenizer, config, options = start.tokenizer, start.model.config, {"start": start}
    tagged = tt.sources.TaggedSource({"": pair, "<2>": pair, "__en__": tt.sources.TaggedSource({"<3>": pair})})
    message = "^tokenizer: expected one with a token for each tag .*, got none for <2>, __en__, <3>. Train one .*$"
    corpus, recipe = tt.Corpus(tagged, (["a"], ["b"])), tt.Recipe(steps=2, batch_tokens=512)
    given = [{"tokenizer": tokenizer}, options] if options else [{"tokenizer": tokenizer}]
    for number, one in enumerate(given):
        with pytest.raises(tt.BadInput, match=message):
            tt.Trainer(tmp_path / str(number), config, corpus, recipe, **one).fit()
    work = tt.Preparation(tagged, tmp_path / "records")
    with pytest.raises(tt.BadInput, match=message):
        work.run(tagged.parts(3, work.folder), tokenizer)
    assert not list(tmp_path.iterdir())


def test_tags_that_are_tokens_are_taken():
    """Of a vocabulary that has them as symbols, or as a word."""
    pair = MemorySource(["a dog"], ["b"])
    tokenizer = tt.Tokenizer.learn_from(["de a dog"] * 9, 272, symbols=["<2de>", "<2fr>"])
    for tags in (["<2de>", "<2fr>"], ["de"]):
        source = tt.sources.TaggedSource(dict.fromkeys(tags, pair))
        (ids,), _ = source.encoder(tokenizer)([b"de a"], [b"b"])
        assert ids == tokenizer.encode(["de a"])[0]


@pytest.mark.program
def test_a_corpus_and_records_of_tagged_sources(text, tmp_path):
    _, pairs, _ = text
    sides = [[*side, "Hallo"] for side in zip(*pairs, strict=True)]
    german, english = MemorySource(*sides), MemorySource(*sides[::-1])
    source = tt.sources.TaggedSource({"<2de>": german, "<2en>": english})
    expected = dict(enumerate([f"<2de> {text}" for text in sides[0]] + [f"<2en> {text}" for text in sides[1]], 1))
    for line in (*BAD, *(PAIRS + 1 + place for place in BAD)):
        del expected[line + 1]

    corpus = tt.Corpus(source, source.texts())
    tokenizer = corpus.learn_tokenizer(400, "bpe")
    assert tokenizer.ids(["<2de>", "<2en>"]).numpy().tolist() == [4, 5]
    batching = Batching(tokenizer, 512, 3, folder=tmp_path / "ids")
    ids = corpus.ids(batching)
    found = tokenizer.detokenize(ids.batch(np.arange(len(ids))).source).numpy()
    assert dict(zip(ids.lines.tolist(), map(bytes.decode, found), strict=True)) == expected
    corpus.keep_ids(batching, corpus.batches(batching))
    assert batching.folder.exists()  # since all its sources have checksums
    others = [{"<2en>": english, "<2de>": german}, {"<2de>": german, "<2fr>": english}, {"<2de>": german}]
    assert source.describe() not in [tt.sources.TaggedSource(other).describe() for other in others]

    work = tt.Preparation(source, tmp_path / "records", tt.Filters(identical=True))
    work.run(source.parts(150, work.folder), tokenizer)
    records = Records(work.folder)
    assert records.filtered == {"identical": 2}  # tags are no part of a text
    made = Batches(records.blocks(), 512, 3)
    batches = map(made.__getitem__, range(len(made)))
    found = {line: row for batch in batches for line, row in zip(batch.lines.tolist(), batch.source, strict=True)}
    texts = [tokenizer.detokenize([row]).numpy()[0] for row in found.values()]
    identical = (PAIRS + 1, 2 * PAIRS + 2)
    assert {line: text for line, text in expected.items() if line not in identical} == dict(
        zip(found, map(bytes.decode, texts), strict=True)
    )


def test_a_bad_pair_is_an_error_that_says_where(text):
    folder, _, tokenizer = text

    def read(source):
        return tokenized(source.rows(), encoder_of(tokenizer), 256, 400)

    with pytest.raises(tt.BadInput, match="^source, pair 14: expected a sentence in UTF-8, got an empty line$"):
        read(Lines(folder / "text.json", skip_bad_lines=False))
    with pytest.raises(json.JSONDecodeError):
        read(Lines(folder / "text.en"))


def test_half_a_pair_of_surrogates_is_one_bad_line():
    both = MemorySource(["a \ud83d b", "a"], ["b", "c"])
    assert list(both.rows()) == [(1, b"", b""), (2, b"a", b"c")]
    assert encoded("\ud83d") == b"\xed\xa0\xbd" and len(both.describe()["sha256"]) == 64


@pytest.mark.parametrize(
    ("tagged", "message"),
    [
        ({}, "sources: expected sources of pairs by their tags, got {}"),
        ({"<2de>": ["a"]}, "sources: expected sources of pairs by their tags, got .*"),
        ({"to de": MemorySource(["a"], ["b"])}, "sources: expected printable text without white space, .* got 'to de'"),
        ({"</s>": MemorySource(["a"], ["b"])}, "sources: expected none of the vocabulary's own pieces, got '</s>'"),
        ([MemorySource(["a"], ["b"])], "sources: expected sources of pairs by their tags, got .*"),
        ([("<2de>", MemorySource(["a"], ["b"]), 3)], "sources: expected sources of pairs by their tags, got .*"),
        ({"<2de>": Trees()}, "sources: expected sources of translation, got one of parsing"),
    ],
)
def test_what_is_no_tagged_source(tagged, message):
    with pytest.raises(tt.BadInput, match=f"^{message}$"):
        tt.sources.TaggedSource(tagged)


def test_a_source_in_memory_is_known_by_its_contents(monkeypatch):
    """As where each text has its length."""
    texts = ["a", "b", "a\tb", "b\tc", "a\nb", "c", ""]
    sources = [MemorySource([a], [b]) for a in texts for b in texts]
    sources += [MemorySource([a, b], [b, c]) for a in texts for b in texts for c in texts[:3]] + [MemorySource([], [])]
    lengths = [f"{[(len(a), a, len(b), b) for a, b in source.pairs()]}" for source in sources]
    assert len({source.describe()["sha256"] for source in sources}) == len(set(lengths)) == len(sources)
    plain = MemorySource(["Two doors.", "One \ud83d"], ["Zwei Türen.", "Eins"])
    known = plain.describe()
    monkeypatch.setattr(MemorySource, "pairs", lambda self: pytest.fail("read it again"))
    assert known == plain.describe() == pickle.loads(pickle.dumps(plain)).describe()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("dev.en", "dev.de"), r"expected a list of 2 lists( or None)?, got \('dev.en', 'dev.de'\)"),
        ([], r"expected a list of 2 lists( or None)?, got \[\]"),
        (([], []), "expected sources and their references, got none"),
        ((["a", 7], ["b", "c"]), "expected texts, got int at place 1"),
        ((["a"], [b"b"]), "expected texts, got bytes at place 0"),
        ((["a"], np.array([["b"]])), "expected texts, got ndarray at place 0"),
        (({"a", "b"}, {"c", "d"}), r"expected a list of 2 lists( or None)?, got \(\{'.*"),
        ((["a"], ["b", "c"]), "expected as many references as sources, 1, got 2"),
    ],
)
def test_what_is_no_dev_text(given, message):
    train = MemorySource(["a"], ["b"])
    with pytest.raises(tt.BadInput, match=f"^dev: {message}$"):
        tt.Corpus(train, given)
    with pytest.raises(tt.BadInput, match=f"^test: {message}$"):
        tt.Corpus(train, (["a"], ["b"]), given)


def test_a_dev_text_is_lists_of_texts():
    """Of whatever has an order; an iterator is read once, for the test text, too."""
    texts = ["Two doors.", "One"]
    for given in (texts, tuple(texts), np.array(texts), iter(texts)):
        corpus = tt.Corpus(MemorySource(["a"], ["b"]), (given, texts[::-1]))
        assert corpus.dev == corpus.test == (texts, texts[::-1])
        assert {type(text) for text in corpus.dev[0]} == {str} and type(corpus.dev[0]) is list


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_a_text_file_that_is_not_there(name, tmp_path):
    source = tt.sources.TextSource(tmp_path / name, tmp_path / name)
    for read in (source.describe, source.check, source.texts, lambda: source.learn_tokenizer(300, "bpe")):
        with pytest.raises(FileNotFoundError, match=f"^expected a text file, found none at {tmp_path / name}$"):
            read()


@pytest.mark.parametrize("name", ["nowhere", "nowhere/de-en", "wmt14_translate/xx-yy"])
def test_a_corpus_that_tensorflow_datasets_lacks(name, tmp_path):
    pytest.importorskip("tensorflow_datasets")
    with pytest.raises(tt.BadInput, match=f"^{name}: expected a corpus of TensorFlow Datasets, got none: .*$") as error:
        tt.sources.TfdsSource(name, data_dir=tmp_path).describe()
    assert len(str(error.value)) < 300


def test_a_source_in_memory_does_not_change():
    lists = ["a"], ["b"]
    source = MemorySource(*lists)
    known = source.describe()
    lists[0][0] = "c"
    assert list(source.pairs()) == [("a", "b")] and source.describe() == known


def test_files_are_known_by_their_contents(text, tmp_path):
    """Not by their sizes: plain or packed, read line by line, in ranges, or as a whole."""
    folder, pairs, _ = text
    plain, packed = list(sources(folder, pairs))[:2]
    whole = plain.describe()["sha256"]
    assert whole == packed.describe()["sha256"]
    checked, in_parts = (type(plain)(plain.source, plain.target, True) for _ in range(2))
    assert checked.check() == PAIRS and checked.describe()["sha256"] == whole
    assert in_parts.parts(17, tmp_path) and in_parts.describe()["sha256"] == whole
    content = Path(plain.source).read_text()
    (tmp_path / "text.en").write_text(content.swapcase())
    edited = type(plain)(tmp_path / "text.en", plain.target, True).describe()["sha256"]
    assert edited[0] != whole[0] and edited[1] == whole[1]


def test_sides_that_do_not_belong_together(tmp_path):
    (tmp_path / "long").write_text("a\nb\nc\n")
    (tmp_path / "short").write_text("a\n")
    for sides, counts in ((("long", "short"), (3, 1)), (("short", "long"), (1, 3))):
        source = tt.sources.TextSource(*(tmp_path / side for side in sides))
        names = [f"{count} in {tmp_path / side}" for side, count in zip(sides, counts, strict=True)]
        with pytest.raises(
            tt.BadInput, match=f"^expected the same number of lines in both files, got {' and '.join(names)}$"
        ):
            list(source.rows())
    with pytest.raises(tt.BadInput, match="^target: expected 1 texts, as many as of source, got 2$"):
        MemorySource(["a"], ["b", "c"])
    with pytest.raises(tt.BadInput, match="^target: expected texts, got bytes at place 1$"):
        MemorySource(["a", "b"], ["c", b"d"])
    with pytest.raises(tt.BadInput, match="^train: expected two files, source and target, got 1$"):
        tt.TextCorpus(["train.en"], ["dev.en", "dev.de"])
    with pytest.raises(tt.BadInput, match="^files: expected two files, source and target, got 3$"):
        read_texts(["a", "b", "c"])
