"""Labelled bracket precision, recall and F1 as EVALB counts them with COLLINS.prm (Sekine and Collins 1997)."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tf_transformer.config import BadInput
from tf_transformer.extensions.parsing.treebank import ROOTS, base_label, words_of
from tf_transformer.utils.values import shown

if TYPE_CHECKING:
    from nltk import Tree

PUNCTUATION = (",", ":", "``", "''", ".")  # tags of words that do not count
EQUAL = {"PRT": "ADVP"}  # labels that count as another


@dataclass(frozen=True)
class Score:
    """Counts of brackets in a sentence. Scores add up."""

    matched: int = 0
    gold: int = 0
    test: int = 0
    complete: int = 0  # sentences whose brackets all match
    right_tags: int = 0
    words: int = 0  # without punctuation
    sentences: int = 0

    signature = "EVALB with COLLINS.prm"

    @property
    def value(self) -> float:
        """F1, under the name that all scores have."""
        return self.f1

    @property
    def recall(self) -> float:
        return _percent(self.matched, self.gold)

    @property
    def precision(self) -> float:
        return _percent(self.matched, self.test)

    @property
    def f1(self) -> float:
        return _percent(2 * self.matched, self.gold + self.test)

    @property
    def complete_match(self) -> float:
        """Percentage of sentences whose brackets all match."""
        return _percent(self.complete, self.sentences)

    @property
    def tagging(self) -> float:
        """Percentage of right tags."""
        return _percent(self.right_tags, self.words)

    def __add__(self, other: "Score") -> "Score":
        return Score(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    def __str__(self) -> str:
        return (
            f"F1 {self.f1:.2f} (precision {self.precision:.2f}, recall {self.recall:.2f}), complete match "
            f"{self.complete_match:.2f}, tags {self.tagging:.2f}; {self.sentences:,} sentences, {self.signature}"
        )


def score(gold: "Tree", test: "Tree") -> Score:
    """Counts one sentence's brackets.

    A bracket is a constituent's label with its first and its last word. Roots, punctuation and constituents of only
    punctuation do not count. The gold tags decide for both trees which words are punctuation. (EVALB takes the tags
    of each tree, and skips sentences where the remaining words then differ.)

    Raises:
        BadInput: If these are not trees over the same words.
    """
    if wrong := [tree for tree in (gold, test) if not hasattr(tree, "leaves")]:
        raise BadInput(f"expected trees, such as read_tree makes of a text, got {shown(wrong[0])}")
    gold_words, words = words_of(gold), words_of(test)
    if gold_words != words:
        raise BadInput(f"expected trees over the same words, got {gold_words} and {words}"[:400])
    if not words:
        return Score()
    tags = [(gold_tag, tag) for (_, gold_tag), (_, tag) in zip(gold.pos(), test.pos(), strict=True)]
    counts = [gold_tag not in PUNCTUATION for gold_tag, _ in tags]
    gold_brackets, test_brackets = brackets(gold, counts), brackets(test, counts)
    right_tags = sum(gold_tag == tag for (gold_tag, tag), count in zip(tags, counts, strict=True) if count)
    matched, of_gold, of_test = (gold_brackets & test_brackets).total(), gold_brackets.total(), test_brackets.total()
    complete = matched == of_gold == of_test
    return Score(matched, of_gold, of_test, int(complete), right_tags, words=sum(counts), sentences=1)


def brackets(tree: "Tree", counts: list[bool]) -> Counter[Any]:
    """Counts each constituent (label, first word, word after the last), over the words that count."""
    constituents: Counter[Any] = Counter()
    widths = iter(counts)

    def end_of(node: Any, start: int) -> int:
        # Words that do not count have no width, so constituents of only such words are empty.
        if isinstance(node[0], str):
            return start + next(widths)
        end = start
        for child in node:
            end = end_of(child, end)
        label = base_label(node.label())
        if end > start and label not in ROOTS:
            constituents[EQUAL.get(label, label), start, end] += 1
        return end

    end_of(tree, 0)
    return constituents


def total(gold: "Iterable[Tree]", test: "Iterable[Tree]") -> Score:
    """Adds up the scores of sentences.

    Raises:
        BadInput: If the numbers of trees differ or are 0.
    """
    gold, test = list(gold), list(test)
    if not 0 < len(test) == len(gold):
        expected = "expected as many trees as gold trees, and at least one"
        raise BadInput(f"{expected}; got {len(test):,} trees and {len(gold):,} gold trees")
    return sum(map(score, gold, test), Score())


def _percent(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 0.0
