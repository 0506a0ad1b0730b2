"""Limits of requests, with LibreTranslate's names and messages."""

import math
import threading
import time
from collections import deque
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from werkzeug.exceptions import BadRequest, TooManyRequests

MINUTE = 60.0  # seconds
MANY = 10_000  # clients


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
        words = {
            f"{self.chars:,} characters": self.chars,
            f"{self.batch:,} texts": self.batch,
            f"{self.requests:,} requests per minute": self.requests,
            f"{self.body:,} bytes": 0,
        }
        return "at most " + ", ".join(word for word, limit in words.items() if limit >= 0)

    def check(self, texts: list[str]) -> None:
        """Raises `BadRequest` if a request has too many texts, or too long ones."""
        sizes = [(len(texts), self.batch), *((len(text), self.chars) for text in texts)]
        for size, limit in sizes:
            if 0 <= limit < size:
                raise BadRequest(f"Invalid request: request ({size}) exceeds text limit ({limit})")


class Rates:
    """Requests of each client within the last minute."""

    def __init__(self, limit: int) -> None:
        self._limit, self._lock = limit, threading.Lock()
        self._times: dict[str, deque[float]] = {}

    def spend(self, address: str, count: int = 1) -> None:
        """Adds requests of a client. Raises `TooManyRequests` if it has reached the limit before."""
        if self._limit < 0:
            return
        client, now = network(address), time.monotonic()
        with self._lock:
            if len(self._times) > MANY:
                self._times = {key: times for key, times in self._times.items() if times and times[-1] > now - MINUTE}
            times = self._times.setdefault(client, deque())
            while times and times[0] <= now - MINUTE:
                times.popleft()
            if len(times) >= self._limit:
                wait = times[-self._limit] + MINUTE - now if self._limit else MINUTE
                raise TooManyRequests(f"Slowdown: {self._limit} per 1 minute", retry_after=math.ceil(wait))
            times.extend([now] * count)


def network(address: str) -> str:
    """Returns the network of an address. A client of IPv6 has a network of 2**64 addresses."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(ip, IPv6Address):
        return str(ip)
    return str(ip.ipv4_mapped or ip.packed[:8].hex())
