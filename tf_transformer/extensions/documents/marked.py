"""Text with marks between its characters, such as tags. Plain text, HTML and XML become this before translation."""

import bisect
import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tf_transformer.inference.alignment import Span
from tf_transformer.utils.extras import import_extra
from tf_transformer.utils.values import BadInput, Count, checked, shown

Splitter = Callable[[str], Sequence[str]]  # from a line to its sentences, which joined are the line
# Placeholders copied verbatim, exactly once: URLs, e-mail addresses, format fields.
PLACEHOLDER = re.compile(
    r"""https?://[^\s<>"']*[^\s<>"'.,;:!?()\[\]{}]
    | (?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+
    | \$?\{\{?[^{}\s]*\}?\}
    | %(?:\(\w+\)|\d+\$)?[-+\#0]{0,4}\d{0,4}(?:\.\d{1,4})?[sdifgxu@](?!\w)""",
    re.VERBOSE,
)
# Where a text is cut, the best place first: after a semicolon, a colon or a dash; after a comma; at a space.
BREAKS = ["[;:\u2026\u2013\u2014]\\s+|[\uff1b\uff1a\u3002]", "[,\u060c]\\s+|[\u3001\uff0c]", r"\s+"]


class Mark(NamedTuple):
    """A part of a document that is copied unchanged."""

    start: int
    end: int  # after `start` only if the mark stands for these characters, such as an address, or <code>
    raw: str  # as the document has it
    kind: str = "kept"  # or "open" or "close", of an element's tags; or "lost", which was a word of the text
    element: int = 0  # the same number for both of its tags


class Marked:
    """A text and its marks.

    Args:
        text: Text without the marks, except for the characters that some of them stand for.
        marks: Marks in the document's order.
        write: Function that writes a part of the text as the document does.
        newline: "ends" if a newline ends a sentence, as in plain text; "is a space" otherwise, as in HTML.
    """

    def __init__(
        self, text: str, marks: Sequence[Mark] = (), write: Callable[[str], str] = str, newline: str = "ends"
    ) -> None:
        self.text, self.marks, self.write, self.newline = text, marks, write, newline

    @functools.cached_property
    def _tags(self) -> dict[tuple[int, str], int]:
        """Positions of the tags, by element and kind."""
        return {(mark.element, mark.kind): mark.start for mark in self.marks if mark.element}

    def _inside(self, start: int, end: int) -> tuple[int, int]:
        """Returns the range of marks that belong to the text from `start` to `end`.

        At its ends, these are only the tags of elements that begin or end within it, and their contents.
        """
        first = bisect.bisect_left(self.marks, start, key=lambda mark: mark.start)
        last = bisect.bisect_right(self.marks, end, key=lambda mark: mark.end)

        def within(place: int, kind: str) -> bool:
            mark = self.marks[place]
            return mark.end > mark.start or start < self._tags.get((mark.element, kind), start) < end

        while first < last and self.marks[first].start == start and not within(first, "close"):
            first += 1
        while first < last and self.marks[last - 1].end == end and not within(last - 1, "open"):
            last -= 1
        return first, last

    def part(self, span: Span) -> "Marked":
        """Returns the text of a span, with its marks."""
        start, end = span
        marks = self.marks[slice(*self._inside(start, end))]
        moved = [mark._replace(start=mark.start - start, end=mark.end - start) for mark in marks]
        return Marked(self.text[start:end], moved, self.write, self.newline)

    def written(self) -> str:
        """Writes the text as the document has it."""
        return self._written(0, len(self.text), self.marks)

    def _written(self, start: int, end: int, marks: Iterable[Mark]) -> str:
        parts, last = list[str](), start
        word = self.text[max(0, start - 1) : start]  # the text before the next mark
        for mark in marks:
            word = self.text[last : mark.start] or word
            parts += [self.write(self.text[last : mark.start]), self.spaced(mark, word, self.text[mark.end :])]
            last, word = mark.end, mark.raw if mark.kind == "lost" else word
        return "".join([*parts, self.write(self.text[last:end])])

    @staticmethod
    def spaced(mark: Mark, before: str, after: str) -> str:
        """Writes a mark between texts. A lost word gets spaces around it."""
        if mark.kind != "lost":
            return mark.raw
        return " " * (before != "" and not before[-1].isspace()) + mark.raw + " " * after[:1].isalnum()

    def joined(self, spans: Sequence[Span], outputs: Sequence[str]) -> str:
        """Writes the text as the document has it, with outputs instead of the spans."""
        parts = zip(self.between(spans, outputs), [*outputs, ""], strict=True)
        return "".join(between + output for between, output in parts)

    def between(self, spans: Sequence[Span], outputs: Sequence[str]) -> list[str]:
        """Returns the text before each of the outputs that replace the spans, and after the last.

        A space between two sentences is removed if the output's writing has none there, like Chinese, and added if
        only the source's has none.
        """
        found, last, seen, before = list[str](), 0, 0, ""
        for (start, end), output in zip(spans, outputs, strict=True):
            first, after = self._inside(start, end)
            between = self._written(last, start, self.marks[seen:first])
            if before and between in ("", " ") and first == seen:
                wide = is_wide(self.text[last - 1]), is_wide(before[-1])
                between = {(True, False): " ", (False, True): ""}.get(wide, between)
            found.append(between)
            last, seen, before = end, after, output
        return [*found, self._written(last, len(self.text), self.marks[seen:])]

    def sentences(self, splitter: Splitter) -> list[Span]:
        """Returns the spans of the sentences, with only white space and marks between them.

        Raises:
            BadInput: If the splitter's sentences are not the text.
        """
        spans, start = list[Span](), 0
        for line in self.text.splitlines(keepends=True) if self.newline == "ends" else [re.sub(r"\s", " ", self.text)]:
            body, place = line.strip(), start + len(line) - len(line.lstrip())
            pieces = list(splitter(body)) if body else []
            if not all(isinstance(piece, str) for piece in pieces) or "".join(pieces) != body:
                raise BadInput(f"sentences: expected parts of the text, which joined are the text, got {shown(pieces)}")
            for piece in pieces:
                first, end = place + len(piece) - len(piece.lstrip()), place + len(piece.rstrip())
                place += len(piece)
                if first < end:
                    spans.append((first, end))
            start += len(line)
        joined = list[Span]()
        for start, end in spans:
            if joined and self._kept_around(joined[-1][1]) > joined[-1][1]:  # A mark's characters would be cut.
                joined[-1] = joined[-1][0], end
            else:
                joined.append((start, end))
        return joined

    def _kept_around(self, place: int) -> int:
        """Returns the end of the mark's characters around a position, or the position."""
        after = bisect.bisect_left(self._kept, (place, 0))
        return max(place, self._kept[after - 1][1]) if after else place

    @functools.cached_property
    def _kept(self) -> list[Span]:
        return [(mark.start, mark.end) for mark in self.marks if mark.end > mark.start]

    @checked
    def cut(self, parts: Count) -> list[Span]:
        """Cuts the text into spans of about equal length, at semicolons, commas or spaces if possible."""
        places, step = [0], len(self.text) / parts
        for i in range(1, parts):
            goal, low = round(i * step), places[-1] + 1
            window = max(low, round((i - 0.4) * step)), round((i + 0.4) * step)
            ends = [[match.end() for match in re.compile(each).finditer(self.text, *window)] for each in BREAKS]
            best = next((min(found, key=lambda place: abs(place - goal)) for found in ends if found), max(goal, low))
            while best < len(self.text) and _joins(self.text[best]):
                best += 1
            best = self._kept_around(best)
            if places[-1] < best < len(self.text):
                places.append(best)
        spans = []
        for first, end in zip(places, [*places[1:], len(self.text)], strict=True):
            body = self.text[first:end]
            span = first + len(body) - len(body.lstrip()), first + len(body.rstrip())
            spans += [span] if span[0] < span[1] else []
        return spans

    def with_placeholders(self) -> "Marked":
        """Adds marks for placeholders."""
        more = list[Mark]()
        for match in PLACEHOLDER.finditer(self.text):
            before = bisect.bisect_left(self.marks, match.end(), key=lambda mark: mark.start)
            if not before or max(self.marks[before - 1][:2]) <= match.start():  # none inside
                more.append(Mark(*match.span(), self.write(match[0])))
        marks = sorted([*self.marks, *more], key=lambda mark: (mark.start, mark.end > mark.start))
        return Marked(self.text, marks, self.write, self.newline)

    def without_kept(self) -> "Marked":
        """Removes the characters that marks stand for, and keeps the marks."""
        text, marks, last = "", list[Mark](), 0
        for mark in self.marks:
            text += self.text[last : mark.start]
            if mark.end > mark.start and text[-1:] == " " and not self.text[mark.end : mark.end + 1].isalnum():
                text = text[:-1]  # before a comma, an end or another space
            kind = "lost" if mark.end > mark.start else mark.kind
            marks.append(mark._replace(start=len(text), end=len(text), kind=kind))
            last = mark.end
        return Marked(text + self.text[last:], marks, self.write, self.newline)


def _joins(character: str) -> bool:
    """Returns whether a character belongs to the one before it."""
    return unicodedata.category(character)[0] == "M" or character == "\u200d"


def is_wide(character: str) -> bool:
    """Returns whether a character belongs to a script without spaces between words, such as Chinese."""
    return unicodedata.east_asian_width(character) in "WF" and not "\uac00" <= character <= "\ud7a3"


@checked
def sentences_in(language: str = "") -> Splitter:
    """Returns a sentence splitter: Wikimedia's sentencex, with abbreviations of 300 languages.

    Args:
        language: Language code, such as "de". Unknown languages have the rules of English.

    Raises:
        BadInput: If the package is not installed.
    """
    segment = import_extra("sentencex", "documents", "a document").segment
    code = re.split("[_-]", language)[0] or "en"

    def sentences(line: str) -> list[str]:
        # sentencex rejects halves of surrogate pairs.
        pieces = segment(code, re.sub("[\ud800-\udfff]", "\ufffd", line))
        ends = list(itertools.accumulate(map(len, pieces)))
        return [line[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    return sentences
