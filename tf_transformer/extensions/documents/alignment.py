"""Places the marks of a source around the words of its translation."""

import re
import unicodedata
from collections.abc import Mapping

from tf_transformer.extensions.documents.marked import Marked
from tf_transformer.inference.alignment import Aligned, Span, words_of

_AT_END = re.compile(r"\s|[.,;:!?)\]]*(?:\s|$)")  # of what stands between spaces


class _Node:
    """An element, or a mark at one position, in a sentence."""

    def __init__(self, start: int, before: str = "", place: int = 0) -> None:
        self.start, self.end, self.before, self.after = start, start, before, ""
        self.place = place  # among the sentence's marks
        self.opens, self.closes = True, True  # here; not in a sentence before or after
        self.kind = ""  # "kept" or "lost", of a mark at one place
        self.parts = list[_Node]()


def _tree(sentence: Marked) -> _Node:
    opened = {mark.element for mark in sentence.marks if mark.kind == "open"}
    root = _Node(0)
    root.end = len(sentence.text)
    path = [root]

    def begin(node: _Node) -> None:
        path[-1].parts.append(node)
        path.append(node)

    for mark in sentence.marks:  # elements that begin before the sentence
        if mark.kind == "close" and mark.element not in opened:
            node = _Node(0)
            node.opens = False
            begin(node)
    for place, mark in enumerate(sentence.marks):
        if mark.kind == "open":
            begin(_Node(mark.start, mark.raw, place))
        elif mark.kind == "close":
            node = path.pop()
            node.end, node.after = mark.start, mark.raw
        elif mark.end == mark.start:
            node = _Node(mark.start, mark.raw, place)
            node.kind = mark.kind
            path[-1].parts.append(node)
    for node in path[1:]:
        node.end, node.closes = len(sentence.text), False
    return root


class Placing:
    """Places a sentence's marks in its output: elements around the words that are linked to theirs.

    Args:
        sentence: Sentence with marks.
        aligned: Its output. Without tokens, marks go by relative position.
        kept: Spans of placeholders in the output, and how to write them.
    """

    def __init__(self, sentence: Marked, aligned: Aligned, kept: Mapping[Span, str]) -> None:
        self._sentence, self._text, self._kept = sentence, aligned.text, kept
        self._tree = _tree(sentence)
        if not self._tree.parts:
            return
        self._source, self._output = words_of(aligned.source), words_of(aligned.text)
        self._targets: dict[int, list[int]] = {}
        for place, link in enumerate(aligned.word_links()):
            if link is not None:
                self._targets.setdefault(link, []).append(place)

    def __str__(self) -> str:
        """Writes the output as the document does."""
        return self._within(self._tree, 0, len(self._text))

    def _within(self, node: _Node, start: int, end: int) -> str:
        placed = []
        for part in node.parts:
            first, last = self._point(part) if part.kind else self._span(part.start, part.end)
            placed.append((part.opens, not part.closes, first, part.place, last, part))
        placed.sort(key=lambda one: one[:4])
        written, at = "", start
        for opens, goes_on, first, _, last, part in placed:
            first = min(max(first, at), end) if opens else start
            last = end if goes_on else min(max(last, first), end)
            written += self._written(at, first)
            before = part.before
            if part.kind == "lost":
                before = self._sentence.spaced(self._sentence.marks[part.place], self._text[:first], self._text[first:])
            written += before + self._within(part, first, last) + part.after
            at = last
        return written + self._written(at, end)

    def _span(self, start: int, end: int) -> Span:
        """Returns the span of the output that is linked to a span of the source."""
        words = [i for i, (first, last) in enumerate(self._source) if first < end and start < last]
        found = sorted(place for word in words for place in self._targets.get(word, []))
        if not found and words and self._output:  # words that none attended to
            found = [(words[0] + words[-1]) * len(self._output) // (2 * len(self._source))]
        if not found:
            return self._point(_Node(start))
        for end in (0, -1):  # punctuation at an end belongs to what has some at that end itself
            if not words or not self._is_sign(self._source[words[end]], self._sentence.text):
                while len(found) > 1 and self._is_sign(self._output[found[end]], self._text):
                    found.pop(end)
        if 2 * len(found) < found[-1] - found[0] + 1:  # they are far from each other: the longest run of neighbours
            runs = [[found[0]]]
            for place in found[1:]:
                if place > runs[-1][-1] + 2:
                    runs.append([])
                runs[-1].append(place)
            found = max(runs, key=len)
        return self._whole(self._output[found[0]][0], self._output[found[-1]][1])

    @staticmethod
    def _is_sign(word: Span, text: str) -> bool:
        return word[1] == word[0] + 1 and unicodedata.category(text[word[0]])[0] in "PS"

    def _point(self, node: _Node) -> Span:
        """Returns the position in the output for a mark: before the next word, or for a lost word after the last."""
        after = next((i for i, (_, last) in enumerate(self._source) if last > node.start), len(self._source))
        if after in self._targets and not (node.kind == "lost" and after - 1 in self._targets):
            place = self._output[self._targets[after][0]][0]
        elif after - 1 in self._targets:
            place = self._output[self._targets[after - 1][-1]][1]
        else:
            place = self._output[after * len(self._output) // (len(self._source) + 1)][0] if self._output else 0
        if node.kind == "lost":  # not into what stands between spaces, but before a comma
            place = _AT_END.search(self._text, place).start()  # type: ignore[union-attr]
        return self._whole(place, place)

    def _whole(self, start: int, end: int) -> Span:
        """Widens a span so that it cuts no placeholder."""
        start = next((first for first, last in self._kept if first < start < last), start)
        return start, max(start, next((last for first, last in self._kept if first < end < last), end))

    def _written(self, start: int, end: int) -> str:
        parts = []
        for (first, last), raw in sorted(self._kept.items()):
            if start <= first and last <= end:
                parts += [self._sentence.write(self._text[start:first]), raw]
                start = last
        return "".join([*parts, self._sentence.write(self._text[start:end])])
