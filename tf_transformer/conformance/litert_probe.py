"""The checks that call a LiteRT export, in a process of their own without TensorFlow. `check` runs

    python tf_transformer/conformance/litert_probe.py DIR

and reads a finding a line, as JSON.
"""

import json
import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "engines"))  # the client, without this package
from litert_client import LiteRTTranslator, Translation

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
EXTREMES = {"length_penalty": (-1.0, 0.0, 1e30, math.nan), "max_length": (-1, 0, 1, 2**31 - 1)}
BYTES = {"float32": 4, "int8": 1}


def probe(path: str | Path) -> Iterator[tuple[str, str]]:
    """Level and message of each finding."""
    translator = LiteRTTranslator(path)
    facts = translator.facts
    beams, most = facts["beam_size"], facts["max_length"]
    answers = [translator.n_best(row, beams) for row in ROWS]
    yield _finding("hostile texts give valid UTF-8, finite scores, the best first", _wrong_values(answers))
    empty = [answers[place][0] for place, row in enumerate(ROWS) if not row.strip()]
    wrong = [one for one in empty if one != Translation("", 0.0, 0.0, False, 0)]
    yield _finding("empty texts give empty translations", wrong)
    # Another order, and each text as the first: memory that moves between two texts must not change the answer.
    again = [translator.n_best(row, beams) for row in reversed(ROWS)]
    alone = [LiteRTTranslator(path).n_best(row, beams) for row in ROWS]
    pairs = zip(ROWS, answers, reversed(again), alone, strict=True)
    different = [row[:20] for row, first, second, third in pairs if not first == second == third]
    yield _finding("a text's answer does not depend on the texts before it", different)

    odd = [translator.n_best(ROWS[0], beams, **{name: value}) for name in EXTREMES for value in EXTREMES[name]]
    yield _finding("options out of range give valid UTF-8 and finite scores", _wrong_values(odd))
    short = [translator.ids(row, 1, max_length=3)[0] for row in ROWS]
    long = [translator.ids(row, 1)[0] for row in ROWS]
    yield _finding("an output has at most max_length symbols", [ids for ids in short if len(ids) > 3])
    yield _finding(f"no output has more than {most} symbols", [ids[:9] for ids in long if len(ids) > most])

    size, weights = (Path(path) / "model.tflite").stat().st_size, facts["parameters"] * BYTES[facts["dtype"]]
    message = f"model.tflite takes {size:,} bytes for {weights:,} of weights"
    yield _finding(message, ["more than a tenth and 1,000,000 more"] * (size > 1.1 * weights + 1_000_000))
    foreign = {"keras", "tensorflow", "tf_transformer"} & set(sys.modules)
    yield _finding("it answers without TensorFlow and without this package", sorted(foreign))


def _wrong_values(answers: list[list[Translation]]) -> list[str]:
    """Find unsorted or non-finite scores and texts that UTF-8 cannot encode."""
    wrong = []
    for best in answers:
        scores = [one.score for one in best]
        if scores != sorted(scores, reverse=True) or not all(map(math.isfinite, scores)):
            wrong.append(f"scores {scores}")
        wrong += [repr(one.text) for one in best if one.text != one.text.encode("utf-8", "replace").decode()]
    return wrong


def _finding(message: str, wrong: Sequence[object]) -> tuple[str, str]:
    return ("FAIL", f"{message}, but: {', '.join(map(str, wrong))}"[:500]) if wrong else ("ok", message)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # long texts
    for level, message in probe(sys.argv[1]):
        print(json.dumps([level, message]), flush=True)
