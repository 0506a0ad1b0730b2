"""A probabilistic context-free grammar, read off a treebank, with an exact parser (CKY): the baseline of parsing.

Trees are binarized to the right, with one sibling in a new label. Chains of unary rules become one label, so that all
rules are binary or lexical. Rare words are replaced by their class.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_transformer.extensions.parsing.treebank import ROOT

if TYPE_CHECKING:
    from nltk import Tree

IMPOSSIBLE = -1e9  # log-probability
CHAIN = "@"  # joins the labels of a chain of unary rules


class Grammar:
    """Grammar of normalized trees, which have the root TOP. Axes: M splits of a span, R rules, N labels."""

    def __init__(self, trees: Iterable["Tree"]) -> None:
        from nltk import Nonterminal, induce_pcfg

        trees = [(tree[0] if len(tree) == 1 else tree).copy(deep=True) for tree in trees]
        counts = Counter(word for tree in trees for word in tree.leaves())
        self.known = {word for word, count in counts.items() if count > 1}
        for tree in trees:
            tree.collapse_unary(collapsePOS=True, collapseRoot=True, joinChar=CHAIN)
            tree.chomsky_normal_form(horzMarkov=1)
            for position in tree.treepositions("leaves"):
                tree[position] = self.known_word(tree[position])
        rules = induce_pcfg(Nonterminal(ROOT), [rule for tree in trees for rule in tree.productions()]).productions()
        self.labels = sorted({str(rule.lhs()) for rule in rules})
        ids = {label: i for i, label in enumerate(self.labels)}
        roots = Counter(ids[tree.label()] for tree in trees)
        self.roots = np.array([np.log(roots[i]) if roots[i] else IMPOSSIBLE for i in range(len(ids))])
        # Sorted by parent: the rules of each begin where it first appears.
        binary = sorted(
            (*(ids[str(label)] for label in (rule.lhs(), *rule.rhs())), rule.logprob() * np.log(2))
            for rule in rules
            if rule.is_nonlexical()
        )
        self.parents, self.lefts, self.rights = np.array([rule[:3] for rule in binary], int).T
        self.log_probs = np.array([rule[3] for rule in binary])
        self.with_rules, self.first_rules = np.unique(self.parents, return_index=True)
        self.tags: dict[str, np.ndarray] = {}  # log-probability of a word by label
        for rule in rules:
            if rule.is_lexical():
                tags = self.tags.setdefault(rule.rhs()[0], np.full(len(ids), IMPOSSIBLE))
                tags[ids[str(rule.lhs())]] = rule.logprob() * np.log(2)
        self.unseen = np.logaddexp.reduce([*self.tags.values()])  # of a class of words that no tree has

    def known_word(self, word: str) -> str:
        """Returns a word, or if it is rare its class: its shape and its last two letters."""
        shape = "digit" if re.search(r"\d", word) else "upper" if word[:1].isupper() else "lower"
        return word if word in self.known else f"<{shape} {word[-2:].lower() if word.isalpha() else ''}>"

    def parse(self, words: Sequence[str]) -> "Tree":
        """Returns the most probable tree, or a flat one of the most probable tags if the grammar has none."""
        from nltk import Tree

        n = len(words)
        scores = np.full((n, n + 1, len(self.labels)), IMPOSSIBLE)
        for i, word in enumerate(words):
            scores[i, i + 1] = self.tags.get(self.known_word(word), self.unseen)
        for width in range(2, n + 1):
            for i in range(n - width + 1):
                best = self._by_rule(scores, i, i + width).max(axis=0)
                scores[i, i + width, self.with_rules] = np.maximum.reduceat(best, self.first_rules)
        roots = scores[0, n] + self.roots
        if roots.max() <= IMPOSSIBLE / 2:
            tags = (self.labels[scores[i, i + 1].argmax()].split(CHAIN)[-1] for i in range(n))
            return Tree(ROOT, [Tree(tag, [word]) for tag, word in zip(tags, words, strict=True)])
        tree = self._tree(scores, words, (0, n), int(roots.argmax()))
        tree.un_chomsky_normal_form(expandUnary=True, unaryChar=CHAIN)
        return tree if tree.label() == ROOT else Tree(ROOT, [tree])

    def _by_rule(self, scores: np.ndarray, i: int, j: int) -> Any:
        """Returns the log-probabilities of span i to j by split and rule [M, R]."""
        return scores[i, i + 1 : j][:, self.lefts] + scores[i + 1 : j, j][:, self.rights] + self.log_probs

    def _tree(self, scores: np.ndarray, words: Sequence[str], span: tuple[int, int], label: int) -> "Tree":
        from nltk import Tree

        i, j = span
        if j == i + 1:
            return Tree(self.labels[label], [words[i]])
        by_rule = np.where(self.parents == label, self._by_rule(scores, i, j), 2 * IMPOSSIBLE)
        split, rule = np.unravel_index(by_rule.argmax(), by_rule.shape)
        sides = ((i, i + 1 + split), self.lefts[rule]), ((i + 1 + split, j), self.rights[rule])
        return Tree(self.labels[label], [self._tree(scores, words, *side) for side in sides])
