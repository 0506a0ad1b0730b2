"""Translate with an ONNX folder: python onnx_client.py FOLDER < text

The client is tf_transformer/extensions/interop/engines/litert_client.py, which also opens these folders and needs
only onnxruntime, sentencepiece and NumPy for them. Copy that one where this repository is not; this one runs it where
it lies.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":
    client = Path(__file__).parents[2] / "tf_transformer" / "extensions" / "interop" / "engines" / "litert_client.py"
    runpy.run_path(str(client), run_name="__main__")
