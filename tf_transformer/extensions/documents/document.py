"""Translates documents by an engine that translates sentences, and decodes HTML and XML as they declare."""

import codecs
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, overload

from tf_transformer.extensions.documents.alignment import Placing
from tf_transformer.extensions.documents.marked import Mark, Marked, Quotes, Splitter, sentences_in
from tf_transformer.extensions.documents.markup import parts_of
from tf_transformer.extensions.documents.subtitles import captions_of
from tf_transformer.inference.engine import Engine, strings_in
from tf_transformer.inference.words import Aligned, Span
from tf_transformer.utils.values import BadInput, shown

# Split a document into strings that are copied and texts that are translated, in order.
READERS: Mapping[str, Callable[[str], Sequence[str | Marked]]] = {
    "text": lambda document: [Marked((quotes := Quotes(document)).read(document), write=quotes.written)],
    "html": parts_of,
    "xml": lambda document: parts_of(document, is_xml=True),
    "srt": captions_of,
}
FORMATS = (*READERS,)
DocumentFormat = Literal["text", "html", "xml", "srt"]
BREAK = re.compile(r"[^\S\xa0\u202f\u3000]")
MANY = 16  # characters per token: longer sentences are cut before they are tokenized
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


@overload  # A string is also a sequence of strings.
def translate(engine: Engine, texts: str | bytes, format: str = ..., **options: Any) -> str: ...


@overload
def translate(engine: Engine, texts: Iterable[str | bytes], format: str = ..., **options: Any) -> list[str]: ...


def translate(
    engine: Engine,
    texts: str | bytes | Iterable[str | bytes],
    format: str = "text",
    sentences: Splitter | None = None,
    **options: Any,
) -> str | list[str]:
    """Translates texts of any length sentence by sentence, and keeps whitespace and markup.

        tt.documents.translate(translator, "<p>Dr. No is <b>here</b>. Write to {name}!</p>", format="html")

    Sentences longer than the model reads are cut at a semicolon, a comma or a space. Addresses and placeholders, such
    as {name} or %s, are copied verbatim.

    Args:
        engine: Translator of any kind: `Translator`, or what `load` returns for an export.
        texts: As in a call of the engine. Bytes of HTML and XML are decoded as they declare.
        format: "text", where a newline ends a sentence, or "html" or "xml", where each tag is placed once, around the
            words that `aligned` or else their positions assign to it. Code and elements with translate="no" are copied
            verbatim. Or "srt", subtitles, whose sentences may have several lines and captions.
        sentences: Function that splits a line into sentences, which joined are the line. Defaults to `sentences_in` of
            the source language.
        options: As in a call.

    Returns:
        A string for one text, a list for several.

    Raises:
        BadInput: As in a call, or if the engine has another task, the format is unknown, XML is not well formed, an
            encoding is unknown, or a package is missing.
    """
    if not isinstance(engine, Engine):
        raise BadInput(f"engine: expected a Translator or an engine of tt.load, got {shown(engine)}")
    if not engine.translates:
        raise BadInput("engine: expected a translator, got an engine of another task")
    is_single = isinstance(texts, str | bytes) or getattr(texts, "shape", None) == ()
    documents = list(strings_in([texts] if is_single else texts))
    outputs = _translated(engine, documents, format, sentences, options)
    return outputs[0] if is_single else outputs


def _translated(
    engine: Engine,
    documents: Sequence[str | bytes],
    format: str,
    sentences: Splitter | None,
    options: Mapping[str, Any],
) -> list[str]:
    if format not in FORMATS:
        raise BadInput(f"format: expected one of {', '.join(FORMATS)}, got {shown(format)}")
    if not callable(sentences or str):
        raise BadInput(f"sentences: expected a function from a line to its sentences, got {shown(sentences)}")
    language = options.get("source_language", engine.metadata.get("source_language", ""))
    splitter = sentences or sentences_in(str(language))
    texts = [each if isinstance(each, str) else decoded(each, format)[0] for each in documents]
    read = READERS[format]
    parts = [[part if isinstance(part, str) else part.with_placeholders() for part in read(text)] for text in texts]
    marked = [part for each in parts for part in each if isinstance(part, Marked)]
    spans = [part.sentences(splitter) for part in marked]
    some = [part.part(span) for part, each in zip(marked, spans, strict=True) for span in each]
    outputs = iter(_outputs(engine, some, options))
    joined = iter([part.joined(each, [next(outputs) for _ in each]) for part, each in zip(marked, spans, strict=True)])
    return ["".join(part if isinstance(part, str) else next(joined) for part in each) for each in parts]


def _outputs(engine: Engine, sentences: Sequence[Marked], options: Mapping[str, Any]) -> list[str]:
    """Translates sentences of any length. Returns their outputs, as the document writes them."""
    most: int = engine.options.get("max_source_length", 256)  # tokens
    outputs = [sentence.written() for sentence in sentences]  # unchanged
    requests, retries = list[int](), dict[int, list[Span]]()
    for i, sentence in enumerate(sentences):
        parts = 4 * len(sentence.text) // (MANY * most)
        if parts > 4 and len(spans := sentence.cut(parts)) > 1:
            retries[i] = spans
        elif sentence.around_kept():
            requests.append(i)
    for i, answer in zip(requests, _answers(engine, [sentences[i] for i in requests], options), strict=True):
        sentence = sentences[i]
        # A part should have fewer tokens than the model reads, by a fourth.
        parts = max(2, -(-5 * (answer.length or 0) // (4 * most)))
        if answer.truncated and len(spans := sentence.cut(parts)) > 1:
            retries[i] = spans
        elif answer.length == 0:
            continue
        elif output := _with_kept(answer.text, sentence):
            outputs[i] = str(Placing(sentence, answer, output))
        else:
            retries[i] = sentence.around_kept()
    if retries:
        parted = [sentences[i].part(span) for i, spans in retries.items() for span in spans]
        written = iter(_outputs(engine, parted, options))
        for i, spans in retries.items():
            outputs[i] = sentences[i].joined(spans, [next(written) for _ in spans])
    return outputs


def _answers(engine: Engine, sentences: Sequence[Marked], options: Mapping[str, Any]) -> list[Aligned]:
    # Whitespace such as U+00A0 belongs to the text.
    texts = [each.text if each.newline == "ends" else BREAK.sub(" ", each.text) for each in sentences]
    # Alignments take longer than translations, and only marks need them.
    has_marks = [engine.aligns and any(mark.start == mark.end for mark in each.marks) for each in sentences]
    marked = [text for text, has in zip(texts, has_marks, strict=True) if has]
    plain = [text for text, has in zip(texts, has_marks, strict=True) if not has]
    aligned = iter(engine.aligned(marked, **options) if marked else [])
    replies = zip(plain, engine.replies(plain, **options), strict=True)
    unaligned = (Aligned(text, one.text, truncated=one.truncated, length=one.length) for text, one in replies)
    return [next(aligned if has else unaligned) for has in has_marks]


def _with_kept(output: str, sentence: Marked) -> Marked | None:
    """Returns an output with marks for its placeholders, or `None` if one is missing or repeated."""
    raws, patterns, marks = dict[str, list[str]](), dict[str, str](), list[Mark]()
    for start, end, raw, *_ in sentence.marks:
        if end > start:
            text = sentence.text[start:end]
            raws.setdefault(text, []).append(raw)
            # "a" of <code>a</code> may also be part of a word, unless a word touches it.
            before = r"(?<!\w)" * (text[0].isalnum() and not sentence.text[max(0, start - 1) : start].isalnum())
            after = r"(?!\w)" * (text[-1].isalnum() and not sentence.text[end : end + 1].isalnum())
            pattern = f"{before}{re.escape(text)}{after}"
            patterns[text] = min(patterns.get(text, pattern), pattern, key=len)
    longest = sorted(raws, key=len, reverse=True)
    for match in re.finditer("|".join(patterns[text] for text in longest), output) if raws else ():
        if not raws[match[0]]:
            return None
        marks.append(Mark(*match.span(), raws[match[0]].pop(0)))
    return None if any(raws.values()) else Marked(output, marks, sentence.write)


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
