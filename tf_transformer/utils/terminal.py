"""One way to print, on every terminal and without one; how far a long call is; and the word for a training that was
told to stop."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Self

from tf_transformer.utils.values import BadInput

STANDARD_ERROR = threading.RLock()  # which all threads share
_SAID = "TF_CPP_MIN_LOG_LEVEL" in os.environ
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # no lines about a CPU's instructions and missing GPUs


class Stopped(KeyboardInterrupt, SystemExit):
    """Training has saved a checkpoint and stopped, on the signal `number` or at the requested step. As Ctrl-C itself,
    it is no `Exception`: a loop over runs that goes on after errors ends, too. A script that does not catch it exits
    without a traceback, with the shell's status for the signal, as schedulers expect."""

    def __init__(self, message: str, number: int = 0):
        super().__init__(message)
        self.number = number
        self.code = 128 + number if number else message


def say(text: str = "", end: str = "\n") -> None:
    """Print at once. What the terminal's encoding lacks becomes an escape such as \\xfc: no training may end by it."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), end=end, flush=True)


def say_in_a_handler(text: str) -> None:
    """Write a line to standard error, of which a service has none, from a signal's handler, which may come at any time:
    even while the stream is being written to, which then takes no other text."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"\n{text}\n")
        sys.stderr.flush()


def is_watched(stream: Any) -> bool:
    """Whether a person reads this stream now, on a terminal or in a notebook, where a line may change. A service has
    none; a stream of one's own may have `write` alone."""
    try:
        return bool(stream.isatty()) or (stream is not None and "ipykernel" in sys.modules)
    except (AttributeError, ValueError):  # None, or without this method; closed
        return False


def duration(seconds: float) -> str:
    """A time to wait for, in the unit in which people say it."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    if minutes < 100:
        return f"about {minutes} minute{'s' * (minutes > 1)}"
    return f"about {seconds / 3600:.0f} hours" if seconds < 72 * 3600 else f"about {seconds / 86400:.0f} days"


class Progress:
    """How far a long call is, on standard error: one line that changes, where a person watches.

        with Progress(len(texts), "texts") as progress:
            for text in texts:
                ...
                progress.add(1)

    Args:
        total: of the things; `None` if nobody knows.
        things: what they are called.
        log: where nobody watches, a new line every 30 seconds.
    """

    FIRST, NEXT, LOGGED = 3.0, 0.5, 30.0  # seconds to the first line, and from one to the next

    def __init__(self, total: int | None, things: str, log: bool = False) -> None:
        self.total, self.things, self.done = total, things, 0
        self._changes = is_watched(sys.stderr)
        self._every: float | None = self.NEXT if self._changes else self.LOGGED if log else None
        self._began = time.monotonic()
        self._next = self._began + (self.FIRST if self._changes else self.LOGGED)
        self._width = 0  # of the line that stands there

    def add(self, count: int) -> None:
        """So many more are done."""
        self.done += count
        now = time.monotonic()
        if self._every is None or now < self._next or self.done == self.total:
            return
        self._next = now + self._every
        seconds = max(now - self._began, 1e-9)
        line = f"{self.done:,} of {self.total:,} {self.things}" if self.total else f"{self.done:,} {self.things}"
        line += f", {self.done / seconds:,.0f} a second"
        if self.total and self.done:
            line += f", {duration((self.total - self.done) * seconds / self.done)} to go"
        self._write(f"\r{line.ljust(self._width)}" if self._changes else f"{line}\n")
        self._width = len(line) if self._changes else 0

    def _write(self, text: str) -> None:
        with contextlib.suppress(Exception):  # a call must not end by its progress
            sys.stderr.write(text)
            sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:  # nothing is left of the line
            self._write(f"\r{' ' * self._width}\r")


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Drop what C++ libraries write to standard error inside this block; Python's exceptions still appear."""
    if sys.__stderr__ is None and sys.stderr is None:  # there is none: its number may be that of another file
        yield
        return
    with STANDARD_ERROR:
        if sys.stderr is not None:
            sys.stderr.flush()
        kept = os.dup(2)
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """`quiet_stderr` for what may import Keras or TensorFlow, unless the user has said how much that logs.

    Raises:
        BadInput: If Keras cannot be imported with its backend.
    """
    is_loud = _SAID or {"keras", "tensorflow"} <= sys.modules.keys()
    try:
        with contextlib.nullcontext() if is_loud else quiet_stderr():
            yield
    except Exception as error:
        # A failed import removes `keras` and leaves some of its modules.
        if "keras" in sys.modules or not any(name.startswith("keras.") for name in sys.modules):
            raise
        name, reason = os.environ.get("KERAS_BACKEND") or "tensorflow", str(error).partition("\n")[0]
        action = "Set it to one of tensorflow, jax and torch that is installed."
        raise BadInput(f"KERAS_BACKEND: expected an installed backend, got {name} ({reason}). {action}") from error
