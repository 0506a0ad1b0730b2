"""Translate with a server's REST API. Needs Python's standard library alone.

It prints the translation of each text, or of each line of standard input. A text is one sentence. With an option or
--n-best it prints lines of number, score and translation, best first.
"""

import argparse
import json
import os
import random
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
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
        return dict(zip(names, map(parsed, self.predict(names, "model_info")), strict=True))

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


def translated(
    client: Client, texts: list[str], options: dict[str, Any], first: int, n_best: int | None
) -> Iterator[str]:
    """Lines to print for texts: translations, or with options numbers from `first`, scores and translations."""
    if not options:
        yield from (answer["translation"].replace("\n", " ") for answer in client.predict(texts))
        return
    answers = client.predict([{"text": text} | options for text in texts], "translate")
    for i, answer in enumerate(answers, first):
        if answer["truncated"] and not answer["source_length"]:  # nothing of the text was read
            codes = " or ".join(str(options.get(f"{side}_language")) for side in ("source", "target"))
            raise LookupError(f"expected languages that model_info lists for the key languages, got {codes}")
        pairs = zip(answer["scores"], answer["translations"], strict=True)
        for score, translation in [pair for pair in pairs if pair[0] > -1e8][:n_best]:  # -1e9: not used
            yield "\t".join([str(i), f"{score:.4f}", translation.replace("\n", " ")])


def reason(error: OSError) -> str:
    """Why there is no answer."""
    if not isinstance(error, urllib.error.HTTPError):
        return f"no answer: {getattr(error, 'reason', error)}"
    said = error.read().decode(errors="replace")
    return f"HTTP {error.code}: {json.loads(said)['error'] if said.startswith('{') else said}"


def lines() -> list[str]:
    """The lines of standard input, in UTF-8."""
    sys.stdin.reconfigure(encoding="utf-8-sig", newline="\n")  # type: ignore[union-attr]
    return [line.rstrip("\r\n") for line in sys.stdin]


def parsed(value: str) -> Any:
    """The value of an option: a number, or a text, such as a language's code."""
    try:
        return json.loads(value)
    except ValueError:
        if not value:
            raise
        return value


def option(text: str) -> tuple[str, Any]:
    """NAME=VALUE as name and value."""
    name, _, value = text.partition("=")
    return name, parsed(value)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", help="texts to translate (the lines of standard input)")
    parser.add_argument("--host", default="localhost:8501", help="HOST:PORT or a URL (localhost:8501)")
    parser.add_argument("--name", default="demo", help="name of the model (demo)")
    parser.add_argument("--version", help="a version's number or label (the newest)")
    parser.add_argument("--n-best", type=int, help="how many translations of each text")
    what = "an option of the model, such as beam_size=2; may be repeated (the model's)"
    parser.add_argument("--option", type=option, action="append", default=[], metavar="NAME=VALUE", help=what)
    parser.add_argument("--batch-size", type=int, default=32, help="texts a request (32)")
    parser.add_argument("--timeout", type=float, default=30, help="seconds for an answer (30)")
    args = parser.parse_intermixed_args(argv)
    for name in ("n_best", "batch_size", "timeout"):
        if getattr(args, name) is not None and not getattr(args, name) > 0:
            parser.error(f"--{name.replace('_', '-')}: expected a positive number, got {getattr(args, name)}")

    done, said = 0, time.monotonic()
    try:
        texts = args.texts or lines()
        client = Client(args.host, args.name, args.version, args.timeout)
        options = client.options() | dict(args.option) if args.option or args.n_best else {}
        while done < len(texts):
            batch = texts[done : done + args.batch_size]
            print(*translated(client, batch, options, done, args.n_best), sep="\n", flush=True)
            done += len(batch)
            if time.monotonic() - said > 10:
                said = time.monotonic()
                print(f"{done:,} of {len(texts):,} texts", file=sys.stderr, flush=True)
    except (urllib.error.URLError, TimeoutError) as error:
        sys.exit(f"error: {reason(error)}; {done:,} of {len(texts):,} texts were translated")
    except (LookupError, UnicodeError) as error:  # a parser's model, other bytes
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # it is closed, as by `2>&-`; what is printed there must not go to the other
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
