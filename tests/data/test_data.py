"""Batches hold every pair once, framed, in token batches of similar length."""

import dataclasses
import gc
import gzip
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tf_transformer as tt
from tf_transformer.data import toy_corpus
from tf_transformer.data.batches import Batches, Order, bucket_bounds
from tf_transformer.data.corpus import Batching
from tf_transformer.data.datasets import fed, text_pairs, token_batches
from tf_transformer.data.ids import Block, Ids, metadata_of, tokenized
from tf_transformer.data.sources import MAX_LENGTH, TextSource, encoder_of, rows_of
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID

PAIRS = 701


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Two files, their pairs and a tokenizer."""
    folder = tmp_path_factory.mktemp("corpus")
    pairs = toy_corpus.corpus(train=PAIRS, dev=0, test=0)["train"]
    files = [folder / name for name in ("train.en", "train.de")]
    for side, file in enumerate(files):
        file.write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
    return files, pairs, tt.Tokenizer.train(files, 400)


def rows(batches):
    """(source, target_in, target_out) of every row, as tuples without padding."""
    return [
        tuple(tuple(side[side != 0].tolist()) for side in row)
        for (source, target_in), target_out in batches.as_numpy_iterator()
        for row in zip(source, target_in, target_out, strict=True)
    ]


def expected_rows(pairs, tokenizer):
    ids = [tokenizer.tokenize(list(side)).to_list() for side in zip(*pairs, strict=True)]
    return [((*s, EOS_ID), (BOS_ID, *t), (*t, EOS_ID)) for s, t in zip(*ids, strict=True)]


def ids_of(pairs, tokenizer, max_length=MAX_LENGTH):
    return tokenized([(encoder_of(tokenizer), rows_of(pairs))], max_length, tokenizer.vocab_size)


def test_an_epoch_holds_every_pair_once(corpus):
    files, pairs, tokenizer = corpus
    batches = text_pairs(*files, tokenizer, batch_tokens=512)
    assert sorted(rows(batches)) == sorted(expected_rows(pairs, tokenizer))
    assert int(batches.cardinality()) == sum(1 for _ in batches)  # so Keras does not warn at the end of an epoch


def test_batches_are_of_about_batch_tokens_and_of_similar_length(corpus):
    """Remaining pairs share batches: as many of these as their tokens fill, and no more."""
    files, _, tokenizer = corpus
    bounds, mixed, count = bucket_bounds(MAX_LENGTH), [], 0
    for (source, target_in), target_out in text_pairs(*files, tokenizer, batch_tokens=512).as_numpy_iterator():
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
    with pytest.raises(tt.BadInput, match="batch_tokens: expected at least max_length=256, got 100"):
        text_pairs(*files, tokenizer, batch_tokens=100)


@given(
    st.lists(st.integers(2, 31), min_size=1, max_size=300), st.integers(31, 200), st.integers(0, 9), st.integers(1, 4)
)
def test_after_e_epochs_every_pair_came_e_times(lengths, batch_tokens, seed, epochs):
    order = Order(np.array(lengths), batch_tokens, 31, seed)
    assert len(order) <= len(lengths) // (batch_tokens // 31) + len(order.bounds)
    for epoch in range(epochs):
        seen = []
        for number in range(epoch * len(order), (epoch + 1) * len(order)):
            indices, (rows, width) = order[number]
            assert 0 < len(indices) <= rows and rows * width <= batch_tokens
            assert max(lengths[index] for index in indices) <= width
            seen += indices.tolist()
        assert sorted(seen) == list(range(len(lengths)))


def test_order_is_a_function_of_the_seed_and_the_epoch(corpus):
    files, _, tokenizer = corpus

    def order(take=160, skip=0, **options):
        return rows(text_pairs(*files, tokenizer, 512, repeat=True, **options).skip(skip).take(take))

    whole = order(seed=1)
    epochs = [whole[start : start + PAIRS] for start in (0, PAIRS)]
    assert sorted(epochs[0]) == sorted(epochs[1]) and epochs[0] != epochs[1]
    assert order(40, seed=1) == whole[: len(order(40, seed=1))] != order(40, seed=2)
    later = order(10, skip=30, seed=1)  # a resumed run is the same as an uninterrupted one
    assert later == order(40, seed=1)[-len(later) :]
    once = text_pairs(*files, tokenizer, 512, seed=1)
    assert rows(once) == epochs[0] and rows(once) == epochs[1]  # the second time it is the second epoch
    assert rows(text_pairs(*files, tokenizer, 512, seed=1, first_epoch=1)) == epochs[1]
    assert order(80, seed=1, first_epoch=1)[:PAIRS] == epochs[1]


def test_batches_of_fixed_shapes_are_the_same_with_more_padding(corpus):
    _, pairs, tokenizer = corpus
    block, shapes = Block.of(ids_of(pairs, tokenizer), MAX_LENGTH), set()
    both = [Batches([block], 512, 3, fixed) for fixed in (False, True)]
    for number in range(2 * len(both[0])):
        narrow, filled = (batches[number] for batches in both)
        shapes.add(filled.source.shape)
        for small, large in zip(narrow, filled, strict=True):
            assert np.array_equal(small, large[tuple(map(slice, small.shape))])
            assert np.count_nonzero(large) == np.count_nonzero(small)
    assert sorted(shapes, key=lambda shape: shape[1]) == both[0].shapes and len(shapes) > 1


def test_stored_ids_are_the_same_unless_they_are_damaged(corpus, tmp_path):
    _, pairs, tokenizer = corpus
    ids = ids_of(pairs, tokenizer)
    metadata = ids.save(tmp_path / "ids", {"of": "a"})
    stored = Ids.load(tmp_path / "ids", metadata["skipped"])
    indices = np.arange(60) * 11
    assert all(map(np.array_equal, ids.batch(indices), stored.batch(indices)))
    assert len(stored) == len(ids) and stored.skipped == ids.skipped
    assert metadata_of(tmp_path / "ids") == metadata and metadata["of"] == "a"
    (tmp_path / "ids/target.npy").write_bytes(b"cut")
    assert metadata_of(tmp_path / "ids") is None and metadata_of(tmp_path / "none") is None


def test_blocks_are_one_corpus_in_parts(corpus):
    """Every pair once an epoch, batch N from wherever one begins, and one block in memory at a time."""
    _, pairs, tokenizer = corpus
    every, read, blocks = ids_of(pairs, tokenizer), [], []
    for start in range(0, PAIRS, 101):
        some = ids_of(pairs[start : start + 101], tokenizer)
        block = Block.of(some, MAX_LENGTH)
        blocks.append(dataclasses.replace(block, read=lambda some=some, start=start: read.append(start) or some))
    batches = Batches(blocks, 512, 5)
    whole = Batches([Block.of(every, 256)], 512).summary()
    assert batches.summary() == dataclasses.replace(whole, batches=len(batches))
    for epoch in range(2):
        read.clear()
        of_epoch = [batches[number] for number in range(epoch * len(batches), (epoch + 1) * len(batches))]
        assert sorted(read) == list(range(0, PAIRS, 101))
        rows = sorted(tuple(row[row != 0].tolist()) for batch in of_epoch for row in batch.target_out)
        assert rows == sorted((*ids, EOS_ID) for ids in tokenizer.encode_target([target for _, target in pairs]))
    for number in (10**6, 0, 37):
        again = Batches(blocks, 512, 5)[number]
        assert all(map(np.array_equal, again, batches[number]))
    assert not all(map(np.array_equal, Batches(blocks, 512, 6)[0], batches[0]))
    with pytest.raises(tt.BadInput, match="expected sentences of at most 7 tokens, got none"):
        Batches([Block.of(ids_of([], tokenizer, 7), 7)], 512).since()


def test_a_block_is_freed_before_the_next_one(corpus):
    """Its ids and its order, without a search for cycles. So are all batches when nobody has them any more."""
    _, pairs, tokenizer = corpus
    gc.disable()
    try:
        blocks = [Block.of(ids_of(pairs[start:][:101], tokenizer), MAX_LENGTH) for start in (0, 101)]
        batches = Batches(blocks, 512, 5)
        batches[0]
        first = batches._read[2]
        seen = [weakref.ref(first), weakref.ref(first._epochs[0][0])]
        del first
        alive, block = [], int(batches._order(0)[0][1])  # the other block
        one = blocks[block]
        blocks[block] = dataclasses.replace(one, read=lambda: alive.extend(one() for one in seen) or one.read())
        batches[len(batches) - 1]
        assert alive == [None, None]  # when the other one was read
        seen = [weakref.ref(batches), weakref.ref(batches._read[2])]
        del batches
        assert [one() for one in seen] == [None, None]
    finally:
        gc.enable()


def test_long_pairs_are_skipped_and_counted(corpus):
    files, pairs, tokenizer = corpus
    batches = text_pairs(*files, tokenizer, 512, max_length=13, shuffle=False)
    expected = [row for row in expected_rows(pairs, tokenizer) if max(len(row[0]), len(row[2])) <= 13]
    assert sorted(rows(batches)) == sorted(expected)
    summary = Batches([Block.of(ids_of(pairs, tokenizer, 13), 13)], 512).summary()
    assert (summary.pairs, summary.skipped) == (len(expected), PAIRS - len(expected))
    assert summary.source_tokens == sum(len(row[0]) for row in expected)
    assert summary.target_tokens == sum(len(row[2]) for row in expected)
    assert summary.batches == len(list(batches))


def test_gz_and_lists_of_files(corpus, tmp_path):
    files, pairs, tokenizer = corpus
    sides = [[tmp_path / f"{number}.{file.name}.gz" for number in (0, 1)] for file in files]
    for file, halves in zip(files, sides, strict=True):
        lines = file.read_bytes().splitlines(keepends=True)
        for path, half in zip(halves, (lines[:300], lines[300:]), strict=True):
            path.write_bytes(gzip.compress(b"".join(half)))
    assert sorted(rows(text_pairs(*sides, tokenizer, 512))) == sorted(expected_rows(pairs, tokenizer))
    assert tt.data.check_text_pairs(*sides) == PAIRS
    with pytest.raises(tt.BadInput, match="as many source files as target files, got 1 and 2"):
        text_pairs(sides[0][:1], sides[1], tokenizer, 512)


def test_bad_lines_can_be_skipped(corpus, tmp_path):
    _, pairs, tokenizer = corpus
    good, bad = pairs[:4], [(b"\xff", b"a"), (b"", b"b"), (b"c", b"x" * 20_000), (b"d", b" "), (b"caf\xe9", b"e")]
    encoded = [tuple(text.encode() for text in pair) for pair in good]
    files = tmp_path / "source", tmp_path / "target"
    for side, file in enumerate(files):
        file.write_bytes(b"".join(pair[side] + b"\n" for pair in [*encoded[:2], *bad, *encoded[2:]]))
    with pytest.raises(tt.BadInput, match="line 3"):
        text_pairs(*files, tokenizer, 512)
    batches = text_pairs(*files, tokenizer, 512, skip_bad_lines=True)
    assert sorted(rows(batches)) == sorted(expected_rows(good, tokenizer))
    corpus = tt.Corpus(TextSource(*files, skip_bad_lines=True), (["a"], ["b"]))
    assert corpus.batches(Batching(tokenizer, 512, 1)).summary().skipped == len(bad)


def test_strings_may_be_empty_or_have_lone_surrogates(corpus):
    _, _, tokenizer = corpus
    pairs = [("Two\ud83ddoors.", "Zwei\udcffTore."), ("", "nichts"), ("a", "b"), ("two doors", " ")]
    batches = token_batches(pairs, tokenizer, 512, shuffle=False)
    expected = expected_rows([("Two doors.", "Zwei Tore."), ("a", "b")], tokenizer)
    assert sorted(rows(batches)) == sorted(expected)


@pytest.mark.parametrize("pairs", [[], [("a", ""), ("two doors " * 7, "b")]])
def test_no_pair_of_a_fitting_length_raises_bad_input(corpus, pairs):
    _, _, tokenizer = corpus
    with pytest.raises(tt.BadInput, match="^pairs: expected at least one of 1 to max_length=11 tokens per side, got"):
        token_batches(pairs, tokenizer, 512, max_length=11)


def test_an_iterator_is_deleted_without_delay(corpus):
    _, pairs, tokenizer = corpus
    batches = Batches([Block.of(ids_of(pairs[:3], tokenizer), MAX_LENGTH)], 512, 1)
    for each in (token_batches(pairs[:1], tokenizer, 512), fed(batches, 1), fed(batches, 2)):
        assert each.options().autotune.enabled is False
