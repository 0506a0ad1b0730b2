"""Ask one session of an export from many threads at once, through TensorFlow's C++ loader:

    python tests/threads.py savedmodels/demo/1 --threads 64 --requests 50

Requests have options of their own; each answer has to be the one that the same request got when it was alone."""

import argparse
import concurrent.futures
import random
import sys
import time

import numpy as np
from hostile import TEXTS, Servable

SHORT = [text for text in TEXTS if len(text) < 100]


def request(r: random.Random) -> tuple[dict, str]:
    texts = np.array(r.choices(SHORT, k=r.choice([1, 1, 2, 5])), object)
    name = r.choice(["serving_default", *3 * ["translate"], "translate_details", "score", "tokenize"])
    if name == "score":
        return {"source": texts, "target": texts[::-1].copy()}, name
    if not name.startswith("translate"):
        return {"text": texts}, name
    rows = r.choice([1, len(texts)])
    options = {
        "beam_size": np.array([r.randint(1, 6) for _ in range(rows)], np.int32),
        "length_penalty": np.array([r.choice([0.0, 0.6, 1.0, 2.5]) for _ in range(rows)], np.float32),
        "max_length": np.array([r.randint(1, 20) for _ in range(rows)], np.int32),
    }
    return {"text": texts} | {key: value for key, value in options.items() if r.random() < 0.8}, name


def difference(found: dict, expected: dict) -> float:
    """The greatest between numbers; infinite where anything else differs."""
    greatest = 0.0
    for name, value in expected.items():
        if value.dtype.kind == "f":
            greatest = max(greatest, float(np.abs(found[name] - value).max(initial=0.0)))
        elif not np.array_equal(found[name], value):
            return float("inf")
    return greatest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("path", metavar="DIR")
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--requests", type=int, default=50, help="of each thread")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    servable, r = Servable(args.path), random.Random(args.seed)
    requests = [request(r) for _ in range(args.threads * args.requests)]
    began = time.perf_counter()
    alone = [servable.predict(*each) for each in requests]
    seconds = time.perf_counter() - began

    def work(first: int) -> list[float]:
        mine = range(first, len(requests), args.threads)
        return [difference(servable.predict(*requests[place]), alone[place]) for place in mine]

    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(args.threads) as pool:
        found = [value for values in pool.map(work, range(args.threads)) for value in values]
    wrong = sum(value > 1e-4 for value in found)
    print(
        f"{args.threads} threads x {args.requests} requests: {wrong} other than alone, numbers differ by at most "
        f"{max(found):.1e}; {seconds:.0f} s one by one, {time.perf_counter() - began:.0f} s together"
    )
    sys.exit(1 if wrong or len(found) != args.threads * args.requests else 0)


if __name__ == "__main__":
    main()
