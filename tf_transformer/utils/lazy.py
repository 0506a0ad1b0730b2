"""Modules and values that are made when they are first used, and imports of packages that only an extra installs."""

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
    """A module that is imported when one of its attributes is first used. `__doc__` names what needs it."""

    def __getattr__(self, name: str) -> Any:
        try:
            module = sys.modules.get(self.__name__)
            if module is None:
                with quiet_import():
                    module = importlib.import_module(self.__name__)
        except ImportError as error:
            package = (error.name or self.__name__).partition(".")[0]
            needed = f"{self.__doc__} needs {package}: pip install {package.replace('_', '-')}"
            raise BadInput(f"{needed} ({error})") from error
        return getattr(module, name)


def lazily(name: str, purpose: str) -> Any:
    """Returns a module that is imported when one of its attributes is first used.

    Type checkers read a real import, under TYPE_CHECKING, so annotations are in quotes. If the package is missing, the
    first attribute raises `BadInput`, which begins with `purpose`.
    """
    return _Lazy(name, purpose)


class MadeOnce(Generic[T]):
    """A value that `make` creates on first use, once for all threads that share this object."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make, self._lock, self._made = make, threading.Lock(), list[T]()

    def __call__(self) -> T:
        # The lock is held while it is made, or two threads would make it twice.
        with self._lock:
            if not self._made:
                self._made.append(self._make())
        return self._made[0]


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Imports a module of a package that the extra `extra` of setup.cfg installs, for `purpose`.

    If it is missing, `BadInput` names a pip command that works with and without a clone of the repository.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise BadInput(f'{purpose} takes {package}: pip install "tf-transformer[{extra}]" ({error})') from error
