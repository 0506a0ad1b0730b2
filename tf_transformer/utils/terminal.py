"""Printing on any terminal or none, progress of long calls, and the exception of a stopped training."""

import contextlib
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any, Self

from tf_transformer.utils.values import BadInput

STANDARD_ERROR = threading.RLock()  # all threads share the stream
# Lines of C++ libraries: those of Abseil, of TensorFlow before it used Abseil, and of SentencePiece.
LOGGED = re.compile(rb"WARNING: All log messages before absl::|[IWE]\d{4} |\d{4}-\d\d-\d\d .*: [IWE] |\S+\.cc\(\d+\) ")
LOG_LEVEL, WITHOUT_INFORMATION = "TF_CPP_MIN_LOG_LEVEL", "1"


class TrainingInterrupted(KeyboardInterrupt, SystemExit):
    """Training saved a checkpoint and stopped, on the signal `number` or at the requested step.

    It derives from KeyboardInterrupt, so that a loop over runs that continues after an `Exception` ends. It derives
    from SystemExit, so that a script that does not catch it exits without a traceback, with the shell's status for the
    signal, as schedulers expect.
    """

    def __init__(self, message: str, number: int = 0):
        super().__init__(message)
        self.number = number
        self.code = 128 + number if number else message


def say(text: str = "", end: str = "\n") -> None:
    """Prints without buffering. A character that the terminal cannot encode becomes an escape such as \\xfc, since
    printing must never stop a training."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), end=end, flush=True)


def say_in_a_handler(text: str) -> None:
    # A handler may interrupt a write to the same stream, which then raises. A service has no standard error.
    with contextlib.suppress(Exception):
        sys.stderr.write(f"\n{text}\n")
        sys.stderr.flush()


def is_watched(stream: Any) -> bool:
    """Returns whether `stream` is interactive: a terminal or a notebook, where a line can be overwritten."""
    try:
        return bool(stream.isatty()) or (stream is not None and "ipykernel" in sys.modules)
    except (AttributeError, ValueError):  # the stream is None, has only `write`, or is closed
        return False


def duration(seconds: float) -> str:
    """Returns a rounded time in words, such as "about 17 minutes"."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    if minutes < 100:
        return f"about {minutes} minute{'s' * (minutes > 1)}"
    return f"about {seconds / 3600:.0f} hours" if seconds < 72 * 3600 else f"about {seconds / 86400:.0f} days"


class Progress:
    """Progress of a long call on standard error: one line that is overwritten, if the stream is interactive.

    With `log`, a line every 30 seconds if it is not. `total` is the number of `things`, or `None` if unknown.
    """

    FIRST, NEXT, LOGGED = 3.0, 0.5, 30.0  # seconds to the first line, and between lines

    def __init__(self, total: int | None, things: str, log: bool = False) -> None:
        self.total, self.things, self.done = total, things, 0
        self._changes = is_watched(sys.stderr)
        self._every: float | None = self.NEXT if self._changes else self.LOGGED if log else None
        self._began = time.monotonic()
        self._next = self._began + (self.FIRST if self._changes else self.LOGGED)
        self._width = 0  # width of the line on the screen

    def add(self, count: int) -> None:
        """Adds to the number of finished things."""
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
        # Progress must never stop the call.
        with contextlib.suppress(Exception):
            sys.stderr.write(text)
            sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            self._write(f"\r{' ' * self._width}\r")


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Drops what C++ libraries log to standard error inside the block. Other lines appear at its end.

    These are lines of other threads, of child processes, and Python's exceptions, which are shown after the block.
    """
    # Without a standard error, file descriptor 2 may belong to another file.
    if sys.__stderr__ is None and sys.stderr is None:
        yield
        return
    with STANDARD_ERROR, _temporary() as written:
        if sys.stderr is not None:
            sys.stderr.flush()
        saved = os.dup(2)
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            written.seek(0)
            others = b"".join(line for line in written if not LOGGED.match(line))
            with contextlib.suppress(OSError):  # a terminal that is gone
                os.write(2, others)


def _temporary() -> Any:
    """Opens a file for what is logged, or the null device on a system without a directory that can be written."""
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return open(os.devnull, "rb+")


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Applies `quiet_stderr` to imports of Keras and TensorFlow, unless the user set TensorFlow's log level.

    Without a level, TensorFlow does not log information either, such as CPU instructions and missing GPUs. It reads the
    level once, when it first logs. The variable stays unset for the program around this package and its children.

    If Keras cannot be imported with its backend, `BadInput` is raised.
    """
    is_loud = LOG_LEVEL in os.environ or {"keras", "tensorflow"} <= sys.modules.keys()
    try:
        with contextlib.nullcontext() if is_loud else quiet_stderr():
            if not is_loud and "tensorflow" not in sys.modules:
                os.environ[LOG_LEVEL] = WITHOUT_INFORMATION
            try:
                yield
            finally:
                if not is_loud:
                    os.environ.pop(LOG_LEVEL, None)
    except Exception as error:
        # A failed import removes `keras` and leaves some of its modules.
        if "keras" in sys.modules or not any(name.startswith("keras.") for name in sys.modules):
            raise
        name, reason = os.environ.get("KERAS_BACKEND") or "tensorflow", str(error).partition("\n")[0]
        action = "Set it to one of tensorflow, jax and torch that is installed."
        raise BadInput(f"KERAS_BACKEND: expected an installed backend, got {name} ({reason}). {action}") from error
