"""Splits HTML and XML into parts to translate, and the rest.

Only sentences change. In them, character references become characters, except for markup characters and &nbsp;. The
rest is copied unchanged.
"""

import bisect
import collections
import functools
import html
import itertools
import re
from collections.abc import Iterator

from tf_transformer.extensions.documents.marked import DEEPEST, PLACEHOLDER, Mark, Marked, is_wide
from tf_transformer.extensions.documents.parsers import Read, read_html, read_xml

UNREAD = {"rp", "rt", "svg"}  # The text around them is translated without theirs.
_IN_WORD, _BEFORE = re.compile(r"</su[bp]\b", re.IGNORECASE), re.compile(r"[\w.,:;!?)]")
_ADDRESS = re.compile(r"://|^www\.|\w@\w")
_LINK, _WORD, _IMAGE = (
    re.compile(rf"<{names}", re.IGNORECASE) for names in (r"a\b", r"(?!/|!|\?|su[bp]\b|wbr\b)", r"(?:img|input|svg)\b")
)


def parts_of(document: str, is_xml: bool = False) -> list[str | Marked]:
    """Splits a document into strings that are copied and texts that are translated, in order."""
    if document.startswith("\ufeff"):
        return ["\ufeff", *parts_of(document[1:], is_xml)]
    return list(_Reader(document, read_xml(document) if is_xml else read_html(document), is_xml).parts())


class _Reader:
    """Gathers the text between tags that end sentences."""

    def __init__(self, document: str, read: Read, is_xml: bool) -> None:
        self._document = document
        self._write = functools.partial(html.escape, quote=False) if is_xml else _written_html
        self._pieces, self._pairs, self._inline = read
        self._closing = {last: first for first, last in self._pairs.items()}
        self._ends = [*(piece.start for piece in self._pieces[1:]), len(document)]
        words = [each.kind == "text" and not each.copied and not each.text.isspace() for each in self._pieces]
        counts = list(itertools.accumulate(words, initial=0))
        self._silent = {i for i, j in self._pairs.items() if self._pieces[i].copied and counts[i] == counts[j + 1]}
        self._exclude()

    def _exclude(self) -> None:
        """Excludes elements that contain others, or that are nested too deeply, from those within sentences."""
        ends, depth, others, until = collections.Counter(self._pairs.values()), 0, [0], -1
        for index, piece in enumerate(self._pieces):
            depth -= ends[index]
            is_text = piece.kind in ("text", "entity")
            is_other = piece.copied if is_text else index not in self._inline or depth >= DEEPEST
            others.append(others[-1] + (is_other and index > until))
            depth += index in self._pairs
            until = self._pairs[index] if index in self._silent and index > until else until
        for first, last in self._pairs.items():
            if others[first] < others[last + 1] and first not in self._silent:
                self._inline -= {first, last}

    def parts(self) -> Iterator[str | Marked]:
        self._begin(0)
        index = 0
        while index < len(self._pieces):
            piece = self._pieces[index]
            last = self._pairs[index] if index in self._silent else index
            raw = self._document[piece.start : self._ends[last]]
            text = ""
            if piece.kind == "text" and not piece.copied:
                text = piece.text
                self._is_read |= not text.isspace()
                self._is_pre |= piece.is_pre
            elif piece.copied if piece.kind == "entity" else index not in self._inline:
                yield from self._run(piece.start)
                yield raw
                self._begin(self._ends[last])
            else:
                if piece.kind == "entity":
                    text = raw
                elif last > index and piece.name not in UNREAD:
                    text = " ".join("".join(each.text for each in self._pieces[index:last]).split())
                is_tag = last == index and piece.kind in ("open", "close")
                tag = (piece.kind, self._closing.get(index, index) + 1) if is_tag else ()
                self._marks.append(Mark(self._length, self._length + len(text), raw, *tag))
            self._texts.append(text)
            self._length += len(text)
            index = last + 1
        yield from self._run(len(self._document))

    def _begin(self, start: int) -> None:
        self._start, self._texts, self._length, self._marks = start, list[str](), 0, list[Mark]()
        self._is_read = self._is_pre = False

    def _run(self, end: int) -> Iterator[str | Marked]:
        if not self._is_read:
            yield self._document[self._start : end]
            return
        run = Marked("".join(self._texts), self._marks, self._write, "ends" if self._is_pre else "is a space")
        for part in _apart(run, _LINK):
            yield from [part] if isinstance(part, str) else _apart(_with_addresses(part), _WORD)


def _with_addresses(run: Marked) -> Marked:
    """Makes one mark of each address that has tags inside, or has elements for itself."""
    old, marks, done, other = run.marks, list[Mark](), 0, run.partners
    for start, end in (match.span() for match in PLACEHOLDER.finditer(run.text) if _ADDRESS.search(match[0])):
        first = bisect.bisect_left(old, start, done, key=lambda mark: mark.start)
        last = bisect.bisect_right(old, end, first, key=lambda mark: mark.end)
        while first < last and old[first].start == start and not first < other.get(first, -1) < last:
            first += 1
        while first < last and old[last - 1].end == end and not first <= other.get(last - 1, last) < last:
            last -= 1
        # Neither an element nor a mark's characters may be partly inside.
        around = [*old[first - 1 : first], *old[last : last + 1]]
        is_part = any(not first <= other.get(i, i) < last for i in range(first, last))
        if first == last or is_part or any(mark.start < end and start < mark.end for mark in around):
            continue
        inside = [mark._replace(start=mark.start - start, end=mark.end - start) for mark in old[first:last]]
        marks += [*old[done:first], Mark(start, end, Marked(run.text[start:end], inside, run.write).written())]
        done = last
    return Marked(run.text, [*marks, *old[done:]], run.write, run.newline)


def _apart(run: Marked, starts: re.Pattern[str]) -> Iterator[str | Marked]:
    """Splits a text between words that have nothing but the end of an element and the start of another between them."""
    cuts, position, is_closed = list[int](), -1, False
    for index, mark in enumerate(run.marks):
        if mark.start > position:
            position, is_closed = mark.start, index > 0 and position < run.marks[index - 1].end == mark.start
            before, after = run.text[position - 1 : position], run.text[position : position + 1]
            is_glued = after.isalnum() and _BEFORE.match(before) and not (is_wide(before) and is_wide(after))
        if is_glued and ((is_closed and starts.match(mark.raw)) or _IMAGE.match(mark.raw)):
            cuts.append(index)
            is_glued = False
        if mark.kind == "close":
            is_closed = not _IN_WORD.match(mark.raw)
    other, first, start = run.partners, 0, 0
    cut = {i for i, j in other.items() if bisect.bisect(cuts, i) != bisect.bisect(cuts, j)}  # tags
    ends = {*cuts, *cut, len(run.marks)}
    for index, mark in [*enumerate(run.marks), (len(run.marks), Mark(len(run.text), len(run.text), ""))]:
        if index in ends:
            marks = [each._replace(start=each.start - start, end=each.end - start) for each in run.marks[first:index]]
            part = Marked(run.text[start : mark.start], marks, run.write, run.newline)
            yield part if part.text.strip() else part.written()
            if index in cut:
                yield mark.raw
            first, start = index + (index in cut), mark.start


def _written_html(text: str) -> str:
    return html.escape(text, quote=False).replace("\xa0", "&nbsp;")
