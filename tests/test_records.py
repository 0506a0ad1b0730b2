"""A corpus on disk: every pair once an epoch, whole after a stop, and step N without what came before it."""

import dataclasses
import gzip
import itertools
import random
import shutil
from pathlib import Path

import hostile
import numpy as np
import pytest
import tensorflow as tf
from test_data import expected_rows

import tf_transformer as tt
from tf_transformer.corpora import preparation, records, toy_corpus
from tf_transformer.corpora.corpus import Batching
from tf_transformer.corpora.text_files import line_problem

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
    monkeypatch.setattr(preparation, "READ_LINES", 11)
    monkeypatch.setattr(records, "BLOCK_SHARDS", 4)


def write_text(folder, pairs):
    """Two files; the names of both."""
    names = []
    for side, texts in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
        names.append(folder / f"text.{side}")
        names[-1].write_bytes(b"".join((t if isinstance(t, bytes) else t.encode()) + b"\n" for t in texts))
    return list(map(str, names))


def write(corpus, folder, skip_bad_lines=True, **options):
    """Records of pairs, in folder/records."""
    pairs, tokenizer = corpus
    source = tt.sources.TextSource(*write_text(folder, pairs), skip_bad_lines)
    work = tt.Preparation(source, folder / "records", **options)
    return work.run(source.parts(records.SHARD_LINES, work.folder), tokenizer)


@pytest.fixture
def written(corpus, tmp_path):
    assert len(list(write(corpus, tmp_path))) == 15
    return records.Records(tmp_path / "records")


def take(found, count):
    return list(itertools.islice(found.as_numpy_iterator(), count))


def test_an_epoch_holds_every_pair_once_and_summary_counts_it(corpus, written):
    pairs, tokenizer = corpus
    summary = written.summary(BATCH)
    kept = [pair for i, pair in enumerate(pairs) if i not in (13, 17)]
    expected = expected_rows(kept, tokenizer)
    assert (summary.pairs, summary.skipped) == (PAIRS - 2, 2)
    assert summary.source_tokens == sum(len(row[0]) for row in expected)
    assert summary.target_tokens == sum(len(row[2]) for row in expected)
    for epoch in range(2):
        batches = take(written.batches(BATCH, first=epoch * summary.batches, lines=True), summary.batches)
        found, lines = [], []
        for (source, target_in), target_out, numbers in batches:
            assert max(source.size, target_out.size) <= BATCH
            rows = zip(source, target_in, target_out, strict=True)
            found += [tuple(tuple(ids[ids != 0].tolist()) for ids in row) for row in rows]
            lines += numbers.tolist()
        assert sorted(found) == sorted(expected)
        assert sorted(lines) == [i + 1 for i in range(PAIRS) if i not in (13, 17)]
        by_line = dict(zip(lines, found, strict=True))
        assert by_line[1] == expected[0]
        assert found != sorted(found)


def test_step_n_is_step_n_from_wherever_one_begins(written):
    whole = take(written.batches(BATCH, seed=3), 120)
    assert 20 < written.summary(BATCH).batches < 59
    for first in (0, 1, 17, 59, 91):
        for found, expected in zip(take(written.batches(BATCH, seed=3, first=first), 9), whole[first:], strict=False):
            for ids, others in zip((*found[0], found[1]), (*expected[0], expected[1]), strict=True):
                np.testing.assert_array_equal(ids, others)
    other = take(written.batches(BATCH, seed=4), 1)
    assert other[0][1].tolist() != whole[0][1].tolist()


def test_epochs_differ(written):
    epoch = written.summary(BATCH).batches
    first, second = (take(written.batches(BATCH, first=first), 1)[0][1].tolist() for first in (0, epoch))
    assert first != second
    made = written.made_of(BATCH, 0)
    assert sorted(itertools.chain(*made.blocks)) == list(range(15)) and len(made.blocks) == 4
    orders = [[block for block, _ in itertools.islice(made._blocks_since(n * epoch), 4)] for n in range(4)]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders) and orders[0] != orders[1]


def test_the_millionth_batch_costs_what_the_first_does(written):
    read = []
    made = written.made_of(BATCH, 5)
    made._read, read_block = lambda *given: read.append(given) or read_block(*given), made._read
    batch = next(made.since(10**6))
    epoch, place = divmod(10**6, len(made))
    again = next(itertools.islice(made.since(epoch * len(made)), place, None))
    assert np.array_equal(batch.lines, again.lines) and read[0][1][0] // made.counts[read[0][0]] == epoch


def test_what_was_stopped_goes_on_to_the_same_files(corpus, written, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped")
    stopped = write(corpus, folder)
    for _ in range(6):
        next(stopped)
    stopped.close()
    made = folder / "records"
    (made / ".shard-00006.tfrecord-0a1b2c3d.tmp").write_bytes(b"half")  # as a killed worker leaves it
    with pytest.raises(tt.BadInput, match="is not complete; start tf-transformer prepare again"):
        records.Records(made)
    times = {file.name: file.stat().st_mtime_ns for file in made.glob("shard-*")}
    assert len(times) == 12
    for _ in range(2):
        assert len(list(write(corpus, folder))) == 15
        assert {file: (made / file).stat().st_mtime_ns for file in times} == times  # these were kept
        assert contents(made) == contents(written.folder)


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_damaged_shard_is_made_again_and_nothing_else(corpus, written, tmp_path):
    expected, shard = contents(written.folder), written.folder / written.shards[3]["file"]
    (written.folder / written.shards[5]["file"]).unlink()
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    with pytest.raises(
        tt.BadInput, match=rf"{shard.name}: expected [\d,]+ bytes, got others or none; prepare again to mend it"
    ):
        records.Records(written.folder)
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert len(list(write(corpus, tmp_path))) == 15
    assert contents(written.folder) == expected


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
            list(write(change, tmp_path, **options))
    with pytest.raises(tt.BadInput, match="batch_tokens: expected at least max_length=256"):
        written.batches(100)
    with pytest.raises(tt.BadInput, match="found no records.json"):
        records.Records(tmp_path / "nowhere")
    (written.folder / "records.json").unlink()  # to begin anew: what is left of before is not taken for finished
    assert len(list(write((pairs, other), tmp_path))) == 15
    assert sum(records.Records(written.folder).shards[0]["tokens"]) != sum(written.shards[0]["tokens"])


def test_hostile_lines(corpus, tmp_path):
    """What is bad is left out and counted, or an error that says where; what is strange only is kept."""
    chance = random.Random(3)
    texts = [kind(chance).replace(b"\n", b" ") for kind in hostile.KINDS for _ in range(40)]
    texts += [b"", b"\xff\xfe broken \xc3", b"word " * 30_000, b"fine\r"]
    pairs = [(text, b"gut") for text in texts] + [(b"good", text) for text in texts]
    shards = list(write((pairs, corpus[1]), tmp_path))
    bad = [place for place, pair in enumerate(pairs) if any(map(line_problem, pair))]
    assert 50 < len(bad) < len(pairs) - 50
    lines = [ids[2] for ids in rows(tmp_path / "records")]
    assert set(lines) <= {place + 1 for place in range(len(pairs)) if place not in bad}
    kept = sum(sum(shard["lengths"]) for shard in shards)
    assert kept == len(lines) == len(pairs) - sum(shard["skipped"] for shard in shards) > 300
    source, target, line = rows(tmp_path / "records")[-1]
    for found, text in zip((source, target), pairs[line - 1], strict=True):
        assert found == corpus[1].tokenize([text]).to_list()[0]
    shutil.rmtree(tmp_path / "records")
    side, number = ("en", bad[0] + 1) if bad[0] < len(texts) else ("de", bad[0] + 1)
    with pytest.raises(tt.BadInput, match=rf"text\.{side}, line {number:,}: expected a sentence in UTF-8, got "):
        list(write((pairs, corpus[1]), tmp_path, skip_bad_lines=False))


def rows(folder):
    """Source, target and line of every record, in order."""
    found = []
    for file in sorted(folder.glob("*.tfrecord")):
        for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
            feature = tf.train.Example.FromString(record).features.feature
            source, target, line = (list(feature[name].int64_list.value) for name in ("source", "target", "line"))
            found.append((source, target, line[0]))
    return found


def test_filters_count_and_take_what_a_loop_takes(corpus, tmp_path):
    """Duplicates in other shards too; the order of the filters."""
    chance = random.Random(5)
    words = [f"w{number}" for number in range(4)]
    texts = [" ".join(chance.choices(words, k=chance.randint(1, 5))) for _ in range(2 * 461)]
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    pairs[400] = ("  " + pairs[3][0] + " ", pairs[3][1])  # the same but for spaces
    filters = tt.Filters(duplicates=True, identical=True, max_ratio=2.5)
    shards = list(write((pairs, corpus[1]), tmp_path, filters=filters))
    seen, expected, counts = set(), [], dict.fromkeys(("duplicates", "identical", "max_ratio"), 0)
    for number, (source, target) in enumerate(pairs, 1):
        key = (source.strip(), target)
        if key in seen:
            counts["duplicates"] += 1
        elif key[0] == key[1]:
            counts["identical"] += 1
        elif max(len(key[0]), len(key[1])) > 2.5 * min(len(key[0]), len(key[1])):
            counts["max_ratio"] += 1
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
    list(work.run(parts, tokenizer))
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
    list(work.run(source.parts(50, work.folder), tokenizer))
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


def test_records_are_of_one_tokenizer(written, corpus):
    """Not of that of a model to start from: its ids would be other words."""
    prepared = tt.PreparedCorpus(written.folder, (["a"], ["b"]))
    batching = Batching(corpus[1], BATCH, 1)
    assert prepared.summary(batching).batches > 0
    other = tt.Tokenizer.learn_from([text for pair in corpus[0] for text in pair], 401)
    with pytest.raises(tt.BadInput, match="expected to train with the tokenizer of the records, got another"):
        prepared.summary(dataclasses.replace(batching, tokenizer=other))
