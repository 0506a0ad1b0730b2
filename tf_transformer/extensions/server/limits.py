"""Limits of requests, with LibreTranslate's names and messages."""

import math
import threading
import time
from collections import Counter
from dataclasses import dataclass

from werkzeug.exceptions import BadRequest, TooManyRequests

MINUTE = 60.0  # seconds


@dataclass(frozen=True)
class Limits:
    """Limits of a request. -1 means no limit.

    Attributes:
        chars: Characters of a text.
        batch: Texts of a request.
        requests: Requests per minute and client. A text of a list counts as one.
        body: Bytes of a request's body.
    """

    chars: int = 100_000
    batch: int = 1_000
    requests: int = -1
    body: int = 4 << 20

    def __str__(self) -> str:
        names = {"chars": "characters", "batch": "texts", "requests": "requests per minute", "body": "bytes"}
        limits = {words: getattr(self, name) for name, words in names.items()}
        return "at most " + ", ".join(f"{limit:,} {words}" for words, limit in limits.items() if limit >= 0)

    def check(self, texts: list[str]) -> None:
        """Raises `BadRequest` if a request has too many texts, or too long ones."""
        for size, limit in [(len(texts), self.batch), *((len(text), self.chars) for text in texts)]:
            if 0 <= limit < size:
                raise BadRequest(f"Invalid request: request ({size}) exceeds text limit ({limit})")
        if any("\ud800" <= letter < "\ue000" for text in texts for letter in {*text}):
            raise BadRequest("Invalid request: a text has half of a surrogate pair")


class Rates:
    """Requests of each client in the current minute."""

    def __init__(self, limit: int) -> None:
        self._limit, self._lock, self._end, self._counts = limit, threading.Lock(), 0.0, Counter[str]()

    def spend(self, address: str, count: int = 1) -> None:
        """Adds requests of a client. Raises `TooManyRequests` if it has reached the limit before."""
        if self._limit < 0:
            return
        with self._lock:
            now = time.monotonic()
            if now >= self._end:
                self._end, self._counts = now + MINUTE, Counter()
            if self._counts[address] >= self._limit:
                raise TooManyRequests(f"Slowdown: {self._limit} per 1 minute", retry_after=math.ceil(self._end - now))
            self._counts[address] += count
