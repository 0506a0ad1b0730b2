"""Checks that call an export, each kind in a separate process. `check` runs

    python tf_transformer/extensions/conformance/probe.py server|python|client DIR

and reads one JSON finding per line. The texts are known to cause trouble.
"""

import contextlib
import json
import math
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

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
    b">>xx<<",
]
SHORT = [row for row in ROWS if len(row) < 100]
INTEGERS = [-(2**31), -1, 0, 1, 2**31 - 1]
STRINGS = [b"", b"xx", b"\xff", b"</s>"]
FLOATS = [-np.inf, -1.0, 0.0, 1e30, np.inf, np.nan]
INVALID_ARGUMENT = 3
# Tolerances of a row's numbers in batches of different sizes. HALF_TOLERANCE is for variables of 8 or 16 bits.
TOLERANCE = 1e-3
HALF_TOLERANCE = 0.1
BYTES = {"float32": 4, "int8": 1}


class Finding(NamedTuple):
    """A result of a check."""

    level: str  # "ok", "WARN" or "FAIL"
    message: str


def finding(message: str, wrong: Collection[Any], level: str = "FAIL") -> Finding:
    """Returns a finding that `message` holds, unless something is `wrong`."""
    if not wrong:
        return Finding("ok", message)
    items = wrong if isinstance(wrong, list) else sorted(wrong)
    return Finding(level, f"{message}, but: {', '.join(map(str, items))}"[:500])


def server(path: str, tolerance: str) -> Iterator[Finding]:
    """Calls a SavedModel through `loader`, as a server does. `tolerance` is of the numbers of other batch sizes."""
    from loader import Servable, SessionError, warmup_requests  # the file beside this one

    servable = Servable(path)
    yield Finding("ok", f"TensorFlow {servable.version}'s C++ loader loads it")
    if (Path(path) / "assets.extra" / "tf_serving_warmup_requests").is_file():
        count = 0
        # A server runs the warm-up records before it is ready, and stops if one fails.
        for count, (name, inputs) in enumerate(warmup_requests(path), 1):
            wrong = ""
            try:
                servable.predict(inputs, name)
            except (KeyError, SessionError) as error:
                wrong = _line(error)
            lengths = {value.shape[:1] for value in inputs.values()}
            if not wrong and (len(lengths) > 1 or any(value.size == 0 for value in inputs.values())):
                wrong = "its inputs are not vectors of one length"
            if wrong:
                yield Finding("FAIL", f"warm-up record {count} ({name}): {wrong}")
                break
        else:
            yield Finding("ok" if 1 <= count <= 1000 else "FAIL", f"{count} warm-up records run")

    file = Path(path) / "batching_params.pbtxt"
    text = file.read_text() if file.is_file() else ""
    sizes = [int(size) for size in re.findall(r"allowed_batch_sizes\s*:\s*(\d+)", text)]  # padded batches
    for name, signature in servable.signatures.items():
        required = [port for key, port in signature.inputs.items() if key not in signature.defaults]
        if not required or any(port.dtype is not object for port in required):
            yield Finding("ok", f"{name}: not called, since it takes more than text")
        elif any(not port.tensor for port in signature.outputs.values()) or any(
            value.shape != (1,) for value in signature.defaults.values()
        ):
            reason = "an output is not a tensor or a default is not one value in a vector"
            yield Finding("FAIL", f"{name}: not called, since {reason}")
        else:
            calls = Calls(servable, name, float(tolerance), sizes)
            try:
                yield from calls.findings()
            except SessionError as error:
                yield Finding("FAIL", f"{name}: {calls.test}: {_line(error)}")


class Calls:
    """Requests to one signature of a `loader.Servable`."""

    def __init__(self, servable: Any, name: str, tolerance: float, sizes: list[int]) -> None:
        self.servable, self.name, self.tolerance, self.sizes = servable, name, tolerance, sizes
        self.outputs, self.defaults = servable.signatures[name].outputs, servable.signatures[name].defaults
        self.texts = [key for key in servable.signatures[name].inputs if key not in self.defaults]

    def call(self, rows: Any, **options: Any) -> Any:
        texts = np.array(rows, object)
        return self.servable.predict(dict.fromkeys(self.texts, texts) | options, self.name)

    test = "rows in one batch"  # that runs now

    def findings(self) -> Iterator[Finding]:
        yield from self.merged_requests()
        self.test = "options out of range"
        # Options out of range are clipped, in every row.
        extremes = {"i": INTEGERS, "u": INTEGERS, "O": STRINGS}
        outputs = []
        for key, default in self.defaults.items():
            values = np.array(extremes.get(default.dtype.kind, FLOATS), default.dtype)
            outputs.append(self.call([SHORT[0]] * len(values), **{key: values}))
        if outputs:
            yield self.values(outputs, "options out of range")
        self.test = "an empty batch"
        wrong = [key for key, value in self.call([]).items() if value.shape[:1] != (0,)]
        yield finding(f"{self.name}: an empty batch gives empty outputs", wrong)
        self.test = "wrong shapes and threads"
        yield from self.wrong_shapes()
        yield self.threads()

    def merged_requests(self) -> Iterator[Finding]:
        """Sends each row as a request with separate options, and all merged, as the server's batching merges them."""
        requests = []
        for i, row in enumerate(ROWS):
            factor = [1.0, 0.5, 0.25][i % 3]
            options = {
                key: value if value.dtype == object else np.maximum(value * factor, 0).astype(value.dtype)
                for key, value in self.defaults.items()
            }
            requests.append({key: np.array([row], object) for key in self.texts} | options)
        separate = [self.servable.predict(request, self.name) for request in requests]
        for key in self.outputs:
            shapes = {output[key].shape for output in separate}
            if len(shapes) > 1 or next(iter(shapes))[:1] != (1,):
                yield Finding("FAIL", f"{self.name}.{key}: one row has the shapes {sorted(shapes)}")
                return
        yield self.values(separate, "hostile rows")

        count = next((size for size in self.sizes if size >= len(requests)), len(requests))
        padding = [{key: value[:1] for key, value in requests[-1].items()}] * (count - len(requests))
        merged = {key: np.concatenate([r[key] for r in requests + padding]) for key in requests[0]}
        together = self.servable.predict(merged, self.name)
        different = [
            f"row {i}'s {key}"
            for i, output in enumerate(separate)
            for key, value in output.items()
            if not _agree(together[key][i : i + 1], value, self.tolerance)
        ]
        # With 8 or 16 bits, numbers round differently in another batch, and the other of two close texts may win.
        excused = self.tolerance >= HALF_TOLERANCE and len({row.split("'")[0] for row in different}) <= 3
        message = f"{self.name}: {len(ROWS)} requests merged to a batch of {count} return what each returns separately"
        yield finding(message, different, "ok" if excused else "FAIL")

    def values(self, outputs: Any, cause: str) -> Finding:
        """Checks that JSON can hold the outputs: valid UTF-8 and finite numbers."""
        for output in outputs:
            for key, value in output.items():
                if value.dtype.kind == "f" and not np.isfinite(value).all():
                    return Finding("FAIL", f"{self.name}.{key}: NaN or infinite for {cause}")
                if value.dtype == object:
                    for text in value.flat:
                        try:
                            text.decode()
                        except UnicodeDecodeError:
                            return Finding("FAIL", f"{self.name}.{key}: invalid UTF-8 for {cause}: {text[:20]!r}")
        return Finding("ok", f"{self.name}: {cause} give valid UTF-8 and finite numbers")

    def wrong_shapes(self) -> Iterator[Finding]:
        from loader import SessionError

        text = np.array(b"a", object)
        tries = {"[]": dict.fromkeys(self.texts, text), "[1, 2]": dict.fromkeys(self.texts, text.repeat(2)[None])}
        for key, value in self.defaults.items():
            two = dict.fromkeys(self.texts, text.repeat(2))
            tries[f"[3] beside 2 rows, in {key},"] = two | {key: value.repeat(3)}
        for shape, inputs in tries.items():
            try:
                self.servable.predict(inputs, self.name)
                message = f"{self.name}: an input {shape} is accepted. The graph should begin with tf.ensure_shape"
                yield Finding("WARN", message)
            except SessionError as error:
                level = "ok" if error.code == INVALID_ARGUMENT else "WARN"
                yield Finding(level, f"{self.name}: an input {shape} is rejected: {_line(error)}")

    def threads(self) -> Finding:
        expected = [self.call([row]) for row in SHORT]
        rows = [(first + i) % len(SHORT) for first in range(6) for i in range(4)]
        with ThreadPoolExecutor(6) as pool:
            outputs = pool.map(lambda row: self.call([SHORT[row]]), rows)
        different = [
            f"row {row}'s {key}"
            for row, output in zip(rows, outputs, strict=True)
            for key, value in output.items()
            if not _agree(value, expected[row][key], self.tolerance)
        ]
        return finding(f"{self.name}: 6 threads get the outputs that one thread gets", different)


def python(path: str | Path) -> Iterator[Finding]:
    """Opens a SavedModel in Python, whose loader reads parts that C++ skips."""
    import tensorflow as tf

    with contextlib.suppress(ImportError):
        import tensorflow_text  # noqa: F401  (its ops are in a text model)

    try:
        loaded = tf.saved_model.load(str(path))
    except Exception as error:  # A graph that TensorFlow cannot read can make it raise any error.
        yield Finding("FAIL", f"tf.saved_model.load cannot open it: {type(error).__name__}: {_line(error)}")
        return
    yield Finding("ok", f"tf.saved_model.load of TensorFlow {tf.__version__} opens it")
    signature = loaded.signatures.get("serving_default")
    inputs = signature.structured_input_signature[1] if signature else {}
    if [spec.dtype for spec in inputs.values()] == [tf.string]:
        (name,) = inputs
        try:
            signature(**{name: tf.constant(["Hello world."])})
        except Exception as error:
            yield Finding("FAIL", f"serving_default fails in Python: {type(error).__name__}: {_line(error)}")
        else:
            yield Finding("ok", "serving_default runs in Python")
    yield from _products(path)


def _products(path: str | Path) -> Iterator[Finding]:
    from products import products_of  # the file beside this one

    for level, message, wrong in products_of(Path(path)):
        yield finding(message, wrong, level)


def client(path: str) -> Iterator[Finding]:
    """Calls a LiteRT or an ONNX export by its client, without TensorFlow and without this package."""
    sys.path.append(str(Path(__file__).parents[1] / "interop" / "engines"))
    from litert_client import Translation, opened

    warnings.simplefilter("ignore")  # about long texts
    translator = opened(path)
    metadata = translator.metadata
    beams, max_length = metadata["beam_size"], metadata["max_length"]

    def wrong_values(outputs: list[list[Translation]]) -> list[str]:
        """Returns unsorted or non-finite scores, and texts that UTF-8 cannot encode."""
        wrong = []
        for best in outputs:
            scores = [one.score for one in best]
            if scores != sorted(scores, reverse=True) or not all(map(math.isfinite, scores)):
                wrong.append(f"scores {scores}")
            wrong += [repr(one.text) for one in best if one.text != one.text.encode("utf-8", "replace").decode()]
        return wrong

    outputs = [translator.n_best(row, beams) for row in ROWS]
    yield finding("hostile texts give valid UTF-8, finite scores, the best first", wrong_values(outputs))
    empty = [best[0] for best, row in zip(outputs, ROWS, strict=True) if not row.strip()]
    wrong = [one for one in empty if one != Translation("", 0.0, 0.0, False, 0)]
    yield finding("empty texts give empty translations", wrong)
    # In another order, and each as the first text: a text must not change the translations of the next ones.
    again = [translator.n_best(row, beams) for row in reversed(ROWS)]
    separate = [opened(path).n_best(row, beams) for row in ROWS]
    pairs = zip(ROWS, outputs, reversed(again), separate, strict=True)
    different = [row[:20] for row, first, second, third in pairs if not first == second == third]
    yield finding("a text's translation does not depend on the texts before it", different)

    extremes = {"length_penalty": (-1.0, 0.0, 1e30, math.nan), "max_length": (-1, 0, 1, 2**31 - 1)}
    odd = [translator.n_best(ROWS[0], beams, **{name: value}) for name in extremes for value in extremes[name]]
    yield finding("options out of range give valid UTF-8 and finite scores", wrong_values(odd))
    short = [translator.ids(row, 1, max_length=3)[0] for row in ROWS]
    long = [translator.ids(row, 1)[0] for row in ROWS]
    yield finding("an output has at most max_length tokens", [ids for ids in short if len(ids) > 3])
    yield finding(f"no output has more than {max_length} tokens", [ids[:9] for ids in long if len(ids) > max_length])

    size, weights = (Path(path) / translator.MODEL).stat().st_size, metadata["parameters"] * BYTES[metadata["dtype"]]
    weights += metadata.get("shortlist_bytes", 0)
    message = f"{translator.MODEL} takes {size:,} bytes for {weights:,} of weights"
    yield finding(message, ["more than a tenth and 1,000,000 more"] * (size > 1.1 * weights + 1_000_000))
    foreign = {"keras", "tensorflow", "tf_transformer"} & set(sys.modules)
    yield finding("it translates without TensorFlow and without this package", foreign)
    if metadata["dtype"] == "int8" and translator.MODEL == "model.onnx":
        try:
            yield from _products(path)
        except ImportError as error:
            yield Finding("WARN", f"the matmuls of 8-bit integers were not tried: {error}")


def _agree(value: np.ndarray, expected: np.ndarray, tolerance: float) -> bool:
    if value.dtype.kind == "f":
        return value.shape == expected.shape and np.allclose(value, expected, rtol=tolerance, atol=tolerance)
    return np.array_equal(value, expected)


def _line(error: Exception) -> str:
    return (str(error.args[0] if error.args else error).splitlines() or [""])[0][:200]


PROBES: dict[str, Callable[..., Iterator[Finding]]] = {"server": server, "python": python, "client": client}

if __name__ == "__main__":
    for result in PROBES[sys.argv[1]](*sys.argv[2:]):
        print(json.dumps(result), flush=True)
