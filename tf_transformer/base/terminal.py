"""One way to print, on every terminal and without one, and the word for a training that was told to stop."""

import contextlib
import sys


class Stopped(Exception):
    """Training has saved a checkpoint and stopped, on the signal `number` or at the requested step."""

    def __init__(self, message: str, number: int = 0):
        super().__init__(message)
        self.number = number


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


def is_terminal() -> bool:
    """Whether standard output is a terminal. A service has none; a stream of one's own may have `write` alone."""
    try:
        return bool(sys.stdout.isatty())
    except (AttributeError, ValueError):  # None, or without this method; closed
        return False
