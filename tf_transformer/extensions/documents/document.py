"""Translates documents by an engine that translates sentences."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

from tf_transformer.extensions.documents.alignment import Placing
from tf_transformer.extensions.documents.marked import Marked, Splitter, sentences_in
from tf_transformer.extensions.documents.markup import parts_of
from tf_transformer.inference.alignment import Aligned, Span
from tf_transformer.utils.values import BadInput, shown

Format = Literal["text", "html", "xml"]
FORMATS = get_args(Format)
MANY = 16  # characters a token: a sentence of more is cut before it is tokenized


class Answered(Protocol):
    """What documents need of an engine's `Reply`."""

    @property
    def text(self) -> str: ...

    @property
    def length(self) -> int | None: ...

    @property
    def truncated(self) -> bool: ...


class Translating(Protocol):
    """What documents need of an engine."""

    @property
    def options(self) -> Mapping[str, Any]: ...

    @property
    def facts(self) -> Mapping[str, Any]: ...

    @property
    def aligns(self) -> bool: ...

    def replies(self, texts: list[str], n: None = None, **options: Any) -> Sequence[Answered]: ...

    def aligned(self, texts: list[str], **options: Any) -> Sequence[Aligned]: ...


def translated(
    engine: Translating, documents: Sequence[str], format: str, sentences: Splitter | None, options: Mapping[str, Any]
) -> list[str]:
    """The translations of documents; the arguments are those of `Engine.document`.

    Raises:
        BadInput: there is no such format, or the sentences are not the text.
    """
    if format not in FORMATS:
        raise BadInput(f"format: expected one of {', '.join(FORMATS)}, got {shown(format)}")
    if not callable(sentences or str):
        raise BadInput(f"sentences: expected a function from a line to its sentences, got {shown(sentences)}")
    language = options.get("source_language", engine.facts.get("source_language", ""))
    splitter = sentences or sentences_in(str(language))
    read = [[Marked(text)] if format == "text" else parts_of(text, format == "xml") for text in documents]
    parts = [[part if isinstance(part, str) else part.with_placeholders() for part in each] for each in read]
    marked = [part for each in parts for part in each if isinstance(part, Marked)]
    spans = [part.sentences(splitter) for part in marked]
    some = [part.part(span) for part, each in zip(marked, spans, strict=True) for span in each]
    outputs = iter(_Sentences(engine, options).translated(some))
    joined = iter([part.joined(each, [next(outputs) for _ in each]) for part, each in zip(marked, spans, strict=True)])
    return ["".join(part if isinstance(part, str) else next(joined) for part in each) for each in parts]


class _Sentences:
    """Translates sentences of any length, with their marks."""

    def __init__(self, engine: Translating, options: Mapping[str, Any]) -> None:
        self._engine, self._options = engine, options
        self._most: int = engine.options.get("max_source_length", 256)  # tokens

    def translated(self, sentences: Sequence[Marked]) -> list[str]:
        """Their outputs, as the document writes them."""
        outputs = [sentence.written() for sentence in sentences]  # as they are
        asked, again = list[int](), list[tuple[int, Marked, list[Span]]]()
        for place, sentence in enumerate(sentences):
            parts = 4 * len(sentence.text) // (MANY * self._most)
            if parts > 4 and len(spans := sentence.cut(parts)) > 1:
                again.append((place, sentence, spans))
            elif sentence.without_kept().text.strip():
                asked.append(place)
        for place, answer in zip(asked, self._answers([sentences[place] for place in asked]), strict=True):
            sentence = sentences[place]
            if answer.truncated and len(spans := sentence.cut(self._parts(answer))) > 1:
                again.append((place, sentence, spans))
            elif answer.length == 0:
                continue
            elif (kept := _kept_in(answer.text, sentence)) is None:
                without = sentence.without_kept()
                again.append((place, without, without.cut(1)))
            else:
                outputs[place] = str(Placing(sentence, answer, kept))
        if again:
            written = iter(self.translated([sentence.part(span) for _, sentence, spans in again for span in spans]))
            for place, sentence, spans in again:
                outputs[place] = sentence.joined(spans, [next(written) for _ in spans])
        return outputs

    def _parts(self, answer: Aligned) -> int:
        return max(2, -(-5 * (answer.length or 0) // (4 * self._most)))  # with a fourth to spare

    def _answers(self, sentences: Sequence[Marked]) -> list[Aligned]:
        texts = [each.text if each.newline == "ends" else re.sub(r"\s", " ", each.text) for each in sentences]
        answers: list[Aligned | None] = [None] * len(texts)
        marked = [place for place, each in enumerate(sentences) if any(mark.start == mark.end for mark in each.marks)]
        if marked and self._engine.aligns:
            for place, one in zip(
                marked, self._engine.aligned([texts[i] for i in marked], **self._options), strict=True
            ):
                answers[place] = one
        plain = [place for place, answer in enumerate(answers) if answer is None]
        replies = self._engine.replies([texts[i] for i in plain], **self._options)
        for place, reply in zip(plain, replies, strict=True):
            answers[place] = Aligned(texts[place], reply.text, truncated=reply.truncated, length=reply.length)
        return [answer for answer in answers if answer is not None]


def _kept_in(output: str, sentence: Marked) -> dict[Span, str] | None:
    """The places in an output of what stays as it is, and how the document writes it; `None` if one is not there, or
    comes too often."""
    raw: dict[str, list[str]] = {}
    for mark in sentence.marks:
        if mark.end > mark.start:
            raw.setdefault(sentence.text[mark.start : mark.end], []).append(mark.raw)
    found: dict[Span, str] = {}
    for text in sorted(raw, key=len, reverse=True):
        pattern = rf"(?<!\w){re.escape(text)}(?!\w)" if text[0].isalnum() or text[-1].isalnum() else re.escape(text)
        spans = [match.span() for match in re.finditer(pattern, output)]
        spans = [span for span in spans if not any(first < span[1] and span[0] < last for first, last in found)]
        if len(spans) != len(raw[text]):
            return None
        found |= zip(spans, raw[text], strict=True)
    return found
