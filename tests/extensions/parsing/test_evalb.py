"""Compares scores with EVALB's sample and its expected results, and with COLLINS.prm."""

import pytest

from tf_transformer.config import BadInput
from tf_transformer.extensions.parsing import evalb
from tf_transformer.extensions.parsing.treebank import read_tree

GOLD = "(S (A (P this)) (B (Q is) (A (R a) (T test))))"
# sample.tst, and from sample.rsl: matched brackets, gold, test, words, right tags.
SAMPLE = [
    ("(S (A (P this)) (B (Q is) (A (R a) (T test))))", (4, 4, 4, 4, 4)),
    ("(S (A (P this)) (B (Q is) (C (R a) (T test))))", (3, 4, 4, 4, 4)),
    ("(S (A (P this)) (B (Q is) (A (R a) (U test))))", (4, 4, 4, 4, 3)),
    ("(S (C (P this)) (B (Q is) (A (R a) (U test))))", (3, 4, 4, 4, 3)),
    ("(S (A (P this)) (B (Q is) (R a) (A (T test))))", (3, 4, 4, 4, 4)),
    ("(S (A (P this) (Q is)) (A (R a) (T test)))", (2, 4, 3, 4, 4)),
    ("(S (P this) (Q is) (R a) (T test))", (1, 4, 1, 4, 4)),
    ("(S (A (P this)) (B (Q is) (A (A (R a) (T test)))))", (4, 4, 5, 4, 4)),
    ("(S (A (P this)) (B (Q is) (A (A (A (A (A (R a) (T test))))))))", (4, 4, 8, 4, 4)),
    ("(TOP (S (A (P this)) (B (Q is) (A (R a) (T test)))))", (4, 4, 4, 4, 4)),
    ("(S (A-SBJ-1 (P this)) (B-WHATEVER (Q is) (A (R a) (T test))))", (4, 4, 4, 4, 4)),
    ("(S (A (P this)) (B (Q is) (A (R a) (T test))) (-NONE- *))", (4, 4, 4, 4, 4)),
]


@pytest.mark.parametrize("test, expected", SAMPLE)
def test_evalbs_own_sample(test, expected):
    result = evalb.score(read_tree(GOLD), read_tree(test))
    assert (result.matched, result.gold, result.test, result.words, result.right_tags) == expected
    assert result.complete == (expected[:3] == (4, 4, 4))


def test_evalbs_own_sample_in_total():
    """The counts are added up by hand."""
    result = evalb.total([read_tree(GOLD)] * len(SAMPLE), [read_tree(test) for test, _ in SAMPLE])
    assert (result.matched, result.gold, result.test) == (40, 48, 49)
    assert result.recall == pytest.approx(100 * 40 / 48)
    assert result.precision == pytest.approx(100 * 40 / 49)
    assert result.f1 == pytest.approx(2 * result.precision * result.recall / (result.precision + result.recall))
    assert result.complete_match == pytest.approx(100 * 5 / 12)
    assert result.tagging == pytest.approx(100 * 46 / 48)
    assert result.sentences == 12
    assert "F1 82.47" in str(result)


@pytest.mark.parametrize(
    "gold, test, expected",
    [  # expected by hand from COLLINS.prm: matched, gold, test
        # Punctuation moves freely: (NP 0-2) either way, and S.
        ("(S (NP (D a) (N b) (, ,)) (V c) (. .))", "(S (NP (D a) (N b)) (, ,) (V c) (. .))", (2, 2, 2)),
        # Constituents without words, such as PRN here, do not count.
        ("(S (NP (N a)) (PRN (: -) (: -)))", "(S (NP (N a)) (: -) (: -))", (2, 2, 2)),
        ("(S (ADVP (R up)))", "(S (PRT (R up)))", (2, 2, 2)),  # ADVP = PRT
        # A label twice over the same words counts twice. A gold bracket matches one.
        ("(S (NP (NP (N a))) (V b))", "(S (NP (N a)) (V b))", (2, 3, 2)),
        ("(S (NP (N a)) (V b))", "(S (NP (NP (NP (N a)))) (V b))", (2, 2, 4)),
        # Brackets and question marks count: COLLINS.prm only deletes , : `` '' .
        ("(S (NP (-LRB- -LRB-) (N a)) (V b))", "(S (-LRB- -LRB-) (NP (N a)) (V b))", (1, 2, 2)),
        # Gold tags determine the punctuation.
        ("(S (NP (N a)) (. !))", "(S (NP (N a) (N !)))", (2, 2, 2)),
        ("(ROOT (S (N a)))", "(S1 (S (N a)))", (1, 1, 1)),
        ("(TOP (N a))", "(TOP (N a))", (0, 0, 0)),
    ],
)
def test_collins_parameters(gold, test, expected):
    result = evalb.score(read_tree(gold), read_tree(test))
    assert (result.matched, result.gold, result.test) == expected


def test_only_trees_over_the_same_words_are_compared():
    with pytest.raises(BadInput, match="expected trees over the same words"):
        evalb.score(read_tree("(S (N a) (N b))"), read_tree("(S (N a))"))


@pytest.mark.parametrize("trees", [0, 1, 3])
def test_only_as_many_trees_are_compared(trees):
    gold = [read_tree(GOLD)] * (2 if trees else 0)
    with pytest.raises(BadInput, match=f"as many trees as gold trees, .*; got {trees} trees and {len(gold)}"):
        evalb.total(iter(gold), [read_tree(GOLD)] * trees)


def test_a_tree_without_words_is_not_counted():
    gold, test, empty = read_tree(GOLD), read_tree(SAMPLE[1][0]), read_tree("(S (NP (-NONE- *)))")
    assert evalb.total([empty, gold, empty], [empty, test, empty]) == evalb.score(gold, test)
    assert evalb.total([empty], [empty]) == evalb.Score()
    assert (evalb.Score().f1, evalb.Score().recall, evalb.Score().complete_match) == (0.0, 0.0, 0.0)
    with pytest.raises(BadInput, match=r"over the same words, got \[\] and \['this'"):
        evalb.score(empty, gold)
    with pytest.raises(BadInput, match=r"^expected trees, such as read_tree makes of a text, got '\(S \(N a\)\)'$"):
        evalb.total([gold], ["(S (N a))"])
