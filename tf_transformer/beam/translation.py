"""A SavedModel, a translator's or a parser's, or a LiteRT export, on the elements of a Beam pipeline."""

import contextlib
import functools
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.ml.inference.base import ModelHandler, RunInference

from tf_transformer.base.files import encoded, one_line, user_path
from tf_transformer.base.folders import is_litert, saved_model_of
from tf_transformer.base.type_names import Tensor
from tf_transformer.base.values import Count, between, check_fields, checked, convert
from tf_transformer.config import BadInput
from tf_transformer.conformance.check import plainly_named
from tf_transformer.engines.litert import litert_translator
from tf_transformer.text.search_options import LANGUAGES, SEARCH_OPTIONS, problem

CHUNK = 1_024  # elements that are sorted by length together
LEAST_BYTES = 64  # what a short text counts: its translation takes steps, too
UNUSED = -1e9  # the score of a place without a translation
_OPTIONS = [name for name, option in SEARCH_OPTIONS.items() if option.request]


@dataclass(frozen=True)
class Hypothesis:
    """One of the n best translations of a text.

    Attributes:
        text: the translation.
        score: its log-probability / length penalty.
    """

    text: str
    score: float


@dataclass(frozen=True)
class TranslatedText:
    """What a model made of a text.

    Attributes:
        source: the text, as it came.
        text: the best translation, or the tree of a parser; "" if the source is empty. It has no newline.
        score: its score; 0 if the source is empty.
        truncated: the source had more tokens than the model reads; the rest was left out.
        empty: the source has no tokens: nothing, white space or control characters.
        n_best: the best translations, best first, if more than one was asked for.
    """

    source: str | bytes
    text: str
    score: float
    truncated: bool
    empty: bool
    n_best: tuple[Hypothesis, ...] = ()


@dataclass(frozen=True)
class TranslationSettings:
    """How texts are translated.

    Attributes:
        path: the folder of a SavedModel or of a LiteRT export, or of its versions, which every worker reads.
        n_best: translations of each text, at most those of the export.
        batch_bytes: the most rows of a batch, times the bytes of its longest; a row counts at least 64.
        threads: of a worker process for one operation; `None` means all cores. It has an effect in processes in which
            TensorFlow has done nothing before.
        options: of the search, those that a request may give (`SEARCH_OPTIONS`); and source_language and
            target_language, of a model of several. The others are the export's.

    Raises:
        BadInput: a value is out of range.
    """

    path: str | os.PathLike[str]
    n_best: Count = 1
    batch_bytes: Count = 8_192
    threads: Annotated[int, between(1, 1_024)] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        if unknown := [name for name in self.options if name not in (*_OPTIONS, *LANGUAGES)]:
            raise BadInput(f"options: expected {', '.join((*_OPTIONS, *LANGUAGES))}; got {', '.join(unknown)}")
        if wrong := problem({**self.search, "n_best": self.n_best}):
            raise BadInput(wrong)
        languages = {name: convert(name, value, str) for name, value in self.options.items() if name in LANGUAGES}
        if "://" not in os.fspath(self.path):  # of another file system it stays as it is
            object.__setattr__(self, "path", str(user_path(self.path, "path")))
        own = {name: SEARCH_OPTIONS[name].cast(value) for name, value in self.search.items()}
        object.__setattr__(self, "options", own | languages)

    @property
    def search(self) -> dict[str, Any]:
        """The options without languages."""
        return {name: value for name, value in self.options.items() if name not in LANGUAGES}


class Translate(beam.PTransform[Any, Any]):
    """Translates the elements of a PCollection, each with its own key, in no order.

    A string becomes a `TranslatedText`. A pair (key, string) becomes (key, `TranslatedText`). With `text`, a dict, a
    NamedTuple or another object with that field becomes (element, `TranslatedText`). Strings are str or bytes; none
    makes a bundle fail, whatever it contains.

    The model is loaded once a process; a LiteRT export loads no TensorFlow. Beam's metrics have, in the namespace
    tf_transformer, the counters sentences, tokens (of sources; not for a parser), truncated and empty, and the
    distribution batch_milliseconds.

    Args:
        path: the folder of a translator's SavedModel, a parser's, or a LiteRT export, or that of its versions, which
            means the newest.
        text: the name of the field that holds the text.
        method: the other fields of `TranslationSettings`.

    Raises:
        BadInput: a value is out of range.
    """

    @checked
    def __init__(self, path: str | os.PathLike[str], text: str | None = None, **method: Any) -> None:
        super().__init__()
        self._handler = _ElementHandler(TranslationSettings(path, **method), text)

    def expand(self, elements: Any) -> Any:
        return elements | RunInference(self._handler)


class Model(Protocol):
    """A loaded model."""

    def answers(self, texts: Sequence[str | bytes]) -> list[TranslatedText]:
        """The answer to each text."""


class LiteRTModel:
    """A loaded LiteRT export, which translates one text after the other.

    Raises:
        BadInput: as of `litert_translator`, or the method asks for what the export fixes.
    """

    def __init__(self, method: TranslationSettings) -> None:
        self._model = litert_translator(method.path, method.threads or 1)
        if fixed := method.options.keys() - self._model.options.keys():
            raise BadInput(f"{method.path}: expected no {', '.join(sorted(fixed))}, which the export fixes")
        most = {"max_length": self._model.facts["max_length"], "n_best": self._model.facts["beam_size"]}
        if wrong := problem({**method.search, "n_best": method.n_best}, most):
            raise BadInput(f"{method.path}: {wrong}")
        self._method = method

    def answers(self, texts: Sequence[str | bytes]) -> list[TranslatedText]:
        """The answer to each text."""
        rows = [self._answer(text) for text in texts]
        _count(rows)
        return rows

    def _answer(self, text: str | bytes) -> TranslatedText:
        began = time.monotonic()
        length = len(self._model.source_ids(text))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of long texts: the answer says so
            best = self._model.n_best(text, self._method.n_best, **self._method.options)
        made = [Hypothesis(one_line(one.text), one.score) for one in best]
        counters["tokens"].inc(length)
        milliseconds.update(round((time.monotonic() - began) * 1_000))
        truncated = length > self._model.facts["max_source_length"]
        n_best = tuple(made) if self._method.n_best > 1 else ()
        return TranslatedText(text, made[0].text, made[0].score, truncated, length == 0, n_best)


class SavedModel:
    """A loaded SavedModel that answers any number of texts.

    Raises:
        BadInput: the folder holds no SavedModel, or one that cannot do what the method asks for.
    """

    def __init__(self, method: TranslationSettings) -> None:
        if method.threads:
            os.environ["TF_NUM_INTRAOP_THREADS"] = str(method.threads)
        import tensorflow as tf

        import tf_transformer.text.tokenizer  # noqa: F401  (tensorflow-text's operations are in the SavedModel)

        self._method = method
        with contextlib.ExitStack() as stack:
            local = "://" not in os.fspath(method.path)
            path = stack.enter_context(plainly_named(saved_model_of(method.path))) if local else method.path
            self._model = tf.saved_model.load(str(path))  # owns what the signatures read
        signatures = self._model.signatures
        self._default, self._tokenize = signatures["serving_default"], signatures.get("tokenize")
        self._translate = None
        if method.options or method.n_best > 1:
            self._translate = self._checked_translate()

    def _checked_translate(self) -> Any:
        """The function `translate` with the options."""
        import tensorflow as tf

        from tf_transformer.engines.savedmodel import spoken

        method = self._method
        if not hasattr(self._model, "translate"):
            raise BadInput(f"{method.path}: expected a translator's SavedModel, for n_best or options of the search")
        limits = {"beam_size": "max_beam_size", "max_length": "max_length", "n_best": "n_best"}
        found = self._model.model_info(tf.constant(list(limits.values())))["value"].numpy()
        most = {name: int(value) for name, value in zip(limits, found, strict=True)}
        if wrong := problem({**method.search, "n_best": method.n_best}, most):
            raise BadInput(f"{method.path}: {wrong}")
        options = {name: tf.constant([value], SEARCH_OPTIONS[name].dtype) for name, value in method.search.items()}
        languages = {name: value for name, value in method.options.items() if name in LANGUAGES}
        return functools.partial(self._model.translate, **options, **spoken(self._model, languages))

    def answers(self, texts: Sequence[str | bytes]) -> list[TranslatedText]:
        """The answer to each text, computed in batches of similar length."""
        import tensorflow as tf

        in_utf_8 = [encoded(text) for text in texts]
        rows: list[Any] = [None] * len(texts)
        for places in batches([len(text) for text in in_utf_8], self._method.batch_bytes):
            began = time.monotonic()
            answers = self._answers_of_a_batch([texts[i] for i in places], tf.constant([in_utf_8[i] for i in places]))
            for i, answer in zip(places, answers, strict=True):
                rows[i] = answer
            milliseconds.update(round((time.monotonic() - began) * 1_000))
        _count(rows)
        return rows

    def _answers_of_a_batch(self, sources: list[str | bytes], texts: Tensor) -> Iterator[TranslatedText]:
        import tensorflow as tf

        if self._translate is None:
            outputs = self._default(text=texts)
            (best,) = (output for output in outputs.values() if output.dtype == tf.string)
            found, scores = best.numpy()[:, None], outputs["score"].numpy()[:, None]  # [B, 1]
        else:
            outputs = self._translate(texts)
            found, scores = outputs["translations"].numpy(), outputs["scores"].numpy()  # [B, N]
        truncated = outputs["truncated"].numpy().tolist()
        if self._tokenize is None:  # a parser's
            empty = [not row[0] for row in found]
        else:
            lengths = self._tokenize(text=texts)["length"].numpy()
            counters["tokens"].inc(int(lengths.sum()))
            empty = (lengths == 0).tolist()
        for i, source in enumerate(sources):
            lines = [one_line(text.decode("utf-8", "replace")) for text in found[i]]
            made = [Hypothesis(text, score) for text, score in zip(lines, scores[i].tolist(), strict=True)]
            n_best = tuple(each for each in made[: self._method.n_best] if each.score > UNUSED)
            n_best = n_best if self._method.n_best > 1 else ()
            yield TranslatedText(source, made[0].text, made[0].score, truncated[i], empty[i], n_best)


def batches(sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    """The places of texts in batches, by size.

    Args:
        sizes: of the texts, in bytes.
        most: of a batch, its rows times its longest size; a longer text is alone.
    """
    batch: list[int] = []
    for i in sorted(range(len(sizes)), key=sizes.__getitem__):
        if batch and (len(batch) + 1) * max(sizes[i], LEAST_BYTES) > most:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _count(rows: Sequence[TranslatedText]) -> None:
    """Beam's metrics of answers."""
    counters["sentences"].inc(len(rows))
    for name in ("truncated", "empty"):
        counters[name].inc(sum(getattr(row, name) for row in rows))


NAMESPACE = "tf_transformer"
counters = {name: Metrics.counter(NAMESPACE, name) for name in ("sentences", "tokens", "truncated", "empty")}
milliseconds = Metrics.distribution(NAMESPACE, "batch_milliseconds")


class Handler(ModelHandler[Any, Any, Model]):
    """Loads a method's model, once a process, for Beam's `RunInference`.

    Args:
        method: how texts are translated.
        chunk: elements that `run_inference` gets at once.
    """

    def __init__(self, method: TranslationSettings, chunk: int) -> None:
        super().__init__()
        self.method = method
        self._chunk = chunk

    def load_model(self) -> Model:
        return (LiteRTModel if is_litert(self.method.path) else SavedModel)(self.method)

    def batch_elements_kwargs(self) -> Mapping[str, Any]:
        return {"min_batch_size": self._chunk, "max_batch_size": self._chunk}

    def get_num_bytes(self, batch: Sequence[Any]) -> int:
        return 0  # a count would cost a copy of all elements

    def get_metrics_namespace(self) -> str:
        return NAMESPACE


class _ElementHandler(Handler):
    """Answers the elements of `Translate`."""

    def __init__(self, method: TranslationSettings, text: str | None) -> None:
        super().__init__(method, CHUNK)
        self._text = text

    def run_inference(
        self, batch: Sequence[Any], model: Model, inference_args: dict[str, Any] | None = None
    ) -> Iterable[Any]:
        answers = model.answers([self._text_of(element) for element in batch])
        for element, answer in zip(batch, answers, strict=True):
            if self._text is not None:
                yield element, answer
            else:
                yield answer if isinstance(element, str | bytes) else (element[0], answer)

    def _text_of(self, element: Any) -> str | bytes:
        text, expected = element, "a string, or a key and a string"
        if self._text is not None:
            expected = f"a string in the field {self._text!r}"
            text = element.get(self._text) if isinstance(element, Mapping) else getattr(element, self._text, None)
        elif isinstance(element, tuple) and len(element) == 2:
            text = element[1]
        if not isinstance(text, str | bytes):
            raise BadInput(f"elements: expected {expected}, got {element!r:.80}")
        return text
