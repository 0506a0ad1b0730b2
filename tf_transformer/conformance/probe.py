"""The checks that call an export, in a process of their own and through `loader`. `check` runs

    python tf_transformer/conformance/probe.py DIR TOLERANCE

and reads a finding a line, as JSON. Signatures that take text get rows that are known to cause trouble.
"""

import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

if __package__:
    from tf_transformer.conformance.loader import Servable, SessionError, Signature, warmup_requests
else:  # as a file, without the package
    from loader import Servable, SessionError, Signature, warmup_requests  # type: ignore[no-redef]

ROWS = [
    b"Hello world.",
    b"",
    b"   ",
    b"\xff\xfe",
    b"abc\xc3",
    b"a\x00b",
    b"\x01\x7f\n\t",
    "e\u0301 \ufb01 \U0001f600 \u3000x \u202e \ufeff".encode(),
    b"word " * 3000,
    b"<s></s><pad><unk>",
]
SHORT = [row for row in ROWS if len(row) < 100]
INTEGERS = [-(2**31), -1, 0, 1, 2**31 - 1]
STRINGS = [b"", b"xx", b"\xff", b"</s>"]
FLOATS = [-np.inf, -1.0, 0.0, 1e30, np.inf, np.nan]
INVALID_ARGUMENT = 3


def probe(path: str | Path, tolerance: float) -> Iterator[tuple[str, str]]:
    """Level and message of each finding.

    Args:
        path: the folder of the SavedModel.
        tolerance: of numbers computed in batches of different sizes; from 0.1 on, some rows may differ.
    """
    servable = Servable(path)
    yield "ok", f"TensorFlow {servable.version}'s C++ loader loads it"
    if (Path(path) / "assets.extra" / "tf_serving_warmup_requests").is_file():
        yield from warm_up(servable, path)
    for name, signature in servable.signatures.items():
        required = [port for key, port in signature.inputs.items() if key not in signature.defaults]
        if not required or any(port.dtype is not object for port in required):
            yield "ok", f"{name}: not called, since it does not take text alone"
            continue
        if any(not port.tensor for port in signature.outputs.values()) or any(
            value.shape != (1,) for value in signature.defaults.values()
        ):
            yield "FAIL", f"{name}: not called, since an output is no tensor or a default is not one value in a vector"
            continue
        try:
            yield from Calls(servable, name, signature, tolerance, _sizes(path)).findings()
        except SessionError as error:
            yield "FAIL", f"{name}: {_line(error)}"


def warm_up(servable: Servable, path: str | Path) -> Iterator[tuple[str, str]]:
    """Run the warm-up records. The server runs them before it is ready, and gives up if one fails."""
    count = 0
    for count, (name, inputs) in enumerate(warmup_requests(path), 1):
        try:
            servable.predict(inputs, name)
        except (KeyError, SessionError) as error:
            yield "FAIL", f"warm-up record {count} ({name}): {_line(error)}"
            return
        if len({value.shape[:1] for value in inputs.values()}) > 1 or any(value.size == 0 for value in inputs.values()):
            yield "FAIL", f"warm-up record {count} ({name}): its inputs are not vectors of one length"
            return
    yield ("ok" if 1 <= count <= 1000 else "FAIL"), f"{count} warm-up records run"


class Calls:
    """The requests to one signature."""

    def __init__(self, servable: Servable, name: str, signature: Signature, tolerance: float, sizes: list[int]) -> None:
        self.servable = servable
        self.name = name
        self.signature = signature
        self.tolerance = tolerance
        self.sizes = sizes
        self.texts = [key for key in signature.inputs if key not in signature.defaults]

    def call(self, rows: Any, **options: Any) -> Any:
        texts = np.array(rows, object)
        return self.servable.predict(dict.fromkeys(self.texts, texts) | options, self.name)

    def findings(self) -> Iterator[tuple[str, str]]:
        yield from self.requests_that_are_merged()
        yield from self.options_out_of_range()
        yield from self.an_empty_batch()
        yield from self.wrong_shapes()
        yield from self.threads()

    def requests_that_are_merged(self) -> Iterator[tuple[str, str]]:
        """Send rows alone, with options of their own, and merged as the server's batching merges them."""
        requests = []
        for place, row in enumerate(ROWS):
            values = {key: _other(value, place) for key, value in self.signature.defaults.items()}
            requests.append({key: np.array([row], object) for key in self.texts} | values)
        alone = [self.servable.predict(request, self.name) for request in requests]
        shapes = {key: {answer[key].shape for answer in alone} for key in self.signature.outputs}
        for key, found in shapes.items():
            if len(found) > 1 or len(shape := next(iter(found))) == 0 or shape[0] != 1:
                yield "FAIL", f"{self.name}.{key}: one row gives the shapes {sorted(found)}"
                return
        yield from self.values(alone, "hostile rows")

        count = next((size for size in self.sizes if size >= len(requests)), len(requests))
        padding = [{key: value[:1] for key, value in requests[-1].items()}] * (count - len(requests))
        merged = {key: np.concatenate([r[key] for r in requests + padding]) for key in requests[0]}
        together = self.servable.predict(merged, self.name)
        different: dict[int, list[str]] = {}  # by row, the outputs
        for place, answer in enumerate(alone):
            for key, value in answer.items():
                if not _agree(together[key][place : place + 1], value, self.tolerance):
                    different.setdefault(place, []).append(key)
        message = f"{self.name}: {len(ROWS)} requests merged to a batch of {count} answer as alone"
        if different:
            message += ", but " + ", ".join(f"row {place}'s {key}" for place, keys in different.items() for key in keys)
        # With 8 or 16 bits, numbers round differently in another batch, and of two close texts the other may win.
        excused = 3 if self.tolerance >= 0.1 else 0
        yield ("FAIL" if len(different) > excused else "ok"), message

    def values(self, answers: Any, what: str) -> Iterator[tuple[str, str]]:
        """Check that JSON can hold the answers: valid UTF-8 and finite numbers."""
        for answer in answers:
            for key, value in answer.items():
                if value.dtype.kind == "f" and not np.isfinite(value).all():
                    yield "FAIL", f"{self.name}.{key}: NaN or infinite for {what}"
                    return
                if value.dtype == object:
                    for text in value.flat:
                        try:
                            text.decode()
                        except UnicodeDecodeError:
                            yield "FAIL", f"{self.name}.{key}: invalid UTF-8 for {what}: {text[:20]!r}"
                            return
        yield "ok", f"{self.name}: {what} give valid UTF-8 and finite numbers"

    def options_out_of_range(self) -> Iterator[tuple[str, str]]:
        answers = []
        for key, default in self.signature.defaults.items():
            kinds = {"i": INTEGERS, "u": INTEGERS, "O": STRINGS}
            extremes = np.array(kinds.get(default.dtype.kind, FLOATS), default.dtype)
            answers.append(self.call([SHORT[0]] * len(extremes), **{key: extremes}))
        if answers:
            yield from self.values(answers, "options out of range")

    def an_empty_batch(self) -> Iterator[tuple[str, str]]:
        answer = self.call([])
        wrong = [key for key, value in answer.items() if value.shape[:1] != (0,)]
        message = f"{self.name}: an empty batch gives empty outputs"
        yield ("FAIL", f"{message}, but {', '.join(wrong)}") if wrong else ("ok", message)

    def wrong_shapes(self) -> Iterator[tuple[str, str]]:
        text = np.array(b"a", object)
        tries = {"[]": dict.fromkeys(self.texts, text), "[1, 2]": dict.fromkeys(self.texts, text.repeat(2)[None])}
        for key, value in self.signature.defaults.items():
            two = dict.fromkeys(self.texts, text.repeat(2))
            tries[f"[3] beside 2 rows, in {key},"] = two | {key: value.repeat(3)}
        for shape, inputs in tries.items():
            try:
                self.servable.predict(inputs, self.name)
            except SessionError as error:
                refused = error.code == INVALID_ARGUMENT
                yield ("ok" if refused else "WARN"), f"{self.name}: an input {shape} is refused: {_line(error)}"
            else:
                yield "WARN", f"{self.name}: an input {shape} is accepted; the graph should begin with tf.ensure_shape"

    def threads(self, count: int = 6, requests: int = 4) -> Iterator[tuple[str, str]]:
        expected = [self.call([row]) for row in SHORT]
        different: list[int] = []

        def work(first: int) -> Any:
            for place in range(first, first + requests):
                answer = self.call([SHORT[place % len(SHORT)]])
                wanted = expected[place % len(SHORT)]
                if not all(_agree(answer[key], wanted[key], self.tolerance) for key in wanted):
                    different.append(place)

        workers = [threading.Thread(target=work, args=(number,)) for number in range(count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        message = f"{self.name}: {count} threads get the answers that one gets"
        yield ("FAIL", f"{message}, but {len(different)}") if different else ("ok", message)


def _other(default: np.ndarray, place: int) -> np.ndarray:
    """A value near an option's default, another for every place; a text stays."""
    if default.dtype == object:
        return default
    return np.maximum(default * [1.0, 0.5, 0.25][place % 3], 0).astype(default.dtype)


def _agree(found: np.ndarray, expected: np.ndarray, tolerance: float) -> bool:
    if found.shape != expected.shape:
        return False
    if found.dtype.kind == "f":
        return bool(np.allclose(found, expected, rtol=tolerance, atol=tolerance))
    return bool((found == expected).all())


def _sizes(path: str | Path) -> list[int]:
    """The batch sizes that a server pads to."""
    file = Path(path) / "batching_params.pbtxt"
    text = file.read_text() if file.is_file() else ""
    return [int(size) for size in re.findall(r"allowed_batch_sizes\s*:\s*(\d+)", text)]


def _line(error: Exception) -> str:
    return str(error.args[0] if error.args else error).splitlines()[0][:200]


if __name__ == "__main__":
    for level, message in probe(sys.argv[1], float(sys.argv[2])):
        print(json.dumps([level, message]), flush=True)
