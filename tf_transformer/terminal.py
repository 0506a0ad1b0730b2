"""One way to print, on every terminal."""

import sys


def say(text: str = "", end: str = "\n") -> None:
    """Print at once. What the terminal's encoding lacks becomes an escape such as \\xfc: no training may end by it."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), end=end, flush=True)
