"""Load a REST endpoint of TensorFlow Serving and print requests a second, latencies and errors.

Each of --concurrency clients keeps its connection, and sends a request when the last one is answered. The texts, your
own or sentences of 6 to 48 words, are sent in turn. One request before the start does not count. Needs requests.
"""

import argparse
import collections
import itertools
import json
import math
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import requests

SENTENCES = [" ".join(n * ["the old woman sees three dogs"]) + "." for n in (1, 4, 2, 8, 1, 3)]


class Run:
    """The state that all clients share: requests to send, and answers."""

    def __init__(self, url: str, bodies: list[bytes], limit: float, seconds: float, timeout: float) -> None:
        self.url = url
        self.bodies = itertools.cycle(bodies)
        self.left = limit
        self.timeout = timeout
        self.latencies: list[float] = []
        self.errors: collections.Counter[str] = collections.Counter()
        self.lock = threading.Lock()
        self.end = time.monotonic() + seconds

    def client(self) -> None:
        with requests.Session() as session:
            while True:
                with self.lock:
                    if self.left <= 0 or time.monotonic() >= self.end:
                        return
                    self.left -= 1
                    body = next(self.bodies)
                start = time.monotonic()
                error = ask(session, self.url, body, self.timeout)
                seconds = time.monotonic() - start
                with self.lock:
                    if error:
                        self.errors[error.split(":")[0]] += 1
                    else:
                        self.latencies.append(seconds)


def ask(session: Any, url: str, body: bytes, timeout: float) -> str:
    """Send a request, and return "" or "KIND: error"."""
    try:
        answer = session.post(url, data=body, timeout=timeout)
    except requests.Timeout:
        return f"timeout: no answer in {timeout:g} s"
    except requests.RequestException as error:
        return f"no connection: {error}"
    return "" if answer.ok else f"HTTP {answer.status_code}: {answer.text.strip()[:300]}"


def percentile(values: list[float], percent: float) -> float:
    """The least value that `percent` percent of the values do not exceed."""
    return sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="localhost:8501", help="HOST:PORT or a URL (localhost:8501)")
    parser.add_argument("--name", default="demo", help="name of the model (demo)")
    parser.add_argument(
        "--signature", default="serving_default", help="a signature with a text as its only input (serving_default)"
    )
    parser.add_argument("--text", metavar="FILE", help="file with a text a line (built-in sentences)")
    parser.add_argument("--rows", type=int, default=1, help="texts a request (1)")
    parser.add_argument("--concurrency", type=int, default=8, help="clients at once (8)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--requests", type=int, help="how many requests (200)")
    length.add_argument("--seconds", type=float, help="how long, instead of --requests")
    parser.add_argument("--timeout", type=float, default=30, help="seconds for an answer (30)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead")
    args = parser.parse_args(argv)
    for name in ("rows", "concurrency", "requests", "seconds", "timeout"):
        if getattr(args, name) is not None and getattr(args, name) <= 0:
            parser.error(f"--{name}: expected a positive number, got {getattr(args, name)}")

    texts = SENTENCES
    if args.text:
        try:
            with open(args.text, encoding="utf-8-sig", newline="\n") as file:
                texts = [line.strip() for line in file if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            parser.error(f"--text: {error}")
        if not texts:
            parser.error(f"--text: expected a text a line, got none in {args.text}")
    # Enough requests that the next one would begin with the first text again.
    count = math.lcm(len(texts), args.rows) // args.rows
    row = itertools.cycle(texts)
    rows = [list(itertools.islice(row, args.rows)) for _ in range(count)]
    bodies = [json.dumps({"signature_name": args.signature, "instances": instances}).encode() for instances in rows]
    host = args.host if "://" in args.host else f"http://{args.host}"
    url = f"{host}/v1/models/{args.name}:predict"
    wrong = ask(requests, url, bodies[0], args.timeout)
    if wrong:
        print(f"error: {url}: {wrong}", file=sys.stderr)
        return 2

    limit = args.requests or (math.inf if args.seconds else 200)
    run = Run(url, bodies, limit, args.seconds or math.inf, args.timeout)
    start = time.monotonic()
    with ThreadPoolExecutor(args.concurrency) as pool:
        for client in [pool.submit(run.client) for _ in range(args.concurrency)]:
            client.result()
    seconds = time.monotonic() - start

    answered, failed = len(run.latencies), sum(run.errors.values())
    found = {
        "concurrency": args.concurrency,
        "rows": args.rows,
        "requests": answered + failed,
        "errors": dict(run.errors),
        "seconds": round(seconds, 3),
        "requests_per_second": round(answered / seconds, 2),
        "sentences_per_second": round(answered * args.rows / seconds, 2),
    }
    if answered:
        found |= {f"p{percent}_ms": round(1000 * percentile(run.latencies, percent), 1) for percent in (50, 90, 99)}
    if args.json:
        print(json.dumps(found))
    else:
        for key, value in found.items():
            shown = ", ".join(f"{n} {kind}" for kind, n in value.items()) or 0 if key == "errors" else value
            print(f"{key.replace('_', ' '):22}{shown}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
