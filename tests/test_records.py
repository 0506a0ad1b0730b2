"""A corpus on disk: every pair once an epoch, whole after a stop, and step N without what came before it."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from test_data import expected_rows

import tf_transformer as tt
from tf_transformer import toy_corpus
from tf_transformer.corpora import records
from tf_transformer.corpora.corpus import Batching

PAIRS, BATCH = 701, 512


@pytest.fixture(scope="module")
def corpus():
    pairs = toy_corpus.corpus(train=PAIRS, dev=0, test=0)["train"]
    pairs[13] = ("", "leer")
    pairs[17] = ("long " * 300, "lang")
    return pairs, tt.Tokenizer.learn_from([text for pair in pairs for text in pair], 400)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Shards of 50 lines, in batches of 1,000 before that: 15 shards, blocks of 4, the last one of 3."""
    monkeypatch.setattr(records, "SHARD_LINES", 50)
    monkeypatch.setattr(records, "READ_LINES", 10)
    monkeypatch.setattr(records, "BLOCK_SHARDS", 4)


def write(corpus, folder):
    pairs, tokenizer = corpus
    return records.write_records(tt.data.in_memory(*map(list, zip(*pairs, strict=True))), tokenizer, folder)


@pytest.fixture
def written(corpus, tmp_path):
    assert len(list(write(corpus, tmp_path))) == 15
    return records.Records(tmp_path)


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
        if not epoch:
            assert found != sorted(found)
            break  # later epochs draw other blocks, which may have another number of batches


def test_step_n_is_step_n_from_wherever_one_begins(written):
    whole = take(written.batches(BATCH, seed=3), 120)
    assert written.summary(BATCH, seed=3).batches < 90
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
    blocks = [shards for _, _, shards in itertools.islice(written._blocks(0), 8)]
    assert [sorted(itertools.chain(*epoch)) for epoch in (blocks[:4], blocks[4:])] == 2 * [list(range(15))]
    assert blocks[:4] != blocks[4:]


def test_what_was_stopped_goes_on_to_the_same_files(corpus, written, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped")
    stopped = write(corpus, folder)
    for _ in range(6):
        next(stopped)
    stopped.close()
    (folder / ".shard-00006.tfrecord").write_bytes(b"half")
    with pytest.raises(tt.BadInput, match="is not complete; start trainers.prepare again"):
        records.Records(folder)
    assert len(list(write(corpus, folder))) == 9
    assert list(write(corpus, folder)) == []
    assert (folder / "records.json").read_text() == (written.folder / "records.json").read_text()
    for shard in written.shards:
        assert (folder / shard["file"]).read_bytes() == (written.folder / shard["file"]).read_bytes()


def test_what_is_damaged_or_another_s(corpus, written):
    pairs, _ = corpus
    other = tt.Tokenizer.learn_from([text for pair in pairs for text in pair], 390)
    with pytest.raises(tt.BadInput, match="holds records of another tokenizer"):
        list(write((pairs, other), written.folder))
    shard = written.folder / written.shards[3]["file"]
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    with pytest.raises(tt.BadInput, match=rf"{shard.name}: expected [\d,]+ bytes"):
        records.Records(written.folder)
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(tt.BadInput, match=rf"{shard.name}: its checksum is wrong"):
        list(write(corpus, written.folder))
    with pytest.raises(tt.BadInput, match="batch_tokens: expected at least max_length=256"):
        written.batches(100)
    (written.folder / "records.json").write_text(json.dumps({"complete": False}))
    with pytest.raises(tt.BadInput, match="found no records.json"):
        records.Records(written.folder / "nowhere")


def test_records_are_of_one_tokenizer(written, corpus):
    """Not of that of a model to start from: its ids would be other words."""
    prepared = tt.PreparedCorpus(written.folder, (["a"], ["b"]))
    batching = Batching(corpus[1], BATCH, 1)
    assert prepared.summary(batching).batches > 0
    other = tt.Tokenizer.learn_from([text for pair in corpus[0] for text in pair], 401)
    with pytest.raises(tt.BadInput, match="expected to train with the tokenizer of the records, got another"):
        prepared.summary(dataclasses.replace(batching, tokenizer=other))
