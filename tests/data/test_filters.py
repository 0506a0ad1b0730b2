"""Filters against loops and sets of Python."""

import dataclasses
import itertools
import pickle
import random
import unicodedata

import numpy as np
import pytest

import tf_transformer as tt
from tf_transformer.data.filters import hashed, repeated

WORDS = ["a", "b", "é", "e\u0301", "ﬁ", "fi", "\u00a0", " ", "  ", "東"]


def normal(text):
    return " ".join(unicodedata.normalize("NFKC", text).split())


def texts(seed, count):
    chance = random.Random(seed)
    return ["".join(chance.choices(WORDS, k=chance.randint(1, 3))) for _ in range(count)]


@pytest.mark.parametrize("buckets", [1, 7])
def test_repeated_pairs_are_those_of_a_set(buckets):
    """In shards of other sizes, which come in any order; places need not follow one another."""
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
        encoded = [(place, source.encode(), target.encode()) for place, source, target in rows]
        hashes += [(bucket, found) for bucket, found in hashed(shard, encoded, buckets)]
    random.Random(3).shuffle(hashes)
    found = []
    for bucket in range(buckets):
        for shard, places in repeated(each for number, each in hashes if number == bucket):
            found += [(shard, place) for place in np.frombuffer(places, "u4").tolist()]
    assert 100 < len(expected) < 500
    assert sorted(found) == sorted(expected)
    assert len({bucket for bucket, _ in hashes}) == buckets


def test_sides_are_not_mixed_up():
    pairs = [(b"a b", b"c"), (b"a", b"b c"), (b"c", b"a b"), (b"a  b", b"c ")]
    ((_, found),) = hashed(0, ((place, *pair) for place, pair in enumerate(pairs)), 1)
    ((_, places),) = repeated([found])
    assert np.frombuffer(places, "u4").tolist() == [3]


def test_identical_and_ratio_are_those_of_a_loop():
    counts = {"identical": 0, "max_ratio": 0, None: 0}
    filters = tt.Filters(identical=True, max_ratio=2)
    for source, target in zip(texts(4, 503), texts(5, 503), strict=True):
        sides = normal(source), normal(target)
        sizes = sorted(map(len, sides))
        expected = "identical" if sides[0] == sides[1] else "max_ratio" if sizes[1] > 2 * sizes[0] else None
        assert filters.reason(source.encode(), target.encode()) == expected
        assert tt.Filters().reason(source.encode(), target.encode()) is None
        counts[expected] += 1
    assert min(counts.values()) > 20


def test_languages():
    pytest.importorskip("py3langid")
    filters = tt.Filters(languages=("en", "de"))
    english, german = b"The old woman opens the red door.", "Die alte Frau öffnet die rote Tür.".encode()
    assert filters.reason(english, german) is None
    for pair in ((german, english), (english, english), (german, german), ("Старая дверь открыта".encode(), german)):
        assert filters.reason(*pair) == "languages"
    with pytest.raises(tt.BadInput, match="languages: expected codes as en and de, got xx"):
        tt.Filters(languages=("en", "xx"))


def test_parse():
    parse = tt.Filters.parse
    assert parse([]) == tt.Filters()
    assert parse([]).chosen() == {}
    found = parse(["max-ratio=3", "duplicates"])
    assert found == tt.Filters(duplicates=True, max_ratio=3.0)
    assert found.chosen() == {"duplicates": True, "max_ratio": 3.0}
    assert pickle.loads(pickle.dumps(found)) == found
    assert all(not each.default for each in dataclasses.fields(tt.Filters))
    for words, message in (
        (["duplicate"], "expected some of duplicates, identical, max-ratio, languages; got 'duplicate'"),
        (["max-ratio"], "expected max-ratio=VALUE, got 'max-ratio'"),
        (["identical=yes"], "expected identical alone, got 'identical=yes'"),
        (["max-ratio=three"], "expected a number, got 'max-ratio=three'"),
        (["max-ratio=0.5"], "max_ratio: expected a number of at least 1 or None, got 0.5"),
        (["languages=en"], "languages: expected a list of 2 or None, got .'en',."),
    ):
        with pytest.raises(tt.BadInput, match=message):
            parse(words)
