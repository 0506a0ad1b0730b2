"""Translates hostile strings with an export, through TensorFlow's C++ loader, LiteRT or ONNX:

    python tests/hostile.py savedmodels/demo/1 --count 10000

No request may raise, and outputs must be valid UTF-8 and finite. Prints the peak of memory. With --threads 64 that many
threads then repeat all requests at once, which must return the same."""

import argparse
import collections
import concurrent.futures
import random
import resource
import sys
import time
import unicodedata
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tf_transformer/extensions/interop/engines"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tf_transformer/extensions/conformance"))

TEXTS = [
    "The old woman opens the red door.",
    "",
    "   ",
    "\x00\x01",
    b"\xff\xfe broken \xc3",
    "</s> <pad> <unk>",
    "東京 😀",
    "door " * 3000,
    "Two doors.",
]
CONTROLS = ["<s>", "</s>", "<pad>", "<unk>", "<0x00>", "<0xFF>", "▁", "\u2047", "\ufffd"]
# What normalization makes longer, shorter, or of another script: ligatures, stacked marks, Hangul, width, direction.
TRAPS = ["\ufdfa", "ﬃ", "Å", "K", "\u017f", "İ", "ß", "½", "㍿", "각", "\u1112\u1161\u11ab", "e" + "\u0301" * 40]
TRAPS += ["\u200b", "\u202e", "\u200f", "\ufeff", "\u00ad", "\u2028", "\u0085", "\u3000", "👩\u200d👩\u200d👧", "🇩🇪"]
TRAPS += ["\U000e0001", "\0", "\uff11\uff12"]


def random_bytes(r: random.Random) -> bytes:
    return r.randbytes(r.randint(0, 40))


def all_planes(r: random.Random) -> bytes:
    return "".join(chr(r.randint(0, 0x10FFFF)) for _ in range(r.randint(1, 20))).encode("utf-8", "surrogatepass")


def surrogates(r: random.Random) -> bytes:
    return "".join(chr(r.randint(0xD800, 0xDFFF)) for _ in range(r.randint(1, 9))).encode("utf-8", "surrogatepass")


def overlong(r: random.Random) -> bytes:
    """Overlong, invalid and truncated sequences."""
    parts = ["c080", "e080af", "f888808080", "f4908080", "eda080", "e697", "61"]
    return b"".join(bytes.fromhex(part) for part in r.choices(parts, k=r.randint(1, 12)))


def normalization(r: random.Random) -> bytes:
    text = "".join(r.choices(TRAPS, k=r.randint(1, 8)))
    return unicodedata.normalize(r.choice(["NFC", "NFD", "NFKC", "NFKD"]), text).encode()


def control_tokens(r: random.Random) -> bytes:
    return "".join(r.choices([*CONTROLS, " ", "a"], k=r.randint(1, 8))).encode()


def white_space(r: random.Random) -> bytes:
    return "".join(r.choices(" \t\n\r\v\f\u0085\u00a0\u2003\u2028\u3000\ufeff", k=r.randint(0, 30))).encode()


def words(r: random.Random) -> bytes:
    return " ".join("".join(r.choices("abcdeéßя中", k=r.randint(1, 9))) for _ in range(r.randint(1, 30))).encode()


def very_long(r: random.Random) -> bytes:
    if r.random() < 0.8:
        return words(r)
    text = r.choice([b"word ", b"x", "é".encode(), "😀 ".encode(), b"\xff", "e\u0301\u0302".encode()])
    return text * r.choice([999, 30_000])


KINDS = [random_bytes, all_planes, surrogates, overlong, normalization, control_tokens, white_space, words, very_long]
PORTS = [(name, ["text"]) for name in ("serving_default", "translate", "translate_details", "tokenize")]
PORTS += [("detokenize", ["tokens"]), ("score", ["source", "target"]), ("model_info", ["key"])]


class PortableExport:
    """A LiteRT or ONNX export with the interface of a SavedModel. It needs only its engine, sentencepiece and NumPy."""

    def __init__(self, path: Path) -> None:
        from litert_client import opened

        self.translator = opened(path)

    def predict(self, inputs: dict, signature: str) -> dict:
        best = [self.translator.n_best(text, 1)[0] for text in inputs["text"]]
        texts = np.array([output.text.encode("utf-8", "surrogatepass") for output in best], object)
        return {"translation": texts, "score": np.array([output.score for output in best])}


def problems(response: dict, rows: int):
    for name, value in response.items():
        if value.shape[:1] != (rows,):
            yield f"{name} has the shape {value.shape} for {rows} rows"
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            yield f"{name} is not finite"
        if value.dtype == object:
            for text in value.flat:
                try:
                    text.decode()
                except UnicodeDecodeError:
                    yield f"{name} is not UTF-8: {text[:40]!r}"


def options(r: random.Random, signature: str, rows: int) -> dict:
    """Returns some options of a request, for all rows or for each."""
    if not signature.startswith("translate"):
        return {}
    rows = r.choice([1, rows])
    values = {
        "beam_size": np.array([r.randint(1, 6) for _ in range(rows)], np.int32),
        "length_penalty": np.array([r.choice([0.0, 0.6, 1.0, 2.5]) for _ in range(rows)], np.float32),
        "max_length": np.array([r.randint(1, 20) for _ in range(rows)], np.int32),
    }
    return {name: value for name, value in values.items() if r.random() < 0.8}


def same(new: dict, old: dict) -> bool:
    """Returns whether outputs are the same, numbers up to rounding."""
    return all(
        np.allclose(new[name], value, atol=1e-4) if value.dtype.kind == "f" else np.array_equal(new[name], value)
        for name, value in old.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("path", metavar="DIR")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    is_alone = any((Path(args.path) / name).is_file() for name in ("model.tflite", "model.onnx"))
    ports = PORTS[:1] if is_alone else PORTS
    from loader import Servable

    servable, r = (PortableExport if is_alone else Servable)(Path(args.path)), random.Random(args.seed)
    start, wrong, requested, kinds, responses = time.perf_counter(), 0, 0, collections.Counter(), []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for index in range(-(-args.count // args.batch)):
        makers = r.choices(KINDS, k=min(args.batch, args.count - index * args.batch))
        texts = [maker(r) for maker in makers]
        kinds.update(maker.__name__ for maker in makers)
        # Most batches go to serving_default, so that the others do not make it long.
        signature, inputs = ports[0] if index % 4 else ports[index // 4 % len(ports)]
        request = dict.fromkeys(inputs, texts) | options(r, signature, len(texts)), signature
        try:
            response = servable.predict(*request)
            messages = list(problems(response, len(texts)))
            responses.append((request, response))
        except RuntimeError as error:
            messages = [str(error).splitlines()[0]]
        requested += len(texts)
        for problem in messages:
            wrong += 1
            print(f"batch {index}, {signature}: {problem}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    print(
        f"{requested:,} strings in {time.perf_counter() - start:.0f} s, {wrong} problems; "
        f"memory: {before / 1024:,.0f} MiB when loaded, {peak / 1024:,.0f} MiB at most"
    )
    if args.threads:
        with concurrent.futures.ThreadPoolExecutor(args.threads) as pool:
            again = list(pool.map(lambda pair: servable.predict(*pair[0]), responses))
        other = sum(not same(response, before) for response, (_, before) in zip(again, responses, strict=True))
        print(f"{len(responses)} requests from {args.threads} threads: {other} other outputs than before")
        wrong += other
    sys.exit(1 if wrong or requested != args.count else 0)


if __name__ == "__main__":
    main()
