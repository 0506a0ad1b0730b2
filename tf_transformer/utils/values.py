"""Values from users, checked by the annotations of options and fields.

    @dataclasses.dataclass(frozen=True)
    class Batching:
        batch_tokens: Count  # 1e5, "many", 512.5?
        seed: Seed = 0

        def __post_init__(self) -> None:
            check_fields(self)

    @checked
    def n_best(self, texts: Sequence[str], n: Count) -> ...

Whole numbers of any type, such as 1e5 or `np.int64(2)`, become `int`, other numbers `float`, and NumPy's flags `bool`.
So values compare, hash and are stored as JSON like Python's numbers. Anything else raises `BadInput`, which names the
option. Check values where users pass them: in public functions, dataclasses and files. Inner functions trust them.
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

MOST = 2**31 - 1  # largest count: TensorFlow's and NumPy's sizes are often int32
SMALLEST, LARGEST = 1.2e-38, 3.4e38  # positive numbers of float32
LISTS = (Sequence, Iterable, list)
NO_VALUE = object()  # returned if a value is not of a kind
F = TypeVar("F", bound=Callable[..., Any])


class BadInput(ValueError):
    """Invalid input from a user. The message is one line with the requirement and the value."""


@dataclass(frozen=True)
class Kind:
    """Requirement for a number besides its type, as in `Annotated[int, Kind(...)]`, and a conversion."""

    words: str  # follows "expected"
    holds: Callable[[Any], bool] = lambda number: True
    convert: Callable[[Any], Any] = lambda number: number

    def __repr__(self) -> str:
        return self.words  # shown by a notebook's help, in signatures


class Span(Kind):
    """A range whose description has only its ends. Without a highest number, it contains infinity."""


def span(lowest: float, highest: float = math.inf, most: float = math.inf) -> Span:
    """Returns a range of numbers. Those above `most` mean "no limit" and become `most`."""
    text = f"at least {lowest}" if highest == math.inf else f"{lowest} to {highest}"
    return Span(text, lambda number: lowest <= number <= highest, lambda number: min(number, most))


def between(lowest: int, highest: int) -> Kind:
    """Returns the range of whole numbers from `lowest` to `highest`."""
    return Kind(f"a whole number from {lowest:,} to {highest:,}", lambda number: lowest <= number <= highest)


def in_32_bits(seed: int) -> int:
    """Hashes a whole number of any size to the 32 bits that Keras and NumPy accept as a seed. 32 bits are unchanged."""
    digest = hashlib.sha256(hex(seed).encode()).digest()
    return seed if 0 <= seed < 2**32 else int.from_bytes(digest[:4], "little")


def plain(value: Any) -> Any:
    """Returns a NumPy scalar, or an array without axes, as a Python value, and other values unchanged."""
    if getattr(value, "shape", None) != () or not hasattr(value, "item"):
        return value
    try:
        return value.item()
    except TypeError:  # a JAX tracer, which has no value yet
        return value


def number(value: Any) -> float | None:
    """Returns a number of any type as a `float`, infinity if it is too large, and `None` for NaN and other values."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, Real) or value != value:
        return None
    try:
        return float(value)
    except OverflowError:
        return -math.inf if value < 0 else math.inf


def whole(value: Any) -> int | None:
    """Returns a whole number of any type as an `int`, and `None` for other values."""
    value = plain(value)
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    real = number(value)
    return int(real) if real is not None and real.is_integer() else None


def _finite(value: Any) -> float | None:
    real = number(value)
    return real if real is not None and abs(real) < LARGEST else None


def _is_fact(value: Any) -> bool:
    value = plain(value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return isinstance(value, str) or (isinstance(value, float) and math.isfinite(value))


Count = Annotated[int, Kind("a positive whole number below 2**31", lambda number: 1 <= number <= MOST)]
Natural = Annotated[int, Kind("a whole number from 0 to below 2**31", lambda number: 0 <= number <= MOST)]
Seed = Annotated[int, Kind("a whole number", convert=in_32_bits)]
Positive = Annotated[float, Kind("a positive number that float32 holds", lambda number: SMALLEST < number < LARGEST)]
Amount = Annotated[float, Kind("a finite number of 0 or more", lambda number: number >= 0)]
Rate = Annotated[float, Kind("a rate in [0, 1)", lambda number: 0 <= number < 1)]
Fact = Annotated[object, Kind("text or a finite number", _is_fact, plain)]  # stored in JSON

_SCALARS: dict[Any, tuple[Callable[[Any], Any], str]] = {
    int: (whole, "a whole number"),
    float: (_finite, "a finite number"),
    bool: (lambda value: flag if isinstance(flag := plain(value), bool) else None, "True or False"),
}


def _as(kind: Any, value: Any) -> Any:
    """Returns `value` converted to an annotation, or `NO_VALUE`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        base, rule = arguments[:2]
        result = number(value) if base is float and isinstance(rule, Span) else _as(base, value)
        is_valid = result is not None and result is not NO_VALUE and rule.holds(result)
        return rule.convert(result) if is_valid else NO_VALUE
    # The first alternative that fits wins.
    if origin in (Union, types.UnionType):
        return next((result for member in arguments if (result := _as(member, value)) is not NO_VALUE), NO_VALUE)
    if origin is Literal:
        value = plain(value)
        return next((member for member in arguments if isinstance(value, type(member)) and value == member), NO_VALUE)
    if kind in _SCALARS:
        result = _SCALARS[kind][0](value)
        return NO_VALUE if result is None else result
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return NO_VALUE
        kinds = arguments[:1] * len(value) if arguments[1:] == (...,) else arguments
        results = tuple(map(_as, kinds, value))
        return NO_VALUE if len(value) != len(kinds) or any(result is NO_VALUE for result in results) else results
    kind = origin or kind
    if kind in LISTS:
        # A text would be a list of characters, and sets have no order. Items are checked where they are used.
        excluded = (str, bytes, Mapping, *(() if kind is Iterable else (set, frozenset)))
        is_list = isinstance(plain(value), Iterable) and not isinstance(plain(value), excluded)
        return value if is_list else NO_VALUE
    is_class = isinstance(kind, type) and kind is not Any and not getattr(kind, "_is_protocol", False)
    return value if not is_class or isinstance(value, kind) else NO_VALUE


def _words(kind: Any) -> list[str]:
    """Returns descriptions of the alternatives of an annotation, which follow "expected"."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return [text for member in arguments for text in _words(member)]
    if origin is Literal:
        return [repr(member) for member in arguments]
    if origin is Annotated:
        return [str(arguments[1].words)]
    if kind in _SCALARS:
        return [_SCALARS[kind][1]]
    if origin is tuple and arguments[1:] != (...,):
        has_lists = all((get_origin(member) or member) in LISTS for member in arguments)
        return [f"a list of {len(arguments)}{' lists' * has_lists}"]
    kind = origin or kind
    names = {type(None): "None", str: "text", os.PathLike: "a path", Callable: "a function", Mapping: "a dictionary"}
    return ["a list" if kind in (*LISTS, tuple) else names.get(kind, f"a {getattr(kind, '__name__', kind)}")]


def shown(value: Any) -> str:
    """Returns a short `repr` in one line. An object with the default `repr` is shown by its class."""
    kind: Any = type(value)
    if kind.__repr__ is object.__repr__:
        return f"a {kind.__name__}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # such as Python's limit of 4,300 digits
        text = f"a value of type {kind.__name__}"
    return text if len(text) <= 100 else f"{text[:97]}..."


def convert(name: str, value: Any, kind: Any) -> Any:
    """Converts the value of an option by its annotation, or raises `BadInput` with its name."""
    result = _as(kind, value)
    if result is not NO_VALUE:
        return result
    alternatives = _words(kind)
    base, rule, *_ = *get_args(kind), None, None
    if base is int and isinstance(rule, Span) and (real := number(value)) is not None and rule.holds(real):
        alternatives = ["a whole number"]  # 2.5 is in the range
    *first, last = alternatives
    raise BadInput(f"{name}: expected {', '.join(first)}{' or ' * bool(first)}{last}, got {shown(value)}")


def check_fields(value: Any) -> None:
    """Converts the fields of a dataclass by their annotations, in its `__post_init__`, or raises `BadInput`."""
    for field in fields(value):
        object.__setattr__(value, field.name, convert(field.name, getattr(value, field.name), field.type))


def checked(function: F) -> F:
    """Decorates a public function, so that it converts its arguments. Annotations in quotes are not checked."""
    signature = inspect.signature(function)
    kinds = {
        p.name: p.annotation
        for p in signature.parameters.values()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.annotation is not p.empty
    }

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # raises with the function's name in the message
        # Defaults are not among the arguments. They are ours, and right.
        for name, value in bound.arguments.items():
            if name in kinds:
                bound.arguments[name] = convert(name, value, kinds[name])
        return function(*bound.args, **bound.kwargs)

    # Keras inspects the signature of `call`.
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def plain_type(kind: Any) -> Any:
    """Returns the type of an option's values on a command line: int, float or str."""
    origin, arguments = get_origin(kind), get_args(kind)
    return str if origin is Literal else plain_type(arguments[0]) if arguments else kind


def documentation(kind: type) -> dict[str, str]:
    """Returns the first sentence of each field in a dataclass's docstring, for help texts."""
    entries = re.findall(r"^ {4}(\w+): (.+(?:\n {5,}.+)*)", inspect.getdoc(kind) or "", re.MULTILINE)
    return {name: re.split(r"\.(?= [A-Z`]|$)", " ".join(text.split()))[0] for name, text in entries}
