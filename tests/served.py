"""An export in a process of its own, loaded as TensorFlow Serving loads it, and asked from here."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

LOADER = Path(__file__).parents[1] / "tf_transformer" / "extensions" / "conformance"

PROGRAM = """
import ctypes, pickle, sys, numpy as np
sys.path.insert(0, sys.argv[1])
import loader
from loader import Servable
stdout, sys.stdout = sys.stdout.buffer, sys.stderr
if sys.argv[3] == "as it is":
    library = loader._library(loader.TEXT_OPS)
    make, library.TF_SetConfig = library.TF_NewSessionOptions, ctypes.CDLL(None).TF_SetConfig
    library.TF_SetConfig.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p
    def options(config=b"\\x52\\5\\x52\\3\\x98\\1\\1"): # graph_options { rewrite_options { disable_meta_optimizer } }
        made = make()
        library.call("TF_SetConfig", made, config, len(config))
        return made
    library.TF_NewSessionOptions = options
servable = Servable(sys.argv[2])
assert "tensorflow" not in sys.modules and "tf_transformer" not in sys.modules
def plain(ports):
    return {name: (str(np.dtype(port.dtype)), port.shape) for name, port in ports.items()}
pickle.dump({name: (plain(s.inputs), plain(s.outputs), s.defaults) for name, s in servable.signatures.items()}, stdout)
stdout.flush()
while True:
    try:
        arguments = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    try:
        output = servable.predict(*arguments)
    except Exception as error:
        output = f"{type(error).__name__}: {error}"
    pickle.dump(output, stdout); stdout.flush()
"""


class Served:
    """served({"text": ["Two doors."]}, "translate") -> {"translations": array, ...}; errors come as RuntimeError.

    The server rewrites a graph before it first runs it, which takes longer than running it.
    """

    def __init__(self, path, rewritten=False):
        pytest.importorskip("tf_transformer.extensions")  # which have the loader
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(LOADER), str(path), "rewritten" if rewritten else "as it is"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        self.signatures = pickle.load(self.process.stdout)  # by name: dtypes and shapes of inputs and outputs; defaults

    def __call__(self, inputs, signature="serving_default", outputs=None):
        pickle.dump((inputs, signature, outputs), self.process.stdin)
        self.process.stdin.flush()
        output = pickle.load(self.process.stdout)
        if isinstance(output, str):
            raise RuntimeError(output)
        return output

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


def merge(served, requests, signature, sizes=(1, 2, 4, 8, 16, 32)):
    """Requests as the server's batching sends them: joined, padded to the next size allowed by copies of the last
    request's first row, and taken apart again. Every input is given for every row."""
    names = list(requests[0])
    rows = [len(request[names[0]]) for request in requests]
    padding = next(size for size in sizes if size >= sum(rows)) - sum(rows)
    padded = requests + padding * [{name: value[:1] for name, value in requests[-1].items()}]
    output = served({name: np.concatenate([request[name] for request in padded]) for name in names}, signature)
    places = [slice(end - count, end) for count, end in zip(rows, np.cumsum(rows), strict=True)]
    return [{name: value[place] for name, value in output.items()} for place in places]
