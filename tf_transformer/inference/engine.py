"""An engine answers texts: a `Translator`, a SavedModel, a LiteRT or an ONNX export, a `Parser`.

What all of them share stands here, once: the form of an answer, batches of similar length, the options of a call and
what they may be, and the warning about texts that are too long. It loads neither Keras nor TensorFlow.
"""

import inspect
import itertools
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, overload

from tf_transformer import registry
from tf_transformer.decoding.search_options import SEARCH_OPTIONS, of_request
from tf_transformer.inference.alignment import Aligned
from tf_transformer.tokenizers.languages import LANGUAGES, check_language
from tf_transformer.utils.files import encoded, one_line
from tf_transformer.utils.terminal import Progress
from tf_transformer.utils.values import BadInput, Count, Natural, checked, shown

BATCHES = 32  # that are sorted by length together, of texts that come one after the other
REQUEST_OPTIONS = tuple(name for name, option in SEARCH_OPTIONS.items() if option.request)
UNUSED = -1e9  # in a graph, the score of a place without an output
T = TypeVar("T")


class Answer(NamedTuple):
    """One of the n best outputs for a text: a translation, or a parser's tree.

    The last three are `None` where an engine was asked for the best text alone and its graph says no more.
    """

    text: str
    score: float  # log-probability / length penalty
    log_prob: float | None = None
    finished: bool | None = None  # the end symbol was reached
    length: int | None = None  # its symbols, without the end symbol


class Reply(NamedTuple):
    """What an engine makes of a text."""

    source: str | bytes  # the text, as it came
    answers: tuple[Answer, ...]  # best first, at least one; of an empty text one without text
    length: int | None  # the source's tokens, before the cut; `None` of a parser
    truncated: bool  # the source has more tokens than the model reads; the rest was left out

    @property
    def text(self) -> str:
        """The best output."""
        return self.answers[0].text

    @property
    def score(self) -> float:
        """The best output's score; 0 of an empty text."""
        return self.answers[0].score

    @property
    def line(self) -> str:
        """The best output as one line of a file."""
        return one_line(self.text)

    @property
    def empty(self) -> bool:
        """Whether the source has no tokens: it is nothing, white space or control characters."""
        return not self.text if self.length is None else self.length == 0

    @checked
    def written(self, ending: str, n_best: bool = False) -> str:
        """The reply as a line of a file, without its newline.

        Args:
            ending: of the file's name: ".txt" for the best output; ".tsv" for its score, a tab, and the output;
                ".jsonl" for text, score, truncated and empty as JSON.
            n_best: JSON has all answers, each with text and score.
        """
        if ending != ".jsonl":
            return f"{self.score:.4f}\t{self.line}" if ending == ".tsv" else self.line
        fields: dict[str, Any] = {name: getattr(self, name) for name in ("score", "truncated", "empty")}
        if n_best:
            fields["n_best"] = [{"text": one_line(one.text), "score": one.score} for one in self.answers]
        return json.dumps({"text": self.line, **fields}, ensure_ascii=False)


class Request(NamedTuple):
    """What a call asks for beside the texts."""

    n: int | None  # the number of answers; `None` means the best text alone, as fast as the engine can
    options: Mapping[str, Any]  # of the search, by name, those that the call changes
    languages: Mapping[str, str]  # those that the call changes


class Engine(ABC):
    """What answers texts. A subclass has `_replies` and the attributes.

    Attributes:
        facts: what the model says of itself, by name, such as step, bleu, license, parameters.
        options: of its search, by name.
        changeable: the names of those that a call may change.
        highest: by name, the greatest value of an option of a call, and of "n_best".
        languages: those that the model knows; () if it has one pair.
        batch_size: texts a batch; they are sorted by length first.
        translates: whether it has `document`; a parser has not.
        aligns: whether it has `aligned`.
    """

    translates, aligns = True, False
    changeable: tuple[str, ...] = REQUEST_OPTIONS
    highest: Mapping[str, float] = {}
    languages: Sequence[str] = ()
    batch_size: int
    _own: Mapping[str, Any] = {}  # defaults of calls that differ from the model's

    @property
    @abstractmethod
    def facts(self) -> Mapping[str, Any]: ...

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the search, those of calls with their defaults."""
        stored = {name: option.cast(self.facts[name]) for name, option in SEARCH_OPTIONS.items() if name in self.facts}
        return {**stored, **self._own}

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.options.items() if name in self.changeable)
        return f"{type(self).__name__}({', '.join(filter(None, (self._described(), options)))})"

    def _described(self) -> str:
        """What `repr` says besides the options of calls."""
        return ""

    @abstractmethod
    def _replies(self, texts: list[str | bytes], request: Request) -> Iterable[Reply]:
        """The replies to a batch."""

    @overload  # a string is a sequence of strings, too
    def __call__(self, texts: str | bytes, **options: Any) -> str: ...

    @overload
    def __call__(self, texts: Iterable[str | bytes], **options: Any) -> list[str]: ...

    def __call__(self, texts: str | bytes | Iterable[str | bytes], **options: Any) -> str | list[str]:
        """The best output for each text. One text gives a string, several give a list.

        A person who watches sees how far a long call is. `stream` gives outputs as they come.

        Args:
            texts: str, or bytes in UTF-8; bytes that are not count as white space. A tensor or a dataset of strings
                and a column of a table are texts, too.
            options: of the search, those in `changeable`; and source_language and target_language, of a model of
                several. By default the engine's own.

        Raises:
            BadInput: an option has another value than it may have, or the engine fixes it; or a text is no string.
            TypeError: there is no such option.
        """
        if isinstance(texts, str | bytes) or getattr(texts, "shape", None) == ():
            return self([texts], **options)[0]  # type: ignore[list-item]  # of a tensor
        return [reply.text for reply in warned(self.replies(texts, **options))]

    @checked
    def n_best(self, texts: Iterable[str | bytes], n: Count = 1, **options: Any) -> list[list[Answer]]:
        """The n best outputs for each text, best first; at most beam_size, of which a warning tells, and at least one.

        Args:
            texts: as in a call.
            n: how many.
            options: as in a call.
        """
        return [list(reply.answers) for reply in warned(self.replies(texts, n, **options))]

    @checked
    def stream(self, texts: Iterable[str | bytes], n: Count | None = None, **options: Any) -> Iterator[Reply]:
        """Replies as they come, in the order of the texts, for texts that are many or come one by one.

            with open("big.en") as file:
                for reply in translator.stream(file):
                    print(reply.text)

        A file or a generator is read as far as the replies are wanted. The first batch of texts is answered at once;
        then more and more batches are sorted by length together. It warns of nothing, since a reply has `truncated`.

        Args:
            texts: as in a call.
            n: how many answers; `None` means the best text alone.
            options: as in a call.
        """
        return self._stream(strings_in(texts), self.request(n, options))  # which checks them now

    def _stream(self, texts: Iterator[str | bytes], request: Request) -> Iterator[Reply]:
        size = self.batch_size
        while some := list(itertools.islice(texts, size)):
            yield from self._answered(some, request)
            size = min(2 * size, BATCHES * self.batch_size)

    @checked
    def replies(self, texts: Iterable[str | bytes], n: Count | None = None, **options: Any) -> list[Reply]:
        """What a call and `n_best` tell, and more; it warns of nothing, since a reply has `truncated`.

        Args:
            texts: as in a call.
            n: how many answers; `None` means the best text alone.
            options: as in a call.
        """
        texts, request = check_texts(texts), self.request(n, options)
        with Progress(len(texts), "texts") as progress:
            return self._answered(texts, request, progress.add)

    @overload
    def document(self, texts: str | bytes, format: str = ..., **options: Any) -> str: ...

    @overload
    def document(self, texts: Iterable[str | bytes], format: str = ..., **options: Any) -> list[str]: ...

    def document(
        self,
        texts: str | bytes | Iterable[str | bytes],
        format: str = "text",
        sentences: Callable[[str], Sequence[str]] | None = None,
        **options: Any,
    ) -> str | list[str]:
        """Texts of any length, translated sentence by sentence, with the white space and the markup between them.

            translator.document("<p>Dr. No is <b>here</b>. Write to {name}!</p>", format="html")

        Sentences longer than the model reads are cut at a semicolon, a comma or a space. Addresses and the places of
        values, such as {name} or %s, come out as they went in.

        Args:
            texts: as in a call.
            format: "text", where the end of a line ends a sentence; or "html" or "xml", whose tags come out once each,
                around the words that belong to theirs, by `aligned` or else by their places. Code and what says
                translate="no" stay as they are.
            sentences: from a line to its sentences, which joined are the line; by default `sentences_in` of the source
                language.
            options: as in a call.

        Raises:
            BadInput: as of a call; the engine is a parser; there is no such format; or the default `sentences` lacks
                its package.
        """
        if not self.translates:
            raise BadInput("document: expected a translator, got a parser, which takes sentences")
        one = isinstance(texts, str | bytes) or getattr(texts, "shape", None) == ()
        given = check_texts([texts] if one else texts)
        strings = [text.decode("utf-8", "replace") if isinstance(text, bytes) else text for text in given]
        outputs: list[str] = registry.find("services", "documents")(self, strings, format, sentences, options)
        return outputs[0] if one else outputs

    def aligned(self, texts: Iterable[str | bytes], **options: Any) -> list[Aligned]:
        """The best output for each text, and which of its tokens, and words, belong to which of the source's.

            sources, words, pairs = translator.aligned(["Hello world."])[0].words

        A token belongs to the one that it attended to the most, in the last layer, by the mean of its heads; or by the
        head that was trained for it, in OPUS-MT's models of the kind transformer-align.

        Args:
            texts: as in a call.
            options: as in a call.

        Raises:
            BadInput: as of a call; or this engine's answers have no alignment.
        """
        if not self.aligns:
            raise BadInput(f"expected an engine that aligns, a Translator or a SavedModel, got {type(self).__name__}")
        given, request = check_texts(texts), self.request(None, options)
        return in_batches(lambda places: self._aligned([given[i] for i in places], request), given, self.batch_size)

    def _aligned(self, texts: list[str | bytes], request: Request) -> Iterable[Aligned]:
        """The aligned outputs of a batch, of an engine that aligns."""
        raise NotImplementedError

    def _answered(
        self, texts: list[str | bytes], request: Request, progress: Callable[[int], None] = lambda count: None
    ) -> list[Reply]:
        def replies(places: list[int]) -> Iterable[Reply]:
            return self._replies([texts[i] for i in places], request)

        return in_batches(replies, texts, self.batch_size, progress)

    @checked
    def request(self, n: Count | None, options: Mapping[str, Any]) -> Request:
        """The options of a call, checked.

        Raises:
            BadInput: one has another value than it may have, or this engine fixes it.
            TypeError: there is no such option.
        """
        options = {**self._own, **options}
        if unknown := [name for name in options if name not in SEARCH_OPTIONS and name not in LANGUAGES]:
            known = ", ".join((*self.changeable, *(LANGUAGES if self.languages else ())))
            raise TypeError(f"options of a call: expected {known}; got {', '.join(unknown)}")
        search = {name: value for name, value in options.items() if name not in LANGUAGES}
        for name, value in search.items():
            if name not in self.changeable:
                raise BadInput(f"{name}: expected none in a call, since this engine fixes it, got {shown(value)}")
        search = of_request({**search, **({} if n is None else {"n_best": n})}, self.highest)
        search.pop("n_best", None)
        beams = search.get("beam_size", self.options.get("beam_size", n))
        if n and n > beams:
            warn_the_caller(f"n_best: expected at most beam_size={beams} outputs, got {n}; there are no more")
        languages = {name: value for name, value in options.items() if name in LANGUAGES}
        for name, language in languages.items():
            if not self.languages:
                got = shown(language)
                raise BadInput(f"{name}: expected none, since this model has one pair of languages, got {got}")
            check_language(name, language, self.languages)
        return Request(n, search, languages)

    def clipped(self, options: Mapping[str, float]) -> dict[str, Any]:
        """Options of a server's request, which never fails: those out of range are clipped, NaN is the default."""
        values = {name: value for name, value in options.items() if value == value}
        for name, value in values.items():
            option = SEARCH_OPTIONS[name]
            values[name] = option.cast(min(max(value, option.lowest), self.highest.get(name, option.highest)))
        return values


def strings_in(texts: Iterable[Any]) -> Iterator[str | bytes]:
    """Texts one by one; TensorFlow's strings become Python's.

    Raises:
        BadInput: one is no string.
    """
    for i, text in enumerate(texts):
        string = text.numpy() if hasattr(text, "numpy") else text
        if not isinstance(string, str | bytes):
            raise BadInput(f"texts: expected strings, got {type(text).__name__} at place {i}")
        yield string


def check_texts(texts: Iterable[Any]) -> list[str | bytes]:
    """Texts as a list, as `strings_in` checks them."""
    return list(strings_in(texts))


@checked
def in_batches(
    function: Callable[[list[int]], Iterable[T]],
    texts: Sequence[str | bytes],
    batch_size: Count,
    progress: Callable[[int], None] = lambda count: None,
) -> list[T]:
    """Call a function on the places of texts of similar length.

    Args:
        function: from the places of a batch to a value for each.
        texts: the texts.
        batch_size: texts a batch; the last may have fewer.
        progress: is told how many texts each batch had, after it.

    Returns:
        the values, in the order of the texts.
    """
    values: dict[int, T] = {}
    for places in batches([len(encoded(text)) for text in texts], batch_size, lambda rows, longest: rows):
        values.update(zip(places, function(places), strict=True))
        progress(len(places))
    return [values[i] for i in range(len(texts))]


@checked
def batches(sizes: Sequence[int], most: Count, cost: Callable[[int, int], int]) -> Iterator[list[int]]:
    """The places of texts in batches, by size.

    Args:
        sizes: of the texts, in bytes.
        most: the greatest cost of a batch; a text that costs more is alone.
        cost: from the rows of a batch and its longest size.
    """
    batch: list[int] = []
    for i in sorted(range(len(sizes)), key=sizes.__getitem__):
        if batch and cost(len(batch) + 1, sizes[i]) > most:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def warned(replies: list[Reply]) -> list[Reply]:
    """Warn about truncated texts, and quote their beginnings."""
    warn_of_truncated([reply.source for reply in replies if reply.truncated], len(replies))
    return replies


@checked
def warn_of_truncated(long: Sequence[str | bytes], count: Natural) -> None:
    """Warn about truncated texts, `long` of `count`, and quote their beginnings."""
    if long:
        starts = [text[:40].decode("utf-8", "replace") if isinstance(text, bytes) else text[:40] for text in long[:3]]
        shown = ", ".join(f"{start!r}..." for start in starts) + (" and others" if len(long) > 3 else "")
        where = f"in {len(long):,} of {count:,} texts; only their beginnings are read: {shown}"
        warn_the_caller(f"more tokens than the model reads {where}")


def warn_the_caller(message: str) -> None:
    """Warn at the line that called this package."""
    level, frame = 1, inspect.currentframe()
    while frame and frame.f_back and frame.f_globals.get("__name__", "").startswith("tf_transformer."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
