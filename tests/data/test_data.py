"""Batches hold every pair once, framed, in token batches of similar length."""

import dataclasses
import gzip
import os
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tf_transformer as tt
from tf_transformer.data import datasets as data
from tf_transformer.data import toy_corpus
from tf_transformer.data.batches import Batches, Block, Order, bucket_bounds
from tf_transformer.data.corpus import Batching
from tf_transformer.data.ids import Ids, facts_of, tokenized
from tf_transformer.data.pairs import encoder_of, rows_of
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID

PAIRS = 701


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    pairs = toy_corpus.corpus(train=PAIRS, dev=0, test=0)["train"]
    for side, name in enumerate(("train.en", "train.de")):
        (folder / name).write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
    tokenizer = tt.Tokenizer.learn([folder / "train.en", folder / "train.de"], 400)
    return folder, pairs, tokenizer


def rows(batches):
    """(source, target_in, target_out) of every row, as tuples without padding."""

    def strip(ids):
        return tuple(ids[ids != 0].tolist())

    return [
        tuple(strip(side) for side in row)
        for (source, target_in), target_out in batches.as_numpy_iterator()
        for row in zip(source, target_in, target_out, strict=True)
    ]


def expected_rows(pairs, tokenizer):
    ids = [tokenizer.tokenize(list(side)).to_list() for side in zip(*pairs, strict=True)]
    return [((*s, EOS_ID), (BOS_ID, *t), (*t, EOS_ID)) for s, t in zip(*ids, strict=True)]


def ids_of(pairs, tokenizer, max_length=data.MAX_LENGTH):
    return tokenized(rows_of(pairs), encoder_of(tokenizer), max_length, tokenizer.vocab_size)


def test_an_epoch_holds_every_pair_once(corpus):
    folder, pairs, tokenizer = corpus
    batches = data.text_pairs(folder / "train.en", folder / "train.de", tokenizer, batch_tokens=512)
    assert sorted(rows(batches)) == sorted(expected_rows(pairs, tokenizer))
    assert int(batches.cardinality()) == sum(
        1 for _ in batches
    )  # so Keras knows the end of an epoch, and warns of none


def test_batches_are_of_about_batch_tokens_and_of_similar_length(corpus):
    """Pairs that are left over share batches: as many of these as their tokens fill, and no more."""
    folder, _, tokenizer = corpus
    batches = data.text_pairs(folder / "train.en", folder / "train.de", tokenizer, batch_tokens=512)
    bounds, mixed, count = bucket_bounds(data.MAX_LENGTH), [], 0
    for (source, target_in), target_out in batches.as_numpy_iterator():
        assert source.dtype == target_in.dtype == target_out.dtype == np.int32
        assert target_in.shape == target_out.shape
        assert max(source.size, target_out.size) <= 512
        longest = np.maximum((source != 0).sum(1), (target_out != 0).sum(1))
        bucket = next(bound for bound in bounds if bound >= longest.max())
        count += 1
        if longest.min() <= (bounds[bounds.index(bucket) - 1] if bucket > bounds[0] else 0):
            mixed.append((bucket, len(longest)))
    assert count > 20 and 1 <= len(mixed) < len(bounds) / 2
    assert sum(rows < 512 // bucket for bucket, rows in mixed) <= 1  # the last one may be short


@given(
    st.lists(st.integers(2, 31), min_size=1, max_size=300), st.integers(31, 200), st.integers(0, 9), st.integers(1, 4)
)
def test_after_e_epochs_every_pair_came_e_times(lengths, batch_tokens, seed, epochs):
    """Whatever the lengths; each batch holds what its bucket's shape allows."""
    order = Order(np.array(lengths), batch_tokens, 31, seed)
    assert len(order) <= len(lengths) // (batch_tokens // 31) + len(order.bounds)
    for epoch in range(epochs):
        seen = []
        for number in range(epoch * len(order), (epoch + 1) * len(order)):
            places, (rows, width) = order[number]
            assert 0 < len(places) <= rows and rows * width <= batch_tokens
            assert max(lengths[place] for place in places) <= width
            seen += places.tolist()
        assert sorted(seen) == list(range(len(lengths)))


def test_every_epoch_has_an_order_of_its_own(corpus):
    folder, _, tokenizer = corpus
    batches = data.text_pairs(folder / "train.en", folder / "train.de", tokenizer, 512, repeat=True, seed=1)
    found = rows(batches.take(160))
    epochs = [found[start : start + PAIRS] for start in (0, PAIRS)]
    assert sorted(epochs[0]) == sorted(epochs[1]) and epochs[0] != epochs[1]
    once = data.text_pairs(folder / "train.en", folder / "train.de", tokenizer, 512, seed=1)
    assert rows(once) == epochs[0] and rows(once) == epochs[1]  # the second time it is the second epoch
    files = folder / "train.en", folder / "train.de"
    assert rows(data.text_pairs(*files, tokenizer, 512, seed=1, first_epoch=1)) == epochs[1]
    later = data.text_pairs(*files, tokenizer, 512, repeat=True, seed=1, first_epoch=1)
    assert rows(later.take(80))[:PAIRS] == epochs[1]


def test_batches_of_fixed_shapes_are_the_same_with_more_padding(corpus):
    _, pairs, tokenizer = corpus
    block, shapes = Block.of(ids_of(pairs, tokenizer), data.MAX_LENGTH), set()
    both = [Batches([block], 512, 3, fixed) for fixed in (False, True)]
    for number in range(2 * len(both[0])):
        narrow, filled = (batches[number] for batches in both)
        shapes.add(filled.source.shape)
        for small, large in zip(narrow, filled, strict=True):
            assert np.array_equal(small, large[tuple(map(slice, small.shape))])
            assert np.count_nonzero(large) == np.count_nonzero(small)
    assert sorted(shapes, key=lambda shape: shape[1]) == both[0].shapes and len(shapes) > 1


def test_ids_are_kept_for_the_same_text_alone(corpus, tmp_path):
    _, pairs, tokenizer = corpus
    ids = ids_of(pairs, tokenizer)
    facts = ids.save(tmp_path / "ids", {"of": "a"})
    kept = Ids.load(tmp_path / "ids", facts["skipped"])
    for number in range(5):
        places = np.arange(7) * 11 + number
        for mine, theirs in zip(ids.batch(places), kept.batch(places), strict=True):
            assert np.array_equal(mine, theirs)
    assert len(kept) == len(ids) and kept.skipped == ids.skipped
    assert facts_of(tmp_path / "ids") == facts and facts["of"] == "a"
    (tmp_path / "ids/target.npy").write_bytes(b"cut")
    assert facts_of(tmp_path / "ids") is None and facts_of(tmp_path / "none") is None


def test_blocks_are_one_text_in_parts(corpus):
    """Every pair once an epoch, batch N from wherever one begins, and one block in memory at a time."""
    _, pairs, tokenizer = corpus
    every, read = ids_of(pairs, tokenizer), []
    blocks = []
    for start in range(0, PAIRS, 101):
        part = ids_of(pairs[start : start + 101], tokenizer)
        block = Block.of(part, data.MAX_LENGTH)
        blocks.append(dataclasses.replace(block, read=lambda part=part, start=start: read.append(start) or part))
    batches = Batches(blocks, 512, 5)
    assert batches.summary() == dataclasses.replace(
        Batches([Block.of(every, 256)], 512).summary(), batches=len(batches)
    )
    for epoch in range(2):
        read.clear()
        found = [batches[number] for number in range(epoch * len(batches), (epoch + 1) * len(batches))]
        assert sorted(read) == list(range(0, PAIRS, 101))
        rows = sorted(tuple(row[row != 0].tolist()) for batch in found for row in batch.target_out)
        assert rows == sorted((*ids, EOS_ID) for ids in tokenizer.encode_target([target for _, target in pairs]))
    for number in (10**6, 0, 37):
        again = Batches(blocks, 512, 5)[number]
        assert all(map(np.array_equal, again, batches[number]))
    assert not all(map(np.array_equal, Batches(blocks, 512, 6)[0], batches[0]))
    with pytest.raises(tt.BadInput, match="expected sentences of at most 7 tokens, got none"):
        Batches([Block.of(ids_of([], tokenizer, 7), 7)], 512).since()


def test_order_is_a_function_of_the_seed_and_the_epoch(corpus):
    folder, _, tokenizer = corpus

    def order(seed, skip=0, take=40):
        batches = data.text_pairs(folder / "train.en", folder / "train.de", tokenizer, 512, repeat=True, seed=seed)
        return rows(batches.skip(skip).take(take))

    first = order(seed=1)
    assert order(seed=1) == first
    assert order(seed=2) != first
    later = order(seed=1, skip=30, take=10)
    assert first[-len(later) :] == later  # going on from a position is the same as never having stopped
    epoch = 2 * PAIRS // 3
    assert first[:epoch] != first[PAIRS : PAIRS + epoch]


def test_long_pairs_are_skipped_and_counted(corpus):
    folder, pairs, tokenizer = corpus
    batches = data.text_pairs(folder / "train.en", folder / "train.de", tokenizer, 512, max_length=13, shuffle=False)
    kept = [row for row in expected_rows(pairs, tokenizer) if max(len(row[0]), len(row[2])) <= 13]
    assert sorted(rows(batches)) == sorted(kept)
    summary = Batches([Block.of(ids_of(pairs, tokenizer, 13), 13)], 512).summary()
    assert (summary.pairs, summary.skipped) == (len(kept), PAIRS - len(kept))
    assert summary.source_tokens == sum(len(row[0]) for row in kept)
    assert summary.target_tokens == sum(len(row[2]) for row in kept)
    assert summary.batches == len(list(batches))


def test_gz_and_lists_of_files(corpus, tmp_path):
    folder, pairs, tokenizer = corpus
    for name in ("train.en", "train.de"):
        lines = (folder / name).read_text(encoding="utf-8").splitlines(keepends=True)
        for part, half in enumerate((lines[:300], lines[300:])):
            with gzip.open(tmp_path / f"{part}.{name}.gz", "wt", encoding="utf-8") as file:
                file.writelines(half)
    sides = [[tmp_path / f"{part}.{name}.gz" for part in (0, 1)] for name in ("train.en", "train.de")]
    assert sorted(rows(data.text_pairs(*sides, tokenizer, 512))) == sorted(expected_rows(pairs, tokenizer))
    assert data.check_text_pairs(*sides) == PAIRS
    with pytest.raises(tt.BadInput, match="as many source files as target files, got 1 and 2"):
        data.text_pairs(sides[0][:1], sides[1], tokenizer, 512)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (b"one\ntwo\n", b"eins\n", r"the same number of lines in both files, got 2 in .*source and 1 in .*target"),
        (b"one\n\nthree\n", b"eins\nzwei\ndrei\n", r"source, line 2: .*got an empty line"),
        (b"one\n \t\xe3\x80\x80\n", b"eins\nzwei\n", r"source, line 2: .*got an empty line"),
        (b"one\ntwo\n", b"eins\nzw\xffei\n", r"target, line 2: .*UTF-8, got the byte 0xff at column 3"),
        (b"one\n" + b"x" * 100_000 + b"\n", b"eins\nzwei\n", r"source, line 2: .*got 100,000 bytes \(at most 16,384\)"),
        (b"", b"", "expected sentences, got an empty file"),
    ],
)
def test_text_that_cannot_be_trained_on(tmp_path, source, target, message):
    (tmp_path / "source").write_bytes(source)
    (tmp_path / "target").write_bytes(target)
    with pytest.raises(tt.BadInput, match=message):
        data.check_text_pairs(tmp_path / "source", tmp_path / "target")


def test_bad_lines_can_be_left_out(corpus, tmp_path):
    _, pairs, tokenizer = corpus
    good, bad = pairs[:4], [(b"\xff", b"a"), (b"", b"b"), (b"c", b"x" * 20_000), (b"d", b" "), (b"caf\xe9", b"e")]
    mixed = [tuple(text.encode() for text in pair) for pair in good[:2]] + bad
    mixed += [tuple(text.encode() for text in pair) for pair in good[2:]]
    for side, name in enumerate(("source", "target")):
        (tmp_path / name).write_bytes(b"".join(pair[side] + b"\n" for pair in mixed))
    files = (tmp_path / "source", tmp_path / "target")
    with pytest.raises(tt.BadInput, match="line 3"):
        data.text_pairs(*files, tokenizer, 512)
    batches = data.text_pairs(*files, tokenizer, 512, skip_bad_lines=True)
    assert sorted(rows(batches)) == sorted(expected_rows(good, tokenizer))
    corpus = tt.Corpus(tt.sources.TextSource(*files, skip_bad_lines=True), (["a"], ["b"]))
    assert corpus.batches(Batching(tokenizer, 512, 1)).summary().skipped == len(bad)


def test_what_a_line_is(corpus, tmp_path):
    """It ends with a newline: no other separator ends it, and a byte order mark at the start of a file is no text."""
    _, _, tokenizer = corpus
    (tmp_path / "source").write_bytes(b"\xef\xbb\xbfred\rdoor\r\nTwo\x0cdoors\xc2\x85now\xe2\x80\xa8.")
    (tmp_path / "target").write_bytes(b"rote\rdoor\nZwei\n")
    files = (tmp_path / "source", tmp_path / "target")
    sources, targets = data.read_text_pairs(*files)
    assert sources == ["red\rdoor", "Two\x0cdoors\x85now\u2028."] and targets == ["rote\rdoor", "Zwei"]
    batches = data.text_pairs(*files, tokenizer, 512, shuffle=False)
    (source, _), target = next(batches.as_numpy_iterator())
    for ids, texts in ((source, sources), (target, targets)):
        expected = tokenizer.detokenize(tokenizer.tokenize(texts)).numpy().tolist()
        assert sorted(tokenizer.detokenize(ids).numpy().tolist()) == sorted(expected)
    assert b"red door" in expected or b"red door" in tokenizer.detokenize(source).numpy().tolist()


def test_a_pipe_is_read_once(tmp_path):
    """So it may be scored, as by `--translations <(...)`, and is refused as a text to train on."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("one\ntwo\n")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text("eins\nzwei\n"), daemon=True)
    writer.start()
    assert data.read_text_pairs(tmp_path / "file", tmp_path / "pipe") == (["one", "two"], ["eins", "zwei"])
    writer.join(10)
    with pytest.raises(tt.BadInput, match="pipe: expected a file, which can be read again, got a pipe"):
        data.check_text_pairs(tmp_path / "file", tmp_path / "pipe")


def test_half_an_emoji_in_a_list_of_texts(corpus):
    _, _, tokenizer = corpus
    pairs = zip(["Two\ud83ddoors.", "a"], ["Zwei\udcffTore.", "b"], strict=True)
    (source, _), target = next(data.token_batches(pairs, tokenizer, 512, shuffle=False).as_numpy_iterator())
    for ids, expected in ((source, b"Two doors."), (target, b"Zwei Tore.")):
        assert expected in tokenizer.detokenize(ids).numpy()


def test_a_missing_file_and_a_damaged_gz(tmp_path):
    (tmp_path / "source").write_text("one\n")
    with pytest.raises(FileNotFoundError, match="expected a text file, found none at .*nowhere"):
        data.check_text_pairs(tmp_path / "source", tmp_path / "nowhere")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"eins\n" * 1000)[:-20])
    with pytest.raises(tt.BadInput, match=r"cut\.gz: expected a whole gzip file, got a damaged one: "):
        data.check_text_pairs(tmp_path / "cut.gz", tmp_path / "source")


def test_batch_tokens_hold_the_longest_sentence(corpus):
    folder, _, tokenizer = corpus
    with pytest.raises(tt.BadInput, match="batch_tokens: expected at least max_length=256, got 100"):
        data.text_pairs(folder / "train.en", folder / "train.de", tokenizer, batch_tokens=100)


def test_pairs_with_an_empty_side_are_skipped(corpus):
    _, _, tokenizer = corpus
    pairs = zip(["a door", "", "two doors"], ["eine Tür", "nichts", " "], strict=True)
    batches = data.token_batches(pairs, tokenizer, 512, shuffle=False)
    assert [row[0] for row in rows(batches)] == [(*tokenizer.tokenize(["a door"]).to_list()[0], EOS_ID)]


def test_whoever_drops_an_iterator_does_not_wait_for_a_thread_that_sleeps(corpus):
    """TensorFlow's tuning of an iterator looks up from time to time, and its end waits for that: up to a minute."""
    batches = data.token_batches([("a door", "eine Tür")], corpus[2], 512)
    made = Batches([Block.of(ids_of(corpus[1][:3], corpus[2]), data.MAX_LENGTH)], 512, 1)
    for each in (batches, data.fed(made, 1), data.fed(made, 2)):
        assert each.options().autotune.enabled is False
