"""Values from users, checked in one place: the annotation of an option says what it may be.

    @dataclasses.dataclass(frozen=True)
    class Batching:
        batch_tokens: Count  # 1e5, "many", 512.5?
        seed: Seed = 0

        def __post_init__(self) -> None:
            check_fields(self)

    @checked
    def n_best(self, texts: Sequence[str], n: Count) -> ...

A whole number of any type, 1e5 or `np.int64(2)`, becomes an `int`, another number a `float`, a flag of NumPy a `bool`.
So values compare, hash and go into JSON as Python's own. All else is `BadInput` in one line that names the option.
"""

import functools
import hashlib
import inspect
import math
import os
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

MOST = 2**31 - 1  # of a count: TensorFlow's and NumPy's sizes are often int32
SMALLEST, LARGEST = 1.2e-38, 3.4e38  # of a positive float32
LISTS = (Sequence, Iterable, list)  # no text, whose parts would be characters, and no dictionary
NO_VALUE = object()  # that a kind does not have
F = TypeVar("F", bound=Callable[..., Any])


class BadInput(ValueError):
    """Invalid input from a user. The message says in one line what was expected and what arrived."""


@dataclass(frozen=True)
class Kind:
    """What a number may be besides its type, as in `Annotated[int, Kind(...)]`.

    Attributes:
        words: what it may be, for "expected ...".
        holds: whether a number is of this kind.
        convert: what the number becomes; by default it stays.
    """

    words: str
    holds: Callable[[Any], bool] = lambda number: True
    convert: Callable[[Any], Any] = lambda number: number

    def __repr__(self) -> str:
        return self.words  # in a notebook's help, where signatures show it


class Span(Kind):
    """A range, of which the words say the ends alone. One without a highest number has infinity in it."""


def span(lowest: float, highest: float = math.inf, most: float = math.inf) -> Span:
    """A number in a range. One above `most` means "no limit", and becomes `most`."""
    words = f"at least {lowest}" if highest == math.inf else f"{lowest} to {highest}"
    return Span(words, lambda number: lowest <= number <= highest, lambda number: min(number, most))


def between(lowest: int, highest: int) -> Kind:
    """A whole number in a range."""
    return Kind(f"a whole number from {lowest:,} to {highest:,}", lambda number: lowest <= number <= highest)


def folded(seed: int) -> int:
    """A whole number of any size as one of 32 bits, which Keras and NumPy take for a seed; 32 bits stay as they are."""
    if 0 <= seed < 2**32:
        return seed
    return int.from_bytes(hashlib.sha256(hex(seed).encode()).digest()[:4], "little")


Count = Annotated[int, Kind("a positive whole number below 2**31", lambda number: 1 <= number <= MOST)]
Natural = Annotated[int, Kind("a whole number from 0 to below 2**31", lambda number: 0 <= number <= MOST)]
Seed = Annotated[int, Kind("a whole number", convert=folded)]
Positive = Annotated[float, Kind("a positive number that float32 holds", lambda number: SMALLEST < number < LARGEST)]
Amount = Annotated[float, Kind("a finite number of 0 or more", lambda number: number >= 0)]
Rate = Annotated[float, Kind("a rate in [0, 1)", lambda number: 0 <= number < 1)]


def _is_fact(value: Any) -> bool:
    value = plain(value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return isinstance(value, str) or (isinstance(value, float) and math.isfinite(value))


def plain(value: Any) -> Any:
    """A scalar of NumPy, and an array without axes, as Python's own value; other values as they are."""
    if getattr(value, "shape", None) != () or not hasattr(value, "item"):
        return value
    try:
        return value.item()
    except TypeError:  # of JAX, where a function is traced: the value is not known yet
        return value


def number(value: Any) -> float | None:
    """A number of any type as a `float`, infinity if it is too large for one; `None` for NaN and other values."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, Real) or value != value:
        return None
    try:
        return float(value)
    except OverflowError:
        return -math.inf if value < 0 else math.inf


def whole(value: Any) -> int | None:
    """A whole number of any type, as an `int`; `None` if it is something else."""
    value = plain(value)
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    found = number(value)
    return int(found) if found is not None and found.is_integer() else None


def _flag(value: Any) -> bool | None:
    value = plain(value)
    return value if isinstance(value, bool) else None


def _finite(value: Any) -> float | None:
    found = number(value)
    return found if found is not None and abs(found) < LARGEST else None


Fact = Annotated[object, Kind("text or a finite number", _is_fact, plain)]  # that JSON can say

_SCALARS: dict[Any, tuple[Callable[[Any], Any], str]] = {
    int: (whole, "a whole number"),
    float: (_finite, "a finite number"),
    bool: (_flag, "True or False"),
}


def _as(kind: Any, value: Any) -> Any:
    """The value as this kind has it, or `NO_VALUE`."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        base, rule = parts[:2]
        found = number(value) if base is float and isinstance(rule, Span) else _as(base, value)
        is_one = found is not None and found is not NO_VALUE and rule.holds(found)
        return rule.convert(found) if is_one else NO_VALUE
    if origin in (Union, types.UnionType):
        return next((found for part in parts if (found := _as(part, value)) is not NO_VALUE), NO_VALUE)
    if origin is Literal:
        value = plain(value)
        return next((part for part in parts if isinstance(value, type(part)) and value == part), NO_VALUE)
    if kind in _SCALARS:
        found = _SCALARS[kind][0](value)
        return NO_VALUE if found is None else found
    if origin is tuple:
        return _tuple_as(parts, value)
    kind = origin or kind
    if kind in LISTS:  # arrays, too; what is in it shows in the work
        others = (str, bytes, Mapping, *(() if kind is Iterable else (set, frozenset)))  # sets have no order
        is_list = isinstance(plain(value), Iterable) and not isinstance(plain(value), others)
        return value if is_list else NO_VALUE
    is_class = isinstance(kind, type) and kind is not Any and not getattr(kind, "_is_protocol", False)
    return value if not is_class or isinstance(value, kind) else NO_VALUE


def _tuple_as(kinds: tuple[Any, ...], value: Any) -> Any:
    """A list or a tuple as a tuple of these kinds, or `NO_VALUE`."""
    if not isinstance(value, list | tuple):
        return NO_VALUE
    if kinds[1:] == (...,):
        kinds = kinds[:1] * len(value)
    found = tuple(map(_as, kinds, value))
    return NO_VALUE if len(value) != len(kinds) or any(one is NO_VALUE for one in found) else found


def _words(kind: Any) -> list[str]:
    """What a value of this kind may be, for "expected ..."."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return [words for part in parts for words in _words(part)]
    return [repr(part) for part in parts] if origin is Literal else [_word(kind, origin, parts)]


def _word(kind: Any, origin: Any, parts: tuple[Any, ...]) -> str:
    if origin is Annotated:
        return str(parts[1].words)
    if kind in _SCALARS:
        return _SCALARS[kind][1]
    if origin is tuple:
        lists = all((get_origin(part) or part) in LISTS for part in parts)
        return "a list" if parts[1:] == (...,) else f"a list of {len(parts)}{' lists' * lists}"
    kind = origin or kind
    if kind in LISTS:
        return "a list"
    words = {type(None): "None", str: "text", os.PathLike: "a path", Callable: "a function", Mapping: "a dictionary"}
    return words.get(kind, f"a {getattr(kind, '__name__', kind)}")


def shown(value: Any) -> str:
    """A value in one line that is not long; an object that has no text of its own by its class."""
    kind: Any = type(value)
    if kind.__repr__ is object.__repr__:
        return f"a {kind.__name__}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # such as Python's limit of 4,300 digits
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:97]}..."


def convert(name: str, value: Any, kind: Any) -> Any:
    """The value of an option as Python's own.

    Args:
        name: of the option, for the message.
        value: what arrived.
        kind: the option's annotation.

    Raises:
        BadInput: the value is of another kind.
    """
    found = _as(kind, value)
    if found is NO_VALUE:
        *words, last = ["a whole number"] if _is_a_part(kind, value) else _words(kind)
        raise BadInput(f"{name}: expected {', '.join(words)}{' or ' * bool(words)}{last}, got {shown(value)}")
    return found


def check_fields(value: Any) -> None:
    """Convert the fields of a dataclass by their annotations, for its `__post_init__`.

    Raises:
        BadInput: the value of a field is of another kind.
    """
    for field in fields(value):
        object.__setattr__(value, field.name, convert(field.name, getattr(value, field.name), field.type))


def _is_a_part(kind: Any, value: Any) -> bool:
    """Whether a number in the range of whole numbers is none itself."""
    base, rule, *_ = *get_args(kind), None, None
    return base is int and isinstance(rule, Span) and number(value) is not None and rule.holds(number(value))


def plain_type(kind: Any) -> Any:
    """The type that an option of this kind has on a command line: int, float or str."""
    origin, parts = get_origin(kind), get_args(kind)
    return str if origin is Literal else plain_type(parts[0]) if parts else kind


def documentation(kind: type) -> dict[str, str]:
    """What a dataclass says of its own fields in its docstring: the first sentences, each in one line."""
    found = re.findall(r"^ {8}(\w+): (.+(?:\n {9,}.+)*)", kind.__doc__ or "", re.MULTILINE)
    return {name: re.split(r"\.(?= [A-Z`]|$)", " ".join(text.split()))[0] for name, text in found}


def checked(function: F) -> F:
    """A function that converts its arguments by their annotations. Defaults, and names in quotes, are not looked at.

    Raises:
        BadInput: an argument is of another kind.
    """
    signature = inspect.signature(function)
    kinds = {
        each.name: each.annotation
        for each in signature.parameters.values()
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) and each.annotation is not each.empty
    }

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # whose message has the function's name
        given = bound.arguments
        given |= {name: convert(name, given[name], kinds[name]) for name in given if name in kinds}
        return function(*bound.args, **bound.kwargs)

    call.__signature__ = signature  # type: ignore[attr-defined]  # Keras asks `call` itself for its arguments
    return call  # type: ignore[return-value]
