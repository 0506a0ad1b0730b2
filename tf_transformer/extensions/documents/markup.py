"""Splits HTML and XML into parts to translate, and the rest.

HTML is read as browsers read it (WHATWG), by justhtml, and XML by expat. Only the text of sentences changes, and there
character references become characters, except for &amp;, &lt;, &gt; and &nbsp;. All else is copied unchanged.
"""

import bisect
import collections
import html
import itertools
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from xml.parsers import expat

from tf_transformer.extensions.documents.marked import PLACEHOLDER, Mark, Marked, is_wide
from tf_transformer.utils.extras import import_extra
from tf_transformer.utils.values import BadInput

# Elements within a sentence. All others end it.
_INLINE = """a abbr acronym b bdi bdo big cite code data del dfn em font i img input ins kbd label mark math meter nobr
output q rb rp rt rtc ruby s samp small span strike strong sub sup svg time tt u var wbr"""
INLINE = set(_INLINE.split())
VOID = {"img", "input", "wbr"}
UNREAD = {"rp", "rt", "svg"}  # The text around them is not asked for with theirs.
RUBY = {"rb", "rp", "rt", "rtc"}  # without end tags, end at the next one or with <ruby>
DEEPEST = 99  # elements in each other, within a sentence
CODE = {"code", "kbd", "samp", "var"}  # copied unchanged, but for translate="yes"
RAW = {"iframe", "noembed", "noframes", "script", "style", "textarea", "title", "xmp"}  # contain no tags
NEVER = RAW - {"title"} | {"plaintext", "rp", "rt", "template"}  # copied unchanged, as are svg and math
# Start tags that a part of a table needs before it.
CONTEXT = dict.fromkeys(("caption", "colgroup", "tbody", "tfoot", "thead", "tr"), "<table>")
CONTEXT |= {"col": "<table><colgroup>", "td": "<table><tr>", "th": "<table><tr>"}

_S = r"\t\n\f\r "  # white space of HTML
_TOKEN = re.compile(
    rf"""(?P<text>(?:[^<]|<(?![A-Za-z!?/]))++ | </\Z)
    | (?P<comment><!--(?:-?> | .*?(?:--!?>|\Z)))
    | <(?P<end>/?)(?P<name>[A-Za-z][^{_S}/>]*+) (?:[{_S}/]++ | [^{_S}/>][^{_S}/>=]*+
        (?:[{_S}]*+=[{_S}]*+(?:"[^"]*+(?:"|\Z) | '[^']*+(?:'|\Z) | [^{_S}>"'][^{_S}>]*+)?+)?+)*+ (?P<tag>>)
    | (?P<other><!doctype[^>]*+>?+ | </?[A-Za-z].*)
    | (?P<bogus><[^>]*+>?+)""",
    re.DOTALL | re.IGNORECASE | re.VERBOSE,
)
_OF_PARTS = (expat.errors.XML_ERROR_SYNTAX, expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT)
_REFERENCE = re.compile("(&[A-Za-z][A-Za-z0-9]*;)")
_IN_WORD, _BEFORE = re.compile(r"</su[bp]\b", re.IGNORECASE), re.compile(r"[\w.,:;!?)]")
_ADDRESS = re.compile(r"://|^www\.|\w@\w")
_LINK, _WORD, _IMAGE = (
    re.compile(rf"<{names}", re.IGNORECASE) for names in (r"a\b", r"(?!/|!|\?|su[bp]\b|wbr\b)", r"(?:img|input)\b")
)


class Piece(NamedTuple):
    """A tag, text or other part of the document."""

    kind: str  # "open", "close", "empty", "text", "entity" or "other"
    name: str  # of an element
    start: int  # in the document
    text: str = ""
    copied: bool = False  # whether it is excluded from translation
    is_pre: bool = False  # whether newlines are kept


class Read(NamedTuple):
    """The pieces of a document, and its elements."""

    pieces: Sequence[Piece]
    pairs: Mapping[int, int]  # indices of the elements' last pieces, by those of their start tags
    inline: set[int]  # indices of tags that may be within a sentence


def _tokens(document: str) -> Iterator[tuple[str, str, int, int]]:
    """Yields the kind, name, start and end of each of HTML's tokens."""
    end = foreign = 0
    while match := _TOKEN.match(document, end):
        start, end = match.span()
        kind, name = str(match.lastgroup), (match["name"] or "").lower()
        if kind == "tag":
            kind, closed = "close" if match["end"] else "open", document[end - 2] == "/"
        yield kind, name, start, end
        if name in ("svg", "math") and not closed:
            foreign = max(0, foreign + (1 if kind == "open" else -1))
        if kind == "open" and name in RAW and not (closed and foreign):
            found = re.compile(rf"</{name}(?=[{_S}/>])|\Z", re.IGNORECASE).search(document, end)
            start, end = end, found.start()  # type: ignore[union-attr]
            if start < end:
                yield "raw", name, start, end


class _Place(NamedTuple):
    """A position between two tokens, in the tree."""

    node: Any
    index: int  # among the node's children
    copied: int  # 2 if it has no effect that an element inside has translate="yes"
    is_pre: bool


def _places(document: str, tokens: Sequence[tuple[str, str, int, int]]) -> list[_Place | None]:
    """Returns where the standard's tree has the positions before all tokens, and at the end.

    A mark stands at each position, which the parser reads as a comment. Where it is missing from the tree, the parser
    found other tokens. Then the position has no place.
    """
    mark = f"-{secrets.token_hex(8)}-"
    names = [name or kind for kind, name, _, _ in tokens if kind in ("open", "other")]
    context = "" if {"html", "head", "body", "other"} & {*names} else CONTEXT.get((names or [""])[0], "<body>")
    marked = [f"</{mark}{i}>{document[start:end]}" for i, (_, _, start, end) in enumerate(tokens)]
    text = "".join([context, *marked, f"</{mark}{len(tokens)}>"])
    parse = import_extra("justhtml", "documents", "HTML").JustHTML
    places: list[_Place | None] = [None] * (len(tokens) + 1)
    queue = [(parse(text, sanitize=False, scripting_enabled=False).root, 0, False)]
    while queue:
        node, copied, is_pre = queue.pop()
        for index, child in enumerate(node.children):
            if child.name == "#comment" and child.data.startswith(mark):
                places[int(child.data[len(mark) :])] = _Place(node, index, copied, is_pre)
            elif getattr(child, "namespace", None):
                queue.append((child, _copied(child, copied), is_pre or child.name == "pre"))
    for i, (kind, name, _, _) in enumerate(tokens):
        if kind == "raw" and name == "title" and (place := places[i - 1]):
            title = place.node.children[place.index + 1]
            places[i] = places[i + 1] = _Place(title, 0, _copied(title, place.copied), False)
    return places


def _copied(element: Any, inherited: int) -> int:
    if inherited == 2 or element.namespace != "html" or element.name in NEVER:
        return 2
    if element.name in CODE or "notranslate" in (element.attrs.get("class") or "").split():
        inherited = 1
    return _chosen(element.attrs.get("translate", "inherit") or "", inherited)


def _chosen(translate: str, inherited: int) -> int:
    return {"no": 1, "yes": 0, "": 0}.get(translate.lower(), inherited)


def _html(document: str) -> Read:
    tokens = list(_tokens(document))
    places = _places(document, tokens)
    pieces, pairs, inline = list[Piece](), dict[int, int](), set[int]()
    path = list[tuple[int, Any]]()  # open elements

    def leave(parent: Any) -> list[tuple[int, Any]]:
        """Returns the open elements that are not around the content of `parent`, which end here."""
        left = []
        while path and path[-1][1] is not parent:
            left.append(path.pop())
            if left[-1][1].name in RUBY and left[-1][0] < len(pieces) - 1:
                pairs[left[-1][0]] = len(pieces) - 1
        return left

    for (kind, name, start, end), before, after in zip(tokens, places, places[1:], strict=False):
        known, copied, is_pre = (
            before and after,
            after.copied > 0 if after else True,
            after is not None and after.is_pre,
        )
        if kind in ("text", "raw"):
            for part in filter(None, _REFERENCE.split(document[start:end])):
                text = html.unescape(part)
                unknown = text == part and _REFERENCE.fullmatch(part)
                pieces.append(Piece("entity" if unknown else "text", "", start, text, copied or not known, is_pre))
                start += len(part)
            continue
        if before and after and kind == "open":
            node = after.node
            if node is before.node:
                if name in VOID:
                    kind = "empty"
                    inline.add(len(pieces))
            elif after.index == 0 and node.name.lower() == name:
                left = leave(node.parent)
                if node.parent is before.node or (left and all(each.name in RUBY for _, each in left)):
                    path.append((len(pieces), node))
        elif before and after and kind == "close":
            left = leave(after.node)
            if left and left[-1][1].parent is after.node and left[-1][1].name.lower() == name:
                pairs[left[-1][0]] = len(pieces)
        elif known and kind in ("comment", "bogus"):
            inline.add(len(pieces))
        kind = {"comment": "empty", "bogus": "empty"}.get(kind, kind)
        pieces.append(Piece(kind, name, start, copied=copied and kind == "open"))
    inline |= {index for pair in pairs.items() for index in pair if pieces[pair[0]].name in INLINE}
    return Read(pieces, pairs, inline)


class _XML:
    """Reads XML, or a part of a document that needs `before` and `after` around it."""

    def __init__(self, data: bytes, before: bytes = b"", after: bytes = b"") -> None:
        self._data, self._offset, self._in = data, len(before), ""
        self._path = [(-1, 0, False)]  # open elements, and whether their text is copied, and preformatted
        self.pieces, self.pairs = list[Piece](), dict[int, int]()
        parser = self._parser = expat.ParserCreate("utf-8")  # also if the declaration has another encoding
        parser.UseForeignDTD(True)  # Entities may be declared elsewhere.
        parser.DefaultHandler = self._rest  # With it, expat expands no entity.
        parser.StartElementHandler, parser.EndElementHandler = self._open, self._close
        parser.CharacterDataHandler = lambda data: self._add("text", text=data)
        parser.CommentHandler = parser.ProcessingInstructionHandler = lambda *_: self._add("empty")
        parser.StartCdataSectionHandler, parser.EndCdataSectionHandler = self._cdata, self._end
        parser.StartDoctypeDeclHandler, parser.EndDoctypeDeclHandler = self._doctype, self._end
        parser.Parse(before + data + after, True)
        at = start = 0
        for index, piece in enumerate(self.pieces):  # from bytes to characters
            at, start = piece.start, start + len(data[at : piece.start].decode())
            self.pieces[index] = piece._replace(start=start)

    def _add(self, kind: str, name: str = "", text: str = "") -> None:
        if not self._in:
            _, copied, is_pre = self._path[-1]
            start = self._parser.CurrentByteIndex - self._offset
            self.pieces.append(Piece(kind, name, start, text, copied > 0, is_pre))

    def _open(self, name: str, attributes: Mapping[str, str]) -> None:
        if self._parser.CurrentByteIndex < self._offset:
            return
        _, copied, is_pre = self._path[-1]
        values = {key.rpartition(":")[2]: value for key, value in attributes.items()}
        copied = (
            2 if name.rpartition(":")[2] in ("script", "style") else _chosen(values.get("translate", "inherit"), copied)
        )
        space = attributes.get("xml:space", is_pre)
        self._path.append((len(self.pieces), copied, space == "preserve" or space is True))
        self._add("open", name)

    def _close(self, name: str) -> None:
        if len(self._path) == 1:
            return
        end, first = self._parser.CurrentByteIndex - self._offset, self._path[-1][0]
        if first == len(self.pieces) - 1 and self._data[end - 2 : end] == b"/>":
            self.pieces[first] = self.pieces[first]._replace(kind="empty")
        else:
            self.pairs[first] = len(self.pieces)
            self._add("close", name)
        self._path.pop()

    def _rest(self, data: str) -> None:
        if data[0] == "&":
            self._add("entity", text=data)
        elif not self.pieces or self.pieces[-1].kind != "other":
            self._add("other")

    def _cdata(self) -> None:
        self._add("empty")
        self._in = "CDATA"

    def _doctype(self, *declared: object) -> None:
        self._in = "DOCTYPE"

    def _end(self) -> None:
        self._in = ""


def _xml(document: str) -> Read:
    data, errors = document.encode("utf-8", "surrogatepass"), list[expat.ExpatError]()
    for around in ((b"", b""), (b"<x>", b"</x>")):  # a document, or a part of one
        try:
            read = _XML(data, *around)
        except expat.ExpatError as error:
            errors.append(error)
        else:
            return Read(read.pieces, read.pairs, _beside_text(read.pieces, read.pairs))
    whole, part = errors
    error, extra = (part, 3) if expat.errors.messages[whole.code] in _OF_PARTS else (whole, 0)
    place = f"line {error.lineno}, column {error.offset + 1 - extra * (error.lineno == 1)}"
    raise BadInput(f"document: expected well-formed XML, got {expat.errors.messages[error.code]} in {place}") from error


def _beside_text(pieces: Sequence[Piece], pairs: Mapping[int, int]) -> set[int]:
    """Returns the indices of XML's elements that have text next to them, and of their contents."""
    inline, mixed, parents = set[int](), set[int](), [-1]
    children: dict[int, list[int]] = {-1: []}
    for index, piece in enumerate(pieces):
        if piece.kind == "close":
            parents.pop()
        elif piece.kind in ("text", "entity"):
            if piece.text.strip():
                mixed.add(parents[-1])
        else:
            children[parents[-1]].append(index)
            if piece.kind == "open":
                parents.append(index)
                children[index] = []
    queue = [child for parent in mixed for child in children[parent]]
    while queue:
        index = queue.pop()
        if index not in inline:
            inline |= {index, pairs.get(index, index)}
            queue += children.get(index, [])
    return inline


def parts_of(document: str, is_xml: bool = False) -> list[str | Marked]:
    """Splits a document into strings that are copied and texts that are translated, in order.

    Args:
        document: HTML, with any mistakes, or XML, or a part of a document.
        is_xml: Whether it is XML, where elements that have text next to them are within a sentence.

    Raises:
        BadInput: If XML is not well formed, or justhtml is not installed.
    """
    if document.startswith("\ufeff"):
        return ["\ufeff", *parts_of(document[1:], is_xml)]
    return list(_Reader(document, _xml(document) if is_xml else _html(document), is_xml).parts())


class _Reader:
    """Gathers the text between tags that end sentences."""

    def __init__(self, document: str, read: Read, is_xml: bool) -> None:
        self._document, self._write = document, _write_xml if is_xml else _write_html
        self._pieces, self._pairs, self._inline = read
        self._closing = {last: first for first, last in read.pairs.items()}
        self._ends = [*(piece.start for piece in read.pieces[1:]), len(document)]
        words = [each.kind == "text" and not each.copied and not each.text.isspace() for each in read.pieces]
        counts = list(itertools.accumulate(words, initial=0))
        self._silent = {i for i, j in read.pairs.items() if read.pieces[i].copied and counts[i] == counts[j + 1]}
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
            if piece.kind == "text" and not piece.copied:
                self._add(piece.text, piece.is_pre)
            elif piece.kind == "entity" and not piece.copied:
                self._keep(raw, raw)
            elif index not in self._inline:
                yield from self._run(piece.start)
                yield raw
                self._begin(self._ends[last])
            elif last > index:
                texts = [each.text for each in self._pieces[index:last]]
                self._keep("" if piece.name in UNREAD else " ".join("".join(texts).split()), raw)
            elif piece.kind == "empty":
                self._keep("", raw)
            else:
                element = self._closing.get(index, index) + 1
                self._marks.append(Mark(self._length, self._length, raw, piece.kind, element))
            index = last + 1
        yield from self._run(len(self._document))

    def _begin(self, start: int) -> None:
        self._start, self._texts, self._length, self._marks = start, list[str](), 0, list[Mark]()
        self._is_read = self._is_pre = False

    def _add(self, text: str, is_pre: bool) -> None:
        self._texts.append(text)
        self._length += len(text)
        self._is_read |= not text.isspace()
        self._is_pre |= is_pre

    def _keep(self, text: str, raw: str) -> None:
        self._texts.append(text)
        self._marks.append(Mark(self._length, self._length + len(text), raw))
        self._length += len(text)

    def _run(self, end: int) -> Iterator[str | Marked]:
        if not self._is_read:
            yield self._document[self._start : end]
            return
        run = Marked("".join(self._texts), self._marks, self._write, "ends" if self._is_pre else "is a space")
        for part in _apart(run, _LINK):
            yield from [part] if isinstance(part, str) else _apart(_with_addresses(part), _WORD)


def _partners(marks: Sequence[Mark]) -> dict[int, int]:
    """Returns the index of each tag's other tag."""
    opened = {mark.element: index for index, mark in enumerate(marks) if mark.kind == "open"}
    pairs = {opened[mark.element]: index for index, mark in enumerate(marks) if mark.kind == "close"}
    return pairs | {last: first for first, last in pairs.items()}


def _with_addresses(run: Marked) -> Marked:
    """Makes one mark of each address that has tags inside, or has elements for itself."""
    old, marks, done, other = run.marks, list[Mark](), 0, _partners(run.marks)
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
    cuts, place, is_closed = list[int](), -1, False
    for index, mark in enumerate(run.marks):
        if mark.start > place:
            place, is_closed = mark.start, index > 0 and place < run.marks[index - 1].end == mark.start
            before, after = run.text[place - 1 : place], run.text[place : place + 1]
            is_glued = after.isalnum() and _BEFORE.match(before) and not (is_wide(before) and is_wide(after))
        if is_glued and ((is_closed and starts.match(mark.raw)) or _IMAGE.match(mark.raw)):
            cuts.append(index)
            is_glued = False
        if mark.kind == "close":
            is_closed = not _IN_WORD.match(mark.raw)
    other, first, start = _partners(run.marks), 0, 0
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


def _write_xml(text: str) -> str:
    return html.escape(text, quote=False)


def _write_html(text: str) -> str:
    return _write_xml(text).replace("\xa0", "&nbsp;")
