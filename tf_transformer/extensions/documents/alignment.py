"""Places the marks of a source around the words of its translation."""

import bisect
import itertools
import unicodedata
from dataclasses import dataclass, field

from tf_transformer.extensions.documents.marked import Mark, Marked
from tf_transformer.inference.words import Aligned, Span, word_links, words_of


@dataclass
class _Node:
    """An element, or a mark at one position, in a sentence. A tag in a sentence before or after is empty."""

    start: int
    end: int
    before: str = ""
    after: str = ""
    kind: str = "open"  # or that of a mark without text
    spaced: bool = False  # whether it is between two spaces, as if it were a word
    parts: list["_Node"] = field(default_factory=list)


def _tree(sentence: Marked) -> _Node:
    root = _Node(0, end := len(sentence.text))
    lone = [each.kind for index, each in enumerate(sentence.marks) if each.element and index not in sentence.partners]
    before, after = [Mark(0, 0, "", "open")] * lone.count("close"), [Mark(end, end, "", "close")] * lone.count("open")
    path = [root]
    for mark in [*before, *sentence.marks, *after]:
        if mark.kind == "close":
            node = path.pop()
            node.end, node.after = mark.start, mark.raw
        elif mark.kind == "open" or mark.end == mark.start:
            around = sentence.text[max(0, mark.start - 1) : mark.start + 1]
            is_spaced = mark.kind != "open" and len(around) == 2 and around.isspace()
            path[-1].parts.append(_Node(mark.start, mark.start, mark.raw, kind=mark.kind, spaced=is_spaced))
            path += path[-1].parts[-1:] * (mark.kind == "open")
    return root


class Placing:
    """Places a sentence's marks in its output: elements around the words that are linked to theirs.

    Without tokens, they go by relative position. The output has marks for placeholders.
    """

    def __init__(self, sentence: Marked, aligned: Aligned, marked: Marked) -> None:
        self._marked, self._text = marked, marked.text
        self._tree = _tree(sentence)
        if not self._tree.parts:
            return
        self._source, self._output = words_of(sentence.text), words_of(self._text)
        self._words = [
            [text[a:b] for a, b in spans] for text, spans in ((sentence.text, self._source), (self._text, self._output))
        ]
        self._targets = dict[int, list[int]]()
        source, output = self._words
        for position, link in enumerate(word_links(aligned)):
            if link is not None and _is_sign(output[position]) == _is_sign(source[link]):  # no stop with a word
                self._targets.setdefault(link, []).append(position)
        free = {*range(len(output))}.difference(*self._targets.values())
        for index in range(len(source)):
            if index not in self._targets:  # A token may be several words.
                goal = self._targets.get(index - 1, [index * len(output) // len(source) - 1])[-1] + 1
                same = [position for position in free if output[position] == source[index]]
                self._targets.update({index: [min(same, key=lambda i: abs(i - goal))]} if same else {})
                free.difference_update(self._targets.get(index, []))

    def __str__(self) -> str:
        """Writes the output as the document does."""
        return self._within(self._tree, 0, len(self._text))

    def _within(self, node: _Node, start: int, end: int) -> str:
        placed = [(part, *(self._span(part) if part.kind == "open" else self._point(part))) for part in node.parts]
        # Elements of the sentence before come first, and those of the sentence after last.
        placed.sort(key=lambda one: (one[0].before != "", one[0].kind == "open" and not one[0].after, one[1]))
        written, at = "", start
        for part, first, last in placed:
            first = min(max(first, at), end) if part.before else start
            last = end if part.kind == "open" and not part.after else min(max(last, first), end)
            written += self._marked.part((at, first)).written()
            # The model reads the spaces around a mark as one.
            written += " " * (part.spaced and not written[-1:].isspace() and first > 0) + part.before
            written += " " * (part.spaced and not self._text[first : first + 1].isspace() and first < len(self._text))
            written += self._within(part, first, last) + part.after
            at = last
        return written + self._marked.part((at, end)).written()

    def _span(self, node: _Node) -> Span:
        """Returns the span of the output that is linked to an element's words."""
        words = range(self._word_after(node.start), bisect.bisect_left(self._source, (node.end, 0)))
        linked = sorted(position for word in words for position in self._targets.get(word, []))
        if not linked and words and self._output:  # words that none attended to
            linked = [(words[0] + words[-1]) * len(self._output) // (2 * len(self._source))]
        if not linked:
            return self._point(node)
        if 2 * len(linked) < linked[-1] - linked[0] + 1:  # they are far from each other: the longest run of neighbours
            cuts = [index for index in range(1, len(linked)) if linked[index] > linked[index - 1] + 2]
            runs = itertools.pairwise([0, *cuts, len(linked)])
            linked = max((linked[first:last] for first, last in runs), key=len)
        first, last = self._output[linked[0]][0], self._output[linked[-1]][1]
        inner = self._within_word(node.start), self._within_word(node.end)
        first = inner[0] if inner[0] is not None and inner[0] <= last else first
        return self._whole(first, inner[1] if inner[1] is not None and inner[1] >= first else last)

    def _word_after(self, position: int) -> int:
        """Returns the index of the first source word that ends after a position."""
        return bisect.bisect_right(self._source, position, key=lambda word: word[1])

    def _within_word(self, position: int) -> int | None:
        """Returns the position for one within a source word, if the output has this word."""
        index = self._word_after(position)
        if index == len(self._source) or self._source[index][0] >= position:
            return None
        source, output = self._words
        targets = self._targets.get(index, [])
        same = [i for i, word in enumerate(output) if word == source[index]]
        best = min(same, key=lambda i: (i not in targets, abs(i - index)), default=None)
        return None if best is None else self._output[best][0] + position - self._source[index][0]

    def _point(self, node: _Node) -> Span:
        """Returns the position in the output for a mark: before the next word, or for a note after the last."""
        after, inner = self._word_after(node.start), self._within_word(node.start)
        if inner is not None:
            position = inner
        elif after in self._targets and not (node.kind == "note" and after - 1 in self._targets):
            position = self._output[self._targets[after][0]][0]
        elif after - 1 in self._targets:
            position = self._output[self._targets[after - 1][-1]][1]
        else:
            position = self._output[after * len(self._output) // (len(self._source) + 1)][0] if self._output else 0
        return self._whole(position, position)

    def _whole(self, start: int, end: int) -> Span:
        """Widens a span so that it cuts no placeholder."""
        first, last = self._marked.kept_around(start), self._marked.kept_around(end)
        return first[0], max(first[0], last[1] if last[0] < end else end)


def _is_sign(word: str) -> bool:
    return len(word) == 1 and unicodedata.category(word)[0] in "PS"
