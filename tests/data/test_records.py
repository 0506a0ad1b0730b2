"""A corpus on disk: every pair once an epoch, whole after a stop, and step N without what came before it."""

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
from test_data import expected_rows

import tf_transformer as tt
from tf_transformer.data import batches as ids
from tf_transformer.data import records, toy_corpus
from tf_transformer.data.batches import Batches
from tf_transformer.data.corpus import Batching
from tf_transformer.data.text_files import line_problem

PAIRS, BATCH = 701, 512


@pytest.fixture(scope="module")
def corpus():
    pairs = toy_corpus.corpus(train=PAIRS, dev=0, test=0)["train"]
    pairs[13] = ("", "leer")
    pairs[17] = ("long " * 300, "lang")
    return pairs, tt.Tokenizer.learn_from([text for pair in pairs for text in pair], 400)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Shards of 50 lines, tokenized 11 at a time: 15 shards, blocks of 4, the last one of 3."""
    monkeypatch.setattr(records, "SHARD_LINES", 50)
    monkeypatch.setattr(ids, "CHUNK", 11)
    monkeypatch.setattr(records, "BLOCK_SHARDS", 4)


def write_text(folder, pairs):
    """Two files; the names of both."""
    names = []
    for side, texts in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
        names.append(folder / f"text.{side}")
        names[-1].write_bytes(b"".join((t if isinstance(t, bytes) else t.encode()) + b"\n" for t in texts))
    return list(map(str, names))


def write(corpus, folder, skip_bad_lines=True, report=lambda shard: None, **options):
    """Records of pairs, in folder/records."""
    pairs, tokenizer = corpus
    source = tt.sources.TextSource(*write_text(folder, pairs), skip_bad_lines)
    work = tt.Preparation(source, folder / "records", **options)
    return work.run(source.parts(records.SHARD_LINES, work.folder), tokenizer, report=report)


@pytest.fixture
def written(corpus, tmp_path):
    assert len(write(corpus, tmp_path)) == 15
    return records.Records(tmp_path / "records")


def test_an_epoch_holds_every_pair_once_and_summary_counts_it(corpus, written):
    pairs, tokenizer = corpus
    batches = Batches(written.blocks(), BATCH, 3)
    summary = batches.summary()
    kept = [pair for i, pair in enumerate(pairs) if i not in (13, 17)]
    expected = expected_rows(kept, tokenizer)
    assert (summary.pairs, summary.skipped) == (PAIRS - 2, 2) and 20 < len(batches) < 59
    assert summary.source_tokens == sum(len(row[0]) for row in expected)
    assert summary.target_tokens == sum(len(row[2]) for row in expected)
    assert len(batches.blocks) == 4
    for epoch in range(2):
        found, lines = [], []
        for batch in (batches[number] for number in range(epoch * len(batches), (epoch + 1) * len(batches))):
            assert max(batch.source.size, batch.target_out.size) <= BATCH
            rows = zip(*batch[:3], strict=True)
            found += [tuple(tuple(ids[ids != 0].tolist()) for ids in row) for row in rows]
            lines += batch.lines.tolist()
        assert sorted(found) == sorted(expected)
        assert sorted(lines) == [i + 1 for i in range(PAIRS) if i not in (13, 17)]
        by_line = dict(zip(lines, found, strict=True))
        assert by_line[1] == expected[0]
        assert found != sorted(found)


def test_records_of_one_block_train_as_their_text_does(corpus, written, monkeypatch):
    monkeypatch.setattr(records, "BLOCK_SHARDS", 99)
    pairs, tokenizer = corpus
    source = tt.sources.MemorySource(*map(list, zip(*pairs, strict=True)))
    batching, dev = Batching(tokenizer, BATCH, 3), (["a"], ["b"])
    of_text, of_records = (tt.Corpus(train, dev).batches(batching) for train in (source, written))
    assert of_text.summary() == of_records.summary()
    for number in (0, 1, 59, 61):
        assert all(map(np.array_equal, of_text[number], of_records[number]))


def test_what_was_stopped_goes_on_to_the_same_files(corpus, written, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped")
    made = folder / "records"

    def stop(shard):
        if shard["shard"] == "shard-00005":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(corpus, folder, report=stop)
    (made / ".export-shard-00006-0a1b2c3d").mkdir()  # as a killed worker leaves it
    with pytest.raises(tt.BadInput, match="is not complete; start tf-transformer prepare again"):
        records.Records(made)
    times = {file.relative_to(made): file.stat().st_mtime_ns for file in made.glob("shard-*/*")}
    assert len(times) == 6 * 6
    for _ in range(2):
        assert len(write(corpus, folder)) == 15
        assert {file: (made / file).stat().st_mtime_ns for file in times} == times  # these were kept
        assert contents(made) == contents(written.folder)


def test_others_wait_until_records_are_written(corpus, tmp_path):
    """They would remove what is being written."""
    writing, refused = tmp_path / "records/.export-shard-00003-0a1b2c3d", []

    def meanwhile(shard):
        if not refused:
            writing.mkdir()
            with ThreadPoolExecutor(1) as other:  # another thread locks as another process does
                work = tt.Preparation(tt.sources.MemorySource(*zip(*corpus[0], strict=True)), tmp_path / "records")
                parts = work.source.parts(50, work.folder)
                for begin in (work.run, work.begin):
                    refused.append(str(other.submit(begin, parts, corpus[1]).exception()))
            assert writing.exists()

    write(corpus, tmp_path, report=meanwhile)
    assert refused == [f"{writing.parent}: expected a folder that nothing else prepares; it is in use"] * 2


def contents(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_damaged_shard_is_made_again_and_nothing_else(corpus, written, tmp_path):
    expected, shard = contents(written.folder), written.folder / written.shards[3]["shard"]
    (written.folder / written.shards[5]["shard"] / "lines.npy").unlink()
    content = (shard / "target.npy").read_bytes()
    (shard / "target.npy").write_bytes(content[:-1])
    with pytest.raises(
        tt.BadInput, match=rf"{shard.name}: expected [\d,]+ bytes, got [\d,]+; prepare again to mend it"
    ):
        records.Records(written.folder)
    (shard / "target.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert len(write(corpus, tmp_path)) == 15
    assert contents(written.folder) == expected


def test_a_text_edited_without_a_change_of_size_is_another_text(corpus, tmp_path):
    pairs, tokenizer = corpus
    write(corpus, tmp_path)
    with pytest.raises(tt.BadInput, match="holds records of another corpus"):
        write(([pairs[1], pairs[0], *pairs[2:]], tokenizer), tmp_path)


def test_another_worker_may_write_the_same_shard(corpus, written):
    """One that was thought dead: the shard is whole, whoever was first."""
    files = [written.folder.parent / f"text.{side}" for side in ("en", "de")]
    other = tt.Preparation(tt.sources.TextSource(*files, True), written.folder)
    part, facts = other.source.parts(50, written.folder)[3], written.shards[3]

    class Slow(tt.sources.TextSource):
        def read(self, part):
            yield from super().read(part)
            other.write(part)  # meanwhile

    shutil.rmtree(written.folder / facts["shard"])
    assert tt.Preparation(Slow(*files, True), written.folder).write(part) == facts
    assert records.Records(written.folder).shards == written.shards


def test_a_folder_is_of_one_corpus_tokenizer_and_filters(corpus, written, tmp_path):
    pairs, tokenizer = corpus
    other = tt.Tokenizer.learn_from([text for pair in pairs for text in pair], 390)
    for change, options, name in (
        ((pairs, other), {}, "tokenizer"),
        ((pairs[:-1], tokenizer), {}, "corpus"),
        (corpus, {"max_length": 99}, "max_length"),
        (corpus, {"filters": tt.Filters(duplicates=True)}, "filters"),
    ):
        with pytest.raises(tt.BadInput, match=f"holds records of another {name}: .*, not .*"):
            write(change, tmp_path, **options)
    with pytest.raises(tt.BadInput, match="batch_tokens: expected at least max_length=256"):
        Batches(written.blocks(), 100)
    manifest = json.loads((written.folder / "records.json").read_text())
    (written.folder / "records.json").write_text(json.dumps(manifest | {"shards": []}))
    with pytest.raises(tt.BadInput, match=r"records\.json: expected shards, got none$"):
        records.Records(written.folder)
    with pytest.raises(tt.BadInput, match="found no records.json"):
        records.Records(tmp_path / "nowhere")
    (written.folder / "records.json").unlink()  # to begin anew: what is left of before is not taken for finished
    assert len(write((pairs, other), tmp_path)) == 15
    assert sum(records.Records(written.folder).shards[0]["tokens"]) != sum(written.shards[0]["tokens"])


def test_other_peoples_folders_are_left_alone(corpus, tmp_path):
    """A folder that is called like a shard, too; and nothing is begun with what cannot be prepared."""
    (theirs := tmp_path / "records/shard-of-glass").mkdir(parents=True)
    with pytest.raises(tt.BadInput, match="expected records or an empty folder, found shard-of-glass in it$"):
        write(corpus, tmp_path)
    assert theirs.exists() and list(theirs.parent.iterdir()) == [theirs]
    source = tt.sources.MemorySource(["a"], ["b"])
    work = tt.Preparation(source, tmp_path / "new")
    with pytest.raises(tt.BadInput, match="^parts: expected those of the source, got none$"):
        work.run([], corpus[1])
    with pytest.raises(tt.BadInput, match="^tokenizer: expected a Tokenizer, got None$"):
        work.run(source.parts(1, work.folder), None)
    with pytest.raises(tt.BadInput, match="^folder: expected one for the records, found a file at "):
        tt.Preparation(source, tmp_path / "text.en")
    assert not work.folder.exists()
    (theirs.parent / "records.json").write_text('{"vocab_size": 400}')  # of a format that was never ours
    with pytest.raises(tt.BadInput, match=r"records.json: expected records of .*, got .*: no 'complete' in it$"):
        records.Records(theirs.parent)


def test_hostile_lines(corpus, tmp_path):
    """What is bad is left out and counted, or an error that says where; what is strange only is kept."""
    chance = random.Random(3)
    texts = [kind(chance).replace(b"\n", b" ") for kind in hostile.KINDS for _ in range(40)]
    texts += [b"", b"\xff\xfe broken \xc3", b"word " * 30_000, b"fine\r"]
    pairs = [(text, b"gut") for text in texts] + [(b"good", text) for text in texts]
    shards = write((pairs, corpus[1]), tmp_path)
    bad = [place for place, pair in enumerate(pairs) if any(map(line_problem, pair))]
    assert 50 < len(bad) < len(pairs) - 50
    lines = [ids[2] for ids in rows(tmp_path / "records")]
    assert set(lines) <= {place + 1 for place in range(len(pairs)) if place not in bad}
    kept = sum(sum(shard["lengths"]) for shard in shards)
    assert kept == len(lines) == len(pairs) - sum(shard["skipped"] for shard in shards) > 300
    source, target, line = rows(tmp_path / "records")[-1]
    for row, text in zip((source, target), pairs[line - 1], strict=True):
        assert row == corpus[1].tokenize([text]).to_list()[0]
    shutil.rmtree(tmp_path / "records")
    side, number = ("en", bad[0] + 1) if bad[0] < len(texts) else ("de", bad[0] + 1)
    with pytest.raises(tt.BadInput, match=rf"text\.{side}, line {number:,}: expected a sentence in UTF-8, got "):
        write((pairs, corpus[1]), tmp_path, skip_bad_lines=False)


def rows(folder):
    """Source, target and line of every record, in order."""
    found = []
    for shard in map(ids.Ids.load, sorted(folder.glob("shard-*"))):
        for row, line in enumerate(shard.lines.tolist()):
            sides = [side.ids[slice(*side.starts[row : row + 2])].tolist() for side in (shard.source, shard.target)]
            found.append((*sides, line))
    return found


def test_filters_count_and_take_what_a_loop_takes(corpus, tmp_path):
    """Duplicates in other shards too; the order of the filters."""
    chance = random.Random(5)
    words = [f"w{number}" for number in range(4)]
    texts = [" ".join(chance.choices(words, k=chance.randint(1, 5))) for _ in range(2 * 461)]
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    pairs[400] = ("  " + pairs[3][0] + " ", pairs[3][1])  # the same but for spaces
    filters = tt.Filters(duplicates=True, identical=True)
    shards = write((pairs, corpus[1]), tmp_path, filters=filters)
    seen, expected, counts = set(), [], dict.fromkeys(("duplicates", "identical"), 0)
    for number, (source, target) in enumerate(pairs, 1):
        key = (source.strip(), target)
        if key in seen:
            counts["duplicates"] += 1
        elif key[0] == key[1]:
            counts["identical"] += 1
        else:
            expected.append(number)
        seen.add(key)
    assert min(counts.values()) > 5
    assert [line for _, _, line in rows(tmp_path / "records")] == expected
    assert records.Records(tmp_path / "records").filtered == counts
    assert sum(shard["skipped"] for shard in shards) == 0


def test_packed_text_and_text_of_other_lengths(corpus, written, tmp_path):
    pairs, tokenizer = corpus
    names = write_text(tmp_path, pairs)
    for name in names:
        Path(f"{name}.gz").write_bytes(gzip.compress(Path(name).read_bytes()))
    packed = tt.sources.TextSource(*(f"{name}.gz" for name in names), skip_bad_lines=True)
    work = tt.Preparation(packed, tmp_path / "packed")
    parts = packed.parts(50, work.folder)
    assert len(list((work.folder / "unpacked").iterdir())) == 2
    work.run(parts, tokenizer)
    found = contents(work.folder)
    assert "unpacked" not in found
    for name, content in contents(written.folder).items():
        assert name == "records.json" or found[name] == content
    sample = list(packed.sample(packed.parts(50, work.folder), 45))
    assert sample == [text for part in range(15) for pair in pairs[part * 50 :][:3] for text in pair][: len(sample)]
    assert len(sample) == 2 * (14 * 3 + 1)
    write_text(tmp_path, pairs[:-3])
    with pytest.raises(tt.BadInput, match=r"the same number of lines .*, got 701 in .* and 698 in .*text\.de"):
        tt.sources.TextSource(f"{names[0]}.gz", names[1]).parts(50, tmp_path)


def test_parquet(corpus, written, tmp_path):
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
    assert rows(work.folder) == rows(written.folder)
    with pytest.raises(tt.BadInput, match=r"0.parquet: expected columns among en, de; got fr"):
        tt.sources.ParquetSource(str(tmp_path / "*.parquet"), ("en", "fr")).parts(50, tmp_path)
    plain = [pair for part in source.parts(50, tmp_path) for pair in source.read(part)]
    assert list(source.pairs()) == plain and len(plain) == PAIRS
    both = [{"en": en.encode(), "de": de.encode()} for en, de in pairs]
    parquet.write_table(
        pyarrow.table({"translation": both, "id": range(PAIRS)}), tmp_path / "nested", row_group_size=99
    )
    nested = tt.sources.ParquetSource(str(tmp_path / "nested"), ("translation.en", "translation.de"))
    assert [pair for part in nested.parts(50, tmp_path) for pair in nested.read(part)] == plain
    with pytest.raises(tt.BadInput, match="nested: expected texts in the column id, got INT64"):
        tt.sources.ParquetSource(str(tmp_path / "nested"), ("translation.en", "id")).parts(50, tmp_path)
    with pytest.raises(tt.BadInput, match="expected a Parquet file, got something else"):
        tt.sources.ParquetSource(str(tmp_path / "text.en"), ("en", "fr")).parts(50, tmp_path)
    with pytest.raises(FileNotFoundError, match="expected Parquet files, found none at"):
        tt.sources.ParquetSource(str(tmp_path / "*.nothing"), ("en", "fr")).parts(50, tmp_path)


def test_records_are_of_one_tokenizer_and_of_one_length(written, corpus):
    """Not of that of a model to start from: its ids would be other words."""
    prepared = tt.Corpus(written, (["a"], ["b"]))
    batching = Batching(corpus[1], BATCH, 1)
    assert len(prepared.batches(batching)) > 0 and prepared.max_length == 256
    other = tt.Tokenizer.learn_from([text for pair in corpus[0] for text in pair], 401)
    with pytest.raises(tt.BadInput, match="expected to train with the tokenizer of the records, got another"):
        prepared.batches(dataclasses.replace(batching, tokenizer=other))
    with pytest.raises(tt.BadInput, match="^max_length: expected 256, that of the records, got 255$"):
        dataclasses.replace(prepared, max_length=255)
    with pytest.raises(tt.BadInput, match="^dev: expected as many references as sources, 1, got 2$"):
        tt.Corpus(written, (["a"], ["b", "c"]))


@pytest.mark.parametrize("family", ["marian", "m2m100"])
def test_records_of_a_pretrained_tokenizer(family, tmp_path):
    """So a large corpus fine-tunes: each side by its own vocabulary, with the codes of languages."""
    tokenizer = tt.Translator.from_pretrained(Path(__file__).parents[1] / family / "trained").tokenizer
    if tokenizer.languages:
        with pytest.raises(tt.BadInput, match="^target_language: expected one of 100 languages, .*; got none$"):
            write(([("a", "b")], tokenizer), tmp_path)
        assert not (tmp_path / "records").exists()
        tokenizer = tokenizer.for_languages("en", "de")
    texts = [f"He is tired of {'the ' * i}song." for i in range(53)]
    assert len(write((list(zip(texts, texts, strict=True)), tokenizer), tmp_path)) == 2
    found = records.Records(tmp_path / "records")
    assert type(found.tokenizer) is type(tokenizer) and found.tokenizer.fingerprint == tokenizer.fingerprint
    sides = tokenizer.tokenize(texts).to_list(), tokenizer.tokenize_target(texts).to_list()
    assert rows(found.folder) == [(*ids, line) for line, *ids in zip(range(1, 54), *sides, strict=True)]
    assert len(tt.Corpus(found, (texts, texts)).batches(Batching(tokenizer, BATCH, 1))) > 2
