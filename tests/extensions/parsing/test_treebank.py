import gzip
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nltk import Tree

from tf_transformer.config import BadInput
from tf_transformer.extensions.parsing import treebank
from tf_transformer.extensions.parsing.evalb import total
from tf_transformer.extensions.parsing.treebank import (
    as_line,
    is_well_formed,
    linearised,
    normalized,
    read_tree,
    to_tree,
    words_of,
)

# A word, label or tag: nothing that separates words, no brackets.
names = st.text(min_size=1, max_size=5).filter(lambda text: not re.search(r"[\s()]", text))
labels = names | st.sampled_from(["NP", "S", "NP-SBJ-1", "PP=2", "-X", "=", "TOP", ""])
tags = names | st.sampled_from(["NN", "-LRB-", "-NONE-", "PRP$", "''", ""])
words = names | st.sampled_from(["-LRB-", "(", ")", "a(b", "-LSB-", "{", "XX", "(NP"])
leaves = st.builds(lambda tag, word: Tree(tag, [word]), tags, words)
trees = st.recursive(
    leaves, lambda inner: st.builds(Tree, labels, st.lists(inner, min_size=1, max_size=4)), max_leaves=13
)


def test_words_in_brackets(tmp_path):
    """Some Indonesian treebanks have them. A constituent that may be such a word or empty is rejected."""
    (tmp_path / "trees").write_text(
        "(S (NP-SBJ (PRP (Dia))) (VP (VB (tidur))))\n( (S (NP (NN kucing)) (VP (VB (tidur)))) )\n"
    )
    both = treebank.read_trees(tmp_path / "trees")
    assert [words_of(tree) for tree in both] == [["Dia", "tidur"], ["kucing", "tidur"]]
    assert as_line(both[0]) == "(TOP (S (NP (PRP Dia)) (VP (VB tidur))))"
    for wrong in ("(S (NP) (VP (V x)))", "(NN (a) (b))", "( (S))", "(S (NP ()))"):
        (tmp_path / "trees").write_text(f"(S (NN a))\n{wrong}\n")
        with pytest.raises(BadInput, match=r"trees, line 2: expected a bracketed tree, got .*: no word in \("):
            treebank.read_trees(tmp_path / "trees")


def test_a_tree_by_hand():
    """Function labels, indices, traces and constituents of only traces, an empty root, escaped brackets."""
    tree = read_tree(
        "( (S (NP-SBJ-1 (PRP He)) (VP (VBD tried) (S=2 (NP-SBJ (-NONE- *-1)) (VP (TO to) (VP (VB sleep)"
        " (NP (-NONE- *))))) (PRN (-LRB- -LRB-) (ADVP|PRT (RB well)) (-RRB- -RRB-))) (. .)) )"
    )
    expected = (
        "(TOP (S (NP (PRP He)) (VP (VBD tried) (S (VP (TO to) (VP (VB sleep)))) "
        "(PRN (-LRB- -LRB-) (ADVP|PRT (RB well)) (-RRB- -RRB-))) (. .)))"
    )
    assert as_line(tree) == expected
    assert words_of(tree) == ["He", "tried", "to", "sleep", "(", "well", ")", "."]
    tokens = "(S (NP PRP )NP (VP VBD (S (VP TO (VP VB )VP )VP )S (PRN -LRB- (ADVP|PRT RB )ADVP|PRT -RRB- )PRN )VP . )S"
    assert linearised(tree) == tokens.split()
    assert linearised(tree, tags=False) == [token if token[0] in "()" else "XX" for token in tokens.split()]
    assert to_tree(tokens.split(), words_of(tree)) == tree


@given(trees)
def test_linearizing_can_be_inverted(tree):
    tree = normalized(tree)
    assert normalized(tree) == tree
    tokens, words = linearised(tree), words_of(tree)
    assert is_well_formed(tokens, len(words))
    assert to_tree(tokens, words) == tree
    assert read_tree(as_line(tree)) == tree
    without = to_tree(linearised(tree, tags=False), words)
    assert without.leaves() == tree.leaves()
    assert {tag for _, tag in without.pos()} <= {"XX"}
    assert [node.label() for node in without.subtrees(lambda node: node.height() > 2)] == [
        node.label() for node in tree.subtrees(lambda node: node.height() > 2)
    ]


@pytest.mark.parametrize(
    "tokens, expected",
    [  # by hand, over the words a, b, c
        ("(S (NP N )NP (VP V N )VP )S", None),  # a tree
        ("(S (NP N )NP (VP V N", "(S (NP (N a)) (VP (V b) (N c)))"),  # closed at the end
        ("(S (NP N (VP V )S N", "(S (NP (N a) (VP (V b)))) (N c)"),  # S closes what is in it
        (")X (S N )NP V N )S )S", "(S (N a) (V b) (N c))"),  # nothing to close
        ("(S N )S", "(S (N a)) (XX b) (XX c)"),  # missing words
        ("(S N V N N N )S", "(S (N a) (V b) (N c))"),  # too many tags
        ("(S (X )X N V N )S", "(S (N a) (V b) (N c))"),  # an empty constituent
        ("", "(XX a) (XX b) (XX c)"),
    ],
)
def test_repair(tokens, expected):
    assert is_well_formed(tokens.split(), 3) == (expected is None)
    tree = to_tree(tokens.split(), ["a", "b", "c"])
    assert as_line(tree) == f"(TOP {expected or '(S (NP (N a)) (VP (V b) (N c)))'})"


def test_a_tree_as_deep_as_possible():
    """Without the grammar a parser may open brackets until the maximum length."""
    tree = to_tree(["(NP"] * 521 + ["NN"], ["cat"])
    assert as_line(tree) == f"(TOP {'(NP ' * 521}(NN cat){')' * 521})"
    assert as_line(to_tree(linearised(tree), ["cat"])) == as_line(tree)
    assert total([tree], [tree]).f1 == 100


@given(st.lists(st.sampled_from(["(S", "(NP", ")S", ")NP", "N", "XX", ")"])), st.lists(words, max_size=5))
def test_trees_of_any_tokens_have_all_words(tokens, words):
    tree = to_tree(tokens, words)
    assert words_of(tree) == [treebank.BRACKETS.get(word, word) for word in words]
    assert normalized(tree) == tree
    if is_well_formed(tokens, len(words)):
        assert linearised(tree) == tokens


# Paths, faces, dates and invisible characters.
odd_words = st.text("a()[]{}\\/*'\"`-|.\u200b\ufeff\u00ad\u0301é", min_size=1, max_size=5)


@given(st.lists(st.lists(odd_words, min_size=1, max_size=3), min_size=1, max_size=3))
def test_words_come_back_from_a_line(rows):
    """nltk's reader finds the same number."""
    tree = Tree("TOP", [Tree("S", [Tree("NN", [word]) for word in row]) for row in rows])
    line, expected = as_line(tree), [word for row in rows for word in row]
    assert words_of(tree) == words_of(read_tree(line)) == expected
    assert as_line(read_tree(line)) == line and read_tree(as_line(normalized(tree))) == normalized(tree)
    tokens = linearised(tree)
    assert words_of(read_tree(as_line(to_tree(tokens, expected)))) == expected
    assert len(Tree.fromstring(line).leaves()) == len(expected)


@pytest.mark.parametrize(
    ("written", "word"),
    [
        (r"1\/2", "1/2"),
        (r"\*\*", "**"),
        (r"C:\\/", "C:\\/"),
        ("-LCB-", "{"),
        ("friend-LRB-s-RRB-", "friend(s)"),
        ("C:\\", "C:\\"),
        (r"\\", r"\\"),
        ("-LRB", "-LRB"),
    ],
)
def test_escapes_of_treebanks(written, word, tmp_path):
    (tmp_path / "trees").write_text(f"(S (NP (NN {written})) (PRP ({written})) (. .))\n(S ({written}(NN {written}))\n)")
    first, second = treebank.read_trees(tmp_path / "trees")
    assert words_of(first) == [word, word, "."] and words_of(second) == [word]
    assert words_of(read_tree(as_line(first))) == [word, word, "."]


@pytest.mark.parametrize("word", ["", " ", "a b", "\u3000", "a\x85", "a\n"])
def test_words_with_white_space_are_rejected(word):
    with pytest.raises(BadInput, match="^expected words of a tree without whitespace, got '"):
        as_line(Tree("TOP", [Tree("NN", [word])]))


def test_a_tree_without_words():
    empty = read_tree("(S (NP (-NONE- *)))")
    assert (words_of(empty), linearised(empty), as_line(empty)) == ([], [], "(TOP )")
    assert read_tree(as_line(empty)) == empty == to_tree([], []) == normalized(empty)


@pytest.mark.parametrize(
    "text",
    [None, b"(S (N a))", "", "x", "(S", "(S (N a)))", "( (S))", "(S\n (N a)\n", "(X " * 9_000 + "a" + ")" * 9_000],
)
def test_other_texts_raise_one_line(text):
    with pytest.raises(BadInput, match="^expected a bracketed tree, got [b'N]") as error:
        read_tree(text)
    assert len(str(error.value)) < 400 and "\n" not in str(error.value)


def test_files_of_all_layouts(tmp_path):
    file = tmp_path / "a.mrg"
    file.write_text("\ufeff\n( (S\n    (NP (N a))\n  (VP (V b)) ))\n\n(ROOT (NP (N c)))\n((X (-NONE- *)))\n(NN d e)\n")
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    lines = [as_line(tree) for tree in treebank.read_trees(path for path in [file, packed])]
    assert lines == ["(TOP (S (NP (N a)) (VP (V b))))", "(TOP (NP (N c)))", "(TOP (NN d) (NN e))"] * 2
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(BadInput, match=r"^\S*a\.gz: expected a whole gzip file"):
        treebank.read_trees(packed)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"(S (N a))\n(S (N a)\n", "line 2: expected a bracketed tree, got one without its last 1 brackets"),
        (b"\n(S (N a)))\n", "line 2: expected a bracketed tree, got something else"),
        (b"hello\n", "line 1: expected a bracketed tree, got something else"),
        (b"(S (N a)) (S (N a))\n", "line 1: expected a bracketed tree, got something else"),
        (b"(S (N a\xff))\n", "expected UTF-8, got the byte 0xff"),
        (b"(X " * 20_000 + b"a" + b")" * 20_000, "line 1: expected a bracketed tree, got something else"),
    ],
)
def test_errors_name_the_line(tmp_path, content, message):
    file = tmp_path / "trees"
    file.write_bytes(content)
    with pytest.raises(BadInput, match=message):
        treebank.read_trees(file)


def test_sections_of_the_wall_street_journal(tmp_path):
    for name in ("02/wsj_0201", "02/wsj_0202", "21/wsj_2100", "22/wsj_2200", "23/wsj_2300"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.mrg").touch()
    files = treebank.wsj_files(tmp_path, [2, 21])
    assert [path.name for path in files] == ["wsj_0201.mrg", "wsj_0202.mrg", "wsj_2100.mrg"]
    with pytest.raises(FileNotFoundError, match="sections 22 to 24, found none of 24"):
        treebank.wsj_files(tmp_path, range(22, 25))
    with pytest.raises(FileNotFoundError, match="expected a file of bracketed trees, found none"):
        treebank.read_trees(tmp_path / "none")


def test_drawings_show_every_label_and_word():
    tree = read_tree("(S (NP (PRP He)) (VP (VBD slept)))")
    for drawing in (treebank.drawn(tree), treebank.picture(tree)):
        assert all(name in drawing for name in ("TOP", "S", "NP", "VP", "PRP", "VBD", "He", "slept"))
    assert treebank.picture(tree).startswith("<svg")
