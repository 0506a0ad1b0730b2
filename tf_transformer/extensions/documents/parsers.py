"""Reads HTML, as browsers do (WHATWG), by justhtml, and XML by expat, as pieces of the document's text."""

import html
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from xml.parsers import expat

from tf_transformer.utils.extras import import_extra
from tf_transformer.utils.values import BadInput

# Elements within a sentence. All others end it.
_INLINE = """a abbr acronym b bdi bdo big cite code data del dfn em font i img input ins kbd label mark math meter nobr
output q rb rp rt rtc ruby s samp small span strike strong sub sup svg time tt u var wbr"""
INLINE = set(_INLINE.split())
VOID = {"img", "input", "wbr"}
RUBY = {"rb", "rp", "rt", "rtc"}  # may omit their end tags
CODE = {"code", "kbd", "samp", "var"}  # excluded, except for translate="yes"
RAW = {"iframe", "noembed", "noframes", "script", "style", "textarea", "title", "xmp"}  # contain no tags
NEVER = RAW - {"title"} | {"plaintext", "rp", "rt", "template"}  # always excluded, as are svg and math
# Start tags that the parts of tables need before them.
CONTEXT = dict.fromkeys(("caption", "colgroup", "tbody", "tfoot", "thead", "tr"), "<table>")
CONTEXT |= {"col": "<table><colgroup>", "td": "<table><tr>", "th": "<table><tr>"}

_S = r"\t\n\f\r "  # white space of HTML
_TOKEN = re.compile(
    rf"""(?P<text>(?:[^<]|<(?![A-Za-z!?/]))++)
    | <(?P<end>/?)(?P<name>[A-Za-z][^{_S}/>]*+) (?:[{_S}/]++ | [^{_S}/>][^{_S}/>=]*+
        (?:[{_S}]*+=[{_S}]*+(?:"[^"]*+(?:"|\Z) | '[^']*+(?:'|\Z) | [^{_S}>"'][^{_S}>]*+)?+)?+)*+ (?P<tag>>)
    | (?P<other><!doctype[^>]*+>?+ | </?[A-Za-z].*)
    | (?P<comment><!--(?:-?> | .*?(?:--!?>|\Z)) | <[^>]*+>?+)""",
    re.DOTALL | re.IGNORECASE | re.VERBOSE,
)
_OF_PARTS = (expat.errors.XML_ERROR_SYNTAX, expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT)
_REFERENCE = re.compile("(&[A-Za-z][A-Za-z0-9]*;)")


class Piece(NamedTuple):
    """A tag, text or other part of the document."""

    kind: str  # "open", "close", "empty", "text", "entity" or "other"
    name: str  # element
    start: int  # index in the document
    text: str = ""
    copied: bool = False  # whether it is excluded from translation
    is_pre: bool = False  # whether newlines are kept


# Pieces, indices of the elements' last pieces by those of their start tags, and of tags that may be within a sentence.
Read = tuple[Sequence[Piece], Mapping[int, int], set[int]]


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
            end_tag = re.compile(rf"</{name}(?=[{_S}/>])|\Z", re.IGNORECASE).search(document, end)
            start, end = end, end_tag.start()  # type: ignore[union-attr]
            if start < end:
                yield "raw", name, start, end


class _Position(NamedTuple):
    """A position between two tokens, as a position in the tree."""

    node: Any
    child: int  # index among the node's children
    copied: int  # 0 if text is translated, 1 if it is excluded, 2 if translate="yes" inside has no effect
    is_pre: bool


def _positions(document: str, tokens: Sequence[tuple[str, str, int, int]]) -> list[_Position | None]:
    """Returns the positions before all tokens, and at the end, in the tree that the standard's parser builds.

    The parser reads a comment at each position, instead of the page's comments. If it has read other tokens there, the
    position is `None`.
    """
    mark = f"-{secrets.token_hex(8)}-"
    names = [name or kind for kind, name, _, _ in tokens if kind in ("open", "other")]
    context = "" if {"html", "head", "body", "other"} & {*names} else CONTEXT.get((names or [""])[0], "<body>")
    marked = [f"</{mark}{i}>{document[a:b]}" for i, (kind, _, a, b) in enumerate(tokens) if kind != "comment"]
    text = "".join([context, *marked, f"</{mark}{len(tokens)}>"])
    page = import_extra("justhtml", "documents", "HTML").JustHTML(text, sanitize=False, scripting_enabled=False)
    positions: list[_Position | None] = [None] * (len(tokens) + 1)
    queue = [(page.root, 0, False)]
    while queue:
        node, copied, is_pre = queue.pop()
        for index, child in enumerate(node.children):
            if child.name in ("#comment", "#text"):  # Elements such as <title> have no comments.
                for number in re.findall(rf"{mark}(\d+)", child.data):
                    positions[int(number)] = _Position(node, index, copied, is_pre)
            elif getattr(child, "namespace", None):
                queue.append((child, _copied(child, copied), is_pre or child.name == "pre"))
    for i in reversed(range(len(tokens))):
        if tokens[i][0] == "comment":
            positions[i] = positions[i + 1]
    return positions


def _copied(element: Any, inherited: int) -> int:
    if element.namespace != "html" or element.name in NEVER:
        return 2
    is_marked = element.name in CODE or "notranslate" in (element.attrs.get("class") or "").split()
    return _chosen(element.attrs.get("translate", "inherit"), max(inherited, is_marked))


def _chosen(translate: str | None, inherited: int) -> int:
    return inherited if inherited == 2 else {"no": 1, "yes": 0, "": 0}.get((translate or "").lower(), inherited)


def read_html(document: str) -> Read:
    tokens = list(_tokens(document))
    positions = _positions(document, tokens)
    pieces, pairs, inline = list[Piece](), dict[int, int](), set[int]()
    path = list[tuple[int, Any]]()  # open elements

    def leave(parent: Any) -> list[tuple[int, Any]]:
        """Removes and returns the open elements that end here, down to `parent`."""
        left = []
        while path and path[-1][1] is not parent:
            left.append(path.pop())
            if left[-1][1].name in RUBY and left[-1][0] < len(pieces) - 1:
                pairs[left[-1][0]] = len(pieces) - 1
        return left

    for (kind, name, start, end), before, after in zip(tokens, positions, positions[1:], strict=False):
        if kind in ("text", "raw"):
            is_copied = not before or not after or after.copied > 0
            if kind == "raw" and before and after:
                is_copied |= before.node is not after.node or after.node.name != name
            is_pre = after is not None and after.is_pre
            for part in filter(None, _REFERENCE.split(document[start:end])):
                text = html.unescape(part)
                kind = "entity" if text == part and _REFERENCE.fullmatch(part) else "text"
                pieces.append(Piece(kind, "", start, text, is_copied, is_pre))
                start += len(part)
            continue
        is_copied = False
        if before is None or after is None:
            pass
        elif kind == "comment" or (kind == "open" and name in VOID and after.node is before.node):
            kind = "empty"
            inline.add(len(pieces))
        elif kind == "close":
            left = leave(after.node)
            if left and left[-1][1].parent is after.node and left[-1][1].name.lower() == name:
                pairs[left[-1][0]] = len(pieces)
        elif kind == "open" and after.child == 0 and after.node.name.lower() == name:
            leave(after.node.parent)
            path.append((len(pieces), after.node))
            is_copied = after.copied > 0
        pieces.append(Piece(kind, name, start, copied=is_copied))
    inline |= {index for pair in pairs.items() for index in pair if pieces[pair[0]].name in INLINE}
    return pieces, pairs, inline


class _XML:
    """Reads XML, or a part of a document that needs `before` and `after` around it."""

    def __init__(self, data: bytes, before: bytes = b"", after: bytes = b"") -> None:
        self._data, self._offset, self._in_cdata = data, len(before), False
        self._path = [(-1, 0, False)]  # open elements, and whether their text is copied, and preformatted
        self._pieces, self._pairs, self._parents = list[Piece](), dict[int, int](), list[int]()
        parser = self._parser = expat.ParserCreate("utf-8")  # overrides the declaration
        parser.UseForeignDTD(True)  # Entities may be declared elsewhere.
        parser.DefaultHandler = self._rest  # With it, expat expands no entity.
        parser.StartElementHandler, parser.EndElementHandler = self._open, self._close
        parser.CharacterDataHandler = lambda data: self._add("text", text=data)
        parser.CommentHandler = lambda data: self._add("empty")
        parser.ProcessingInstructionHandler = lambda target, data: self._add("empty")
        parser.StartCdataSectionHandler = lambda: self._cdata(True)
        parser.EndCdataSectionHandler = lambda: self._cdata(False)
        parser.Parse(before + data + after, True)
        at = start = 0
        for index, piece in enumerate(self._pieces):  # Convert indices of bytes to indices of characters.
            at, start = piece.start, start + len(data[at : piece.start].decode())
            self._pieces[index] = piece._replace(start=start)

    def _add(self, kind: str, name: str = "", text: str = "") -> None:
        if not self._in_cdata:
            _, copied, is_pre = self._path[-1]
            start = self._parser.CurrentByteIndex - self._offset
            self._pieces.append(Piece(kind, name, start, text, copied > 0, is_pre))
            self._parents.append(self._path[-1 - (kind == "open")][0])

    def _open(self, name: str, attributes: Mapping[str, str]) -> None:
        if self._parser.CurrentByteIndex < self._offset:
            return
        _, copied, is_pre = self._path[-1]
        values = {key.rpartition(":")[2]: value for key, value in attributes.items()}
        copied = (
            2 if name.rpartition(":")[2] in ("script", "style") else _chosen(values.get("translate", "inherit"), copied)
        )
        is_pre = {"preserve": True, "default": False}.get(attributes.get("xml:space", ""), is_pre)
        self._path.append((len(self._pieces), copied, is_pre))
        self._add("open", name)

    def _close(self, name: str) -> None:
        if len(self._path) == 1:
            return
        end, (first, _, _) = self._parser.CurrentByteIndex - self._offset, self._path.pop()
        if first == len(self._pieces) - 1 and self._data[end - 2 : end] == b"/>":
            self._pieces[first] = self._pieces[first]._replace(kind="empty")
        else:
            self._pairs[first] = len(self._pieces)
            self._add("close", name)

    def _rest(self, data: str) -> None:
        if data[0] == "&":
            self._add("entity", text=data)
        elif not self._pieces or self._pieces[-1].kind != "other":
            self._add("other")

    def _cdata(self, begins: bool) -> None:
        self._add("empty")  # nothing at its end
        self._in_cdata = begins

    def read(self) -> Read:
        """Returns what was read. Elements that have text next to them, and their contents, are within sentences."""
        inline, words = set[int](), [piece.kind in ("text", "entity") for piece in self._pieces]
        mixed = {self._parents[i] for i, piece in enumerate(self._pieces) if words[i] and piece.text.strip()}
        for index, parent in enumerate(self._parents):
            if not words[index] and (parent in mixed or parent in inline):
                inline.add(index)
        return self._pieces, self._pairs, inline


def read_xml(document: str) -> Read:
    data, errors = document.encode("utf-8", "surrogatepass"), list[expat.ExpatError]()
    for around in ((b"", b""), (b"<x>", b"</x>")):  # a document, or a part of one
        try:
            return _XML(data, *around).read()
        except expat.ExpatError as error:
            errors.append(error)
    is_part = expat.errors.messages[errors[0].code] in _OF_PARTS
    cause = errors[is_part]
    position = f"line {cause.lineno}, column {cause.offset + 1 - len('<x>') * (is_part and cause.lineno == 1)}"
    raise BadInput(
        f"document: expected well-formed XML, got {expat.errors.messages[cause.code]} in {position}"
    ) from cause
