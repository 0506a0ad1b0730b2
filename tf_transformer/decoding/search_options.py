"""The options of a search: one dataclass, for Python, SavedModels and programs.

It needs neither Keras nor TensorFlow, so that a program can read it before its command line.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from tf_transformer.utils.values import between, check_fields, convert, documentation, span

MOST_BEAMS = 1_024  # in Python; arrays grow with them
LONGEST = 10_000  # symbols of an output; beyond that, no limit would be a search without an end
Beams = Annotated[int, between(1, MOST_BEAMS)]
Length = Annotated[int, between(1, LONGEST)]


def _option(default: float, lowest: float, highest: float = math.inf, **more: bool) -> Any:
    """A field of `SearchOptions`: its default, its range in a request, and what else `SearchOption` says of it."""
    return field(default=default, metadata={"lowest": lowest, "highest": highest, **more})


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search. Annotations say what Python takes; requests and programs take less.

    Attributes:
        beam_size: K of section 6.1; 1 is greedy search.
        length_penalty: the penalty's exponent, the paper's alpha (section 6.1).
        min_length: fewest symbols of an output, its end symbol included.
        no_repeat_ngram_size: the length of sequences of symbols that may come only once; 0 allows all.
        max_length: most symbols of an output, its end symbol included.
        patience: patience * beam_size finished outputs end a search.
        n_best: outputs of each text, best first.
        extra_length: most symbols beyond the source's tokens.
        max_source_length: most source tokens; more are cut.

    Raises:
        BadInput: a value is out of range.
    """

    beam_size: Annotated[int, span(1, MOST_BEAMS)] = _option(4, 1, 16)
    length_penalty: Annotated[float, span(0, 10)] = _option(0.6, 0, 5)
    min_length: Annotated[int, span(0, most=2**30)] = _option(0, 0, 256, parser=False)
    no_repeat_ngram_size: Annotated[int, span(0, most=2**30)] = _option(0, 0, 16, parser=False)
    max_length: Annotated[int, span(1, LONGEST)] = _option(256, 1, 256, translator=False, search=False)
    patience: Annotated[float, span(0)] = _option(2.0, 0, request=False)
    n_best: Annotated[int, span(1, MOST_BEAMS)] = _option(4, 1, 16, translator=False, request=False, search=False)
    extra_length: Annotated[int, span(1, most=LONGEST)] = _option(50, 1, request=False, search=False)
    max_source_length: Annotated[int, span(1, most=2**30)] = _option(256, 1, request=False, search=False)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class SearchOption:
    """What is known of a field of `SearchOptions`.

    Attributes:
        name: the same in Python, in a SavedModel and on the command line.
        default: the value if none is given.
        doc: a description in one line.
        lowest: the lowest value.
        highest: the highest value in a request or a program; an export may set another.
        translator: whether `Translator` takes it and has it as an attribute.
        request: whether a request may give it, for all rows or for each; otherwise the export fixes it.
        parser: whether a `Parser` takes it, whose outputs a grammar restricts.
        search: whether `beam_search` takes it, for all rows or for each.
    """

    name: str
    default: Any
    doc: str
    lowest: Any
    highest: Any
    translator: bool = True
    request: bool = True
    parser: bool = True
    search: bool = True

    @property
    def dtype(self) -> str:
        """Of a SavedModel's input."""
        return "float32" if isinstance(self.default, float) else "int32"

    def range(self) -> str:
        """Its lowest and highest value in words."""
        return span(self.lowest, self.highest).words

    def cast(self, value: Any) -> Any:
        """A value from a file, where infinity is text, as Python's own number."""
        given: dict[str, Any] = {self.name: math.inf if value == "inf" else value}
        return getattr(SearchOptions(**given), self.name)


_DOCS = documentation(SearchOptions)
SEARCH_OPTIONS = {
    each.name: SearchOption(each.name, each.default, _DOCS.get(each.name, ""), **each.metadata)
    for each in fields(SearchOptions)
}


def of_request(values: Mapping[str, Any], highest: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Options in the ranges of a request, as Python's own numbers.

    Args:
        values: by name.
        highest: by name, highest values that replace a request's; `math.inf` means no limit.

    Raises:
        BadInput: one is out of range.
    """
    found = dict[str, Any]()
    for name, value in values.items():
        known = SEARCH_OPTIONS[name]
        limits = span(known.lowest, (highest or {}).get(name, known.highest))
        found[name] = convert(name, value, Annotated[type(known.default), limits])
    if {"min_length", "max_length"} <= found.keys():
        convert("min_length", found["min_length"], Annotated[int, span(0, found["max_length"])])
    return found


def translator_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """A translator's options, checked and as Python's own numbers; missing ones have their defaults.

    Raises:
        TypeError: there is no such option.
        BadInput: a value is out of range.
    """
    own = [name for name, option in SEARCH_OPTIONS.items() if option.translator]
    if unknown := [name for name in options if name not in own]:
        raise TypeError(f"options of a Translator: expected {', '.join(own)}; got {', '.join(unknown)}")
    search = SearchOptions(**options)
    return {name: getattr(search, name) for name in own}
