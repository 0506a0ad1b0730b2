"""Places the marks of a source around the words of its translation."""

import bisect
import itertools
import re
import unicodedata
from collections.abc import Mapping

from tf_transformer.extensions.documents.marked import DENSE, Marked
from tf_transformer.extensions.documents.words import Span, word_links, words_of
from tf_transformer.inference.engine import Aligned

# The end of what stands between spaces, or any character of a script without spaces.
_AT_END = re.compile(rf"(?<=[{DENSE}\u2013\u2014])|(?=[{DENSE}])|\s|[.,;:!?)\]]*(?:\s|$)")
AFTER = ("lost", "note")  # kinds of marks that follow a word


class _Node:
    """An element, or a mark at one position, in a sentence."""

    def __init__(self, start: int, before: str = "", position: int = 0, kind: str = "", opens: bool = True) -> None:
        self.start, self.end, self.before, self.after = start, start, before, ""
        self.position = position  # index among the sentence's marks
        # False if the tag is in a sentence before or after.
        self.opens, self.closes = opens, True
        self.kind = kind  # of a mark without text: "kept", "lost" or "note"
        self.parts = list[_Node]()


def _tree(sentence: Marked) -> _Node:
    root = _Node(0)
    root.end = len(sentence.text)
    path = [root]

    def begin(node: _Node) -> None:
        path[-1].parts.append(node)
        path.append(node)

    for position, mark in enumerate(sentence.marks):  # elements that begin before the sentence
        if mark.kind == "close" and position not in sentence.partners:
            begin(_Node(0, opens=False))
    for position, mark in enumerate(sentence.marks):
        if mark.kind == "open":
            begin(_Node(mark.start, mark.raw, position))
        elif mark.kind == "close":
            node = path.pop()
            node.end, node.after = mark.start, mark.raw
        elif mark.end == mark.start:
            path[-1].parts.append(_Node(mark.start, mark.raw, position, mark.kind))
    for node in path[1:]:
        node.end, node.closes = len(sentence.text), False
    return root


class Placing:
    """Places a sentence's marks in its output: elements around the words that are linked to theirs.

    Without tokens, they go by relative position. `kept` are spans of placeholders in the output, and what to write.
    """

    def __init__(self, sentence: Marked, aligned: Aligned, kept: Mapping[Span, str]) -> None:
        self._sentence, self._text, self._kept = sentence, aligned.text, sorted(kept.items())
        self._tree = _tree(sentence)
        if not self._tree.parts:
            return
        self._source, self._output = words_of(aligned.source), words_of(aligned.text)
        self._targets, self._copies = dict[int, list[int]](), dict[str, list[int]]()
        for position, (first, last) in enumerate(self._output):
            self._copies.setdefault(aligned.text[first:last], []).append(position)
        for position, link in enumerate(word_links(aligned)):
            if link is not None:
                self._targets.setdefault(link, []).append(position)
        self._link_signs()

    def _link_signs(self) -> None:
        """Links signs next to linked words, of which a token may be a part."""
        linked = set(itertools.chain.from_iterable(self._targets.values()))
        for side, indices in ((1, range(1, len(self._source))), (-1, range(len(self._source) - 2, -1, -1))):
            for index in indices:
                near = self._targets.get(index - side, [-9])[-1 if side > 0 else 0] + side
                if index not in self._targets and 0 <= near < len(self._output) and near not in linked:
                    first, last = self._source[index]
                    if self._sentence.text[first:last] == self._text[slice(*self._output[near])]:
                        self._targets[index] = [near]
                        linked.add(near)

    def __str__(self) -> str:
        """Writes the output as the document does."""
        return self._within(self._tree, 0, len(self._text))

    def _within(self, node: _Node, start: int, end: int) -> str:
        placed = [
            (part, *(self._point(part) if part.kind else self._span(part.start, part.end))) for part in node.parts
        ]
        placed.sort(key=lambda one: (one[0].opens, not one[0].closes, one[1], one[0].position))
        written, at = "", start
        for part, first, last in placed:
            first = min(max(first, at), end) if part.opens else start
            last = min(max(last, first), end) if part.closes else end
            written += self._written(at, first)
            before = part.before
            if part.kind == "lost":
                before = self._sentence.spaced(
                    self._sentence.marks[part.position], self._text[:first], self._text[first:]
                )
            written += before + self._within(part, first, last) + part.after
            at = last
        return written + self._written(at, end)

    def _span(self, start: int, end: int) -> Span:
        """Returns the span of the output that is linked to a span of the source."""
        words = range(self._word_after(start), bisect.bisect_left(self._source, (end, 0)))
        linked = sorted(position for word in words for position in self._targets.get(word, []))
        if not linked and words and self._output:  # words that none attended to
            linked = [(words[0] + words[-1]) * len(self._output) // (2 * len(self._source))]
        if not linked:
            return self._point(_Node(start))
        for side in (0, -1):  # punctuation at an end belongs to what has some at that end itself
            if not words or not self._is_sign(self._source[words[side]], self._sentence.text):
                while len(linked) > 1 and self._is_sign(self._output[linked[side]], self._text):
                    linked.pop(side)
        if 2 * len(linked) < linked[-1] - linked[0] + 1:  # they are far from each other: the longest run of neighbours
            cuts = [index for index in range(1, len(linked)) if linked[index] > linked[index - 1] + 2]
            runs = itertools.pairwise([0, *cuts, len(linked)])
            linked = max((linked[first:last] for first, last in runs), key=len)
        first, last = self._output[linked[0]][0], self._output[linked[-1]][1]
        inner = self._within_word(start), self._within_word(end)
        first = inner[0] if inner[0] is not None and inner[0] <= last else first
        return self._whole(first, inner[1] if inner[1] is not None and inner[1] >= first else last)

    def _word_after(self, position: int) -> int:
        """Returns the index of the first source word that ends after a position."""
        return bisect.bisect_right(self._source, position, key=lambda word: word[1])

    def _within_word(self, position: int) -> int | None:
        """Returns the position for one within a source word, if its translation begins or ends alike."""
        index = self._word_after(position)
        if index == len(self._source) or self._source[index][0] >= position:
            return None
        start, end = self._source[index]
        head, tail = self._sentence.text[start:position], self._sentence.text[position:end]
        targets = self._copies.get(head + tail, [])
        targets = targets if len(targets) == 1 else self._targets.get(index, [])
        first, last = self._output[targets[0]] if len(targets) == 1 else (0, 0)
        if self._text[first:last].startswith(head):
            return first + len(head)
        return last - len(tail) if self._text[first:last].endswith(tail) else None

    @staticmethod
    def _is_sign(word: Span, text: str) -> bool:
        return word[1] == word[0] + 1 and unicodedata.category(text[word[0]])[0] in "PS"

    def _point(self, node: _Node) -> Span:
        """Returns the position in the output for a mark: before the next word, or for a lost word after the last."""
        after, inner = self._word_after(node.start), self._within_word(node.start)
        if inner is not None:
            position = inner
        elif after in self._targets and not (node.kind in AFTER and after - 1 in self._targets):
            position = self._output[self._targets[after][0]][0]
        elif after - 1 in self._targets:
            position = self._output[self._targets[after - 1][-1]][1]
        else:
            position = self._output[after * len(self._output) // (len(self._source) + 1)][0] if self._output else 0
        if node.kind == "lost" and self._sentence.text[node.start : node.start + 1].isspace():
            position = len(self._text[:position].rstrip())  # keeps this space after it
        if node.kind == "lost" and (position == 0 or not self._text[position - 1].isspace()):
            # Not into what stands between spaces, but before a comma.
            position = _AT_END.search(self._text, position).start()  # type: ignore[union-attr]
        return self._whole(position, position)

    def _whole(self, start: int, end: int) -> Span:
        """Widens a span so that it cuts no placeholder."""
        first, last = self._kept_around(start), self._kept_around(end)
        return first[0], max(first[0], last[1] if last[0] < end else end)

    def _kept_around(self, position: int) -> Span:
        """Returns the span of the placeholder around a position, or an empty one."""
        index = bisect.bisect_left(self._kept, position, key=lambda kept: kept[0][0]) - 1
        return self._kept[index][0] if index >= 0 and position < self._kept[index][0][1] else (position, position)

    def _written(self, start: int, end: int) -> str:
        parts, index = [], bisect.bisect_left(self._kept, start, key=lambda kept: kept[0][0])
        while index < len(self._kept) and self._kept[index][0][1] <= end:
            (first, last), raw = self._kept[index]
            parts += [self._sentence.write(self._text[start:first]), raw]
            start, index = last, index + 1
        return "".join([*parts, self._sentence.write(self._text[start:end])])
