"""Splits subtitles (.srt) into sentences over several lines and captions, and the rest."""

import bisect
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from tf_transformer.extensions.documents.marked import DEEPEST, Mark, Marked
from tf_transformer.inference.words import Span
from tf_transformer.utils.lazy import import_extra
from tf_transformer.utils.values import BadInput, shown

# A time of up to 13 characters never overflows. Atomic groups, since it may not be read again with fewer digits.
TIME = r"((?![0-9,.:\uff0c\uff0e\u3002\uff1a]{{14}})(?>{}))"
HEADER = r"^\ufeff?(?:[^\S\n]*-?\d{1,20}(?:\.\d{0,20})?\s*\n)?[^\S\n]*TIME *-[ -] *> *TIME[^\n]*"
TAG = re.compile(r"<(/?)([A-Za-z]+)\b[^<>\n]*>|\{\\[^{}\n]*\}")
BLANK = " \t\r\xa0\u3000\u202f\u266a\u266b"  # whitespace and the notes of a song
NOTES = {"\u266a", "\u266b"}
SPEAKER = re.compile(r"(?:[-\u2010-\u2015]+(?!\d)|>>+)\s*")
# The end of a sentence, or of a sound in brackets.
ENDS = re.compile("[.!?\u2026:)\\]\u3002\uff01\uff1f][\"'\u201d\u2019\xbb\u300d\u300f]*\\Z")
NEAR = timedelta(seconds=2)  # between captions of one sentence
# A tag, or where a line may end: at a space, or before a Chinese or Japanese character.
SPOT = re.compile(rf"{TAG.pattern}|\s|(?<=[\u3041-\u30ff\u3400-\u9fff])(?=[\u3041-\u30ff\u3400-\u9fff])")


class _Line(NamedTuple):
    start: int  # of its words, in the document
    end: int
    caption: int
    begins: bool  # whether it is another speaker's, a song or a sound
    ends: bool  # whether a sentence does
    closes: bool  # whether a song or a sound does


@dataclass
class Captions(Marked):
    """A text over several lines. Each of its newlines stands for one of `breaks`, as the document has it."""

    newline: str = "is a space"
    breaks: Sequence[str] = ()

    def joined(self, spans: Sequence[Span], outputs: Sequence[str]) -> str:
        lines = [self._in_lines(*one) for one in zip(spans, outputs, strict=True)]
        first, *lines = super().joined(spans, lines).split("\n")
        written, filled = [first], first.strip() != ""
        for between, line in zip(self.breaks, lines, strict=True):
            # An empty line would end the caption.
            empty = "-->" not in between and not (filled and line.strip())
            written += [re.sub(r"[\r\n]", "", between) if empty else between, line]
            filled = line.strip() != "" or (filled and "-->" not in between)
        return "".join(written)

    def _in_lines(self, span: Span, output: str) -> str:
        """Breaks an output where its sentence has newlines, by the share of its length, between words."""
        text, output = self.text[slice(*span)], re.sub(r"[\r\n]", " ", output)
        spots, hidden = list[tuple[float, int, int]](), 0  # by position without tags
        for match in SPOT.finditer(output):
            if match[0].strip():
                hidden += len(match[0])
            else:
                spots.append((match.start() - hidden, *match.span()))
        lines, low, last, length = list[str](), 0, 0, len(output)
        for goal in [match.start() * (length - hidden) / len(text) for match in re.finditer("\n", text)]:
            after = bisect.bisect_left(spots, (goal, 0, 0), low)
            near = spots[max(low, after - 1) : after + 1]
            spot = min(near, key=lambda spot: abs(spot[0] - goal), default=(math.inf, length, length))
            lines.append(output[last : spot[1]])
            low, last = bisect.bisect_right(spots, spot), spot[2]
        return "\n".join([*lines, output[last:]])


def captions_of(document: str) -> list[str | Marked]:
    """Splits subtitles into strings that are copied and texts that are translated, in order."""
    srt = import_extra("srt", "documents", "subtitles")
    header = HEADER.replace("TIME", TIME.format(srt.RGX_TIMESTAMP))
    headers = [*re.compile(header, re.MULTILINE).finditer(document)]
    times = [[*map(srt.srt_timestamp_to_timedelta, header.groups())] for header in headers]
    lines = [*_lines(document, [header.span() for header in headers])]
    ends = {line.caption: line.ends for line in lines}
    punctuated = 2 * sum(ends.values()) > len(ends)
    parts, group, last = list[str | Marked](), list[_Line](), 0
    for line, after in itertools.zip_longest(lines, lines[1:]):
        group.append(line)
        if after and not after.begins and line.caption == after.caption and not line.closes:
            continue
        if after and not after.begins and line.caption + 1 == after.caption and not line.ends:
            is_near = abs(times[after.caption][0] - times[line.caption][1]) < NEAR
            if is_near and (punctuated or document[after.start].islower()):
                continue
        parts += [document[last : group[0].start], _joined(document, group)]
        group, last = [], line.end
    return [*parts, document[last:]]


def _lines(document: str, headers: Sequence[Span]) -> Iterator[_Line]:
    """Yields the lines that have words."""
    flat = [0, *itertools.chain.from_iterable(headers), len(document)]
    for caption, (start, end) in enumerate(zip(flat[::2], flat[1::2], strict=True), -1):
        for match in re.compile(r"[^\n]*\n|[^\n]+").finditer(document, start, end):
            raw = match[0]
            # A number may precede the line to report.
            is_other = caption < 0 and raw.strip("\ufeff \t\r\n0123456789")
            if ("-->" in raw and re.search(r"\d", raw)) or is_other:
                number = document.count("\n", 0, match.start()) + 1
                raise BadInput(
                    f"line {number}: expected a time such as 00:00:01,000 --> 00:00:02,500, got {shown(raw)}"
                )
            yield from _line(raw, match.start(), caption)


def _line(raw: str, position: int, caption: int) -> list[_Line]:
    """Returns the words of a line, without the tags, notes and dash around them, or nothing."""
    blanked = TAG.sub(lambda tag: " " * len(tag[0]), raw).rstrip(BLANK + "\n")
    start, end = len(blanked) - len(blanked.lstrip(BLANK)), len(blanked)
    dash = SPEAKER.match(blanked, start)
    start = len(blanked) - len(blanked[dash.end() if dash else start :].lstrip(BLANK))
    words = blanked[start:end]
    if not any(map(str.isalnum, words)):
        return []
    name, _, speech = words[:40].partition(":")
    begins = bool(dash) or words[0] in "[(" or (name.isupper() and speech[:1] == " ")
    begins |= "\\an" in raw[:start] or not NOTES.isdisjoint(raw[:start])
    closes = words[-1] in ")]" or not NOTES.isdisjoint(raw[end:])
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
    raw = "\n".join(document[line.start : line.end] for line in group)
    tags, marks, hidden = [*TAG.finditer(raw)], list[Mark](), 0
    pairs = _pairs(tags)
    elements = {index: ("open", index + 1) for index in pairs}
    elements |= {index: ("close", first + 1) for first, index in pairs.items()}
    for index, tag in enumerate(tags):
        at, hidden = tag.start() - hidden, hidden + len(tag[0])
        marks.append(Mark(at, at, tag[0], *elements.get(index, ("kept", 0))))
    return Captions(TAG.sub("", raw), marks, breaks=[document[a.end : b.start] for a, b in itertools.pairwise(group)])
