"""Encodings that HTML and XML declare."""

import codecs
import re

from tf_transformer.utils.values import BadInput, shown

_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_HIDDEN = re.compile(r"(?is)<!--.*?(?:-->|\Z)|<(script|style|title)\b.*?(?:</\1|\Z)")
_DECLARED = {
    "html": re.compile(r"""(?i)<meta\s[^>]*?\bcharset\s*=\s*["']?\s*([^\s"'/;>]+)"""),
    "xml": re.compile(r"""\A<\?xml[^>]*?\sencoding\s*=\s*["']([^"'>]+)"""),
}
# Browsers read supersets of these encodings, and these names, which Python does not support.
_WIDER = {"ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874"}
_WIDER |= {"gb2312": "gb18030", "gbk": "gb18030", "big5": "big5hkscs", "euc_kr": "cp949", "shift_jis": "cp932"}
_NAMES = {"iso-8859-8-i": "iso8859-8", "windows-31j": "cp932", "windows-874": "cp874", "windows-949": "cp949"}


def decoded(data: bytes, format: str) -> tuple[str, str]:
    """Decodes a document by its byte order mark, which is kept, or its declaration.

    Without them, it is in UTF-8, or else, for HTML, in Windows-1252. In other formats, U+FFFD replaces invalid bytes.
    Returns the text and the name of the encoding.
    """
    if format not in ("html", "xml"):
        return data.decode("utf-8", "replace"), "utf-8"
    names = [name for start, name in _MARKS.items() if data.startswith(start)]
    if not names and (match := _DECLARED[format].search(_HIDDEN.sub("", data[:16_384].decode("latin-1")))):
        names = [_codec(match[1].lower(), format == "html")]
    for encoding in names[:1] or ["utf-8", "cp1252"][: 1 + (format == "html")]:
        try:
            return data.decode(encoding), encoding
        except UnicodeDecodeError as error:
            invalid = f"{encoding}, got byte {data[error.start]:#04x} at {error.start}"
    raise BadInput(f"document: expected text in {invalid}. Correct the declared encoding, or pass a str.")


def _codec(label: str, is_html: bool) -> str:
    """Returns Python's name of an encoding. UTF-16 in a declaration that is in ASCII means UTF-8, as in browsers."""
    try:
        name = codecs.lookup(_NAMES.get(label, label.removeprefix("x-"))).name
        if name.startswith(("utf-16", "utf-32")):
            return "utf-8"
        if name != "utf-7" and b"<a>".decode(name) == "<a>":
            return name if name.startswith("iso8859") and not is_html else _WIDER.get(name, name)
    except (LookupError, UnicodeError):
        pass
    raise BadInput(f"document: expected an encoding that Python supports, got {shown(label)}. Pass a decoded str.")
