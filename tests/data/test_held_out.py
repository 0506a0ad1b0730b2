"""A dev text out of the training text: a share, by content and not by order, and nothing in both."""

import random

import pytest

import tf_transformer as tt
from tf_transformer.data.held_out import HeldOut
from tf_transformer.data.sources import MemorySource

SOURCES = [f"text {number % 311}" for number in range(997)]  # each comes three times or four
TARGETS = [f"Text {number}" for number in range(997)]


def split(share, order=None):
    order = list(range(len(SOURCES))) if order is None else order
    held_out = HeldOut(MemorySource([SOURCES[i] for i in order], [TARGETS[i] for i in order]), share)
    return held_out, set(held_out.pairs()), set(zip(*held_out.dev(), strict=True))


@pytest.mark.parametrize(("share", "least", "most"), [(0.1, 70, 130), (0.4, 340, 460), (1, 1, 4), (101, 101, 104)])
def test_every_pair_is_on_one_side(share, least, most):
    held_out, train, dev = split(share)
    assert train | dev == set(zip(SOURCES, TARGETS, strict=True)) and not train & dev
    assert least <= len(dev) <= most
    assert not {source for source, _ in train} & {source for source, _ in dev}  # the same text, the same side
    numbers = [number for number, *_ in held_out.rows()]
    assert [TARGETS[number - 1] for number in numbers] == [
        target for _, target in held_out.pairs()
    ]  # lines of the file
    order = random.Random(3).sample(range(997), 997)
    assert split(share, order)[1:] == (train, dev)


def test_shares_that_leave_too_little():
    for share, message in (
        (0.5, "share: expected a share of the pairs below 0.5, or a number of them, got 0.5"),
        (2.5, "share: expected a share of the pairs below 0.5, or a number of them, got 2.5"),
        (499, "dev: expected 1 to 498 of 997 pairs, got [45]"),
        (1e-9, "dev: expected 1 to 498 of 997 pairs, got 1e-09"),
    ):
        with pytest.raises(tt.BadInput, match=message):
            split(share)


def test_a_corpus_of_files_takes_a_share(text):
    files = text / "train.en", text / "train.de"
    corpus = tt.TextCorpus(files, dev=0.05)
    assert len(corpus.dev[0]) + len(list(corpus.train.rows())) == 900 and corpus.test == corpus.dev
    assert corpus.describe() == tt.TextCorpus(files, dev=0.05).describe()
    assert corpus.describe() != tt.TextCorpus(files, dev=0.06).describe() != tt.TextCorpus(files, dev=6).describe()
    assert repr(corpus).endswith(
        f"share=0.05), dev of {len(corpus.dev[0])}, test of {len(corpus.dev[0])}, max_length=256)"
    )
