"""Text with marks between its characters, such as tags. Plain text, HTML and XML become this before translation."""

import bisect
import collections
import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from tf_transformer.extensions.documents.words import Span
from tf_transformer.utils.extras import import_extra
from tf_transformer.utils.values import BadInput, Count, checked, shown

Splitter = Callable[[str], Sequence[str]]  # from a line to its sentences, which joined are the line
# Scripts without spaces between words, and Hangul, whose endings touch a name. Both include their punctuation.
DENSE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff00-\uffef"
DENSE += "\U00020000-\U0003ffff"
_WORD, _LETTER = rf"[^\W{DENSE}]", rf"[^\W\d_{DENSE}]"
_IN_ADDRESS = rf"[^\W{DENSE}]|[/#$%&+=@~_-]"
_NUMBER = r"(?:\*|\d{1,4})?(?:\.(?:\*|\d{0,4}))?(?:hh?|ll?|[qjztL])?"
_INNER = r"[^{}]*+"
for _ in range(3):  # a plural in a choice in a message
    _INNER = rf"(?:[^{{}}]++|\{{{_INNER}\}})*+"
# Syntaxes of placeholders, which are copied verbatim, exactly once. Each has a bounded length, or cannot backtrack.
PLACEHOLDERS = {
    "address": rf"(?:(?:https?|ftp)://|(?<![\w.])www\.)"
    rf"(?:{_IN_ADDRESS}|[.,;:!?'|*]++(?={_IN_ADDRESS}|[(\[{{])|\([^()\s{DENSE}]*\)|\[[^\[\]\s{DENSE}]*\]|\{{[^{{}}\s]*\}})+",
    "e-mail": rf"(?<!{_WORD})(?<![.+-])(?:{_WORD}|[.+-])++@(?:{_WORD}|-)+(?:\.(?:{_WORD}|-)+)+",
    "template": r"\{\{\{?(?:[^{}\n]|\{[^{}\n]{0,99}\}){1,199}\}\}\}?"
    r"|\{%[^{}%\n]{1,199}%\}|\{\#[^{}#\n]{1,199}\#\}|<%[^<>%\n]{1,199}%>",
    "ICU": r"\{\s?\w+\s?,\s?(?:number|date|time|spellout|ordinal|duration)(?:\s?,[^{}\n]{1,99})?\}"
    rf"|\{{\s?\w+\s?,\s?(?:plural|select|selectordinal)\s?,{_INNER}\}}",
    "braces": r"[$#%@]?\{(?:[^{}\s]|\{[^{}\s]{0,99}\}){0,99}\}"
    r"|[$#]?\{ (?:[$-]?\w[\w.-]{0,99}|[A-Z]+\([^(){}\n]{0,99}\)) \}",
    "brackets": r"\[\[[^\[\]\s]{1,99}\]\]",
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
# Superscripts that are not words: 1, [12], *, [a], −6.
NOTE = re.compile(r"\s*(?:[\d\s,;\u2013\u2212-]++|[*\u2020\u2021\u00a7\u00b6#]++|[\[(]\s?\w{1,3}\s?[\])])+\s*")
# What a placeholder is kept together with, if it touches it.
BRACKETS = dict(zip(")]}\u300d\u300f\uff09\u3011\u300b", "([{\u300c\u300e\uff08\u3010\u300a", strict=True))
_GLUED = re.compile(rf"[^\s{DENSE}\u2013\u2014\u2026]|[{re.escape(''.join([*BRACKETS, *BRACKETS.values()]))}]")
DEEPEST = 99  # elements in each other, within a sentence
OPENING = "([{\u00bf\u00a1\u2013\u2014"  # needs no space after it
STOPS, QUOTES = set(".,;:!?\u00bf\u00a1"), set("\"'\u2018\u2019\u201a\u201c\u201d\u201e\xab\xbb\u2039\u203a")
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
    kind: str = "kept"  # or "open" and "close" (tags), "lost" (words), "note" (after a word)
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
        parts, last = list[str](), start
        word = self.text[max(0, start - 1) : start]  # the text before the next mark
        for mark in marks:
            word = self.text[last : mark.start] or word
            after = self.text[mark.end : mark.end + 1]
            parts += [self.write(self.text[last : mark.start]), self.spaced(mark, word, after)]
            last, word = mark.end, mark.raw if mark.kind == "lost" else word
        return "".join([*parts, self.write(self.text[last:end])])

    @staticmethod
    def spaced(mark: Mark, before: str, after: str) -> str:
        """Writes a mark between texts. A lost word gets spaces around it, where words have some."""
        if mark.kind != "lost":
            return mark.raw
        left = before != "" and not (before[-1].isspace() or before[-1] in OPENING or is_wide(before[-1]))
        return " " * left + mark.raw + " " * (after[:1].isalnum() and not is_wide(after[0]))

    def joined(self, spans: Sequence[Span], outputs: Sequence[str]) -> str:
        """Writes the text as the document has it, with outputs instead of the spans."""
        parts = zip(self.between(spans, outputs), [*outputs, ""], strict=True)
        return "".join(between + output for between, output in parts)

    def between(self, spans: Sequence[Span], outputs: Sequence[str]) -> list[str]:
        """Returns the text before each of the outputs that replace the spans, and after the last.

        A space between two sentences is removed if the output's writing has none there, like Chinese, and added if
        only the source's has none.
        """
        parts, sentence_start, last, seen, before, tags = list[str](), 0, 0, 0, "", set[str]()
        for (start, end), output in zip(spans, outputs, strict=True):
            first, after = self._inside(start, end)
            marks, space = self.marks[seen:first], self.text[last:start]
            wide = _ends_wide(self.text[max(sentence_start, last - 9) : last]), _ends_wide(before, tags)
            new = {(True, False): " ", (False, True): ""}.get(wide, space) if before and space in ("", " ") else space
            if new == space or any(mark.kind == "lost" or mark.end > mark.start for mark in marks):
                parts.append(self._written(last, start, marks))
            else:  # Put the space after end tags.
                closed = next((i for i, mark in enumerate(marks) if mark.kind == "open"), len(marks))
                raws = [mark.raw for mark in marks]
                parts.append("".join([*raws[:closed], new, *raws[closed:]]))
            tags = {mark.raw for mark in self.marks[first:after]}
            sentence_start, last, seen, before = start, end, after, output
        return [*parts, self._written(last, len(self.text), self.marks[seen:])]

    def sentences(self, splitter: Splitter) -> list[Span]:
        """Returns the spans of the sentences, with only white space and marks between them.

        Raises:
            BadInput: If the splitter's sentences are not the text.
        """
        spans, start = list[Span](), 0
        for line in self.text.splitlines(keepends=True) if self.newline == "ends" else [re.sub(r"\s", " ", self.text)]:
            body, (position, _) = line.strip(), self._stripped(start, start + len(line))
            pieces = list(splitter(body)) if body else []
            if not all(isinstance(piece, str) for piece in pieces) or "".join(pieces) != body:
                raise BadInput(f"sentences: expected parts of the text, which joined are the text, got {shown(pieces)}")
            for piece in pieces:
                first, end = self._stripped(position, position + len(piece))
                position += len(piece)
                if spans and first < end and self._kept_around(spans[-1][1]) > spans[-1][1]:
                    spans[-1] = spans[-1][0], end  # A mark's characters would be cut.
                elif first < end:
                    spans.append((first, end))
            start += len(line)
        return spans

    def _stripped(self, start: int, end: int) -> Span:
        """Returns a span without white space at its ends. The start of a blank one is after its end."""
        body = self.text[start:end]
        return start + len(body) - len(body.lstrip()), start + len(body.rstrip())

    def _kept_around(self, position: int) -> int:
        """Returns the end of the mark's characters around a position, or the position."""
        after = bisect.bisect_left(self._kept, (position, 0))
        return max(position, self._kept[after - 1][1]) if after else position

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
            best = next(
                (min(found, key=lambda position: abs(position - goal)) for found in ends if found), max(goal, low)
            )
            # An accent belongs to the character before it.
            while best < len(self.text) and unicodedata.category(self.text[best]) in ("Mn", "Mc", "Me", "Cf"):
                best += 1
            best = self._kept_around(best)
            if places[-1] < best < len(self.text):
                places.append(best)
        spans = itertools.starmap(self._stripped, itertools.pairwise([*places, len(self.text)]))
        return [(start, end) for start, end in spans if start < end]

    def prepared(self) -> "Marked":
        """Returns what `Engine.document` splits into sentences."""
        return self.without_notes().with_placeholders()

    def with_placeholders(self) -> "Marked":
        """Adds marks for placeholders."""
        more = list[Mark]()
        for match in PLACEHOLDER.finditer(self.text):
            before = bisect.bisect_left(self.marks, match.end(), key=lambda mark: mark.start)
            if not before or max(self.marks[before - 1][:2]) <= match.start():  # none inside
                more.append(Mark(*match.span(), self.write(match[0])))
        marks = sorted([*self.marks, *more], key=lambda mark: (mark.start, mark.end > mark.start))
        return Marked(self.text, marks, self.write, self.newline)

    def without_notes(self) -> "Marked":
        """Removes numbers of footnotes and exponents, and keeps a mark after the word that they touch."""
        units = list[_Unit]()
        for index, mark in enumerate(self.marks):
            first = self.partners.get(index, index)
            if first < index and re.match(r"<sup\b", self.marks[first].raw):
                start, end = self.marks[first].start, mark.start
                touches = start and not self.text[start - 1].isspace() and not self.text[end : end + 1].isalnum()
                if touches and end - start < 20 and NOTE.fullmatch(self.text, start, end):
                    units.append(_Unit(start, end, first, index + 1))
        return self._without(units, "note")

    def without_kept(self) -> "Marked":
        """Removes the characters that marks stand for, with all signs that they touch, and keeps marks for them."""
        items, last = list[_Unit](), 0  # characters and marks
        for index, mark in enumerate(self.marks):
            items += [_Unit(i, i + 1, index, index) for i in range(last, mark.start)]
            items.append(_Unit(mark.start, mark.end, index, index + 1))
            last = mark.end
        items += [_Unit(i, i + 1, len(self.marks), len(self.marks)) for i in range(last, len(self.text))]
        runs = itertools.groupby(
            items, lambda item: item.first == item.last and not _GLUED.match(self.text[item.start])
        )
        return self._without([unit for apart, run in runs if not apart for unit in self._units(list(run))], "lost")

    def _units(self, run: Sequence["_Unit"]) -> Iterator["_Unit"]:
        """Splits a run at tags of elements that are not within it, and trims what a text needs itself."""
        elements = [self.marks[item.first].element if item.first < item.last else 0 for item in run]
        lone = {element for element, count in collections.Counter(elements).items() if element and count == 1}
        for apart, part in itertools.groupby(zip(run, elements, strict=True), lambda one: one[1] in lone):
            items = [item for item, _ in part]
            if apart or not any(item.first < item.last and item.start < item.end for item in items):
                continue
            first, last = 0, len(items)
            while first < last:
                signs = ["" if item.first < item.last else self.text[item.start] for item in items[first:last]]
                if _is_loose(signs[-1], signs):
                    last -= 1
                elif _is_loose(signs[0], signs):
                    first += 1
                else:
                    break
            yield _Unit(items[first].start, items[last - 1].end, items[first].first, items[last - 1].last)

    def _without(self, units: Sequence["_Unit"], kind: str) -> "Marked":
        """Replaces units by marks of a kind."""
        text, marks, last, seen = "", list[Mark](), 0, 0
        for start, end, first, after in [*units, (len(self.text), len(self.text), len(self.marks), len(self.marks))]:
            shift, text = last - len(text), text + self.text[last:start]
            is_last = text[-1:] == " " and not (marks and marks[-1].start == len(text))  # nothing is after the space
            if kind == "lost" and start < end and is_last and not self.text[end : end + 1].isalnum():
                text = text[:-1]  # It would stand before a comma or another space.
            for mark in self.marks[seen:first]:
                begin, close = (min(position - shift, len(text)) for position in mark[:2])
                marks.append(mark._replace(start=begin, end=close))
            if first < after:
                marks.append(Mark(len(text), len(text), self._written(start, end, self.marks[first:after]), kind))
            last, seen = end, after
        return Marked(text, marks, self.write, self.newline)


class _Unit(NamedTuple):
    """A part of a text, and the range of its marks."""

    start: int
    end: int
    first: int
    last: int


def _is_loose(sign: str, signs: Sequence[str]) -> bool:
    """Returns whether a sign at an end of some belongs to the sentence: a stop, an odd quote, an odd bracket."""
    if sign in BRACKETS or sign in BRACKETS.values():
        pair = next(pair for pair in BRACKETS.items() if sign in pair)
        return signs.count(pair[0]) != signs.count(pair[1])
    return sign in STOPS if sign not in QUOTES else sum(each in QUOTES for each in signs) % 2 == 1


def is_wide(character: str) -> bool:
    """Returns whether a character belongs to a script without spaces between words, such as Chinese."""
    return unicodedata.east_asian_width(character) in "WF" and not "\uac00" <= character <= "\ud7a3"


def _ends_wide(text: str, tags: Collection[str] = ()) -> bool:
    """Returns whether the last character before quotes and tags is of a script without spaces."""
    while tag := next((tag for tag in tags if text.endswith(tag)), ""):
        text = text.removesuffix(tag)
    return is_wide(text[-9:].rstrip("\"'\u201d\u2019\xbb)")[-1:] or " ")


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
        return [line[start:end] for start, end in itertools.pairwise(ends)]

    return sentences
