"""The options of a search in one table, for Python, SavedModels and programs.

It needs neither Keras nor TensorFlow, so that a program can read it before its command line.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from tf_transformer.base.values import BadInput, between, number, shown, whole

Beams = Annotated[int, between(1, 1_024)]  # in Python; arrays grow with them
LONGEST = 10_000  # symbols of an output; beyond that, no limit would be a search without an end
Length = Annotated[int, between(1, LONGEST)]


@dataclass(frozen=True)
class SearchOption:
    """A numeric option of a search.

    Attributes:
        name: the same in Python, in a SavedModel and on the command line.
        dtype: "int32" or "float32".
        default: the value if none is given.
        lowest: the lowest value.
        highest: the highest value in a request or a program; an export may set another.
        doc: a description in one line.
        translator: whether `Translator` takes it and has it as an attribute.
        request: whether a request may give it, for all rows or for each; otherwise the export fixes it.
        parser: whether a `Parser` takes it, whose outputs a grammar restricts.
        search: whether `beam_search` takes it, for all rows or for each.
        python: the highest value in Python.
        limit: larger values mean "no limit" and are replaced by this one.
    """

    name: str
    dtype: str
    default: Any
    lowest: Any
    highest: Any
    doc: str
    translator: bool = True
    request: bool = True
    parser: bool = True
    search: bool = True
    python: float = math.inf
    limit: int = 2**30

    def cast(self, value: Any) -> int | float:
        """A value as Python's own number. An export's file has infinity as text."""
        if self.dtype == "float32":
            found = number(value)
            return float(value) if found is None else found
        count = whole(value)
        return min(int(value) if count is None else count, self.limit)

    def range(self) -> str:
        """Its lowest and highest value in words."""
        return f"at least {self.lowest}" if self.highest == math.inf else f"{self.lowest} to {self.highest}"

    def problem(self, value: Any) -> str:
        """An error message for a value, in one line; "" if the value is valid."""
        found = number(value)
        if found is None or not self.lowest <= found <= self.highest:
            expected = self.range()
        elif self.dtype == "int32" and whole(value) is None:
            expected = "a whole number"
        else:
            return ""
        return f"{self.name}: expected {expected}, got {shown(value)}"


_TABLE = [
    SearchOption("beam_size", "int32", 4, 1, 16, "K of section 6.1; 1 is greedy search", python=1_024),
    SearchOption(
        *("length_penalty", "float32", 0.6, 0, 5, "the penalty's exponent, the paper's alpha (section 6.1)"),
        python=10,
    ),
    SearchOption(
        "min_length", "int32", 0, 0, 256, "fewest symbols of an output, its end symbol included", parser=False
    ),
    SearchOption(
        "no_repeat_ngram_size",
        "int32",
        0,
        0,
        16,
        "the length of sequences of symbols that may come only once; 0 allows all",
        parser=False,
    ),
    SearchOption(
        *("max_length", "int32", 256, 1, 256, "most symbols of an output, its end symbol included"),
        translator=False,
        search=False,
    ),
    SearchOption(
        "patience", "float32", 2.0, 0, math.inf, "patience * beam_size finished outputs end a search", request=False
    ),
    SearchOption(
        *("n_best", "int32", 4, 1, 16, "outputs of each text, best first"),
        translator=False,
        request=False,
        search=False,
    ),
    SearchOption(
        *("extra_length", "int32", 50, 1, math.inf, "most symbols beyond the source's tokens"),
        request=False,
        search=False,
        limit=LONGEST,
    ),
    SearchOption(
        *("max_source_length", "int32", 256, 1, math.inf, "most source tokens; more are cut"),
        request=False,
        search=False,
    ),
]
SEARCH_OPTIONS = {option.name: option for option in _TABLE}


def problem(values: Mapping[str, Any], highest: Mapping[str, float] | None = None) -> str:
    """An error message for the first invalid option, in one line; "" if all are valid.

    Args:
        values: by name.
        highest: by name, highest values that replace the table's; `math.inf` means no limit.
    """
    moved = {name: replace(SEARCH_OPTIONS[name], highest=most) for name, most in (highest or {}).items()}
    options = SEARCH_OPTIONS | moved
    wrong = next(filter(None, (options[name].problem(value) for name, value in values.items())), "")
    if not wrong and {"min_length", "max_length"} <= values.keys():
        wrong = replace(options["min_length"], highest=values["max_length"]).problem(values["min_length"])
    return wrong


def translator_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """A translator's options, checked and as Python's own numbers; missing ones have their defaults.

    Raises:
        TypeError: there is no such option.
        BadInput: a value is out of range.
    """
    own = {name: option for name, option in SEARCH_OPTIONS.items() if option.translator}
    if unknown := options.keys() - own.keys():
        raise TypeError(f"options of a Translator: expected {', '.join(own)}; got {', '.join(unknown)}")
    values = {name: option.default for name, option in own.items()} | dict(options)
    if wrong := problem(values, {name: own[name].python for name in values}):
        raise BadInput(wrong)
    return {name: own[name].cast(value) for name, value in values.items()}
