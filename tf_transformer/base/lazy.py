"""Packages that load when they are first used, so that what needs none of them works without them."""

import importlib
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Generic, TypeVar

from tf_transformer.base.values import BadInput

T = TypeVar("T")


class _Lazy(ModuleType):
    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(sys.modules.get(self.__name__) or importlib.import_module(self.__name__), name)
        except ImportError as error:
            needed = f"this needs {self.__name__}: pip install {self.__name__.replace('_', '-')}"
            raise BadInput(f"{needed} ({error})") from error


def lazily(name: str) -> Any:
    """A package that is imported when one of its attributes is first asked for.

    Type checkers get the package itself:

        if TYPE_CHECKING:
            import tensorflow as tf
        else:
            tf = lazily("tensorflow")

    Args:
        name: of the package.

    Raises:
        BadInput: it cannot be imported; by the attribute, not by this call.
    """
    return _Lazy(name)


class Once(Generic[T]):
    """A value that is made when it is first asked for, for all that share this object, in whichever thread.

    Args:
        make: makes it.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make, self._lock, self._made = make, threading.Lock(), list[T]()

    def __call__(self) -> T:
        with self._lock:
            if not self._made:
                self._made.append(self._make())
        return self._made[0]
