"""A dev set held out of the training set: a share, by content and not by order, and nothing in both."""

import dataclasses
import hashlib
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tf_transformer as tt
from tf_transformer.data.held_out import Filter, HeldOut
from tf_transformer.data.sources import MemorySource

SOURCES = [f"text {number % 311}" for number in range(997)]  # each occurs three or four times
TARGETS = [f"Text {number}" for number in range(997)]


def split(share, order=range(997)):
    held_out = HeldOut(MemorySource([SOURCES[i] for i in order], [TARGETS[i] for i in order]), share)
    dev = HeldOut(held_out.source, share, dev=True)
    return held_out, *(set(zip(*source.texts(), strict=True)) for source in (held_out, dev))


@pytest.mark.parametrize(("share", "least", "most"), [(0.1, 70, 130), (0.4, 340, 460), (1, 1, 4), (101, 101, 104)])
def test_every_pair_is_on_one_side(share, least, most):
    held_out, train, dev = split(share)
    assert train | dev == set(zip(SOURCES, TARGETS, strict=True)) and not train & dev
    assert least <= len(dev) <= most
    assert not {source for source, _ in train} & {source for source, _ in dev}  # equal texts are on one side
    lines = [TARGETS[number - 1] for number, *_ in held_out.rows()]
    assert lines == [target.decode() for _, target in held_out.pairs()]
    order = random.Random(3).sample(range(997), 997)
    assert split(share, order)[1:] == (train, dev)


@given(st.lists(st.integers(0, 60), min_size=9, max_size=120), st.one_of(st.integers(1, 50), st.floats(0.01, 0.49)))
def test_the_smallest_hashes_are_held_out(numbers, share):
    """As a sort of all hashes finds them, in the order of the corpus."""
    sources, targets = [f"text {number}" for number in numbers], [str(index) for index in range(len(numbers))]
    hashes = [int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) for text in sources]
    limit = sorted(hashes)[min(share, len(hashes)) - 1] if isinstance(share, int) else share * 2**64 - 1
    expected = [target for target, one in zip(targets, hashes, strict=True) if one <= limit]
    corpus = MemorySource(sources, targets)
    if not 0 < 2 * len(expected) < len(numbers):
        with pytest.raises(tt.BadInput, match=f"^dev: expected 1 to {(len(numbers) - 1) // 2} of {len(numbers)} pairs"):
            HeldOut(corpus, share)
        return
    train = HeldOut(corpus, share)
    assert train.dev_set().texts()[1] == HeldOut(corpus, share, dev=True).texts()[1] == expected
    assert train.texts()[1] == [target for target in targets if target not in expected]


def test_shares_that_leave_too_little():
    kind, left = "share: expected a share of the pairs below 0.5, or a number of them", "dev: expected 1 to 498 of 997"
    few = f"{left} pairs, got 1e-09$"
    for share, message in ((0.5, f"{kind}, got 0.5"), (2.5, kind), (499, f"{left} pairs, got 499,"), (1e-9, few)):
        with pytest.raises(tt.BadInput, match=message):
            split(share)
    # 1.0 is neither all pairs nor one.
    for share in (1.0, np.float64(1), np.float32(1), 2.0, 0, -1, True, math.nan, math.inf):
        with pytest.raises(tt.BadInput, match=f"{kind}, got "):
            split(share)
        with pytest.raises(tt.BadInput, match="^dev: expected "):
            tt.Corpus(MemorySource(SOURCES, TARGETS), share)
    for size, got in ((500, "got 500$"), (99, r"got 99, which would hold out \d{3}$")):
        texts = SOURCES[:200] if size == 500 else [*map(str, range(96)), *["equal"] * 104]
        with pytest.raises(tt.BadInput, match=f"^dev: expected 1 to 99 of 200 pairs, {got}"):
            tt.Corpus(MemorySource(texts, texts), size)
    assert split(np.int64(7))[2] == split(7)[2]


def test_a_custom_filter():
    class First(Filter):
        def __call__(self, source):
            return MemorySource(source.source[:19], source.target[:19])

    corpus = tt.Corpus(MemorySource(SOURCES, TARGETS), dev=7, filters=First())
    assert len(list(corpus.train.rows())) + len(corpus.dev[0]) == 19
    assert dataclasses.replace(corpus).train is corpus.train  # filtered once
    with pytest.raises(tt.BadInput, match="^filters: expected a Filter or None, got 7$"):
        tt.Corpus(corpus.train, corpus.dev, filters=7)


def test_a_corpus_of_files_takes_a_share(text):
    files = text / "train.en", text / "train.de"
    corpus = tt.TextCorpus(files, dev=0.05)
    size = len(corpus.dev[0])
    assert size + len(list(corpus.train.rows())) == 900 and corpus.test == corpus.dev
    assert corpus.describe() == tt.TextCorpus(files, dev=0.05).describe()
    assert corpus.describe() != tt.TextCorpus(files, dev=0.06).describe() != tt.TextCorpus(files, dev=6).describe()
    assert repr(corpus).endswith(f"share=0.05, dev=False), dev of {size}, test of {size}, max_length=256)")
