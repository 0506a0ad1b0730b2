"""The check that Python opens an export, too, since its loader reads parts that C++ skips. `check` runs

    python tf_transformer/conformance/python_probe.py DIR

and reads a finding a line, as JSON.
"""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

with contextlib.suppress(ImportError):  # whose operations a text model has
    import tensorflow_text  # noqa: F401

DEFAULT = "serving_default"


def probe(path: str | Path) -> Iterator[tuple[str, str]]:
    """Level and message of each finding.

    Args:
        path: the folder of the SavedModel.
    """
    try:
        loaded = tf.saved_model.load(str(path))
    except Exception as error:  # whatever TensorFlow meets in a graph that it cannot read
        yield "FAIL", f"tf.saved_model.load cannot open it: {type(error).__name__}: {_line(error)}"
        return
    yield "ok", f"tf.saved_model.load of TensorFlow {tf.__version__} opens it"
    signature = loaded.signatures.get(DEFAULT)
    inputs = signature.structured_input_signature[1] if signature else {}
    if [spec.dtype for spec in inputs.values()] == [tf.string]:
        (name,) = inputs
        try:
            signature(**{name: tf.constant(["Hello world."])})
        except Exception as error:
            yield "FAIL", f"{DEFAULT} fails in Python: {type(error).__name__}: {_line(error)}"
            return
        yield "ok", f"{DEFAULT} answers in Python"


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]


if __name__ == "__main__":
    for level, message in probe(sys.argv[1]):
        print(json.dumps([level, message]), flush=True)
