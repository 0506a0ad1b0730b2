"""Modules that load when they are first used, so that what needs none of them works without their packages."""

import importlib
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Generic, TypeVar

from tf_transformer.utils.terminal import quiet_import
from tf_transformer.utils.values import BadInput

T = TypeVar("T")


class _Lazy(ModuleType):
    """A module that is imported when one of its attributes is first asked for; `__doc__` is what needs it."""

    def __getattr__(self, name: str) -> Any:
        try:
            module = sys.modules.get(self.__name__) or _imported(self.__name__)
        except ImportError as error:
            package = (error.name or self.__name__).partition(".")[0]
            needed = f"{self.__doc__} needs {package}: pip install {package.replace('_', '-')}"
            raise BadInput(f"{needed} ({error})") from error
        return getattr(module, name)


def _imported(name: str) -> ModuleType:
    with quiet_import():
        return importlib.import_module(name)


def lazily(name: str, purpose: str) -> Any:
    """A module that is imported when one of its attributes is first asked for.

    Type checkers get the module itself, and annotations are in quotes:

        if TYPE_CHECKING:
            import tensorflow as tf
        else:
            tf = lazily("tensorflow", "a search")

    Args:
        name: of the module, whose package may be missing.
        purpose: what needs it, the beginning of the error.

    Raises:
        BadInput: a package cannot be imported; by the attribute, not by this call.
    """
    return _Lazy(name, purpose)


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
