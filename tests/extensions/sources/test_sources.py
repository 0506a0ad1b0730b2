"""Every source yields the same pairs, to a training and to records; so does a custom class."""

import dataclasses
import gzip
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import tf_transformer as tt
from tf_transformer.data import toy_corpus
from tf_transformer.data.batches import Batches
from tf_transformer.data.corpus import Batching, read_texts
from tf_transformer.data.datasets import token_batches
from tf_transformer.data.ids import tokenized
from tf_transformer.data.sources import Source, encoder_of
from tf_transformer.extensions.records.records import Records
from tf_transformer.extensions.sources import HeldOut, JoinedSource, MemorySource, TaggedSource, TextSource
from tf_transformer.utils.files import encoded

PAIRS = 211
BAD = (13, 89)  # indices of bad pairs


class Lines(Source):
    """A file of JSON, one pair per line."""

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
    tokenizer = tt.Tokenizer.train_from_iterator([text for pair in pairs for text in pair], 400)
    return folder, pairs, tokenizer


def sources(folder, pairs):
    yield TextSource(str(folder / "text.en"), str(folder / "text.de"), skip_bad_lines=True)
    yield TextSource(str(folder / "text.en.gz"), str(folder / "text.de"), skip_bad_lines=True)
    yield MemorySource(*map(list, zip(*pairs, strict=True)))
    yield Lines(folder / "text.json")


def encoded_pairs(pairs):
    return [tuple(map(encoded, pair)) for pair in pairs]


def check_pairs(source, pairs, bad, tmp_path, firsts=None):
    """Checks that a source has these encoded pairs at once and in shards of 17: bad ones are empty, or missing."""
    good = [(number, *pair) for number, pair in enumerate(pairs, 1) if number - 1 not in bad]
    rows = list(source.rows())
    assert encoded_pairs(source.pairs()) == pairs
    assert [row[0] for row in rows] == list(range(1, len(pairs) + 1))
    assert [row for row in rows if row[0] - 1 not in bad] == good
    assert {row[1:] for row in rows if row[0] - 1 in bad} == {(b"", b"")}
    parts = pickle.loads(pickle.dumps(source)).parts(17, tmp_path)
    assert [part.number for part in parts] == list(range(len(parts)))
    assert [part.first for part in parts] == (firsts or list(range(0, len(pairs), 17)))
    assert encoded_pairs(pair for part in parts for pair in source.read(part)) == pairs
    assert [row for part in parts for row in source.rows(part)] == rows
    sample = [text.decode() for index in (1, 17) for text in pairs[index]]
    assert list(source.sample(parts, 2 * len(parts)))[2:6] == sample
    assert source.texts() == tuple([pair[side].decode() for _, *pair in good] for side in (0, 1))
    assert sorted(source.sentences()) == sorted(text.decode() for pair in pairs for text in pair)


def test_all_sources_have_the_same_pairs(text, tmp_path):
    folder, pairs, _ = text
    for source in sources(folder, pairs):
        check_pairs(source, encoded_pairs(pairs), BAD, tmp_path)


def test_a_custom_source_trains_and_makes_records(text, tmp_path):
    folder, pairs, tokenizer = text
    of_text, *_, custom = sources(folder, pairs)
    batches = tt.Corpus(custom, (["a"], ["b"])).batches(Batching(tokenizer, 512, 3))
    for row, line in zip(batches[5].source, batches[5].lines, strict=True):
        assert tokenizer.detokenize([row])[0].numpy().decode() == pairs[line - 1][0]
    summary = batches.summary()
    assert (summary.pairs, summary.skipped) == (PAIRS - len(BAD), len(BAD))
    shards = []
    for name, each in (("custom", custom), ("text", of_text)):
        work = tt.Preparation(each, tmp_path / name)
        shards.append(work.run(each.parts(50, work.folder), tokenizer))
    assert shards[0] == shards[1] and len(shards[0]) == 5
    assert Batches(Records(tmp_path / "custom").blocks(), 512).summary() == summary


def test_tagged_sources_are_one_source(text, tmp_path):
    """One after the other, a tag before each source text, with consecutive numbers."""
    folder, pairs, _ = text
    of_text, packed, of_memory, custom = sources(folder, pairs)
    tagged = {"<2de>": of_text, "": of_memory, "<2it>": TaggedSource({"<old>": packed, "<new>": custom})}
    both = TaggedSource(tagged)
    tags, starts = ("<2de> ", "", "<2it> <old> ", "<2it> <new> "), range(0, 4 * PAIRS, PAIRS)
    good = [None if index in BAD else pair for index, pair in enumerate(pairs)]
    expected = [pair and (f"{tag}{pair[0]}".encode(), pair[1].encode()) for tag in tags for pair in good]
    expected = [pair or (b"", b"") for pair in expected]
    bad = {start + index for start in starts for index in BAD}
    check_pairs(both, expected, bad, tmp_path, [start + n for start in starts for n in range(0, PAIRS, 17)])
    assert both.symbols == ["<2de>", "<2it>", "<old>", "<new>"]
    assert both.describe() != TaggedSource(dict(reversed(tagged.items()))).describe()
    twice = TaggedSource([("<2de>", of_text), ["", custom], ("<2de>", custom)])
    sides = [pair and pair[0].encode() for pair in good]
    expected = [tag + side if side else b"" for tag in (b"<2de> ", b"", b"<2de> ") for side in sides]
    assert [source for source, _ in twice.pairs()] == expected and twice.symbols == ["<2de>"]


def test_a_segment_that_is_not_read_to_its_end_raises():
    """The numbers of the next one begin after it."""
    both = TaggedSource([("<a>", MemorySource([*"abc"], [*"xyz"])), ("<b>", MemorySource([*"de"], [*"vw"]))])
    assert [[row[0] for row in rows] for _, rows in both.segments()] == [[1, 2, 3], [4, 5]]
    (_, first), (_, second) = both.segments()
    next(first)
    with pytest.raises(RuntimeError, match="^segments: expected each to be read to its end"):
        next(second)


def test_joined_sources_are_like_joined_files(text, tmp_path):
    """A source may occur twice."""
    folder, pairs, tokenizer = text
    of_text, *_, custom = sources(folder, pairs)
    joined = pickle.loads(pickle.dumps(JoinedSource([of_text, custom, of_text])))
    for language in ("en", "de"):
        (tmp_path / f"text.{language}").write_bytes((folder / f"text.{language}").read_bytes() * 3)
    whole = TextSource(tmp_path / "text.en", tmp_path / "text.de", skip_bad_lines=True)
    assert list(joined.rows()) == list(whole.rows()) and joined.texts() == whole.texts()
    assert list(joined.pairs()) == [row[1:] for row in whole.rows()]
    assert list(joined.sentences()) == [text.decode() for _, *pair in whole.rows() for text in pair]
    for dev in (False, True):
        assert list(HeldOut(joined, 7, dev).rows()) == list(HeldOut(whole, 7, dev).rows())
    prepared = []
    for name, source in (("joined", joined), ("whole", whole)):
        work = tt.Preparation(source, tmp_path / name, tt.Filters(duplicates=True))
        work.run(source.parts(PAIRS, work.folder), tokenizer)
        prepared.append(Records(work.folder))
    assert prepared[0].filtered == prepared[1].filtered
    assert prepared[0].filtered["duplicates"] > 2 * (PAIRS - len(BAD)) - 1
    blocks = ([block.read() for block in records.blocks()] for records in prepared)
    for ids, expected in zip(*blocks, strict=True):
        for side in ("source", "target"):
            assert all(map(np.array_equal, getattr(ids, side), getattr(expected, side)))
        assert np.array_equal(ids.lines, expected.lines)
    assert joined.symbols == []
    longer = MemorySource(["a"], ["b"])
    object.__setattr__(longer, "max_length", 311)
    assert JoinedSource([MemorySource(["a"], ["b"]), longer]).max_length == 311


@pytest.mark.parametrize("bad", [None, ("a", "b", "c"), ("a", None), "ab", 7, {"a": 1, "b": 2}, {"a", "b"}, ("a",)])
def test_what_is_not_a_pair_is_named(bad, text, tmp_path):
    *_, tokenizer = text

    class Custom(Source):
        def describe(self):
            return {"train": "custom"}

        def pairs(self):
            yield from [("a", "b"), (b"c", np.str_("d")), ["e", "f"], bad]

    dev, message = (["a"], ["b"]), "^pair 4: expected two texts, as str or bytes, got .*. Skip such pairs.$"
    for name, source in (("custom", Custom()), ("joined", JoinedSource([Custom()]))):
        work = tt.Preparation(source, tmp_path / name)
        for read in (
            lambda source=source: tt.Corpus(source, dev).train_tokenizer(300, "bpe"),
            lambda source=source: tt.Corpus(source, dev).batches(Batching(tokenizer, 512, 3)),
            lambda work=work: work.run(work.source.parts(3, work.folder), tokenizer),
            lambda source=source: list(source.sample(source.parts(3, tmp_path), 99)),
            lambda source=source: token_batches(source.pairs(), tokenizer),
        ):
            with pytest.raises(tt.BadInput, match=message):
                read()


@pytest.mark.parametrize("model", ["tests/marian/trained", "tests/m2m100/trained", "learned"])
def test_tags_that_a_tokenizer_lacks_are_rejected(model, text, tmp_path):
    """Otherwise a direction would be lost silently, by a start, a tokenizer, or records."""
    options, pair = {}, MemorySource(["a dog"], ["b"])
    if model == "learned":
        tokenizer, config = text[2], dataclasses.replace(tt.PRESETS["tiny"], vocab_size=400)
    else:
        options = {"source_language": "en", "target_language": "de"} if "m2m100" in model else {}
        start = tt.Translator.from_pretrained(Path(__file__).parents[3] / model, **options)
        tokenizer, config, options = start.tokenizer, start.model.config, {"start": start}
    tagged = TaggedSource({"": pair, "<2>": pair, "__en__": TaggedSource({"<3>": pair})})
    message = "^tokenizer: expected one with a token for each tag .*, got none for <2>, __en__, <3>. Train one .*$"
    corpus, recipe = tt.Corpus(tagged, (["a"], ["b"])), tt.Recipe(steps=2, batch_tokens=512)
    for number, one in enumerate([{"tokenizer": tokenizer}, *[options] * bool(options)]):
        with pytest.raises(tt.BadInput, match=message):
            tt.Trainer(tmp_path / str(number), config, corpus, recipe, **one).fit()
    work = tt.Preparation(tagged, tmp_path / "records")
    with pytest.raises(tt.BadInput, match=message):
        work.run(tagged.parts(3, work.folder), tokenizer)
    assert not list(tmp_path.iterdir())


def test_tags_that_are_tokens_are_accepted():
    pair = MemorySource(["a dog"], ["b"])
    tokenizer = tt.Tokenizer.train_from_iterator(["de a dog"] * 9, 272, user_defined_symbols=["<2de>", "<2fr>"])
    for tags in (["<2de>", "<2fr>"], ["de"]):
        source = TaggedSource(dict.fromkeys(tags, pair))
        (ids,), _ = source.encoder(tokenizer)([b"de a"], [b"b"])
        assert ids == tokenizer.encode(["de a"])[0]


def test_a_corpus_and_records_of_tagged_sources(tmp_path):
    sides = ["A dog", "Hallo"], ["Ein Hund", "Hallo"]
    german, english = MemorySource(*sides), MemorySource(*sides[::-1])
    source = TaggedSource({"<2de>": german, "<2en>": english})
    corpus = tt.Corpus(source, source.texts())
    batching = Batching(corpus.train_tokenizer(280, "bpe"), 512, 3, folder=tmp_path / "ids")
    ids = corpus.ids(batching)
    texts = batching.tokenizer.decode(ids.batch(np.arange(len(ids))).source.tolist())
    assert texts == ["<2de> A dog", "<2de> Hallo", "<2en> Ein Hund", "<2en> Hallo"]
    corpus.keep_ids(batching, corpus.batches(batching))
    assert batching.folder.exists()  # since all its sources have checksums
    others = [{"<2en>": english, "<2de>": german}, {"<2de>": german, "<2fr>": english}, {"<2de>": german}]
    assert source.describe() not in [TaggedSource(other).describe() for other in others]

    work = tt.Preparation(source, tmp_path / "records", tt.Filters(identical=True))
    work.run(source.parts(3, work.folder), batching.tokenizer)
    records = Records(work.folder)
    assert records.filtered == {"identical": 2}  # filters ignore tags
    (batch,) = (block.read().batch(np.arange(2)) for block in records.blocks())
    assert batch.lines.tolist() == [1, 3] and batching.tokenizer.decode(batch.source.tolist()) == texts[::2]


def test_a_bad_pair_is_an_error_that_names_it(text):
    folder, _, tokenizer = text

    def read(source):
        return tokenized([(encoder_of(tokenizer), source.rows())], 256, 400)

    with pytest.raises(tt.BadInput, match="^source, pair 14: expected a sentence in UTF-8, got an empty line$"):
        read(Lines(folder / "text.json", skip_bad_lines=False))
    with pytest.raises(json.JSONDecodeError):
        read(Lines(folder / "text.en"))
    both = MemorySource(["a \ud83d b", "a"], ["b", "c"])  # a lone surrogate
    assert list(both.rows()) == [(1, b"", b""), (2, b"a", b"c")] and len(both.describe()["sha256"]) == 64


@pytest.mark.parametrize(
    ("tagged", "message"),
    [
        ({}, "of pairs by their tags, got {}"),
        ((), r"of pairs by their tags, got \(\)"),
        ({"<2de>": ["a"]}, "of pairs by their tags, got .*"),
        ([MemorySource(["a"], ["b"])], "of pairs by their tags, got .*"),
        ([("<2de>", MemorySource(["a"], ["b"]), 3)], "of pairs by their tags, got .*"),
        ({"<2de>": Trees()}, "of translation, got one of parsing"),
    ],
)
def test_what_is_not_a_tagged_source(tagged, message):
    """Tags are those of `check_symbols`."""
    with pytest.raises(tt.BadInput, match=f"^sources: expected sources {message}$"):
        TaggedSource(tagged)
    with pytest.raises(tt.BadInput, match="^sources: expected printable text without whitespace, .* got 'to de'"):
        TaggedSource({"to de": MemorySource(["a"], ["b"])})


def test_a_source_in_memory_is_identified_by_its_contents(monkeypatch):
    texts = ["a", "b", "a\tb", "b\tc", "a\nb", "c", ""]
    sources = [MemorySource([a], [b]) for a in texts for b in texts]
    sources += [MemorySource([a, b], [b, c]) for a in texts for b in texts for c in texts[:3]] + [MemorySource([], [])]
    lengths = [f"{[(len(a), a, len(b), b) for a, b in source.pairs()]}" for source in sources]
    assert len({source.describe()["sha256"] for source in sources}) == len(set(lengths)) == len(sources)
    lists = ["Two doors.", "One \ud83d"], ["Zwei Türen.", "Eins"]
    source = MemorySource(*lists)
    description = source.describe()
    lists[0][0] = "c"
    assert next(source.pairs()) == ("Two doors.", "Zwei Türen.")
    monkeypatch.setattr(MemorySource, "pairs", lambda self: pytest.fail("read it again"))
    assert description == source.describe() == pickle.loads(pickle.dumps(source)).describe()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("dev.en", "dev.de"), r"expected a list of 2 lists, .*a Source or a dictionary, got \('dev.en', 'dev.de'\)"),
        ([], r"expected a list of 2 lists, .*a Source or a dictionary, got \[\]"),
        (([], []), "expected sources and their references, got none"),
        ((["a", 7], ["b", "c"]), "expected texts, got int at index 1"),
        ((["a"], [b"b"]), "expected texts, got bytes at index 0"),
        ((["a"], np.array([["b"]])), "expected texts, got ndarray at index 0"),
        (({"a", "b"}, {"c", "d"}), r"expected a list of 2 lists, .*a Source or a dictionary, got \(\{'.*"),
        ((["a"], ["b", "c"]), "expected as many references as sources, 1, got 2"),
    ],
)
def test_what_is_not_a_dev_set(texts, message):
    train = MemorySource(["a"], ["b"])
    with pytest.raises(tt.BadInput, match=f"^dev: {message}$"):
        tt.Corpus(train, texts)
    with pytest.raises(tt.BadInput, match=f"^test: {message}$"):
        tt.Corpus(train, (["a"], ["b"]), texts)


def test_a_dev_set_is_lists_of_texts():
    texts = ["Two doors.", "One"]
    for each in (texts, tuple(texts), np.array(texts), iter(texts)):
        corpus = tt.Corpus(MemorySource(["a"], ["b"]), (each, texts[::-1]))
        assert corpus.dev == corpus.test == (texts, texts[::-1])
        assert {type(text) for text in corpus.dev[0]} == {str} and type(corpus.dev[0]) is list


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_a_missing_text_file(name, tmp_path):
    source = TextSource(tmp_path / name, tmp_path / name)
    for read in (source.describe, source.check, source.texts, lambda: source.train_tokenizer(300, "bpe")):
        with pytest.raises(FileNotFoundError, match=f"^expected a text file, found none at {tmp_path / name}$"):
            read()


@pytest.mark.parametrize("name", ["nowhere", "nowhere/de-en", "wmt14_translate/xx-yy"])
def test_a_corpus_that_tensorflow_datasets_lacks(name, tmp_path):
    pytest.importorskip("tensorflow_datasets")
    with pytest.raises(tt.BadInput, match=f"^{name}: expected a corpus of TensorFlow Datasets, got none: .*$") as error:
        tt.sources.TfdsSource(name, data_dir=tmp_path).describe()
    assert len(str(error.value)) < 300


def test_files_are_identified_by_their_contents(text, tmp_path):
    """Not by their sizes: plain or packed, read line by line, in ranges, or as a whole."""
    folder, pairs, _ = text
    plain, packed = list(sources(folder, pairs))[:2]
    whole = plain.describe()["sha256"]
    assert whole == packed.describe()["sha256"]
    checked, in_parts = (TextSource(plain.source, plain.target, True) for _ in range(2))
    assert checked.check() == PAIRS and checked.describe()["sha256"] == whole
    assert in_parts.parts(17, tmp_path) and in_parts.describe()["sha256"] == whole
    (tmp_path / "text.en").write_text(Path(plain.source).read_text().swapcase())
    edited = TextSource(tmp_path / "text.en", plain.target, True).describe()["sha256"]
    assert edited[0] != whole[0] and edited[1] == whole[1]


def test_sides_that_do_not_belong_together(tmp_path):
    (tmp_path / "long").write_text("a\nb\nc\n")
    (tmp_path / "short").write_text("a\n")
    for sides, counts in ((("long", "short"), (3, 1)), (("short", "long"), (1, 3))):
        source = TextSource(*(tmp_path / side for side in sides))
        names = [f"{count} in {tmp_path / side}" for side, count in zip(sides, counts, strict=True)]
        with pytest.raises(tt.BadInput, match=f"the same number of lines in both files, got {' and '.join(names)}$"):
            list(source.rows())
    for make, message in (
        (lambda: MemorySource(["a"], ["b", "c"]), "target: expected 1 texts, as many as of source, got 2"),
        (lambda: MemorySource(["a", "b"], ["c", b"d"]), "target: expected texts, got bytes at index 1"),
        (lambda: tt.TextCorpus(["train.en"], ["dev.en", "dev.de"]), "train: expected two files, .*, got 1"),
        (lambda: read_texts(["a", "b", "c"]), "files: expected two files, source and target, got 3"),
    ):
        with pytest.raises(tt.BadInput, match=f"^{message}$"):
            make()
