"""Text with marks between its characters, such as tags. Plain text, HTML and XML become this before translation."""

import bisect
import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from tf_transformer.inference.words import Span
from tf_transformer.utils.lazy import import_extra
from tf_transformer.utils.values import BadInput, checked, shown

Splitter = Callable[[str], Sequence[str]]  # from a line to its sentences, which joined are the line
# Scripts without spaces between words, and Hangul, whose endings touch a name. Both include their punctuation.
DENSE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff00-\uffef"
DENSE += "\U00020000-\U0003ffff"
_WORD, _LETTER = rf"[^\W{DENSE}]", rf"[^\W\d_{DENSE}]"
_IN_ADDRESS = rf"[^\W{DENSE}]|[/#$%&+=@~_-]"
_NUMBER = r"(?:\*|\d{1,4})?(?:\.(?:\*|\d{0,4}))?(?:hh?|ll?|[qjztL])?"
_INNER = r"[^{}]*+"
for _ in range(3):  # a plural in a choice in a message
    # Atomic groups, not possessive ones: before 3.11.5, Python keeps what a failed alternative read.
    _INNER = rf"(?>(?:[^{{}}]++|\{{{_INNER}\}})*)"
# Syntaxes of placeholders, which are copied verbatim, exactly once. Each has a bounded length, or cannot backtrack.
PLACEHOLDERS = {
    "address": rf"(?:(?:https?|ftp)://|(?<![\w.])www\.)"
    rf"(?:{_IN_ADDRESS}|[.,;:!?'|*]++(?={_IN_ADDRESS}|[(\[{{])|\([^()\s{DENSE}]*\)|\[[^\[\]\s{DENSE}]*\]|\{{[^{{}}\s]*\}})+",
    "e-mail": rf"(?<!{_WORD})(?<![.+-])(?>(?:{_WORD}|[.+-])+)@(?:{_WORD}|-)+(?:\.(?:{_WORD}|-)+)+",
    "template": r"\{\{\{?(?:[^{}\n]|\{[^{}\n]{0,99}\}){1,199}\}\}\}?"
    r"|\{%[^{}%\n]{1,199}%\}|\{\#[^{}#\n]{1,199}\#\}|<%[^<>%\n]{1,199}%>",
    "ICU": r"\{\s?\w+\s?,\s?(?:number|date|time|spellout|ordinal|duration)(?:\s?,[^{}\n]{1,99})?\}"
    rf"|\{{\s?\w+\s?,\s?(?:plural|select|selectordinal)\s?,{_INNER}\}}",
    "braces": r"[$#%@]?\{(?:[^{}\s]|\{[^{}\s]{0,99}\}){0,99}\}"
    r"|[$#]?\{ (?:[$-]?\w[\w.-]{0,99}|[A-Z]+\([^(){}\n]{0,99}\)) \}",
    "brackets": r"\[\[[^\[\]\s]{1,99}\]\]",
    "path": r"(?<!\w)[A-Za-z]:\\[\w.\\-]{1,199}(?<![.\\])|(?<![\w\\])\\\\[\w.-]{1,99}(?:\\[\w.$-]{1,99}){1,19}(?<!\.)",
    # `Quotes` reads those that it can write again.
    "escape": r"(?<!\\)\\u[0-9A-Fa-f]{4}",
    # `$m` and `$bn` may be money. A smiley or a time may contain `:name`.
    "dollar": r"\$[A-Za-z_]\w{0,48}\$(?!\w)|(?<![\w$])\$(?=\w{0,48}_|[a-z]{1,48}[A-Z])[A-Za-z_]\w{0,48}",
    "percent name": r"(?<![\w%])%[A-Za-z_][\w.-]{1,48}%(?!\w)",
    "percent sign": "%%",
    # With a name or a position, all are clear. Otherwise these are text: 5% discount, 100 %ige, 20%-os, 10% i.
    "printf": rf"%(?:\([\w. -]{{1,99}}\)|\d{{1,2}}\$)[-+#0 ']{{0,5}}{_NUMBER}[diouxXeEfFgGaAcCsSpn@]"
    rf"|(?<!\d)(?<!\d[ \xa0\u202f])%[-+#0']{{0,5}}{_NUMBER}"
    rf"(?:[diouxXeEfFgGcsSpn@](?!{_LETTER})|[dfs](?=(?:px|pt|x|ms|[smhd]|[kKMGT]i?B?|th)(?!{_LETTER})))"
    rf"|%(?:[ds@]|l{{1,2}}[du])(?!{_LETTER})"
    r"|(?<!\w)(?<!\w[ \xa0\u202f])% [-+#0]?\d{0,4}(?:\.\d{1,4})?l{0,2}[dfgeiuxX](?![\w.'\u2019])",
}
PLACEHOLDER = re.compile("|".join(PLACEHOLDERS.values()))
# Ends of lines and tabs that strings of apps and subtitles spell. They separate sentences.
WRITTEN_BREAK = re.compile(r"(?:\\{1,2}[nrtN])+")
# A number of a list on a line of its own, such as 1. or (2), is copied.
ENUMERATOR = re.compile(r"[(\[]?\d{1,3}(?:\.\d{1,3})*[.)\]]+")
# Titles before a name, at the end of what sentencex takes for a sentence of some languages.
_TITLES = """
Abg Avv Capt Cdt Col Dipl Dir Dom Dott Dr Dra Drs Dres Gen Gov Hon Hr Ing Jr Lic Lt MM Mag Messrs Mgr Mlle Mlles Mme
Mmes Mr Mrs Ms Mx Pr Prof Profa Rep Rev Sen Sgt Sig Sr Sra Sras Sres Srta St Ste Sta Sto Ven
"""
_ENDS_IN_TITLE = re.compile(rf"(?:\A|[^\w.])(?:M|{'|'.join(_TITLES.split())})\.\s*\Z")
# Two letters in a row, or one of a script without spaces, make a word. Roman numbers do not.
_ROMAN = r"(?<!\w)(?:[IVXLC]{1,7}|[ivxlc]{1,7})(?!\w)(?=[.)\]])"
_HAS_WORD = re.compile(rf"[{DENSE}](?<=\w)|[^\W\d_][^\W\d_]")
# What a lost placeholder is kept together with, if it touches it, but for stops after it.
_GLUED = re.compile(rf"[^\s{DENSE}\u2013\u2014\u2026]|[\u300c-\u3011\uff08\uff09\u300a\u300b]")
# Words that only an end tag and a start tag separate are apart, and those beside a picture.
_START = re.compile(r"(?i)<(?!/|!|\?|su[bp]\b|wbr\b)")
_IMAGE, _IN_WORD = re.compile(r"(?i)<(?:img|input|svg)\b"), re.compile(r"(?i)</su[bp]\b")
DEEPEST = 99  # elements in each other, within a sentence
# Pairs of codes of three letters, such as NLLB's, and those of sentencex, where its rules are not those for English.
CODES = """
acqar ajpar alssq amham araar arbar arsar ayray bakba bambm benbn bulbg catca cescs danda deude ellel
finfi frafr glggl grngn gujgu hatht hinhi hyehy itait jpnja kankn kazkk limli linln ltzlb malml marmr
myamy nldnl ocioc panpa pltmg polpl porpt quyqu rusru sagsg sansa slksk spaes tamta tattt telte ukruk
wolwo
"""
WINDOW = 4_096  # characters that are split at once
# Where a text is cut, the best position first: after a semicolon, a colon or a dash; after a comma; at a space.
BREAKS = ["[;:\u2026\u2013\u2014]\\s+|[\uff1b\uff1a\u3002]", "[,\u060c]\\s+|[\u3001\uff0c]", r"\s+"]


class Mark(NamedTuple):
    """A part of a document that is copied unchanged."""

    start: int
    end: int  # after `start` only if the mark stands for these characters, such as an address, or <code>
    raw: str  # as the document has it
    kind: str = "kept"  # or "open" and "close" (tags), "note" (after a word)
    element: int = 0  # the same number for both of its tags


@dataclass
class Marked:
    """A text and its marks.

    Attributes:
        text: Text without the marks, except for the characters that some of them stand for.
        marks: Marks in the document's order.
        write: Function that writes a part of the text as the document does.
        newline: "ends" if a newline ends a sentence, as in plain text; "is a space" otherwise, as in HTML.
    """

    text: str
    marks: Sequence[Mark] = ()
    write: Callable[[str], str] = str
    newline: str = "ends"

    @functools.cached_property
    def partners(self) -> dict[int, int]:
        """Indices of the other tags of tags."""
        opened = {mark.element: index for index, mark in enumerate(self.marks) if mark.kind == "open"}
        closed = {mark.element: index for index, mark in enumerate(self.marks) if mark.kind == "close"}
        pairs = {opened[element]: closed[element] for element in opened.keys() & closed}
        return pairs | {last: first for first, last in pairs.items()}

    def _inside(self, start: int, end: int) -> tuple[int, int]:
        """Returns the range of marks that belong to the text from `start` to `end`.

        At its ends, these are only the tags of elements that begin or end within it, and their contents.
        """
        first = bisect.bisect_left(self.marks, start, key=lambda mark: mark.start)
        last = bisect.bisect_right(self.marks, end, key=lambda mark: mark.end)

        def within(position: int, kind: str) -> bool:
            mark = self.marks[position]
            if mark.kind == "note":  # It belongs to a word.
                return start < mark.start and self.text[mark.start - 1].isalnum()
            tag = position if mark.kind == kind else self.partners.get(position, position)
            return mark.end > mark.start or start < self.marks[tag].start < end

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
        parts = list[str]()
        for mark in marks:
            parts += [self.write(self.text[start : mark.start]), mark.raw]
            start = mark.end
        return "".join([*parts, self.write(self.text[start:end])])

    def joined(self, spans: Sequence[Span], outputs: Sequence[str]) -> str:
        """Writes the text as the document has it, with outputs instead of the spans."""
        parts = zip(self.between(spans, outputs), [*outputs, ""], strict=True)
        return "".join(between + output for between, output in parts)

    def between(self, spans: Sequence[Span], outputs: Sequence[str]) -> list[str]:
        """Returns the text before each of the outputs that replace the spans, and after the last.

        A space between two sentences is removed if the output's writing has none there, like Chinese, and added if
        only the source's has none.
        """
        parts, sentence_start, last, seen, before = list[str](), 0, 0, 0, ""
        for (start, end), output in zip(spans, outputs, strict=True):
            first, after = self._inside(start, end)
            marks, space = self.marks[seen:first], self.text[last:start]
            wide = _ends_wide(self.text[sentence_start:last]), _ends_wide(before)
            new = {(True, False): " ", (False, True): ""}.get(wide, space) if before and space in ("", " ") else space
            if new == space or any(mark.end > mark.start for mark in marks):
                parts.append(self._written(last, start, marks))
            else:  # Put the space after end tags.
                closed = next((i for i, mark in enumerate(marks) if mark.kind == "open"), len(marks))
                raws = [mark.raw for mark in marks]
                parts.append("".join([*raws[:closed], new, *raws[closed:]]))
            sentence_start, last, seen, before = start, end, after, output
        return [*parts, self._written(last, len(self.text), self.marks[seen:])]

    def sentences(self, splitter: Splitter) -> list[Span]:
        """Returns the spans of the sentences. Between them are only whitespace, marks, written breaks and enumerators.

        Raises:
            BadInput: If the splitter's sentences are not the text.
        """
        lines = self.text.splitlines(keepends=True) if self.newline == "ends" else [self.text]
        ends, spans = {*itertools.accumulate(map(len, lines)), *self._breaks()}, list[Span]()
        written = [match.span() for match in WRITTEN_BREAK.finditer(self.text)]
        written = [(start, end) for start, end in written if self.kept_around(start) == (start, start)]
        skipped = {start for start, _ in written}
        for start, end in itertools.pairwise([0, *sorted(ends.union(*written))]):
            position, last = self._stripped(start, end)
            if start in skipped or ENUMERATOR.fullmatch(self.text[position:last]):
                continue
            body = self.text[position:last]
            body = body if self.newline == "ends" else re.sub(r"\s", " ", body)
            pieces = list(splitter(body)) if body else []
            if not all(isinstance(piece, str) for piece in pieces) or "".join(pieces) != body:
                raise BadInput(f"sentences: expected parts of the text, which joined are the text, got {shown(pieces)}")
            for piece in pieces:
                first, last = self._stripped(position, position + len(piece))
                position += len(piece)
                if spans and first < last and self.kept_around(spans[-1][1])[1] > spans[-1][1]:
                    spans[-1] = spans[-1][0], last  # A mark's characters would be cut.
                elif first < last:
                    spans.append((first, last))
        return spans

    def _breaks(self) -> list[int]:
        """Returns the positions between words that only the end of an element and the start of another separate."""
        breaks, closed = list[int](), -1
        for mark in self.marks:
            before, after = self.text[max(0, mark.start - 1) : mark.start], self.text[mark.start : mark.start + 1]
            is_glued = after.isalnum() and (before.isalnum() or before in tuple("_.,:;!?)"))
            is_apart = _IMAGE.match(mark.raw) or (closed == mark.start and _START.match(mark.raw))
            if is_glued and is_apart and not (is_wide(before) and is_wide(after)):
                breaks.append(mark.start)
            if mark.end > mark.start or (mark.kind == "close" and not _IN_WORD.match(mark.raw)):
                closed = mark.end
        return breaks

    def _stripped(self, start: int, end: int) -> Span:
        """Returns a span without whitespace at its ends. The start of a blank one is after its end."""
        body = self.text[start:end]
        return start + len(body) - len(body.lstrip()), start + len(body.rstrip())

    def kept_around(self, position: int) -> Span:
        """Returns the span of the mark's characters around a position, or an empty one."""
        after = bisect.bisect_left(self._kept, (position, 0))
        return self._kept[after - 1] if after and position < self._kept[after - 1][1] else (position, position)

    @functools.cached_property
    def _kept(self) -> list[Span]:
        return [(mark.start, mark.end) for mark in self.marks if mark.end > mark.start]

    def cut(self, parts: int) -> list[Span]:
        """Cuts the text into spans of about equal length, at semicolons, commas or spaces if possible."""
        places, step = [0], len(self.text) / parts
        for i in range(1, parts):
            goal, low = round(i * step), places[-1] + 1
            window = max(low, round((i - 0.4) * step)), round((i + 0.4) * step)
            ends = [[match.end() for match in re.compile(each).finditer(self.text, *window)] for each in BREAKS]
            best = min(next(filter(None, ends), [max(goal, low)]), key=lambda position: abs(position - goal))
            # An accent belongs to the character before it.
            while best < len(self.text) and unicodedata.category(self.text[best]) in ("Mn", "Mc", "Me", "Cf"):
                best += 1
            best = self.kept_around(best)[1]
            if places[-1] < best < len(self.text):
                places.append(best)
        spans = itertools.starmap(self._stripped, itertools.pairwise([*places, len(self.text)]))
        return [(start, end) for start, end in spans if start < end]

    def around_kept(self) -> list[Span]:
        """Returns the spans of words between marks' characters, without what touches these."""
        ends, last = list[Span](), 0
        for start, end in self._kept:
            while start > last and _GLUED.match(self.text, start - 1):
                start -= 1
            ends.append((last, start))
            last = end
            while _GLUED.match(self.text, last):
                last += 1
            last = end + len(self.text[end:last].rstrip(".,;:!?"))
        spans = [self._stripped(*span) for span in [*ends, (last, len(self.text))]]
        return [(start, end) for start, end in spans if any(map(str.isalnum, self.text[start:end]))]

    def with_placeholders(self) -> Self:
        """Makes one mark of each placeholder, with the elements that are within it or have nothing else."""
        marks, done, other = list[Mark](), 0, self.partners
        for start, end in (match.span() for match in PLACEHOLDER.finditer(self.text)):
            first = bisect.bisect_left(self.marks, start, done, key=lambda mark: mark.start)
            last = bisect.bisect_right(self.marks, end, first, key=lambda mark: mark.end)
            while first < last and self.marks[first].end == start and not first < other.get(first, -1) < last:
                first += 1
            while first < last and self.marks[last - 1].start == end and not first <= other.get(last - 1, last) < last:
                last -= 1
            # Neither an element nor a mark's characters may be partly inside.
            around = [*self.marks[max(0, first - 1) : first], *self.marks[last : last + 1]]
            is_cut = any(mark.start < end and start < mark.end for mark in around)
            if not is_cut and all(first <= other.get(i, i) < last for i in range(first, last)):
                raw = self._written(start, end, self.marks[first:last])
                marks += [*self.marks[done:first], Mark(start, end, raw)]
                done = last
        return replace(self, marks=[*marks, *self.marks[done:]])


def is_wide(character: str) -> bool:
    """Returns whether a character belongs to a script without spaces between words, such as Chinese."""
    return unicodedata.east_asian_width(character) in "WF" and not "\uac00" <= character <= "\ud7a3"


def _ends_wide(text: str) -> bool:
    """Returns whether the last character before quotes and tags is of a script without spaces."""
    return is_wide(re.sub("<[^<>]*>", "", text[-200:]).rstrip("\"'\u201d\u2019\xbb)")[-1:] or " ")


@checked
def sentences_in(language: str = "") -> Splitter:
    """Returns a sentence splitter: Wikimedia's sentencex, with abbreviations of 300 languages.

    Args:
        language: Language code, such as "de", "deu" or "deu_Latn". Unknown languages have the rules of English.

    Raises:
        BadInput: If the package is not installed.
    """
    segment = import_extra("sentencex", "documents", "a document").segment
    code = re.split("[_-]", language)[0] or "en"
    code = {pair[:3]: pair[3:] for pair in CODES.split()}.get(code, code)

    def sentences(line: str) -> list[str]:
        # sentencex rejects halves of surrogate pairs, and takes quadratic time.
        text, ends, size = re.sub("[\ud800-\udfff]", "\ufffd", line), [0], WINDOW
        while ends[-1] < len(text):
            pieces = segment(code, text[ends[-1] : ends[-1] + size])
            whole = ends[-1] + size >= len(text)
            size = WINDOW if len(pieces) > 1 else 2 * size
            if whole or len(pieces) > 1:  # The last one may be incomplete.
                ends += itertools.accumulate(map(len, pieces[: None if whole else -1]), initial=ends.pop())
        return _with_words([line[start:end] for start, end in itertools.pairwise(ends)])

    return sentences


def _with_words(pieces: list[str]) -> list[str]:
    """Joins pieces that have no word, such as "1." and "M.", and those that end in a title, with the next ones.

    Those at the end are joined with the piece before.
    """
    joined, waiting = list[str](), ""
    for piece in pieces:
        waiting += piece
        if _has_word(piece) and not _ENDS_IN_TITLE.search(piece[-20:]):
            joined.append(waiting)
            waiting = ""
    if joined and not _has_word(waiting):
        return [*joined[:-1], joined[-1] + waiting]
    return [*joined, waiting] if waiting else joined


def _has_word(piece: str) -> bool:
    return _HAS_WORD.search(re.sub(_ROMAN, "", piece)) is not None


class Quotes:
    r"""Characters that strings of apps escape, such as \' of Android's and \u2019, if a text has them only so.

    The model reads them without, and its own are written with.
    """

    def __init__(self, text: str) -> None:
        self._pairs = [(f"\\{mark}", mark) for mark in "'\"" if text.count(mark) == text.count(f"\\{mark}") > 0]
        for code in {*re.findall(r"(?<!\\)\\u([0-9A-Fa-f]{4})", text)}:
            character = chr(int(code, 16))
            if (character.isprintable() or character in "\xa0\u202f") and character not in text:
                self._pairs.append((f"\\u{code}", character))
        characters = [character for _, character in self._pairs]  # \u00e9 may also be written \u00E9
        self._pairs = [pair for pair in self._pairs if characters.count(pair[1]) == 1]

    def read(self, text: str) -> str:
        for escape, character in self._pairs:
            text = text.replace(escape, character)
        return text

    def written(self, text: str) -> str:
        for escape, character in self._pairs:
            text = text.replace(character, escape)
        return text
