"""Compares the grammar with all trees, and tests the parser with hostile texts."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from nltk import Tree

import tf_transformer as tt
from tf_transformer.extensions.parsing.corpus import encoder_of
from tf_transformer.extensions.parsing.parser import Grammar, Parser
from tf_transformer.extensions.parsing.treebank import as_line, linearised, read_tree, to_tree, words_of
from tf_transformer.tokenizers.tokenizer import EOS_ID, FIRST_ID, UNKNOWN_ID

TREES = [
    "(S (NP (PRP He)) (VP (VBD slept)) (. .))",
    "(S (NP (DT The) (JJ old) (NN woman)) (VP (VBZ opens) (NP (DT the) (JJ red) (NN door))) (. .))",
    "(S (NP (NP (NNS doors)) (PRN (-LRB- -LRB-) (NP (CD two)) (-RRB- -RRB-))) (VP (VBP shut)))",
    "(FRAG (ADVP (RB Never)) (, ,) (NP (PRP she)) (VP (VBD said)) (. .))",
]
TEXTS = [
    "The cat ( slept ) .",
    "",
    " \t ",
    "a",
    "(()) )( -LRB- [ -LSB-",
    "<s> </s> (NP )NP NN $ <0x41>",
    "no\u3000break\u00a0or\u2028other space\u0085",
    "\u200b \ufeff x",
    "cat " * 300,
    "a\x00b\nc",
    "東京 😀 e\u0301",
]


def words_in(text):
    return text.replace("\x00", " ").replace("\u0085", " ").split()


def small_parser():
    """Returns a parser with random weights."""
    trees = [read_tree(tree) for tree in TREES]
    tokens = sorted({token for tree in trees for token in linearised(tree)})
    tokenizer = tt.Tokenizer.train_from_iterator(
        [" ".join(words_of(tree)) for tree in trees] * 3, 340, control_tokens=tokens
    )
    keras.utils.set_random_seed(3)
    model = tt.Transformer(tt.TransformerConfig(1, 24, 31, 3, d_k=5, d_v=7, vocab_size=tokenizer.vocab_size))
    model.build()
    random = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(variable + 0.3 * random.normal(size=variable.shape))
    options = {"beam_size": 3, "length_penalty": 0.3, "extra_length": 23, "max_source_length": 41, "batch_size": 4}
    return Parser(tt.Translator(model, tokenizer, **options))


@pytest.fixture(scope="module")
def parser():
    return small_parser()


def forests(words, room, labels=("A", "B")):
    """Yields all linearized trees over a number of words with at most `room` tokens, by grammar rules."""
    if words == 0:
        yield ()
    if words and room:
        for tail in forests(words - 1, room - 1, labels):
            yield ("t", *tail)
    for inside in range(1, words + 1):
        for size in range(inside, room - 1):
            for label in labels:
                for inner in forests(inside, size, labels):
                    if len(inner) == size:
                        for tail in forests(words - inside, room - size - 2, labels):
                            yield (f"({label}", *inner, f"){label}", *tail)


def with_words(line, firsts):
    """Inserts words into a linearized tree: one at the start, and one after each tag except the last."""
    ids, words = firsts[:1], firsts[1:]
    for token in line:
        ids = [*ids, token]
        if token[0] not in "()":
            ids, words = ids + words[:1], words[1:]
    return tuple(ids)


@pytest.mark.parametrize("words, max_length", [(0, 1), (1, 3), (1, 7), (2, 8), (3, 9)])
def test_the_grammar_allows_all_trees_and_nothing_else(words, max_length):
    """Takes every allowed step. All paths end, in the trees of the rules."""
    tokens = ["(A", "(B", ")A", ")B", "t"]
    names = dict(enumerate(tokens, FIRST_ID))
    grammar = Grammar(tokens, 13)
    firsts = [11, UNKNOWN_ID, 11][:words]
    allowed = grammar.allowed(
        tf.constant([[9] * 3, firsts + [0] * (3 - words)]), tf.constant([3, words]), tf.constant([999, max_length])
    )
    lines, ended = [()], []
    for position in range(max_length):
        ids = np.zeros([1, len(lines), max_length], "int32")
        for k, line in enumerate(lines):
            ids[0, k, :position] = line
        may_follow = allowed(tf.constant(ids), tf.constant(position), tf.constant([1])).numpy()[0]
        assert may_follow.any(axis=1).all()
        longer = [(*line, int(id)) for line, row in zip(lines, may_follow, strict=True) for id in np.flatnonzero(row)]
        ended += [line[:-1] for line in longer if line[-1] == EOS_ID]
        lines = [line for line in longer if line[-1] != EOS_ID]
        if not lines:
            break
    assert not lines
    assert len(set(ended)) == len(ended)
    expected = {with_words(line, firsts) for line in forests(words, max_length - 1 - words)}
    assert {tuple(names.get(id, id) for id in line) for line in ended} == expected


def test_unmatched_brackets_are_rejected():
    for tokens in (["(A", "t"], ["(A", ")A"], ["(A", ")B", "t"], []):
        with pytest.raises(tt.BadInput, match="expected the tokens of trees"):
            Grammar(tokens, 13)


@pytest.mark.parametrize("extra", [0, 1])
def test_a_row_of_opening_brackets_has_an_end(extra):
    grammar = Grammar(["(A", ")A", "t"], 11)
    count = 16
    ids = np.zeros([1, 1, 40], "int32")
    ids[0, 0, : count + extra] = [7] + [FIRST_ID] * (count - 1 + extra)
    allowed = grammar.allowed(tf.constant([[7, 8, 9]]), tf.constant([3]), tf.constant([99]))
    may_follow = allowed(tf.constant(ids), count + extra, tf.constant([0])).numpy()[0, 0]
    assert np.flatnonzero(may_follow).tolist() == [FIRST_ID] * (extra == 0) + [FIRST_ID + 2]


def test_every_text_becomes_a_tree_over_its_words(parser):
    for text, parsed in zip(TEXTS, parser.replies(TEXTS), strict=True):
        words = words_in(text)
        assert parsed.truncated == (len(words) > 41)
        assert np.isfinite(parsed.score)
        if not words:
            assert (parsed.text, parsed.score) == ("", 0.0)
            continue
        tree = Tree.fromstring(parsed.text)
        assert as_line(tree) == parsed.text
        assert linearised(tree) == linearised(read_tree(parsed.text))  # the normal form
        assert tree.leaves() == [word.replace("(", "-LRB-").replace(")", "-RRB-") for word in words]
        assert tree.label() == "TOP"
    assert parser([b"\xff\xfe broken \xc3"])[0].count("broken") == 1
    assert parser([TEXTS[0]]) == [parser(TEXTS[0])]
    assert parser([]) == []


def test_words_come_back_from_a_tree(parser):
    words = ["C:\\", ":-\\", "\\", r"\/", "and/or", r"\\*", "friend(s)", "[", ":-)", "é"]
    tree = parser(" ".join(words))
    assert words_of(read_tree(tree)) == words == words_of(read_tree(as_line(read_tree(tree))))
    assert len(Tree.fromstring(tree).leaves()) == len(words)  # by nltk's reader
    assert parser.read(["friend-LRB-s-RRB-"]).ids.tolist() == parser.read(["friend(s)"]).ids.tolist()


def test_half_an_emoji_separates_words(parser):
    read, expected = parser.read(["The\ud83dcat"]), parser.read(["The cat"])
    assert read.words == expected.words and read.ids.tolist() == expected.ids.tolist()
    assert parser.attention("The\ud83dcat").source == parser.attention("The cat").source


def test_words_that_do_not_fit_are_put_under_the_root(parser):
    """The tree without these words is the same."""
    (long,) = parser.replies(["cat " * 50])
    pieces = len(parser.tokenizer.tokenize(["cat"])[0])
    fit = 41 // pieces
    (short,) = parser.replies(["cat " * fit])
    assert long.truncated and not short.truncated
    assert long.text == short.text[:-1] + " (XX cat)" * (50 - fit) + ")"
    assert long.score == pytest.approx(short.score, abs=1e-4)


def test_the_score_is_that_of_the_linearized_tree(parser):
    """Its log-probability divided by the length penalty."""
    text = TEXTS[0]
    (parsed,) = parser.replies([text])
    line = " ".join(linearised(read_tree(parsed.text)))
    target = tf.constant([[*encoder_of(parser.tokenizer)([text.encode()], [line.encode()])[1][0], EOS_ID]])
    log_probs = parser.translator.score_targets(parser.read([text]).ids, target)
    expected = float(tf.reduce_sum(log_probs)) / ((5 + target.shape[1]) / 6) ** 0.3
    assert parsed.score == pytest.approx(expected, rel=1e-4)


def test_sources_are_those_of_training(parser):
    """Ids of words equal those of a line. Both kinds of brackets are the same words."""
    for text in ("The old woman ( opens ) [ doors ]", "Doors\u00b4s  ½ ﬁ \ufeff x"):
        source = parser.read([text])
        expected = [*parser.tokenizer.tokenize([text])[0].numpy(), EOS_ID]
        assert source.ids.tolist() == [expected]
    pair = parser.read(["( [ { } ] )", "-LRB- -LSB- -LCB- -RCB- -RSB- -RRB-"])
    np.testing.assert_array_equal(pair.ids[0], pair.ids[1])
    assert pair.words[1][:2] == ["-LRB-", "-LSB-"]


def test_the_graph_reads_like_python(parser):
    texts = [*TEXTS, "( -LRB- {}", "a\x85b\x7fc\u2028d", b"\xffa \xc3", "cat " * 50, "\u200b"]
    texts += [". " * words for words in range(parser.max_subwords // 2, parser.max_subwords + 2)]  # around the limit
    ours, graph = parser.read(texts), parser.read_in_graph(texts)
    assert [[word.encode() for word in row] for row in ours.words] == graph.words.to_list()
    for name in ("count", "ids", "length", "truncated"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(graph, name), err_msg=name)
    for firsts, other, count in zip(ours.firsts, graph.firsts.numpy(), ours.count, strict=True):
        assert firsts[:count].tolist() == other[:count].tolist()


@pytest.mark.parametrize("tree", TREES[1:3])
def test_trees_in_the_graph_and_in_python_are_equal(parser, tree):
    tree = read_tree(tree)
    text = " ".join(words_of(tree))
    _, (ids,) = encoder_of(parser.tokenizer)([text.encode()], [" ".join(linearised(tree)).encode()])
    graph = parser.read_in_graph([text])
    rows = tf.constant([[*ids, EOS_ID, 0]])
    assert parser.trees_in_graph(rows, graph).numpy() == [as_line(tree).encode()]
    source = parser.read([text])
    assert parser.tree([*ids, EOS_ID], source.words[0], source.count[0]) == as_line(tree)


def test_the_first_subword_of_a_word_precedes_its_tag(parser):
    """One word, a zero-width space, has none."""
    tokenizer = parser.tokenizer
    texts, lines = ["He slept .", "Doors \u200b"], ["(S (NP PRP )NP (VP VBD )VP . )S", "(NP NNS )NP CD"]
    sources, targets = encoder_of(tokenizer)(*([text.encode() for text in side] for side in (texts, lines)))
    names = dict(enumerate(tokenizer.control_tokens, FIRST_ID))
    for text, line, source, target in zip(texts, lines, sources, targets, strict=True):
        pieces = [tokenizer.tokenize([word])[0].numpy().tolist() for word in text.split()]
        assert source == list(itertools.chain(*pieces))
        firsts = [[*ids, UNKNOWN_ID][0] for ids in pieces]
        assert tuple(names.get(id, id) for id in target) == with_words(line.split(), firsts)


def test_without_the_grammar_wrong_words_become_brackets(parser):
    He, slept = (int(parser.tokenizer.tokenize([word])[0][0]) for word in ("He", "slept"))
    tag, end = (FIRST_ID + parser.tokenizer.control_tokens.index(token) for token in ("PRP", ")NP"))
    assert parser._line([He, tag, slept, tag, end], [He, slept]) == ["PRP", "PRP", ")NP"]
    for ids in ([slept, tag, He, tag], [He, slept, tag], [tag], [He, tag, end], [He, tag, He, tag], [He, He, tag]):
        assert ")" in parser._line(ids, [He, slept]), ids


def test_with_learned_positions_no_output_is_longer(parser):
    config = tt.TransformerConfig(
        1, 12, 17, 3, positions="learned", max_length=31, vocab_size=parser.tokenizer.vocab_size
    )
    keras.utils.set_random_seed(5)
    model = tt.Transformer(config)
    model.build()
    (parsed,) = Parser(tt.Translator(model, parser.tokenizer, beam_size=2, extra_length=300)).replies(["a " * 40])
    pieces = len(parser.tokenizer.tokenize(["a"])[0])
    assert parsed.truncated and parsed.text.count("(XX ") == 40 - 15 // pieces
    assert Tree.fromstring(parsed.text).leaves() == ["a"] * 40


def test_lines_without_the_grammar_can_be_repaired(parser):
    texts = TEXTS[:1] + TEXTS[4:6]
    for text, tokens in zip(texts, parser.symbols(texts), strict=True):
        words = words_in(text)
        assert all(token == ")" or token in parser.tokenizer.control_tokens for token in tokens)
        assert len(to_tree(tokens, words).leaves()) == len(words)


def test_attention_of_a_tree(parser):
    """Rows are the tokens of the best tree, or of an argument."""
    attention = parser.attention(TEXTS[0])
    tokens = [token for token in attention.target if token in parser.tokenizer.control_tokens]
    assert tokens == linearised(read_tree(parser(TEXTS[0]))) and attention.target[-1] == "</s>"
    pieces = parser.tokenizer.pieces(parser.tokenizer.tokenize(TEXTS[:1]))[0].numpy()
    assert attention.source == [*(piece.decode() for piece in pieces), "</s>"]
    assert attention.scores.cross[0].shape == (1, 3, len(attention.target), len(attention.source))
    attention = parser.attention("He slept .", TREES[0])
    he, slept, dot = (parser.tokenizer.pieces(parser.tokenizer.tokenize([word]))[0, 0] for word in ("He", "slept", "."))
    tokens = [he, "(S", "(NP", "PRP", slept, ")NP", "(VP", "VBD", dot, ")VP", ".", ")S", "</s>"]
    assert attention.target == [token if isinstance(token, str) else token.numpy().decode() for token in tokens]
    for text, tree, message in [
        ("", None, "expected a sentence, got an empty text"),
        ("cat " * 50, None, "expected a sentence of at most 41 tokens, got more"),
        ("He slept .", "(S (NP", r"expected a tree in brackets, got '\(S \(NP'"),
        ("He slept .", "(S (NP (PRP He)))", "expected a tree over 3 words, got one over 1"),
        ("He slept", "(S (QP (PRP He)) (VBD slept))", r"labels and tags of the parser's trees, got \(QP, \)QP"),
    ]:
        with pytest.raises(tt.BadInput, match=message):
            parser.attention(text, tree)


def test_a_tree_has_no_minimum_length(parser):
    with pytest.raises(tt.BadInput, match="min_length: expected 0, since a grammar makes the tree, got 3"):
        Parser(tt.Translator(parser.translator.model, parser.tokenizer, min_length=3))
