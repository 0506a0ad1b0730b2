"""Texts for models with text in, and their exports through TensorFlow's C++ loader."""

import json
import subprocess
import sys

TEXTS = [
    "Where is the red door?",
    "",
    "the  old\u3000woman\topens",
    "x" * 400,
    "\x00\x01 \u200b",
    b"\xff door",
    "日本語",
    "a red door " * 4000,
    "the door " * 12,
]
CALL = """
import json, sys
import numpy as np
from tf_transformer.extensions.conformance.loader import Servable
texts = np.array([text.encode("latin-1") for text in json.load(sys.stdin)], object)
outputs = Servable(sys.argv[1]).predict({"text": texts}, sys.argv[2])
def plain(value):
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value.decode() if isinstance(value, bytes) else value

print(json.dumps({name: plain(np.asarray(values).tolist()) for name, values in outputs.items()}))
"""


def served(path, texts, signature="serving_default"):
    """Calls an export through the C++ loader, in a process of its own."""
    sent = json.dumps([(text if isinstance(text, bytes) else text.encode()).decode("latin-1") for text in texts])
    command = [sys.executable, "-c", CALL, str(path), signature]
    done = subprocess.run(command, input=sent, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])
