"""`Engine`, the base class of all that returns texts for texts, such as `Translator` and `SavedModel`.

It has what they share: replies, batches of similar length, options of a call, and the warning about long texts. It
loads neither Keras nor TensorFlow.
"""

import inspect
import itertools
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, overload

from tf_transformer.decoding.search_options import (
    LANGUAGES,
    SEARCH_OPTIONS,
    check_language,
    options_of,
    request_options,
)
from tf_transformer.inference.words import Aligned
from tf_transformer.utils.files import encoded, one_line
from tf_transformer.utils.processor import saturates
from tf_transformer.utils.terminal import Progress
from tf_transformer.utils.values import BadInput, Count, checked, shown

# Most batches of a stream that are sorted by length together, or most texts if these are more.
BATCHES, WINDOW = 32, 1_024
# Bytes of a row of a full batch. Longer rows count as several, since they take as much memory. Smaller batches than
# these take more time in all.
AVERAGE = 512
REQUEST_OPTIONS = tuple(options_of("request"))
UNUSED = -1e9  # score of an unused output slot in a graph
T = TypeVar("T")


class Hypothesis(NamedTuple):
    """One of the n best outputs for a text.

    The last three are `None` if only the best text was requested and the engine's graph returns no more.
    """

    text: str
    score: float  # log-probability / length penalty
    log_prob: float | None = None
    finished: bool | None = None  # whether EOS was reached
    length: int | None = None  # tokens without EOS


class TranslationResult(NamedTuple):
    """An engine's outputs for a text."""

    source: str | bytes  # the text as it was passed
    hypotheses: tuple[Hypothesis, ...]  # best first, at least one. An empty text has one without text
    length: int | None  # source tokens before truncation, `None` if they are not counted
    truncated: bool  # whether the source has more tokens than the model reads

    @property
    def text(self) -> str:
        """Best output."""
        return self.hypotheses[0].text

    @property
    def score(self) -> float:
        """Score of the best output, 0 for an empty text."""
        return self.hypotheses[0].score

    @property
    def line(self) -> str:
        """Best output without newlines."""
        return one_line(self.text)

    @property
    def empty(self) -> bool:
        """True if the source has no tokens, such as whitespace."""
        return not self.text if self.length is None else self.length == 0

    @checked
    def written(self, ending: str, n_best: bool = False) -> str:
        """Formats the result as a line, without the newline.

        Args:
            ending: File extension. ".txt" writes the best output, ".tsv" its score, a tab and the output, ".jsonl"
                text, score, truncated and empty as JSON.
            n_best: Whether JSON includes all hypotheses, each with text and score.
        """
        if ending != ".jsonl":
            return f"{self.score:.4f}\t{self.line}" if ending == ".tsv" else self.line
        fields: dict[str, Any] = {name: getattr(self, name) for name in ("score", "truncated", "empty")}
        if n_best:
            fields["n_best"] = [{"text": one_line(best.text), "score": best.score} for best in self.hypotheses]
        return json.dumps({"text": self.line, **fields}, ensure_ascii=False)


class Request(NamedTuple):
    """Validated arguments of a call, besides the texts."""

    n: int | None  # number of hypotheses. `None` requests only the best text, as fast as possible
    options: Mapping[str, Any]  # search options that the call changes, by name
    languages: Mapping[str, str]  # languages that the call changes, by name


class Engine(ABC):
    """Base class of engines, which return outputs for texts. A subclass has `_replies` and the attributes.

    Attributes:
        metadata: Metadata of the model by name, such as step, bleu, license, parameters.
        options: Search options by name.
        call_options: Names of the options that a call may change.
        max_values: Highest value of an option of a call, and of "n_best", by name.
        languages: Languages of a multilingual model, otherwise ().
        batch_size: Maximum number of texts per batch, as in `cost`. They are sorted by length first.
        translates: Whether its outputs are translations, and not those of another task.
        aligns: Whether it has `aligned`.
        parallel: How several calls run at the same time: on "threads", in "processes", or `None`, one after the other.
        joins: Whether a batch takes less time than its texts one by one, so that callers share batches.
        calls: Number of these calls that is best, or `None`, the number of cores.
    """

    translates, aligns = True, False
    parallel: Literal["threads", "processes"] | None = None
    calls: int | None = 1
    joins = True
    call_options: tuple[str, ...] = REQUEST_OPTIONS
    max_values: Mapping[str, float] = {}
    languages: Sequence[str] = ()
    batch_size: int
    _own: Mapping[str, Any] = {}  # defaults of calls, where they differ from the model's

    @property
    @abstractmethod
    def metadata(self) -> Mapping[str, Any]: ...

    @property
    def options(self) -> Mapping[str, Any]:
        """Search options by name, with the defaults of calls."""
        stored = {
            name: option.cast(self.metadata[name]) for name, option in SEARCH_OPTIONS.items() if name in self.metadata
        }
        return {**stored, **self._own}

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.options.items() if name in self.call_options)
        return f"{type(self).__name__}({', '.join(filter(None, (self._described(), options)))})"

    def _described(self) -> str:
        """Returns what `repr` shows besides the options of calls."""
        return ""

    @abstractmethod
    def _replies(self, texts: list[str | bytes], request: Request) -> Iterable[TranslationResult]:
        """Returns the replies to a batch."""

    @overload  # A string is also a sequence of strings.
    def __call__(self, texts: str | bytes, **options: Any) -> str: ...

    @overload
    def __call__(self, texts: Iterable[str | bytes], **options: Any) -> list[str]: ...

    def __call__(self, texts: str | bytes | Iterable[str | bytes], **options: Any) -> str | list[str]:
        """Returns the best output for each text: a string for one text, a list for several.

        Long calls show a progress bar in terminals and notebooks. `stream` returns outputs one by one.

        Args:
            texts: Strings, or bytes in UTF-8, of which invalid bytes count as whitespace. A tensor or a dataset of
                strings and a column of a table work too.
            options: Search options in `call_options`, and source_language and target_language of a multilingual model.
                Default to the engine's.

        Raises:
            BadInput: If an option is out of range or fixed by the engine, or a text is not a string.
            TypeError: If an option is unknown.
        """
        if isinstance(texts, str | bytes) or getattr(texts, "shape", None) == ():
            return self([texts], **options)[0]  # type: ignore[list-item]  # may be a tensor
        return [reply.text for reply in warned(self.replies(texts, **options))]

    @checked
    def n_best(self, texts: Iterable[str | bytes], n: Count = 1, **options: Any) -> list[list[Hypothesis]]:
        """Returns the n best outputs for each text, best first: 1 to beam_size. Warns if `n` is larger.

        See `__call__` for `texts` and `options`.
        """
        return [list(reply.hypotheses) for reply in warned(self.replies(texts, n, **options))]

    @checked
    def stream(
        self, texts: Iterable[str | bytes], n: Count | None = None, **options: Any
    ) -> Iterator[TranslationResult]:
        """Yields replies in the order of the texts, and reads texts lazily.

            with open("big.en") as file:
                for reply in translator.stream(file):
                    print(reply.text)

        See `__call__` for `texts` and `options`. A result has n hypotheses, or only the best text. Truncated texts
        cause no warning, since results have `truncated`.
        """
        strings, request = strings_in(texts), self.request(n, options)

        # Nested, so that invalid options raise at the call and not at the first result.
        def replies() -> Iterator[TranslationResult]:
            size = self.batch_size
            # The first batch is returned as soon as possible. Later ones are more uniform in length, and so faster.
            while some := list(itertools.islice(strings, size)):
                yield from self._in_batches(self._replies, some, request)
                size = min(2 * size, max(BATCHES * self.batch_size, WINDOW))

        return replies()

    @checked
    def replies(self, texts: Iterable[str | bytes], n: Count | None = None, **options: Any) -> list[TranslationResult]:
        """Returns a reply for each text, like `stream` in a list."""
        texts, request = list(strings_in(texts)), self.request(n, options)
        with Progress(len(texts), "texts") as progress:
            return self._in_batches(self._replies, texts, request, progress.add)

    @checked
    def aligned(self, texts: Iterable[str | bytes], **options: Any) -> list[Aligned]:
        """Returns the best output for each text, aligned with the source by tokens and words.

            sources, words, pairs = translator.aligned(["Hello world."])[0].words

        A token is aligned with the source token of highest attention in the last layer, averaged over heads. OPUS-MT's
        transformer-align models use the head that was trained for alignment. See `__call__` for `texts` and `options`.

        Raises:
            BadInput: As in a call, or if this engine has no alignments.
        """
        if not self.aligns:
            raise BadInput(f"expected an engine that aligns, a Translator or a SavedModel, got {type(self).__name__}")
        return self._in_batches(self._aligned, list(strings_in(texts)), self.request(None, options))

    def _aligned(self, texts: list[str | bytes], request: Request) -> Iterable[Aligned]:
        """Returns the aligned outputs of a batch, if the engine `aligns`."""
        raise NotImplementedError

    def _in_batches(
        self,
        function: Callable[[list[str | bytes], Request], Iterable[T]],
        texts: list[str | bytes],
        request: Request,
        progress: Callable[[int], None] = lambda count: None,
    ) -> list[T]:
        return in_batches(lambda rows: function([texts[i] for i in rows], request), texts, self.batch_size, progress)

    @checked
    def request(self, n: Count | None, options: Mapping[str, Any]) -> Request:
        """Validates the options of a call."""
        # Unknown names are a TypeError, as for Python's own keyword arguments. Then known options that are fixed here,
        # then values, so that the first message names the first cause.
        options = {**self._own, **options}
        if unknown := [name for name in options if name not in SEARCH_OPTIONS and name not in LANGUAGES]:
            supported = ", ".join((*self.call_options, *(LANGUAGES if self.languages else ())))
            raise TypeError(f"options of a call: expected {supported}; got {', '.join(unknown)}")
        search = {name: value for name, value in options.items() if name not in LANGUAGES}
        for name, value in search.items():
            if name not in self.call_options:
                raise BadInput(f"{name}: expected none in a call, since this engine fixes it, got {shown(value)}")
        search = request_options({**search, **({} if n is None else {"n_best": n})}, self.max_values)
        search.pop("n_best", None)
        # Fewer outputs than asked for are a warning: the texts are translated all the same.
        if n and n > (beams := search.get("beam_size") or self.options.get("beam_size", n)):
            warn_the_caller(f"n_best: expected at most beam_size={beams} outputs, got {n}")
        languages = {name: value for name, value in options.items() if name in LANGUAGES}
        for name, language in languages.items():
            if not self.languages:
                raise BadInput(
                    f"{name}: expected none, since this model has one pair of languages, got {shown(language)}"
                )
            check_language(name, language, self.languages)
        return Request(n, search, languages)


def strings_in(texts: Iterable[Any]) -> Iterator[str | bytes]:
    """Yields texts as Python's strings. Raises `BadInput` if one is not a string."""
    for i, text in enumerate(texts):
        string = text.numpy() if hasattr(text, "numpy") else text
        if not isinstance(string, str | bytes):
            raise BadInput(f"texts: expected strings, got {type(text).__name__} at index {i}")
        yield string


def in_batches(
    function: Callable[[list[int]], Iterable[T]],
    texts: Sequence[str | bytes],
    batch_size: int,
    progress: Callable[[int], None] = lambda count: None,
) -> list[T]:
    """Calls a function on batches of texts of similar length, and returns its values in the order of the texts.

    `function` takes the indices of a batch, and returns a value for each. `progress` is called with their number.
    """
    # Sorted, since a batch is padded to its longest text, and a search runs until its longest output ends. Long texts
    # have smaller batches, whose memory is bounded.
    values: dict[int, T] = {}
    for indices in batches([len(encoded(text)) for text in texts], batch_size):
        values.update(zip(indices, function(indices), strict=True))
        progress(len(indices))
    return [values[i] for i in range(len(texts))]


def cost(rows: int, longest: int, average: int = AVERAGE) -> int:
    """Returns how many rows of average size are as large as a batch, or its rows if these are more."""
    return max(rows, -(-rows * longest // average))


def batches(sizes: Sequence[int], most: int, cost: Callable[[int, int], int] = cost) -> Iterator[list[int]]:
    """Yields the indices of texts in batches, by size in bytes.

    `cost` takes the rows of a batch and its longest size. It is at most `most`, except of single texts.
    """
    batch: list[int] = []
    for i in sorted(range(len(sizes)), key=sizes.__getitem__):
        if batch and cost(len(batch) + 1, sizes[i]) > most:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def warned(replies: list[TranslationResult]) -> list[TranslationResult]:
    """Warns about truncated texts."""
    warn_of_truncated([reply.source for reply in replies if reply.truncated], len(replies))
    return replies


def warn_of_truncated(long: Sequence[str | bytes], count: int) -> None:
    """Warns that the texts `long`, of `count` in all, were truncated."""
    if long:
        starts = [text[:40].decode("utf-8", "replace") if isinstance(text, bytes) else text[:40] for text in long[:3]]
        shown = ", ".join(f"{start!r}..." for start in starts) + (" and others" if len(long) > 3 else "")
        warn_the_caller(f"more tokens than the model reads in {len(long):,} of {count:,} texts, truncated: {shown}")


def warn_of_saturation(path: object, metadata: Mapping[str, Any], onednn: bool = False) -> None:
    """Warns if products of an export in int8 are known to saturate on this processor."""
    if saturates(metadata, onednn):
        reason = "others saturate on processors without VNNI, such as this one, which makes outputs worse"
        warn_the_caller(
            f"{path}: expected int8 weights whose pairs add up to at most 128, since {reason}. Export the model again"
        )


def warn_the_caller(message: str) -> None:
    """Warns at the line that called this package."""
    # Calls go through several of our functions, and `checked` adds one to each, so a fixed level would not do.
    level, frame = 1, inspect.currentframe()
    while frame and frame.f_back and frame.f_globals.get("__name__", "").startswith("tf_transformer."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
