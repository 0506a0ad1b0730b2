"""Translate with a server's REST API. Needs Python's standard library alone.

It prints the translation of each text, or of each line of standard input. With an option or --n-best it prints lines of
number, score and translation, best first.
"""

import argparse
import json
import random
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any

BUSY = (429, 503)  # the queue is full, or no version is ready: try again


class Client:
    """A model behind http://HOST/v1/models/NAME.

    Args:
        host: HOST:PORT, or a URL.
        name: of the model.
        version: a number or a label; `None` means the newest.
        timeout: seconds for an answer.
        retries: how often to ask again when the server is busy.
    """

    def __init__(
        self,
        host: str = "localhost:8501",
        name: str = "demo",
        version: int | str | None = None,
        timeout: float = 30.0,
        retries: int = 5,
    ) -> None:
        self.url = host if "://" in host else f"http://{host}"
        self.url += f"/v1/models/{urllib.parse.quote(name)}"
        if version:
            self.url += f"/{'versions' if str(version).isdigit() else 'labels'}/{version}"
        self.timeout = timeout
        self.retries = retries

    def predict(self, instances: Sequence[Any], signature: str = "serving_default") -> Any:
        """The predictions for a list of rows: values for a single input, else {input: value} with all inputs."""
        return self._ask(":predict", {"signature_name": signature, "instances": instances})["predictions"]

    def options(self) -> dict[str, Any]:
        """The options of `translate` with their defaults, from the model itself; over REST every input must be sent."""
        signatures = self._ask("/metadata")["metadata"]["signature_def"]["signature_def"]
        if "translate" not in signatures:
            raise LookupError("expected a translator's model, got one without the signature translate")
        names = sorted(signatures["translate"]["inputs"].keys() - {"text"})
        return dict(zip(names, map(json.loads, self.predict(names, "model_info")), strict=True))

    def _ask(self, what: str, body: Any = None) -> Any:
        """An answer as JSON; again and again while the server is busy."""
        data = json.dumps(body).encode() if body else None  # without data it is a GET
        request = urllib.request.Request(self.url + what, data, {"Content-Type": "application/json"})
        for attempt in range(self.retries + 1):
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code not in BUSY or attempt == self.retries:
                    raise
                time.sleep(random.uniform(0.5, 1) * 0.1 * 2**attempt)


def option(text: str) -> tuple[str, Any]:
    """NAME=VALUE as name and number."""
    name, _, value = text.partition("=")
    return name, json.loads(value)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", help="texts to translate (the lines of standard input)")
    parser.add_argument("--host", default="localhost:8501", help="HOST:PORT or a URL (localhost:8501)")
    parser.add_argument("--name", default="demo", help="name of the model (demo)")
    parser.add_argument("--version", help="a version's number or label (the newest)")
    parser.add_argument("--n-best", type=int, help="how many translations of each text")
    what = "an option of the search, such as beam_size=2; may be repeated (the model's)"
    parser.add_argument("--option", type=option, action="append", default=[], metavar="NAME=VALUE", help=what)
    parser.add_argument("--batch-size", type=int, default=32, help="texts a request (32)")
    parser.add_argument("--timeout", type=float, default=30, help="seconds for an answer (30)")
    args = parser.parse_args(argv)

    client = Client(args.host, args.name, args.version, args.timeout)
    texts = args.texts or [line.rstrip("\n") for line in sys.stdin]
    options = client.options() | dict(args.option) if args.option or args.n_best else {}
    for start in range(0, len(texts), args.batch_size):
        batch = texts[start : start + args.batch_size]
        if not options:
            for answer in client.predict(batch):
                print(answer["translation"])
            continue
        answers = client.predict([{"text": text} | options for text in batch], "translate")
        for i, answer in enumerate(answers, start):
            found = zip(answer["scores"], answer["translations"], strict=True)
            for score, translation in [pair for pair in found if pair[0] > -1e8][: args.n_best]:  # -1e9: not used
                print(i, f"{score:.4f}", translation, sep="\t")


if __name__ == "__main__":
    try:
        main()
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")
        sys.exit(f"error: HTTP {error.code}: {json.loads(said)['error'] if said.startswith('{') else said}")
    except LookupError as error:
        sys.exit(f"error: {error}")
    except (urllib.error.URLError, TimeoutError) as error:
        sys.exit(f"error: no answer: {getattr(error, 'reason', error)}")
