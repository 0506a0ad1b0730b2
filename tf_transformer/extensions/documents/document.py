"""Translates documents by an engine that translates sentences."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from tf_transformer.extensions.documents.alignment import Placing
from tf_transformer.extensions.documents.encodings import decoded
from tf_transformer.extensions.documents.marked import Marked, Splitter, sentences_in
from tf_transformer.extensions.documents.markup import parts_of
from tf_transformer.extensions.documents.subtitles import captions_of
from tf_transformer.extensions.documents.words import Span
from tf_transformer.inference.engine import Aligned, DocumentFormat, Engine
from tf_transformer.utils.values import BadInput, shown

FORMATS = get_args(DocumentFormat)
BREAK = re.compile(r"[^\S\xa0\u202f\u3000]")
MANY = 16  # characters per token: longer sentences are cut before they are tokenized


def translated(
    engine: Engine,
    documents: Sequence[str | bytes],
    format: str,
    sentences: Splitter | None,
    options: Mapping[str, Any],
) -> list[str]:
    """Translates documents. The arguments are those of `Engine.document`."""
    if format not in FORMATS:
        raise BadInput(f"format: expected one of {', '.join(FORMATS)}, got {shown(format)}")
    if not callable(sentences or str):
        raise BadInput(f"sentences: expected a function from a line to its sentences, got {shown(sentences)}")
    language = options.get("source_language", engine.metadata.get("source_language", ""))
    splitter = sentences or sentences_in(str(language))
    texts = [each if isinstance(each, str) else decoded(each, format)[0] for each in documents]
    parts = [[part if isinstance(part, str) else part.prepared() for part in _parts(text, format)] for text in texts]
    marked = [part for each in parts for part in each if isinstance(part, Marked)]
    spans = [part.sentences(splitter) for part in marked]
    some = [part.part(span) for part, each in zip(marked, spans, strict=True) for span in each]
    outputs = iter(_Sentences(engine, options).translated(some))
    joined = iter([part.joined(each, [next(outputs) for _ in each]) for part, each in zip(marked, spans, strict=True)])
    return ["".join(part if isinstance(part, str) else next(joined) for part in each) for each in parts]


def _parts(document: str, format: str) -> Sequence[str | Marked]:
    """Splits a document into strings that are copied and texts that are translated, in order."""
    if format == "text":
        return [Marked(document)]
    return captions_of(document) if format == "srt" else parts_of(document, format == "xml")


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
        # White space such as U+00A0 belongs to the text.
        texts = [each.text if each.newline == "ends" else BREAK.sub(" ", each.text) for each in sentences]
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
    raws, patterns = dict[str, list[str]](), dict[str, str]()
    for start, end, raw, *_ in sentence.marks:
        if end > start:
            text = sentence.text[start:end]
            raws.setdefault(text, []).append(raw)
            around = sentence.text[max(0, start - 1) : start], sentence.text[end : end + 1]
            if any(map(str.isalnum, around)) or not (text[0].isalnum() or text[-1].isalnum()):
                patterns[text] = re.escape(text)
            else:  # "a" of <code>a</code> may also be part of a word
                patterns.setdefault(text, rf"(?<!\w){re.escape(text)}(?!\w)")
    if not raws:
        return {}
    kept: dict[Span, str] = {}
    for match in re.finditer("|".join(patterns[text] for text in sorted(raws, key=len, reverse=True)), output):
        if not raws[match[0]]:
            return None
        kept[match.span()] = raws[match[0]].pop(0)
    return None if any(raws.values()) else kept
