"""Splits subtitles (.srt) into sentences over several lines and captions, and the rest."""

import bisect
import itertools
import re
import unicodedata
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from tf_transformer.extensions.documents.marked import DEEPEST, Mark, Marked, is_wide
from tf_transformer.extensions.documents.words import Span
from tf_transformer.utils.extras import import_extra
from tf_transformer.utils.values import BadInput, shown

TAG = re.compile(r"<(/?)([A-Za-z]+)\b[^<>\n]*>|\{\\[^{}\n]*\}")
BLANK = " \t\r\xa0\u3000\u202f\u266a\u266b"  # white space and the notes of a song
SPEAKER = re.compile(r"(?:[-\u2010-\u2015]+(?!\d)|>>+)\s*")
# The end of a sentence, or of a sound in brackets.
ENDS = re.compile("[.!?\u2026:)\\]\u3002\uff01\uff1f][\"'\u201d\u2019\xbb\u300d\u300f]*\\Z")
NEAR = timedelta(seconds=2)  # between captions of one sentence


class _Line(NamedTuple):
    start: int  # of its words, in the document
    end: int
    caption: int
    begins: bool  # whether it is another speaker's, a song or a sound
    ends: bool  # whether a sentence does
    closes: bool  # whether a song or a sound does


class Captions(Marked):
    """A text over several lines. Each of its newlines stands for one of `breaks`, as the document has it."""

    def __init__(self, text: str, marks: Sequence[Mark], breaks: Sequence[str]) -> None:
        super().__init__(text, marks, newline="is a space")
        self._breaks = breaks

    def prepared(self) -> "Captions":
        return Captions(self.text, self.with_placeholders().marks, self._breaks)

    def joined(self, spans: Sequence[Span], outputs: Sequence[str]) -> str:
        lines = [self._in_lines(*one) for one in zip(spans, outputs, strict=True)]
        first, *lines = super().joined(spans, lines).split("\n")
        written, filled = [first], first.strip() != ""
        for between, line in zip(self._breaks, lines, strict=True):
            # An empty line would end the caption.
            empty = "-->" not in between and not (filled and line.strip())
            written += [re.sub(r"[\r\n]", "", between) if empty else between, line]
            filled = line.strip() != "" or (filled and "-->" not in between)
        return "".join(written)

    def _in_lines(self, span: Span, output: str) -> str:
        """Breaks an output line_number its sentence has newlines, by the share of its length, between words."""
        text, output = self.text[slice(*span)], re.sub(r"[\r\n]", " ", output)
        tags = {i for match in TAG.finditer(output) for i in range(*match.span())}
        spots, length = list[tuple[int, int, int]](), 0  # by position without tags and with them, and width
        for i, character in enumerate(output):
            if i not in tags:
                if character.isspace():
                    spots.append((length, i, 1))
                elif i and is_wide(character) and is_wide(output[i - 1]) and unicodedata.category(character)[0] != "P":
                    spots.append((length, i, 0))
                length += 1
        goals = [position * length / len(text) for position, character in enumerate(text) if character == "\n"]
        lines, low, last = list[str](), 0, 0
        for count, goal in zip(range(len(goals), 0, -1), goals, strict=True):
            high = max(low, len(spots) - count + 1)
            near = bisect.bisect_left(spots, (goal, 0, 0), low, high)
            candidates = spots[max(low, near - 1) : min(near + 1, high)]
            spot = min(candidates, key=lambda spot: abs(spot[0] - goal), default=(length, len(output), 0))
            low, position, width = bisect.bisect_right(spots, spot), *spot[1:]
            lines.append(output[last:position])
            last = position + width
        return "\n".join([*lines, output[last:]])


def captions_of(document: str) -> list[str | Marked]:
    """Splits subtitles into strings that are copied and texts that are translated, in order."""
    times, lines = _read(document)
    ends = {line.caption: line.ends for line in lines}
    punctuated = 2 * sum(ends.values()) > len(ends)
    parts, group, last = list[str | Marked](), list[_Line](), 0
    for line, after in itertools.zip_longest(lines, lines[1:]):
        group.append(line)
        if after and not after.begins and line.caption == after.caption and not line.closes:
            continue
        if after and not after.begins and line.caption + 1 == after.caption and not line.ends:
            apart = abs(times[after.caption][0] - times[line.caption][1])
            if apart < NEAR and (punctuated or document[after.start].islower() or document[line.end - 1] in ",;"):
                continue
        parts += [document[last : group[0].start], _joined(document, group)]
        group, last = [], line.end
    return [*parts, document[last:]]


def _read(document: str) -> tuple[list[tuple[timedelta, timedelta]], list[_Line]]:
    """Returns the times of the captions, and the lines that have words."""
    srt = import_extra("srt", "documents", "subtitles")
    # Atomic groups, since a time may not be read again with fewer digits.
    time, number = rf"((?>{srt.RGX_TIMESTAMP}))", r"-?\d{1,20}(?:\.\d{0,20})?\s*\n"
    header = re.compile(rf"^\ufeff?(?:[^\S\n]*{number})?[^\S\n]*{time} *-[ -] *> *{time}[^\n]*", re.MULTILINE)
    headers = [*header.finditer(document)]
    times, lines = list[tuple[timedelta, timedelta]](), list[_Line]()
    ends = [match.start() for match in headers] + [len(document)]
    bounds = zip([0, *(match.end() for match in headers)], ends, strict=True)
    for caption, (start, end) in enumerate(bounds, -1):
        for raw in re.findall(r"[^\n]*\n|[^\n]+", document[start:end]):
            content = raw.strip("\ufeff \t\r\n")
            # A number may precede the line to report.
            is_other = caption < 0 and content and not (content.isdecimal() and "-->" in document[start:end])
            if ("-->" in raw and re.search(r"\d", raw)) or is_other:
                line_number = f"line {document.count(chr(10), 0, start) + 1}"
                raise BadInput(
                    f"{line_number}: expected a time such as 00:00:01,000 --> 00:00:02,500, got {shown(raw)}"
                )
            lines += _line(raw, start, caption)
            start += len(raw)
        if caption + 1 < len(headers):
            try:
                first, second = (srt.srt_timestamp_to_timedelta(time) for time in headers[caption + 1].groups())
            except (OverflowError, ValueError) as error:
                raise BadInput(f"caption {caption + 2}: expected a time, got one that is too long ({error})") from error
            times.append((first, second))
    return times, lines


def _line(raw: str, position: int, caption: int) -> list[_Line]:
    """Returns the words of a line, without the tags, notes and dash around them, or nothing."""
    blanked = TAG.sub(lambda tag: " " * len(tag[0]), raw).rstrip(BLANK + "\n")
    start, end = len(blanked) - len(blanked.lstrip(BLANK)), len(blanked)
    dash = SPEAKER.match(blanked, start)
    start = len(blanked) - len(blanked[dash.end() if dash else start :].lstrip(BLANK))
    words = blanked[start:end]
    if not any(map(str.isalnum, words)):
        return []
    notes, name = "\u266a\u266b", words[:40].partition(":")
    begins = bool(dash) or words[0] in "[(" or (name[0].isupper() and name[2][:1] == " ")
    begins |= "\\an" in raw[:start] or not set(notes).isdisjoint(raw[:start])
    closes = words[-1] in ")]" or not set(notes).isdisjoint(raw[end:])
    whole = len(raw) - len(raw.lstrip(BLANK)), len(raw.rstrip(BLANK + "\n"))
    # Without tags if they enclose all words.
    for start, end in ((start, end), (dash.end() if dash else whole[0], whole[1]), whole):  # noqa: B020
        tags = [*TAG.finditer(raw, start, end)]
        if 2 * len(_pairs(tags)) == sum(tag[2] is not None for tag in tags):
            break
    return [_Line(position + start, position + end, caption, begins, closes or bool(ENDS.search(words[-9:])), closes)]


def _pairs(tags: Sequence[re.Match[str]]) -> dict[int, int]:
    """Returns the indices of end tags by those of their start tags."""
    opened, pairs = list[int](), dict[int, int]()
    for index, tag in enumerate(tags):
        if tag[2] and not tag[1]:
            opened.append(index)
        elif tag[2] and opened and tags[opened[-1]][2] == tag[2] and len(opened) < DEEPEST:
            pairs[opened.pop()] = index
    return pairs


def _joined(document: str, group: Sequence[_Line]) -> Captions:
    """Joins lines to one text."""
    text, tags = "", list[tuple[int, re.Match[str]]]()
    for line in group:
        text, last = text + "\n" * (line is not group[0]), line.start
        for tag in TAG.finditer(document, line.start, line.end):
            text += document[last : tag.start()]
            tags.append((len(text), tag))
            last = tag.end()
        text += document[last : line.end]
    breaks = [document[before.end : line.start] for before, line in itertools.pairwise(group)]
    pairs = _pairs([tag for _, tag in tags])
    elements = {index: ("open", index + 1) for index in pairs}
    elements |= {index: ("close", first + 1) for first, index in pairs.items()}
    marks = [Mark(at, at, tag[0], *elements.get(i, ("kept", 0))) for i, (at, tag) in enumerate(tags)]
    return Captions(text, marks, breaks)
