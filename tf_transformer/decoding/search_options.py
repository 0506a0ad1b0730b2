"""Options of a call, in one table for Python, SavedModels and programs. It loads neither Keras nor TensorFlow."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from tf_transformer.utils.values import BadInput, between, check_fields, convert, documentation, span

MOST_BEAMS = 1_024  # limit of calls from Python, which bounds memory
LANGUAGES = ("source_language", "target_language")  # options of a call of a multilingual model
LONGEST = 10_000  # limit of output tokens, since some models never emit EOS
Beams = Annotated[int, between(1, MOST_BEAMS)]
Length = Annotated[int, between(1, LONGEST)]


EVERYWHERE = frozenset({"translator", "request", "search"})


def _option(default: float, lowest: float, highest: float = math.inf, *, where: Set[str] = EVERYWHERE) -> Any:
    return field(default=default, metadata={"lowest": lowest, "highest": highest, "where": where})


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search. Annotations are the ranges in Python. Requests and programs have narrower ones.

    Attributes:
        beam_size: hypotheses kept per step, K of section 6.1; 1 is greedy search.
        length_penalty: exponent of the length penalty, the paper's alpha (section 6.1).
        min_length: minimum output length in tokens, including EOS.
        no_repeat_ngram_size: size of n-grams that may not repeat; 0 allows all.
        max_length: maximum output length in tokens, including EOS.
        patience: patience * beam_size finished outputs end a search.
        n_best: outputs per text, best first.
        extra_length: maximum number of output tokens beyond the source's.
        max_source_length: maximum number of source tokens; more are cut.

    Raises:
        BadInput: If a value is out of range.
    """

    # "We used beam search with a beam size of 4 and length penalty alpha = 0.6" (section 6.1).
    beam_size: Annotated[int, span(1, MOST_BEAMS)] = _option(4, 1, 16)
    length_penalty: Annotated[float, span(0, 10)] = _option(0.6, 0, 5)
    min_length: Annotated[int, span(0, most=2**30)] = _option(0, 0, 256)
    no_repeat_ngram_size: Annotated[int, span(0, most=2**30)] = _option(0, 0, 16)
    max_length: Annotated[int, span(1, LONGEST)] = _option(256, 1, 256, where={"request"})
    patience: Annotated[float, span(0)] = _option(2.0, 0, where={"translator", "search"})
    n_best: Annotated[int, span(1, MOST_BEAMS)] = _option(4, 1, 16, where=set())
    extra_length: Annotated[int, span(1, most=LONGEST)] = _option(50, 1, where={"translator"})
    max_source_length: Annotated[int, span(1, most=2**30)] = _option(256, 1, where={"translator"})

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class SearchOption:
    """Metadata of a field of `SearchOptions`.

    Attributes:
        name: Name in Python, in a SavedModel and on the command line.
        default: Default value.
        doc: One-line description.
        lowest: Lowest value.
        highest: Highest value in a request or a program. An export may set another.
        where: Who takes it. A "translator" also has it as an attribute. A "request" may set it, for all rows or for
            each, and otherwise the export fixes it. A "search" is `beam_search`, for all rows or for each.
    """

    name: str
    default: Any
    doc: str
    lowest: Any
    highest: Any
    where: Set[str] = EVERYWHERE

    @property
    def dtype(self) -> str:
        """Dtype of the SavedModel input."""
        return "float32" if isinstance(self.default, float) else "int32"

    def range(self) -> str:
        """Returns the lowest and highest value in words."""
        return span(self.lowest, self.highest).words

    def cast(self, value: Any) -> Any:
        """Returns a value from a file, where infinity is text, as a Python number."""
        field: dict[str, Any] = {self.name: math.inf if value == "inf" else value}
        return getattr(SearchOptions(**field), self.name)


_DOCS = documentation(SearchOptions)
SEARCH_OPTIONS = {
    option.name: SearchOption(option.name, option.default, _DOCS.get(option.name, ""), **option.metadata)
    for option in fields(SearchOptions)
}


def options_of(taker: Literal["translator", "request", "search"]) -> dict[str, SearchOption]:
    """Returns the options that a translator, a request or a search takes, by name."""
    return {name: option for name, option in SEARCH_OPTIONS.items() if taker in option.where}


def request_options(values: Mapping[str, Any], highest: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Converts options to Python numbers in the ranges of a request, or up to the `highest` values by name."""
    converted = dict[str, Any]()
    for name, value in values.items():
        option = SEARCH_OPTIONS[name]
        limits = span(option.lowest, (highest or {}).get(name, option.highest))
        converted[name] = convert(name, value, Annotated[type(option.default), limits])
    if {"min_length", "max_length"} <= converted.keys():
        convert("min_length", converted["min_length"], Annotated[int, span(0, converted["max_length"])])
    return converted


def translator_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a translator's options as Python numbers, with defaults for missing ones."""
    names = [*options_of("translator")]
    if unknown := [name for name in options if name not in names]:
        raise TypeError(f"options of a Translator: expected {', '.join(names)}; got {', '.join(unknown)}")
    values = SearchOptions(**options)
    return {name: getattr(values, name) for name in names}


def check_language(name: str, language: Any, known: Sequence[str]) -> None:
    """Raises `BadInput` with the option's name if `language` is not one of the languages `known`."""
    if not isinstance(language, str) or language not in known:
        examples, got = ", ".join(known[:5]), repr(language) if language else "none"
        raise BadInput(f"{name}: expected one of {len(known)} languages, such as {examples}; got {got}")
