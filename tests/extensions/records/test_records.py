"""A corpus on disk: every pair once an epoch, complete after a stop, and step N without what came before it."""

import dataclasses
import gzip
import json
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hostile
import numpy as np
import pytest

import tf_transformer as tt
from tf_transformer.data import ids, toy_corpus
from tf_transformer.data.corpus import Batching
from tf_transformer.extensions.records import records
from tf_transformer.utils.lines import line_problem

PAIRS, BATCH = 701, 512


@pytest.fixture(scope="module")
def corpus():
    pairs = toy_corpus.corpus(train=PAIRS, dev=0, test=0)["train"]
    pairs[13] = ("", "leer")
    pairs[17] = ("long " * 300, "lang")
    return pairs, tt.Tokenizer.train_from_iterator([text for pair in pairs for text in pair], 400)


@pytest.fixture(scope="module")
def other(corpus):
    """Another tokenizer of the same pairs."""
    return tt.Tokenizer.train_from_iterator([text for pair in corpus[0] for text in pair], 390)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Shards of 50 lines, tokenized 11 at a time: 15 shards, blocks of 4, the last one of 3."""
    monkeypatch.setattr(records, "SHARD_LINES", 50)
    monkeypatch.setattr(ids, "CHUNK", 11)
    monkeypatch.setattr(records, "BLOCK_SHARDS", 4)


def write_text(folder, pairs):
    """Writes two files and returns their names."""
    names = []
    for side, texts in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
        names.append(folder / f"text.{side}")
        names[-1].write_bytes(b"".join((t if isinstance(t, bytes) else t.encode()) + b"\n" for t in texts))
    return list(map(str, names))


def write(corpus, folder, skip_bad_lines=True, report=lambda shard: None, **options):
    """Writes records of pairs to folder/records."""
    pairs, tokenizer = corpus
    source = tt.sources.TextSource(*write_text(folder, pairs), skip_bad_lines)
    work = tt.Preparation(source, folder / "records", **options)
    return work.run(source.parts(records.SHARD_LINES, work.folder), tokenizer, report=report)


@pytest.fixture(scope="module")
def prepared(corpus, tmp_path_factory):
    """A folder with text and records, to copy."""
    folder = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "SHARD_LINES", 50)
        assert len(write(corpus, folder)) == 15
    return folder


@pytest.fixture
def written(prepared, tmp_path):
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    return records.Records(tmp_path / "records")


def rows(folder):
    """Returns source, target and line of every record, in order."""
    found = []
    for shard in map(ids.Ids.load, sorted(folder.glob("shard-*"))):
        for row, line in enumerate(shard.lines.tolist()):
            sides = [side.ids[slice(*side.starts[row : row + 2])].tolist() for side in (shard.source, shard.target)]
            found.append((*sides, line))
    return found


def contents(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_records_train_like_their_text(corpus, written, monkeypatch):
    """Several blocks have the same pairs, and one block has the same batches."""
    pairs, tokenizer = corpus
    source = tt.sources.MemorySource(*map(list, zip(*pairs, strict=True)))
    batching, dev = Batching(tokenizer, BATCH, 3), (["a"], ["b"])
    of_text, of_blocks = (tt.Corpus(train, dev).batches(batching) for train in (source, written))
    assert len(of_blocks.blocks) == 4 and of_text.summary().skipped == 2
    assert dataclasses.replace(of_text.summary(), batches=len(of_blocks)) == of_blocks.summary()
    lines = [line for number in range(len(of_blocks)) for line in of_blocks[number].lines.tolist()]
    assert sorted(lines) == [line for line in range(1, PAIRS + 1) if line not in (14, 18)] != lines
    monkeypatch.setattr(records, "BLOCK_SHARDS", 99)
    of_records = tt.Corpus(written, dev).batches(batching)
    for number in (0, 1, 59, 61):
        assert all(map(np.array_equal, of_text[number], of_records[number]))


def test_a_stopped_program_resumes_to_the_same_files(corpus, prepared, tmp_path):
    made = tmp_path / "records"

    def stop(shard):
        if shard["shard"] == "shard-00005":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(corpus, tmp_path, report=stop)
    (made / ".export-shard-00006-0a1b2c3d").mkdir()  # left by a killed worker
    with pytest.raises(tt.BadInput, match="records are not complete. Run tf-transformer prepare again.$"):
        records.Records(made)
    times = {file.relative_to(made): file.stat().st_mtime_ns for file in made.glob("shard-*/*")}
    assert len(times) == 6 * 6
    for _ in range(2):
        assert len(write(corpus, tmp_path)) == 15
        assert {file: (made / file).stat().st_mtime_ns for file in times} == times  # finished shards are kept
        assert contents(made) == contents(prepared / "records")


def test_others_wait_until_records_are_written(corpus, tmp_path):
    """They would remove unfinished shards."""
    writing, errors = tmp_path / "records/.export-shard-00003-0a1b2c3d", []

    def meanwhile(shard):
        if not errors:
            writing.mkdir()
            with ThreadPoolExecutor(1) as other:  # another thread locks like another process
                work = tt.Preparation(tt.sources.MemorySource(*zip(*corpus[0], strict=True)), tmp_path / "records")
                parts = work.source.parts(50, work.folder)
                for begin in (work.run, work.begin):
                    errors.append(str(other.submit(begin, parts, corpus[1]).exception()))
            assert writing.exists()

    write(corpus, tmp_path, report=meanwhile)
    assert errors == [f"{writing.parent}: another process prepares records in this directory"] * 2


def test_only_a_damaged_shard_is_made_again(corpus, written, tmp_path):
    expected, shard = contents(written.folder), written.folder / written.shards[3]["shard"]
    (written.folder / written.shards[5]["shard"] / "lines.npy").unlink()
    content = (shard / "target.npy").read_bytes()
    (shard / "target.npy").write_bytes(content[:-1])
    with pytest.raises(tt.BadInput, match=rf"{shard.name}: expected [\d,]+ bytes, got [\d,]+. Run prepare again"):
        records.Records(written.folder)
    (shard / "target.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert len(write(corpus, tmp_path)) == 15
    assert contents(written.folder) == expected


def test_another_worker_may_write_the_same_shard(written):
    files = [written.folder.parent / f"text.{side}" for side in ("en", "de")]
    other = tt.Preparation(tt.sources.TextSource(*files, True), written.folder)
    part, metadata = other.source.parts(50, written.folder)[3], written.shards[3]

    class Slow(tt.sources.TextSource):
        def read(self, part):
            yield from super().read(part)
            other.write(part)

    shutil.rmtree(written.folder / metadata["shard"])
    assert tt.Preparation(Slow(*files, True), written.folder).write(part) == metadata
    assert records.Records(written.folder).shards == written.shards


def test_a_folder_is_of_one_corpus_tokenizer_and_filters(corpus, other, written, tmp_path):
    pairs, tokenizer = corpus
    for change, options, difference in (
        ((pairs, other), {}, "tokenizer was .*, now .*"),
        ((pairs[:-1], tokenizer), {}, "the training set has changed; corpus.pairs was .*, now .*"),
        (([pairs[1], pairs[0], *pairs[2:]], tokenizer), {}, "the training set has changed"),  # of the same size
        (corpus, {"max_length": 99}, "max_length was .*, now 99"),
        (corpus, {"filters": tt.Filters(duplicates=True)}, "filters.duplicates was null, now true"),
    ):
        with pytest.raises(tt.BadInput, match=f"holds other records: {difference}. Pass another directory"):
            write(change, tmp_path, **options)
    manifest = json.loads((written.folder / "records.json").read_text())
    for content, message in (
        (manifest | {"shards": []}, r"records\.json: expected shards, got none$"),
        ({"vocab_size": 400}, r"records.json: expected records of .*, got .*: no 'complete' in it$"),
    ):
        (written.folder / "records.json").write_text(json.dumps(content))
        with pytest.raises(tt.BadInput, match=message):
            records.Records(written.folder)
    with pytest.raises(tt.BadInput, match="found no records.json"):
        records.Records(tmp_path / "nowhere")
    (written.folder / "records.json").unlink()  # a new start does not take old shards for finished ones
    assert len(write((pairs, other), tmp_path)) == 15
    assert sum(records.Records(written.folder).shards[0]["tokens"]) != sum(written.shards[0]["tokens"])


def test_other_peoples_folders_are_unchanged(corpus, tmp_path):
    (theirs := tmp_path / "records/shard-of-glass").mkdir(parents=True)
    with pytest.raises(tt.BadInput, match="expected records or an empty directory, found shard-of-glass in it$"):
        write(corpus, tmp_path)
    assert list(theirs.parent.iterdir()) == [theirs]
    source = tt.sources.MemorySource(["a"], ["b"])
    work = tt.Preparation(source, tmp_path / "new")
    with pytest.raises(tt.BadInput, match="^parts: expected the shards of the source, got none$"):
        work.run([], corpus[1])
    with pytest.raises(tt.BadInput, match="^tokenizer: expected a Tokenizer, got None$"):
        work.run(source.parts(1, work.folder), None)
    with pytest.raises(tt.BadInput, match="^folder: expected one for the records, found a file at "):
        tt.Preparation(source, tmp_path / "text.en")
    assert not work.folder.exists()


def test_hostile_lines(corpus, tmp_path):
    chance = random.Random(3)
    texts = [b"word " * 200]  # A file that begins with binary data is refused.
    texts += [kind(chance).replace(b"\n", b" ") for kind in hostile.KINDS for _ in range(20)]
    texts += [b"", b"\xff\xfe broken \xc3", b"word " * 30_000, b"fine\r"]
    pairs = [(text, b"gut") for text in texts] + [(b"good", text) for text in texts]
    shards = write((pairs, corpus[1]), tmp_path)
    bad = [place for place, pair in enumerate(pairs) if any(map(line_problem, pair))]
    assert 50 < len(bad) < len(pairs) - 50
    lines = [line for *_, line in rows(tmp_path / "records")]
    assert set(lines) <= {place + 1 for place in range(len(pairs)) if place not in bad}
    assert sum(sum(shard["lengths"]) for shard in shards) == len(lines)
    assert len(lines) == len(pairs) - sum(shard["skipped"] for shard in shards) > 150
    source, target, line = rows(tmp_path / "records")[-1]
    for row, text in zip((source, target), pairs[line - 1], strict=True):
        assert row == corpus[1].tokenize([text]).to_list()[0]
    shutil.rmtree(tmp_path / "records")
    side, number = ("en", bad[0] + 1) if bad[0] < len(texts) else ("de", bad[0] + 1)
    with pytest.raises(tt.BadInput, match=rf"text\.{side}, line {number:,}: expected a sentence in UTF-8, got "):
        write((pairs, corpus[1]), tmp_path, skip_bad_lines=False)


def test_gz_files(corpus, prepared, tmp_path):
    pairs, tokenizer = corpus
    names = write_text(tmp_path, pairs)
    for name in names:
        Path(f"{name}.gz").write_bytes(gzip.compress(Path(name).read_bytes()))
    packed = tt.sources.TextSource(*(f"{name}.gz" for name in names), skip_bad_lines=True)
    work = tt.Preparation(packed, tmp_path / "packed")
    parts = packed.parts(50, work.folder)
    assert len(list((work.folder / "unpacked").iterdir())) == 2
    work.run(parts, tokenizer)
    expected, found = contents(prepared / "records"), contents(work.folder)
    del expected["records.json"], found["records.json"]
    assert found == expected  # nothing is left of "unpacked"
    write_text(tmp_path, pairs[:-3])
    with pytest.raises(tt.BadInput, match=r"the same number of lines .*, got 701 in .* and 698 in .*text\.de"):
        tt.sources.TextSource(f"{names[0]}.gz", names[1]).parts(50, tmp_path)


def test_parquet(corpus, prepared, tmp_path):
    """Row groups of another size than shards, in two files."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    pairs, tokenizer = corpus
    for number, some in enumerate((pairs[:307], pairs[307:])):
        columns = {side: [pair[i] or None for pair in some] for i, side in enumerate(("en", "de"))}
        parquet.write_table(pyarrow.table(columns), tmp_path / f"{number}.parquet", row_group_size=71)
    source = tt.sources.ParquetSource(str(tmp_path / "*.parquet"), ("en", "de"))
    work = tt.Preparation(source, tmp_path / "other")
    work.run(source.parts(50, work.folder), tokenizer)
    assert rows(work.folder) == rows(prepared / "records")
    plain = [pair for part in source.parts(50, tmp_path) for pair in source.read(part)]
    assert list(source.pairs()) == plain and len(plain) == PAIRS
    columns = {"translation": [{"en": en.encode(), "de": de.encode()} for en, de in pairs], "id": range(PAIRS)}
    parquet.write_table(pyarrow.table(columns), tmp_path / "nested", row_group_size=99)
    nested = tt.sources.ParquetSource(str(tmp_path / "nested"), ("translation.en", "translation.de"))
    assert [pair for part in nested.parts(50, tmp_path) for pair in nested.read(part)] == plain
    (tmp_path / "text.en").write_text("no Parquet")
    for name, columns, message in (
        ("*.parquet", ("en", "fr"), "0.parquet: expected columns among en, de; got fr"),
        ("nested", ("translation.en", "id"), "nested: expected texts in the column id, got INT64"),
        ("text.en", ("en", "fr"), "expected a Parquet file, got something else"),
        ("*.nothing", ("en", "fr"), "expected Parquet files, found none at"),
    ):
        with pytest.raises((tt.BadInput, FileNotFoundError), match=message):
            tt.sources.ParquetSource(str(tmp_path / name), columns).parts(50, tmp_path)


LISTS = [["x y"], ["z", "w"]]


@pytest.mark.parametrize(
    ("values", "column"),
    [
        (LISTS, "a.list.element"),
        ([LISTS, LISTS], "a.list.element.list.element"),
        ([{"b": row} for row in LISTS], "a.b.list.element"),
        ([[{"b": "x"}], [{"b": "y"}]], "a.list.element.b"),
        ([[("k", "v")], []], "a.key_value.value"),
    ],
)
def test_lists_of_parquet_are_no_texts(values, column, tmp_path):
    """A row has several. The message about another column does not recommend them."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    kind = pyarrow.map_(pyarrow.string(), pyarrow.string()) if "key" in column else None
    table = pyarrow.table({"a": pyarrow.array(values, kind), "b": ["u", "v"]})
    parquet.write_table(table, tmp_path / "a")
    for columns, message in (
        ((column, "b"), f"expected a text per row in the column {column}, got lists"),
        (("b", "a"), "expected columns among b; got a"),
    ):
        with pytest.raises(tt.BadInput, match=message):
            list(tt.sources.ParquetSource(str(tmp_path / "a"), columns).pairs())


def test_records_are_of_one_tokenizer_and_of_one_length(written, corpus, other):
    """Not of that of a model to start from, whose ids mean other words."""
    prepared = tt.Corpus(written, (["a"], ["b"]))
    batching = Batching(corpus[1], BATCH, 1)
    assert len(prepared.batches(batching)) > 0 and prepared.max_length == 256
    with pytest.raises(tt.BadInput, match="expected to train with the tokenizer of the records, got another"):
        prepared.batches(dataclasses.replace(batching, tokenizer=other))
    with pytest.raises(tt.BadInput, match="^max_length: expected 256, that of the records, got 255$"):
        dataclasses.replace(prepared, max_length=255)


@pytest.mark.parametrize("family", ["marian", "m2m100"])
def test_records_of_a_pretrained_tokenizer(family, tmp_path):
    tokenizer = tt.Translator.from_pretrained(Path(__file__).parents[2] / family / "trained").tokenizer
    if tokenizer.languages:
        with pytest.raises(tt.BadInput, match="^target_language: expected one of 100 languages, .*; got none$"):
            write(([("a", "b")], tokenizer), tmp_path)
        assert not (tmp_path / "records").exists()
        tokenizer = tokenizer.with_languages("en", "de")
    texts = [f"He is tired of {'the ' * i}song." for i in range(53)]
    assert len(write((list(zip(texts, texts, strict=True)), tokenizer), tmp_path)) == 2
    found = records.Records(tmp_path / "records")
    assert type(found.tokenizer) is type(tokenizer) and found.tokenizer.fingerprint == tokenizer.fingerprint
    sides = tokenizer.tokenize(texts).to_list(), tokenizer.tokenize_target(texts).to_list()
    assert rows(found.folder) == [(*ids, line) for line, *ids in zip(range(1, 54), *sides, strict=True)]
    assert len(tt.Corpus(found, (texts, texts)).batches(Batching(tokenizer, BATCH, 1))) > 2
