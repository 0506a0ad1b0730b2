"""Translates the elements of a Beam pipeline by a translator's SavedModel, a LiteRT or an ONNX export."""

import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.ml.inference.base import ModelHandler, RunInference

from tf_transformer.config import BadInput
from tf_transformer.decoding.search_options import LANGUAGES, request_options
from tf_transformer.extensions import documents
from tf_transformer.extensions.documents.document import DocumentFormat
from tf_transformer.inference.engine import REQUEST_OPTIONS, Hypothesis, TranslationResult, batches
from tf_transformer.inference.loading import load
from tf_transformer.utils.files import encoded, user_path
from tf_transformer.utils.values import Count, between, check_fields, checked, convert

CHUNK = 1_024  # elements that are sorted by length together
MIN_BYTES = 64  # cost of a short text, since its translation also takes steps


@dataclass(frozen=True)
class TranslationSettings:
    """How texts are translated.

    Attributes:
        path: Directory of a SavedModel, a LiteRT or an ONNX export, or of its versions, which every worker reads.
        n_best: Translations per text, at most those of the export.
        batch_bytes: Maximum batch size: rows times bytes of the longest. A row counts at least 64.
        threads: Threads of a worker process for one operation. Defaults to all cores. Only has an effect before
            TensorFlow's first operation.
        options: Search options that a request may give (`SearchOptions`), and source_language and target_language of a
            multilingual model. Defaults to the export's.
        document: Translate each text as a document, "text", "html", "xml" or "srt", to its best output. Defaults to
            sentences.

    Raises:
        BadInput: If a value is out of range.
    """

    path: str | os.PathLike[str]
    n_best: Count = 1
    batch_bytes: Count = 8_192
    threads: Annotated[int, between(1, 1_024)] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    document: DocumentFormat | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.document and self.n_best > 1:
            raise BadInput(f"n_best: expected 1 for documents, got {self.n_best}")
        if unknown := [name for name in self.options if name not in (*REQUEST_OPTIONS, *LANGUAGES)]:
            raise BadInput(f"options: expected {', '.join((*REQUEST_OPTIONS, *LANGUAGES))}; got {', '.join(unknown)}")
        search = {name: value for name, value in self.options.items() if name not in LANGUAGES}
        search = request_options({**search, "n_best": self.n_best})
        del search["n_best"]
        languages = {name: convert(name, value, str) for name, value in self.options.items() if name in LANGUAGES}
        if "://" not in os.fspath(self.path):  # not an address of another file system
            object.__setattr__(self, "path", str(user_path(self.path, "path")))
        object.__setattr__(self, "options", search | languages)


class Translate(beam.PTransform[Any, Any]):
    """Translates the elements of a PCollection, in no particular order.

        replies = pipeline | beam.Create([(1, "Two doors.")]) | tt.beam.Translate("savedmodels/demo")

    A string becomes a `TranslationResult` of `inference.engine`, a pair (key, string) becomes (key, result). With
    `text`, a dict, a NamedTuple or another object with that field becomes (element, result). Strings are str or bytes.
    Their contents never make a bundle fail.

    Each process loads the model once. LiteRT and ONNX exports do not load TensorFlow. Beam's metrics have, in the
    namespace tf_transformer, the counters sentences, tokens (of sources), truncated and empty, and the distribution
    batch_milliseconds.

    Args:
        path: Directory of a SavedModel, a LiteRT or an ONNX export, or of its versions, of which the newest is used.
        text: Name of the field that contains the text.
        method: The other fields of `TranslationSettings`.

    Raises:
        BadInput: If a value is out of range.
    """

    @checked
    def __init__(self, path: str | os.PathLike[str], text: str | None = None, **method: Any) -> None:
        super().__init__()
        self._handler = Handler(TranslationSettings(path, **method), CHUNK, functools.partial(_translated, text))

    def expand(self, elements: Any) -> Any:
        return elements | RunInference(self._handler)


class Model:
    """A loaded model, which updates Beam's metrics."""

    def __init__(self, method: TranslationSettings) -> None:
        self.method = method
        self._engine = load(method.path, batch_size=CHUNK, threads=method.threads)
        self._n = method.n_best if method.n_best > 1 else None
        if not self._engine.translates:
            message = "expected a translator's export, got one of another task. Open it with tt.load."
            raise BadInput(f"{method.path}: {message}")
        try:
            self._engine.request(self._n, method.options)
        except BadInput as error:
            raise BadInput(f"{method.path}: {error}") from error

    def replies(self, texts: Sequence[str | bytes]) -> list[TranslationResult]:
        """Returns the reply to each text, computed in batches of similar length."""
        if self.method.document:
            outputs = documents.translate(self._engine, texts, self.method.document, **self.method.options)
            counters["sentences"].inc(len(texts))
            pairs = zip(texts, outputs, strict=True)
            return [TranslationResult(text, (Hypothesis(output, 0.0),), None, False) for text, output in pairs]
        replies, sizes = dict[int, TranslationResult](), [len(encoded(text)) for text in texts]
        for rows in batches(sizes, self.method.batch_bytes, lambda rows, longest: rows * max(longest, MIN_BYTES)):
            began = time.monotonic()
            batch = self._engine.replies([texts[i] for i in rows], self._n, **self.method.options)
            replies.update(zip(rows, batch, strict=True))
            milliseconds.update(round((time.monotonic() - began) * 1_000))
        counters["sentences"].inc(len(texts))
        counters["tokens"].inc(sum(reply.length or 0 for reply in replies.values()))
        for name in ("truncated", "empty"):
            counters[name].inc(sum(getattr(reply, name) for reply in replies.values()))
        return [replies[i] for i in range(len(texts))]


NAMESPACE = "tf_transformer"
counters = {name: Metrics.counter(NAMESPACE, name) for name in ("sentences", "tokens", "truncated", "empty")}
milliseconds = Metrics.distribution(NAMESPACE, "batch_milliseconds")


class Handler(ModelHandler[Any, Any, Model]):
    """Loads a method's model, once per process, for Beam's `RunInference`, which passes `chunk` elements to `run`."""

    def __init__(
        self, method: TranslationSettings, chunk: int, run: Callable[[Model, Sequence[Any]], Iterable[Any]]
    ) -> None:
        super().__init__()
        self._method, self._chunk, self._run = method, chunk, run

    def load_model(self) -> Model:
        return Model(self._method)

    def run_inference(
        self, batch: Sequence[Any], model: Model, inference_args: dict[str, Any] | None = None
    ) -> Iterable[Any]:
        return self._run(model, batch)

    def batch_elements_kwargs(self) -> Mapping[str, Any]:
        # Equal limits keep Beam from tuning the size. `Model` sorts these elements, and makes its own batches.
        return {"min_batch_size": self._chunk, "max_batch_size": self._chunk}

    def get_num_bytes(self, batch: Sequence[Any]) -> int:
        return 0  # Counting would copy all elements.

    def get_metrics_namespace(self) -> str:
        return NAMESPACE


def _translated(field: str | None, model: Model, elements: Sequence[Any]) -> Iterator[Any]:
    """Yields the results for elements, with their keys, or with the elements that have the text in a field."""
    texts = list[str | bytes]()
    for element in elements:
        text, expected = element, "a string, or a key and a string"
        if field is not None:
            expected = f"a string in the field {field!r}"
            text = element.get(field) if isinstance(element, Mapping) else getattr(element, field, None)
        elif isinstance(element, tuple) and len(element) == 2:
            text = element[1]
        if not isinstance(text, str | bytes):
            raise BadInput(f"elements: expected {expected}, got {element!r:.80}")
        texts.append(text)
    for element, reply in zip(elements, model.replies(texts), strict=True):
        is_text = field is None and isinstance(element, str | bytes)
        yield reply if is_text else (element[0] if field is None else element, reply)
