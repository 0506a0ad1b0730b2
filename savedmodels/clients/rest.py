"""Translate with a server's REST API. Needs only Python's standard library.

It prints the translation of each text, or of each line of standard input. A text is one sentence. With --option or
--n-best it prints lines of index, score and translation, best first.
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

BUSY = (429, 503)  # the queue is full, or no version is ready


class Client:
    """A model behind http://HOST/v1/models/NAME.

    Args:
        host: HOST:PORT, or a URL.
        name: Model name.
        version: Version number or label. Defaults to the newest.
        timeout: Seconds to wait for a response.
        retries: Number of retries if the server is busy.
    """

    def __init__(
        self,
        host: str = "localhost:8501",
        name: str = "demo",
        version: Any = None,
        timeout: float = 30,
        retries: int = 5,
    ) -> None:
        self.url = host if "://" in host else f"http://{host}"
        self.url += f"/v1/models/{urllib.parse.quote(name)}"
        if version:
            self.url += f"/{'versions' if str(version).isdigit() else 'labels'}/{version}"
        self.timeout = timeout
        self.retries = retries

    def predict(self, instances: Sequence[Any], signature: str = "serving_default") -> Any:
        """Returns the predictions for rows: values for a single input, otherwise {input: value} with all inputs."""
        return self._ask(":predict", {"signature_name": signature, "instances": instances})["predictions"]

    def options(self) -> dict[str, Any]:
        """Returns the model's options of `translate` with their defaults. REST requests need every input."""
        signatures = self._ask("/metadata")["metadata"]["signature_def"]["signature_def"]
        if "translate" not in signatures:
            raise LookupError("expected a translator's model, got one without the signature translate")
        names = sorted(signatures["translate"]["inputs"].keys() - {"text"})
        return dict(zip(names, map(parsed, self.predict(names, "model_info")), strict=True))

    def _ask(self, path: str, body: Any = None) -> Any:
        """Returns the JSON response. Retries while the server is busy."""
        data = json.dumps(body).encode() if body else None  # without data it is a GET
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        for attempt in range(self.retries + 1):
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                if error.code not in BUSY or attempt == self.retries:
                    raise
                time.sleep(random.uniform(0.5, 1) * 0.1 * 2**attempt)


def translated(client: Client, texts: list[str], options: dict[str, Any], first: int, n_best: Any) -> Iterator[str]:
    """Yields lines for texts: translations, or with options indices from `first`, scores and translations."""
    if not options:
        yield from (output["translation"].replace("\n", " ") for output in client.predict(texts))
        return
    outputs = client.predict([{"text": text} | options for text in texts], "translate")
    for i, output in enumerate(outputs, first):
        if output["truncated"] and not output["source_length"]:  # the model read nothing
            codes = " or ".join(str(options.get(f"{side}_language")) for side in ("source", "target"))
            raise LookupError(f"expected languages that model_info lists for the key languages, got {codes}")
        pairs = zip(output["scores"], output["translations"], strict=True)
        for score, translation in [pair for pair in pairs if pair[0] > -1e8][:n_best]:  # unused slots have -1e9
            yield "\t".join([str(i), f"{score:.4f}", translation.replace("\n", " ")])


def parsed(value: str) -> Any:
    """Converts an option's value: a number, or a text such as a language code."""
    try:
        return json.loads(value)
    except ValueError:
        if not value:
            raise
        return value


def option(text: str) -> tuple[str, Any]:
    """Splits NAME=VALUE."""
    name, _, value = text.partition("=")
    return name, parsed(value)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", help="texts to translate (the lines of standard input)")
    parser.add_argument("--host", default="localhost:8501", help="HOST:PORT or a URL (localhost:8501)")
    parser.add_argument("--name", default="demo", help="model name (demo)")
    parser.add_argument("--version", help="version number or label (the newest)")
    parser.add_argument("--n-best", type=int, help="number of translations per text")
    usage = "option of the model, such as beam_size=2 (the model's). Repeatable."
    parser.add_argument("--option", type=option, action="append", default=[], metavar="NAME=VALUE", help=usage)
    parser.add_argument("--batch-size", type=int, default=32, help="texts per request (32)")
    parser.add_argument("--timeout", type=float, default=30, help="seconds to wait for a response (30)")
    args = parser.parse_intermixed_args(argv)
    for name in ("n_best", "batch_size", "timeout"):
        if getattr(args, name) is not None and not getattr(args, name) > 0:
            parser.error(f"--{name.replace('_', '-')}: expected a positive number, got {getattr(args, name)}")

    done, reported = 0, time.monotonic()
    try:
        if not (texts := args.texts):
            sys.stdin.reconfigure(encoding="utf-8-sig", newline="\n")  # type: ignore[union-attr]
            texts = [line.rstrip("\r\n") for line in sys.stdin]
        client = Client(args.host, args.name, args.version, args.timeout)
        options = client.options() | dict(args.option) if args.option or args.n_best else {}
        while done < len(texts):
            batch = texts[done : done + args.batch_size]
            print(*translated(client, batch, options, done, args.n_best), sep="\n", flush=True)
            done += len(batch)
            if time.monotonic() - reported > 10:
                reported = time.monotonic()
                print(f"{done:,} of {len(texts):,} texts", file=sys.stderr, flush=True)
    except (urllib.error.URLError, TimeoutError) as error:
        reason = f"no response: {getattr(error, 'reason', error)}"
        if isinstance(error, urllib.error.HTTPError):
            body = error.read().decode(errors="replace")
            reason = f"HTTP {error.code}: {json.loads(body)['error'] if body.startswith('{') else body}"
        sys.exit(f"error: {reason}; {done:,} of {len(texts):,} texts were translated")
    except (LookupError, UnicodeError) as error:  # a parser, or bytes that are not UTF-8
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    for stream in ("stdout", "stderr"):
        # A closed stream (`2>&-`) is replaced, so that no other file takes its number.
        if getattr(sys, stream) is None:
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
