"""Splits HTML and XML into parts to translate, and the rest.

HTML is read in the tree of justhtml (WHATWG), and XML is checked by expat. Only sentences change. In them, character
references become characters, except for markup characters and &nbsp;. The rest is copied unchanged.
"""

import collections
import functools
import html
import itertools
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from xml.parsers import expat

from tf_transformer.extensions.documents.marked import DEEPEST, Mark, Marked, Quotes
from tf_transformer.utils.lazy import import_extra
from tf_transformer.utils.values import BadInput

# Elements within a sentence. All others end it.
_INLINE = """a abbr acronym b bdi bdo big cite code data del dfn em font i img input ins kbd label mark math meter nobr
output q rb rp rt rtc ruby s samp small span strike strong sub sup svg time tt u var wbr"""
INLINE = set(_INLINE.split())
VOID = {"img", "input", "wbr"}
RUBY = {"rb", "rp", "rt", "rtc", "ruby"}
CODE = {"code", "kbd", "samp", "var"}  # excluded, except for translate="yes"
RAW = {"iframe", "noembed", "noframes", "script", "style", "textarea", "title", "xmp"}  # contain no tags
NEVER = RAW - {"title"} | {"plaintext", "rp", "rt", "template"}  # always excluded, as are svg and math

UNREAD = {"rp", "rt", "svg"}  # The text around them is translated without theirs.
# XLIFF's and TMX's elements that hold code as text. In other vocabularies, `it` and `ph` are words. `sub` in them is
# text. `originalData` and `internal-file` hold the code of a whole unit or file.
NATIVE, ONLY_THERE, SUB = {"bpt", "ept", "it", "ph", "ut"}, {"it", "ph"}, "sub"
SEGMENTS = {"source", "seg-source", "target", "seg", "xliff", "tmx"}
NATIVE_BLOCKS = {"originalData", "internal-file"}
# Superscripts that are not words: 1, [12], *, [a], −6.
NOTE = re.compile(r"\s*(?:[\d\s,;\u2013\u2212-]++|[*\u2020\u2021\u00a7\u00b6#]++|[\[(]\s?\w{1,3}\s?[\])])+\s*")

_S = r"\t\n\f\r "  # whitespace of HTML
# Atomic groups, not possessive ones: before 3.11.5, Python keeps what a failed alternative read.
_TOKEN = re.compile(
    rf"""(?P<text>(?>(?:[^<]++|<(?![A-Za-z!?/]))+))
    | <(?P<end>/?)(?P<name>[A-Za-z][^{_S}/>]*+) (?>(?:[{_S}/]++ | [^{_S}/>][^{_S}/>=]*+
        (?>(?:[{_S}]*+=[{_S}]*+(?>(?:"[^"]*+(?:"|\Z) | '[^']*+(?:'|\Z) | [^{_S}>"'][^{_S}>]*+)?))?))*) (?P<tag>>)
    | (?P<other><!doctype[^>]*+>?+ | </?[A-Za-z].*)
    | (?P<comment><!--(?:-?> | .*?(?:--!?>|\Z)) | <[^>]*+>?+)""",
    re.DOTALL | re.IGNORECASE | re.VERBOSE,
)
_XML_TOKEN = re.compile(
    r"""(?P<text>[^<]++)
    | (?P<comment><!--.*?--> | <\?.*?\?> | <!\[CDATA\[.*?\]\]>)
    | (?P<other><!DOCTYPE(?>(?:[^["'>]++|"[^"]*"|'[^']*')*)
        (?:\[(?>(?:<!--.*?-->|<\?.*?\?>|"[^"]*"|'[^']*'|[^]"'])*)\]\s*)?>)
    | <(?P<end>/?)(?P<name>[^\s/>]++)(?P<attributes>(?>(?:[^"'/>]++|"[^"]*"|'[^']*')*))(?P<empty>/?)(?P<tag>>)""",
    re.DOTALL | re.VERBOSE,
)
_ATTRIBUTE = re.compile(r"""([^\s:=]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")  # without the prefix of its name
_OF_PARTS = (expat.errors.XML_ERROR_SYNTAX, expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT)
_REFERENCE = re.compile("(&[^\\W\\d][\\w.:-]*;)")
escaped = functools.partial(html.escape, quote=False)
_XML_ENTITIES = {"&amp;", "&lt;", "&gt;", "&quot;", "&apos;"}


class Piece(NamedTuple):
    """A tag, text or other part of the document."""

    kind: str  # "open", "close", "empty", "text", "entity" or "other"
    name: str  # element
    start: int  # index in the document
    text: str = ""
    copied: bool = False  # whether it is excluded from translation
    is_pre: bool = False  # whether newlines are kept
    native: str = ""  # "kept" for code before a word, "note" for code after one, of XLIFF and TMX


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
    names = {name or kind for kind, name, _, _ in tokens if kind in ("open", "other")}
    context = "" if {"html", "head", "body", "other"} & names else "<body>"
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
    opened, ruby = dict[Any, int](), -1  # indices of start tags
    for (kind, name, start, end), before, after in zip(tokens, positions, positions[1:], strict=False):
        if kind in ("text", "raw"):
            is_copied = not before or not after or after.copied > 0
            if kind == "raw" and before and after:
                is_copied |= before.node is not after.node or after.node.name != name
            is_pre = after is not None and after.is_pre
            pieces += _texts(document[start:end], start, is_copied, is_pre, lambda name: html.unescape(name) != name)
            continue
        is_copied = False
        if ruby >= 0 and name in RUBY:  # Its end tag is optional.
            pairs[ruby], ruby = len(pieces) - (kind == "open" or name != pieces[ruby].name), -1
        if before is None or after is None:
            pass
        elif kind == "comment" or (kind == "open" and name in VOID and after.node is before.node):
            kind = "empty"
            inline.add(len(pieces))
        elif kind == "close" and after.child:
            element = after.node.children[after.child - 1]
            if element.name.lower() == name and element in opened:
                pairs[opened.pop(element)] = len(pieces)
        elif kind == "open" and after.child == 0 and after.node.name.lower() == name:
            opened[after.node] = len(pieces)
            ruby = len(pieces) if name in RUBY - {"ruby"} else ruby
            is_copied = after.copied > 0
        pieces.append(Piece(kind, name, start, copied=is_copied))
    inline |= {index for pair in pairs.items() for index in pair if pieces[pair[0]].name in INLINE}
    return pieces, pairs, inline


def _texts(text: str, start: int, copied: bool, is_pre: bool, is_known: Callable[[str], bool]) -> Iterator[Piece]:
    """Splits a text at its references to unknown entities, which are copied."""
    for part in filter(None, _REFERENCE.split(text)):
        kind = "entity" if _REFERENCE.fullmatch(part) and not is_known(part) else "text"
        yield Piece(kind, "", start, html.unescape(part), copied, is_pre)
        start += len(part)


def read_xml(document: str) -> Read:
    """Reads XML. Elements that have text next to them, and their contents, are within sentences."""
    _check_xml(document)
    pieces, pairs, inline, parents = list[Piece](), dict[int, int](), set[int](), list[int]()
    # Open elements, and whether their text is copied, preformatted, in a segment of XLIFF or TMX, and its native code.
    path = [(-1, 0, False, False, False)]
    for match in _XML_TOKEN.finditer(document):
        kind, name, start = str(match.lastgroup), match["name"] or "", match.start()
        parent, copied, is_pre, is_segment, is_native = path[-1]
        if kind == "text":
            pieces += _texts(match[0], start, copied > 0, is_pre, _XML_ENTITIES.__contains__)
        elif match["end"]:
            first, *_ = path.pop()
            parent, pairs[first] = path[-1][0], len(pieces)
            pieces.append(Piece("close", name, start, "", copied > 0))
        elif kind == "tag" and not match["empty"]:
            attributes = {key: one or other for key, one, other in _ATTRIBUTE.findall(match["attributes"])}
            local = name.rpartition(":")[2]
            copied = 2 if local in NATIVE_BLOCKS | {"script", "style"} else copied
            copied = _chosen(attributes.get("translate", "inherit"), copied)
            is_pre = {"preserve": True, "default": False}.get(attributes.get("space", ""), is_pre)
            is_native, was_native = local in NATIVE - (set() if is_segment else ONLY_THERE), is_native
            copied = max(copied, 1) if is_native else 0 if was_native and local == SUB and copied < 2 else copied
            is_last = local == "ept" or attributes.get("pos") in ("close", "end")
            native = ("note" if is_last else "kept") if is_native else ""
            path.append((len(pieces), copied, is_pre, is_segment or local in SEGMENTS, is_native))
            pieces.append(Piece("open", name, start, "", copied > 0, native=native))
        else:
            pieces.append(Piece("other" if kind == "other" else "empty", name, start))
        parents += [parent] * (len(pieces) - len(parents))
    words = [piece.kind in ("text", "entity") for piece in pieces]
    mixed = {parents[i] for i, piece in enumerate(pieces) if words[i] and piece.text.strip()}
    for index, parent in enumerate(parents):
        if not words[index] and (parent in mixed or parent in inline):
            inline.add(index)
    return pieces, pairs, inline


def _check_xml(document: str) -> None:
    """Raises `BadInput` unless this is well-formed XML, or a part of it."""
    data, errors = document.encode("utf-8", "surrogatepass"), list[expat.ExpatError]()
    for before, after in ((b"", b""), (b"<x>", b"</x>")):
        parser = expat.ParserCreate("utf-8")  # overrides the declaration
        parser.UseForeignDTD(True)  # Entities may be declared elsewhere.
        parser.DefaultHandler = lambda data: None  # With it, expat expands no entity.
        try:
            parser.Parse(before + data + after, True)
            return
        except expat.ExpatError as error:
            errors.append(error)
    is_part = expat.errors.messages[errors[0].code] in _OF_PARTS
    cause = errors[is_part]
    position = f"line {cause.lineno}, column {cause.offset + 1 - len('<x>') * (is_part and cause.lineno == 1)}"
    raise BadInput(
        f"document: expected well-formed XML, got {expat.errors.messages[cause.code]} in {position}"
    ) from cause


def parts_of(document: str, is_xml: bool = False) -> list[str | Marked]:
    """Splits a document into strings that are copied and texts that are translated, in order."""
    if document.startswith("\ufeff"):
        return ["\ufeff", *parts_of(document[1:], is_xml)]
    return list(_Reader(document, read_xml(document) if is_xml else read_html(document), is_xml).parts())


class _Reader:
    """Gathers the text between tags that end sentences."""

    def __init__(self, document: str, read: Read, is_xml: bool) -> None:
        self._document = document
        self._pieces, self._pairs, self._inline = read
        texts = (each.text for each in self._pieces if each.kind == "text" and not each.copied)
        self._quotes = Quotes("".join(texts) if is_xml and "\\" in document else "")
        markup = escaped if is_xml else lambda text: escaped(text).replace("\xa0", "&nbsp;")
        self._write = lambda text: markup(self._quotes.written(text))
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
            piece, is_note = self._pieces[index], self._is_note(index)
            last = self._pairs[index] if is_note or index in self._silent else index
            raw = self._document[piece.start : self._ends[last]]
            text = ""
            if piece.kind == "text" and not piece.copied:
                text = self._quotes.read(piece.text)
                self._is_read |= not text.isspace()
                self._is_pre |= piece.is_pre
            elif piece.copied if piece.kind == "entity" else index not in self._inline:
                yield self._run(piece.start)
                yield raw
                self._begin(self._ends[last])
            else:
                if piece.kind == "entity":
                    text = raw
                elif last > index and not is_note and piece.name not in UNREAD and not piece.native:
                    text = " ".join("".join(each.text for each in self._pieces[index:last]).split())
                is_tag = last == index and piece.kind in ("open", "close")
                kind = piece.kind if is_tag else "note" if is_note else piece.native or "kept"
                element = self._closing.get(index, index) + 1 if is_tag else 0
                self._marks.append(Mark(self._length, self._length + len(text), raw, kind, element))
            self._texts.append(text)
            self._length += len(text)
            index = last + 1
        yield self._run(len(self._document))

    def _is_note(self, index: int) -> bool:
        """Returns whether an element is the number of a footnote or an exponent, which touches the word before it."""
        if self._pieces[index].name != "sup" or index not in self._inline or index not in self._pairs:
            return False
        inside = self._pieces[index : self._pairs[index]]
        text, after = "".join(piece.text for piece in inside), self._pieces[self._pairs[index] + 1 :][:1]
        before = next((text for text in reversed(self._texts) if text), " ")
        is_apart = not before[-1].isspace() and not any(piece.text[:1].isalnum() for piece in after)
        return is_apart and len(text) < 20 and NOTE.fullmatch(text) is not None

    def _begin(self, start: int) -> None:
        self._start, self._texts, self._length, self._marks = start, list[str](), 0, list[Mark]()
        self._is_read = self._is_pre = False

    def _run(self, end: int) -> str | Marked:
        if not self._is_read:
            return self._document[self._start : end]
        return Marked("".join(self._texts), self._marks, self._write, "ends" if self._is_pre else "is a space")
