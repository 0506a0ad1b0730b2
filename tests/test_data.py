"""Batches hold every pair once, framed, in token batches of similar length."""

import collections
import gzip
import itertools

import numpy as np
import pytest
import tensorflow as tf
from trainers.learning import Texts

import tf_transformer as tt
from tf_transformer import data, toy_corpus
from tf_transformer.tokenizer import BOS_ID, EOS_ID, FIRST_ID, UNKNOWN_ID

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


def test_an_epoch_holds_every_pair_once(corpus):
    folder, pairs, tokenizer = corpus
    batches = data.text_pairs(folder / "train.en", folder / "train.de", tokenizer, batch_tokens=512)
    assert sorted(rows(batches)) == sorted(expected_rows(pairs, tokenizer))


def test_batches_are_of_about_batch_tokens_and_of_similar_length(corpus):
    folder, _, tokenizer = corpus
    batches = data.text_pairs(folder / "train.en", folder / "train.de", tokenizer, batch_tokens=512)
    bounds = data.bucket_bounds(data.MAX_LENGTH)
    for (source, target_in), target_out in batches.as_numpy_iterator():
        assert source.dtype == target_in.dtype == target_out.dtype == np.int32
        assert target_in.shape == target_out.shape
        assert max(source.size, target_out.size) <= 512
        longest = np.maximum((source != 0).sum(1), (target_out != 0).sum(1))
        bucket = next(bound for bound in bounds if bound >= longest.max())
        assert longest.min() > (bounds[bounds.index(bucket) - 1] if bucket > bounds[0] else 0)


def test_every_epoch_has_an_order_of_its_own(corpus):
    """Pairs of similar length stay in the order of the shuffled text, so that epochs can be told apart there."""
    folder, _, tokenizer = corpus
    batches = data.text_pairs(folder / "train.en", folder / "train.de", tokenizer, 512, repeat=True, seed=1)
    by_bound = collections.defaultdict(list)
    for row in rows(batches.take(160)):
        longest = max(len(row[0]), len(row[2]))
        by_bound[next(bound for bound in data.bucket_bounds(256) if bound >= longest)].append(row)
    compared = 0
    for pairs in by_bound.values():
        size = len(set(pairs))  # of an epoch
        if size >= 5 and len(pairs) >= 2 * size:
            first, second = pairs[:size], pairs[size : 2 * size]
            assert sorted(first) == sorted(second) and first != second
            compared += 1
    assert compared >= 3


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


def test_the_first_steps_learn_both_directions(corpus):
    """Then pairs come as they are, in the order of a run that never had any other."""
    _, pairs, tokenizer = corpus
    pairs = pairs[:101]

    def training(both, first=0, lines=False):
        train = data.in_memory(*map(list, zip(*pairs, strict=True)))
        texts = Texts(train, len(pairs), (["a"], ["b"]), None, None, bidirectional_steps=both)
        return texts.batches(tt, tokenizer, 512, seed=1)[0](first, lines)

    forwards = expected_rows(pairs, tokenizer)
    backwards = expected_rows([(target, source) for source, target in pairs], tokenizer)
    seen = rows(training(both=90).take(90))
    assert sum(row in backwards for row in seen) == pytest.approx(len(seen) / 2, rel=0.05)
    early = sum(row in backwards for row in seen[:100])
    assert 30 < early < 70  # mixed, not one after the other
    assert set(seen) <= {*forwards, *backwards} and len(set(seen)) > 0.95 * 2 * len(pairs)
    assert rows(training(both=7).skip(7).take(20)) == rows(training(both=0).take(20))
    for first in (3, 7, 9):  # going on from a step before the change, at it and after it
        assert rows(training(both=7, first=first).take(4)) == rows(training(both=7).skip(first).take(4))
    (source, _), _, lines = next(iter(training(both=7, lines=True)))
    for ids, line in zip(source.numpy(), lines.numpy(), strict=True):
        assert tuple(ids[ids != 0]) in (forwards[line - 1][0], backwards[line - 1][0])


def test_the_first_steps_leave_translations_out(corpus, tmp_path):
    _, pairs, tokenizer = corpus
    pairs = pairs[:101]
    files = tmp_path / "forward", tmp_path / "backward"
    for file in files:
        file.write_text("".join(f"made of {i}\n" for i in range(len(pairs))))

    def training(translations):
        train = data.in_memory(*map(list, zip(*pairs, strict=True)))
        texts = Texts(train, len(pairs), (["a"], ["b"]), None, None, bidirectional_steps=5, translations=translations)
        return texts.batches(tt, tokenizer, 512, seed=1)[0](0)

    made = {source for source, *_ in expected_rows([(f"made of {i}", "") for i in range(len(pairs))], tokenizer)}
    assert rows(training((files,)).take(5)) == rows(training(()).take(5))
    after = rows(training((files,)).skip(5).take(40))
    shares = [sum(row[side] in made for row in after) / len(after) for side in (0, 2)]
    assert shares == pytest.approx([1 / 3, 1 / 3], abs=0.1)


def test_translations_stand_beside_the_pairs_they_are_of(tmp_path):
    pairs = [(f"s{i}", f"t{i}") for i in range(7)]
    files = [(tmp_path / f"forward{k}", tmp_path / f"backward{k}") for k in range(2)]
    for k, (forward, backward) in enumerate(files):
        forward.write_text("".join(f"forward{k} of s{i}\n" for i in range(7)))
        backward.write_text("".join(f"backward{k} of t{i}\n" for i in range(7)))
    given = data.in_memory(*map(list, zip(*pairs, strict=True)))
    assert data.with_translations(given, ()) is given
    all_of_them = data.with_translations(data.numbered(given), files)
    found = [(source.decode(), target.decode(), line) for source, target, line in all_of_them.as_numpy_iterator()]
    assert sorted(found) == sorted(
        pair
        for line, (source, target) in enumerate(pairs, 1)
        for pair in (
            (source, target, line),
            *((source, f"forward{k} of {source}", line) for k in range(2)),
            *((f"backward{k} of {target}", target, line) for k in range(2)),
        )
    )


def test_words_are_hidden_after_the_bidirectional_steps(corpus):
    """As a function of the seed and the step: of source and target_in, not of what the model learns to say."""
    _, pairs, tokenizer = corpus

    def batches(first=0, rate=0.25):
        given = data.in_memory(*map(list, zip(*pairs, strict=True)))
        texts = Texts(given, len(pairs), (["a"], ["b"]), None, None, bidirectional_steps=11, word_dropout=rate)
        return [
            [ids.numpy() for ids in (*inputs, *more)]
            for inputs, *more in texts.batches(tt, tokenizer, 512, seed=1)[0](first).take(29 - first)
        ]

    whole, some = batches(rate=0.0), batches()
    for step, (before, after) in enumerate(zip(whole, some, strict=True)):
        for side, (ids, seen) in enumerate(zip(before, after, strict=True)):
            unlike = ids != seen
            assert unlike.any() == (step >= 11 and side < 2)
            assert (seen[unlike] == UNKNOWN_ID).all() and (ids[unlike] >= FIRST_ID).all()
    for side in (0, 1):
        words = sum((ids[side] >= FIRST_ID).sum() for ids in whole[11:])
        assert sum((ids[side] == UNKNOWN_ID).sum() for ids in some[11:]) / words == pytest.approx(0.25, abs=0.03)
    assert len({str(ids[0][:2, :5] == UNKNOWN_ID) for ids in some[11:]}) > 9  # other ones in every batch
    for before, after in zip(whole[11:], some[11:], strict=True):  # and on either side
        ids = np.stack([ids.ravel()[: min(map(np.size, before[:2]))] for ids in before[:2]])
        seen = np.stack([ids.ravel()[: min(map(np.size, after[:2]))] for ids in after[:2]])
        assert len(set(map(tuple, (seen == UNKNOWN_ID)[:, (ids >= FIRST_ID).all(0)]))) == 2

    def same(these, those):
        return all(np.array_equal(*ids) for two in zip(these, those, strict=True) for ids in zip(*two, strict=True))

    ids = tf.fill([13, 11], FIRST_ID)
    plain = tf.data.Dataset.from_tensors(((ids, ids), ids))
    one, other = (next(iter(data.without_words(plain, 0.25, seed)))[0][0].numpy() for seed in (1, 2))
    assert not np.array_equal(one, other)
    assert same(batches(), some)
    for first in (7, 11, 13):
        assert same(batches(first), some[first:])


def test_long_pairs_are_skipped_and_counted(corpus):
    folder, pairs, tokenizer = corpus
    batches = data.text_pairs(folder / "train.en", folder / "train.de", tokenizer, 512, max_length=13, shuffle=False)
    kept = [row for row in expected_rows(pairs, tokenizer) if max(len(row[0]), len(row[2])) <= 13]
    assert sorted(rows(batches)) == sorted(kept)
    summary = data.summarize(batches, PAIRS)
    assert (summary.pairs, summary.skipped) == (len(kept), PAIRS - len(kept))
    assert summary.source_tokens == sum(len(row[0]) for row in kept)
    assert summary.target_tokens == sum(len(row[2]) for row in kept)
    sizes = [(source.size, target.size) for (source, _), target in batches.as_numpy_iterator()]
    padded = 1 - (summary.source_tokens + summary.target_tokens) / sum(itertools.chain(*sizes))
    assert summary.padding == pytest.approx(padded)
    assert summary.batches == len(sizes)


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
    with pytest.raises(tt.BadInput, match="either plain or .gz"):
        data.text_lines([sides[0][0], folder / "train.en"], sides[1])


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (b"one\ntwo\n", b"eins\n", r"as many lines in both files, got 2 in .*source and 1 in .*target"),
        (b"one\n\nthree\n", b"eins\nzwei\ndrei\n", r"source, line 2: .*got an empty line"),
        (b"one\n \t\xe3\x80\x80\n", b"eins\nzwei\n", r"source, line 2: .*got an empty line"),
        (b"one\ntwo\n", b"eins\nzw\xffei\n", r"target, line 2: .*UTF-8, got the byte 0xff at column 3"),
        (b"one\n" + b"x" * 100_000 + b"\n", b"eins\nzwei\n", r"source, line 2: .*got 100,001 bytes \(at most 16,384\)"),
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
    assert data.summarize(batches, data.check_text_pairs(*files, skip_bad_lines=True)).skipped == len(bad)


def test_a_missing_file_and_a_damaged_gz(tmp_path):
    (tmp_path / "source").write_text("one\n")
    with pytest.raises(FileNotFoundError, match="expected a text file, found none at .*nowhere"):
        data.check_text_pairs(tmp_path / "source", tmp_path / "nowhere")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"eins\n" * 1000)[:-20])
    with pytest.raises(tt.BadInput, match=r"cut\.gz: cannot be read after line"):
        data.check_text_pairs(tmp_path / "cut.gz", tmp_path / "source")


def test_batch_tokens_hold_the_longest_sentence(corpus):
    folder, _, tokenizer = corpus
    with pytest.raises(tt.BadInput, match="batch_tokens: expected at least max_length=256, got 100"):
        data.text_pairs(folder / "train.en", folder / "train.de", tokenizer, batch_tokens=100)


def test_pairs_with_an_empty_side_are_skipped(corpus):
    _, _, tokenizer = corpus
    pairs = data.in_memory(["a door", "", "two doors"], ["eine Tür", "nichts", " "])
    batches = data.token_batches(pairs, tokenizer, 512, shuffle=False)
    assert [row[0] for row in rows(batches)] == [(*tokenizer.tokenize(["a door"]).to_list()[0], EOS_ID)]
