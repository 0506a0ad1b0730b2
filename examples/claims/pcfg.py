"""A probabilistic context-free grammar, read off a treebank, with an exact parser (CKY): the baseline of parsing.

Trees are binarized to the right, with the parent and one sibling in a new label (Klein and Manning 2003). Chains of
unary rules become one label, so that all rules are binary or lexical. Rare words share a class of words.

Axes: M splits of a span, R rules, N labels.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_transformer.extensions.parsing.treebank import NO_TAG, ROOT

if TYPE_CHECKING:
    from nltk import Tree

IMPOSSIBLE = -1e9
CHAIN = "@"  # joins the labels of a chain of unary rules


def word_class(word: str) -> str:
    """Returns the class of a rare word: its shape, and its last two letters."""
    shape = "digit" if re.search(r"\d", word) else "upper" if word[:1].isupper() else "lower"
    return f"<{shape} {word[-2:].lower()}>" if word.isalpha() else f"<{shape} other>"


class Grammar:
    """Grammar of normalized trees, which have the root TOP."""

    def __init__(self, trees: Iterable["Tree"]) -> None:
        trees = [self._binarized(tree) for tree in trees]
        binary, lexical = Counter[tuple[str, ...]](), Counter[tuple[str, str]]()
        for tree in trees:
            for node in tree.subtrees():
                if isinstance(node[0], str):
                    lexical[node.label(), node[0]] += 1
                else:
                    binary[node.label(), node[0].label(), node[1].label()] += 1
        self.roots = Counter(tree.label() for tree in trees)
        self.labels = sorted({label for rule in binary for label in rule} | {tag for tag, _ in lexical})
        self.ids = {label: i for i, label in enumerate(self.labels)}
        totals = Counter[str]()
        for rule, count in (*binary.items(), *lexical.items()):
            totals[rule[0]] += count
        rules = sorted((tuple(self.ids[label] for label in rule), rule) for rule in binary)
        self.parents, self.lefts, self.rights = np.array([ids for ids, _ in rules]).T
        self.log_probs = np.log([binary[rule] / totals[rule[0]] for _, rule in rules])
        # Rules are sorted by parent: each parent's begin where it first appears.
        self.with_rules, self.first_rules = np.unique(self.parents, return_index=True)
        counts = Counter[str]()
        for (_, word), count in lexical.items():
            counts[word] += count
        self.known = {word for word, count in counts.items() if count > 1}
        emitted, by_word = Counter[tuple[str, str]](), dict[str, np.ndarray]()
        for (tag, word), count in lexical.items():
            names = [word] if word in self.known else [word_class(word), "<>"]
            for name in names:
                emitted[tag, name] += count
        for (tag, name), count in emitted.items():
            by_word.setdefault(name, np.full(len(self.labels), IMPOSSIBLE))[self.ids[tag]] = np.log(count / totals[tag])
        self.by_word = by_word

    def _binarized(self, tree: "Tree") -> "Tree":
        from nltk import Tree

        tree = tree.copy(deep=True)
        # Several constituents under the root get one above them, which `parse` removes with it.
        tree = tree[0] if len(tree) == 1 else Tree(ROOT, list(tree))
        tree.collapse_unary(collapsePOS=True, collapseRoot=True, joinChar=CHAIN)
        tree.chomsky_normal_form(horzMarkov=1, vertMarkov=0)
        return tree

    def parse(self, words: Sequence[str]) -> "Tree":
        """Returns the most probable tree, or a flat one of the most probable tags if the grammar has none."""
        from nltk import Tree

        n = len(words)
        scores = np.full((n, n + 1, len(self.labels)), IMPOSSIBLE)
        for i, word in enumerate(words):
            name = word if word in self.known else word_class(word)
            scores[i, i + 1] = self.by_word.get(name, self.by_word.get("<>", 0.0))
        for width in range(2, n + 1):
            for i in range(n - width + 1):
                best = self._by_rule(scores, i, i + width).max(axis=0)
                scores[i, i + width, self.with_rules] = np.maximum.reduceat(best, self.first_rules)
        roots = {label: scores[0, n, self.ids[label]] + np.log(count) for label, count in self.roots.items()}
        label = max(roots, key=lambda label: roots[label])
        if roots[label] <= IMPOSSIBLE / 2:
            tags = [self.labels[int(scores[i, i + 1].argmax())].split(CHAIN)[-1] for i in range(n)]
            return Tree(ROOT, [Tree(tag or NO_TAG, [word]) for tag, word in zip(tags, words, strict=True)])
        tree = self._tree(scores, words, 0, n, self.ids[label])
        tree.un_chomsky_normal_form(expandUnary=True, unaryChar=CHAIN)
        return tree if tree.label() == ROOT else Tree(ROOT, [tree])

    def _by_rule(self, scores: np.ndarray, i: int, j: int) -> Any:
        """Returns the log-probabilities of span i to j by split and rule [M, R]."""
        left, right = scores[i, i + 1 : j], scores[i + 1 : j, j]
        return left[:, self.lefts] + right[:, self.rights] + self.log_probs

    def _tree(self, scores: np.ndarray, words: Sequence[str], i: int, j: int, id: int) -> "Tree":
        from nltk import Tree

        if j == i + 1:
            return Tree(self.labels[id], [words[i]])
        by_rule = np.where(self.parents == id, self._by_rule(scores, i, j), 2 * IMPOSSIBLE)
        split, rule = np.unravel_index(by_rule.argmax(), by_rule.shape)
        middle = i + 1 + int(split)
        sides = (i, middle, self.lefts[rule]), (middle, j, self.rights[rule])
        return Tree(self.labels[id], [self._tree(scores, words, *side) for side in sides])
