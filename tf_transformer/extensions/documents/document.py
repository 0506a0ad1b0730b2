"""Translates documents by an engine that translates sentences."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from tf_transformer.extensions.documents.alignment import Placing
from tf_transformer.extensions.documents.marked import Marked, Splitter, sentences_in
from tf_transformer.extensions.documents.markup import parts_of
from tf_transformer.inference.alignment import Aligned, Span
from tf_transformer.inference.engine import Engine
from tf_transformer.utils.values import BadInput, shown

Format = Literal["text", "html", "xml"]
FORMATS = get_args(Format)
MANY = 16  # characters per token: longer sentences are cut before they are tokenized


def translated(
    engine: Engine, documents: Sequence[str], format: str, sentences: Splitter | None, options: Mapping[str, Any]
) -> list[str]:
    """Translates documents. The arguments are those of `Engine.document`."""
    if format not in FORMATS:
        raise BadInput(f"format: expected one of {', '.join(FORMATS)}, got {shown(format)}")
    if not callable(sentences or str):
        raise BadInput(f"sentences: expected a function from a line to its sentences, got {shown(sentences)}")
    language = options.get("source_language", engine.metadata.get("source_language", ""))
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

    def __init__(self, engine: Engine, options: Mapping[str, Any]) -> None:
        self._engine, self._options = engine, options
        self._most: int = engine.options.get("max_source_length", 256)  # tokens

    def translated(self, sentences: Sequence[Marked]) -> list[str]:
        """Returns their outputs, as the document writes them."""
        outputs = [sentence.written() for sentence in sentences]  # unchanged
        requests, retries = list[int](), list[tuple[int, Marked, list[Span]]]()
        for i, sentence in enumerate(sentences):
            parts = 4 * len(sentence.text) // (MANY * self._most)
            if parts > 4 and len(spans := sentence.cut(parts)) > 1:
                retries.append((i, sentence, spans))
            elif sentence.without_kept().text.strip():
                requests.append(i)
        for i, answer in zip(requests, self._answers([sentences[i] for i in requests]), strict=True):
            sentence = sentences[i]
            # A part should have fewer tokens than the model reads, by a fourth.
            parts = max(2, -(-5 * (answer.length or 0) // (4 * self._most)))
            if answer.truncated and len(spans := sentence.cut(parts)) > 1:
                retries.append((i, sentence, spans))
            elif answer.length == 0:
                continue
            elif (kept := _kept_in(answer.text, sentence)) is None:
                without = sentence.without_kept()
                retries.append((i, without, without.cut(1)))
            else:
                outputs[i] = str(Placing(sentence, answer, kept))
        if retries:
            written = iter(self.translated([sentence.part(span) for _, sentence, spans in retries for span in spans]))
            for i, sentence, spans in retries:
                outputs[i] = sentence.joined(spans, [next(written) for _ in spans])
        return outputs

    def _answers(self, sentences: Sequence[Marked]) -> list[Aligned]:
        texts = [each.text if each.newline == "ends" else re.sub(r"\s", " ", each.text) for each in sentences]
        answers: dict[int, Aligned] = {}
        # Alignments take longer than translations, and only marks need them.
        marked = [i for i, each in enumerate(sentences) if any(mark.start == mark.end for mark in each.marks)]
        if marked and self._engine.aligns:
            answers.update(zip(marked, self._engine.aligned([texts[i] for i in marked], **self._options), strict=True))
        plain = [i for i in range(len(texts)) if i not in answers]
        replies = self._engine.replies([texts[i] for i in plain], **self._options)
        for i, reply in zip(plain, replies, strict=True):
            answers[i] = Aligned(texts[i], reply.text, truncated=reply.truncated, length=reply.length)
        return [answers[i] for i in range(len(texts))]


def _kept_in(output: str, sentence: Marked) -> dict[Span, str] | None:
    """Maps spans of an output to the original placeholders. Returns `None` if one is missing or repeated."""
    raw: dict[str, list[str]] = {}
    for mark in sentence.marks:
        if mark.end > mark.start:
            raw.setdefault(sentence.text[mark.start : mark.end], []).append(mark.raw)
    kept: dict[Span, str] = {}
    for text in sorted(raw, key=len, reverse=True):
        pattern = rf"(?<!\w){re.escape(text)}(?!\w)" if text[0].isalnum() or text[-1].isalnum() else re.escape(text)
        spans = [match.span() for match in re.finditer(pattern, output)]
        spans = [span for span in spans if not any(first < span[1] and span[0] < last for first, last in kept)]
        if len(spans) != len(raw[text]):
            return None
        kept |= zip(spans, raw[text], strict=True)
    return kept
