"""Filters against loops and sets of Python."""

import itertools
import pickle
import random
import unicodedata

import numpy as np
import pytest

import tf_transformer as tt
from tf_transformer.extensions.records.preparation import hashed, repeated

WORDS = ["a", "b", "é", "e\u0301", "ﬁ", "fi", "\u00a0", " ", "  ", "東"]


def normal(text):
    return " ".join(unicodedata.normalize("NFKC", text).split())


def texts(seed, count):
    chance = random.Random(seed)
    return ["".join(chance.choices(WORDS, k=chance.randint(1, 3))) for _ in range(count)]


@pytest.mark.parametrize("buckets", [1, 7])
def test_repeated_pairs_are_those_of_a_set(buckets):
    sizes, pairs = [211, 1, 97, 0, 307], list(zip(texts(1, 616), texts(2, 616), strict=True))
    ends = list(itertools.accumulate(sizes, initial=0))
    seen, expected, hashes = set(), set(), []
    for shard, (start, end) in enumerate(itertools.pairwise(ends)):
        rows = [(3 * place, *pair) for place, pair in enumerate(pairs[start:end])]
        for place, source, target in rows:
            key = normal(source), normal(target)
            if key in seen:
                expected.add((shard, place))
            seen.add(key)
        hashes += hashed(shard, [(place, source.encode(), target.encode()) for place, source, target in rows], buckets)
    random.Random(3).shuffle(hashes)
    duplicates = []
    for bucket in range(buckets):
        for shard, places in repeated(each for number, each in hashes if number == bucket):
            duplicates += [(shard, place) for place in np.frombuffer(places, "u4").tolist()]
    assert 100 < len(expected) < 500
    assert sorted(duplicates) == sorted(expected)
    assert len({bucket for bucket, _ in hashes}) == buckets


def test_sides_are_not_mixed_up():
    pairs = [(b"a b", b"c"), (b"a", b"b c"), (b"c", b"a b"), (b"a  b", b"c ")]
    ((_, hashes),) = hashed(0, ((place, *pair) for place, pair in enumerate(pairs)), 1)
    ((_, places),) = repeated([hashes])
    assert np.frombuffer(places, "u4").tolist() == [3]


def test_identical_is_that_of_a_loop():
    counts, filters = {"identical": 0, None: 0}, tt.Filters(identical=True)
    for source, target in zip(texts(4, 503), texts(5, 503), strict=True):
        expected = "identical" if normal(source) == normal(target) else None
        assert filters.reason(source.encode(), target.encode()) == expected
        assert tt.Filters().reason(source.encode(), target.encode()) is None
        counts[expected] += 1
    assert min(counts.values()) > 20


def test_parse():
    parse = tt.Filters.parse
    assert parse([]) == tt.Filters() == tt.Filters(False, False) and parse([]).chosen() == {}
    filters = parse(["identical", "duplicates"])
    assert filters == tt.Filters(duplicates=True, identical=True) == pickle.loads(pickle.dumps(filters))
    assert filters.chosen() == {"duplicates": True, "identical": True}
    for word in ("duplicate", "identical=yes", "max-ratio=3"):
        with pytest.raises(tt.BadInput, match=f"^filter: expected one of duplicates, identical, got '{word}'$"):
            parse([word])
