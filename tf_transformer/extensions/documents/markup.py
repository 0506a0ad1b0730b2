"""Splits HTML and XML into parts to translate, and the rest."""

import collections
import html
import itertools
import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from typing import NamedTuple

from tf_transformer.extensions.documents.marked import Mark, Marked

# Elements within a sentence. All others end it.
_INLINE = """a abbr acronym b bdi bdo big cite code data del dfn em font i img input ins kbd label mark math meter
output q rp rt ruby s samp small span strike strong sub sup svg time tt u var wbr"""
INLINE = set(_INLINE.split())
DEEPEST = 99  # elements in each other, within a sentence
SILENT = {"code", "kbd", "math", "samp", "script", "style", "svg", "template", "textarea", "var"}  # copied unchanged


class Piece(NamedTuple):
    """A tag, text or other part of the document."""

    kind: str  # "open", "close", "empty" or "text"
    name: str  # of an element
    start: int  # in the document
    end: int
    silent: bool  # whether it excludes its content from translation


class _Scanner(HTMLParser):
    """Collects where tags, texts and other parts begin."""

    def __init__(self, document: str, is_xml: bool) -> None:
        super().__init__(convert_charrefs=False)
        self._lines = [0, *itertools.accumulate(len(line) + 1 for line in document.split("\n"))]
        self._is_xml = is_xml
        self.starts: list[tuple[str, str, int, bool]] = []
        self.feed(document)
        self.close()

    def set_cdata_mode(self, elem: str, **options: bool) -> None:  # on <script> and <style>
        if not self._is_xml:
            super().set_cdata_mode(elem, **options)

    def _begin(self, kind: str, name: str = "", silent: bool = False) -> None:
        line, column = self.getpos()
        self.starts.append((kind, name, self._lines[line - 1] + column, silent))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        no = (values.get("translate") or "").lower() == "no" or "notranslate" in (values.get("class") or "").split()
        self._begin("open", tag, no or (tag in SILENT and not self._is_xml))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        # In HTML the slash means nothing.
        self._begin("empty", tag) if self._is_xml else self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self._begin("close", tag)

    def handle_data(self, data: str) -> None:
        self._begin("text")

    def handle_entityref(self, name: str) -> None:
        self._begin("text")

    handle_charref = handle_entityref

    def handle_comment(self, data: str) -> None:
        self._begin("empty", "wbr")

    def handle_decl(self, decl: str) -> None:
        self._begin("empty")

    def handle_pi(self, data: str) -> None:
        self._begin("empty")

    unknown_decl = handle_comment


def _pieces(document: str, is_xml: bool) -> list[Piece]:
    starts = _Scanner(document, is_xml).starts
    if not starts or starts[0][2]:
        starts.insert(0, ("empty", "", 0, False))
    ends = [start for _, _, start, _ in starts[1:]] + [len(document)]
    return [Piece(kind, name, start, end, no) for (kind, name, start, no), end in zip(starts, ends, strict=True)]


def _pairs(pieces: list[Piece]) -> dict[int, int]:
    """Returns the indices of end tags by those of their start tags."""
    pairs, opened, count = dict[int, int](), list[int](), collections.Counter[str]()
    for index, piece in enumerate(pieces):
        if piece.kind == "open":
            opened.append(index)
            count[piece.name] += 1
        elif piece.kind == "close" and count[piece.name]:
            while True:
                last = opened.pop()
                count[pieces[last].name] -= 1
                if pieces[last].name == piece.name:
                    break
            pairs[last] = index
    return pairs


def parts_of(document: str, is_xml: bool = False) -> list[str | Marked]:
    """Splits a document into strings that are copied and texts that are translated, in order.

    Args:
        document: HTML, or a part of it, or XML. If it is not well formed, it is read as browsers do.
        is_xml: Whether it is XML, where elements that have text next to them are within a sentence.
    """
    pieces = _pieces(document, is_xml)
    pairs = _pairs(pieces)
    if is_xml:
        inline = _beside_text(document, pieces, pairs)
    else:
        inline = {index for index, piece in enumerate(pieces) if piece.kind != "text" and piece.name in INLINE}
    inline = _within_sentences(inline, pieces, pairs)
    return list(_Reader(document, pieces, pairs, inline, is_xml).parts())


def _within_sentences(inline: set[int], pieces: list[Piece], pairs: Mapping[int, int]) -> set[int]:
    """Returns the indices within sentences: without elements that contain others, or that are nested too deeply."""
    ends, depth, others = set(pairs.values()), 0, [0]
    for index, piece in enumerate(pieces):
        depth -= index in ends
        others.append(others[-1] + (piece.kind != "text" and (index not in inline or depth >= DEEPEST)))
        depth += index in pairs
    for first, last in pairs.items():
        if others[first] < others[last + 1] and not pieces[first].silent:
            inline -= {first, last}
    return inline


def _beside_text(document: str, pieces: list[Piece], pairs: Mapping[int, int]) -> set[int]:
    """Returns the indices of XML's elements that have text next to them, and of their contents."""
    inline, mixed, parents = set[int](), set[int](), [-1]
    children: dict[int, list[int]] = {-1: []}
    ends = set(pairs.values())
    for index, piece in enumerate(pieces):
        if index in ends:
            parents.pop()
        elif piece.kind != "text":
            children[parents[-1]].append(index)
            if index in pairs:
                parents.append(index)
                children[index] = []
        elif document[piece.start : piece.end].strip():
            mixed.add(parents[-1])
    queue = [child for parent in mixed for child in children[parent]]
    while queue:
        index = queue.pop()
        if index not in inline:
            inline |= {index, pairs.get(index, index)}
            queue += children.get(index, [])
    return inline


class _Reader:
    """Gathers the text between tags that end sentences."""

    def __init__(
        self, document: str, pieces: list[Piece], pairs: Mapping[int, int], inline: set[int], is_xml: bool
    ) -> None:
        self._document, self._pieces, self._pairs, self._inline, self._is_xml = document, pieces, pairs, inline, is_xml
        self._closing = {last: first for first, last in pairs.items()}

    def parts(self) -> Iterator[str | Marked]:
        self._begin(0)
        index = in_pre = 0
        while index < len(self._pieces):
            piece = self._pieces[index]
            last = self._pairs.get(index, index) if piece.silent else index
            raw = self._document[piece.start : self._pieces[last].end]
            was = in_pre > 0
            in_pre += (piece.name == "pre") * ((index in self._pairs) - (index in self._closing))
            if piece.kind == "text":
                self._add_text(raw)
            elif index not in self._inline:
                yield from self._run(piece.start, was)
                yield raw
                self._begin(self._pieces[last].end)
            elif last > index:
                inner = self._document[piece.end : self._pieces[last].start]
                self._keep(html.unescape(re.sub("<[^<>]*>", "", inner)), raw)
            elif index in self._pairs or index in self._closing:
                element = self._closing.get(index, index) + 1
                self._marks.append(Mark(len(self._text), len(self._text), raw, piece.kind, element))
            else:
                self._keep("", raw)
            index = last + 1
        yield from self._run(len(self._document), False)

    def _begin(self, start: int) -> None:
        self._start, self._text, self._marks = start, "", list[Mark]()

    def _add_text(self, raw: str) -> None:
        text = html.unescape(raw)
        if raw[0] == "&" and text == raw and len(raw) > 1:  # a name that only the document's own type knows
            self._keep(raw, raw)
        else:
            self._text += text

    def _keep(self, text: str, raw: str) -> None:
        start, self._text = len(self._text), self._text + " ".join(text.split())
        self._marks.append(Mark(start, len(self._text), raw))

    def _run(self, end: int, in_pre: bool) -> Iterator[str | Marked]:
        if self._text.strip():
            yield Marked(
                self._text, self._marks, _write_xml if self._is_xml else _write_html, "ends" if in_pre else "is a space"
            )
        elif self._start < end:
            yield self._document[self._start : end]


def _write_xml(text: str) -> str:
    return html.escape(text, quote=False)


def _write_html(text: str) -> str:
    return _write_xml(text).replace("\xa0", "&nbsp;")
