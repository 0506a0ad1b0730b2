"""Translate with an ONNX folder: python onnx_client.py FOLDER < text

The client is tf_transformer/extensions/interop/engines/litert_client.py, which also opens these folders and needs
only onnxruntime, sentencepiece and NumPy for them. If you do not have the repository, copy only that file. This one
runs it.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":
    client = Path(__file__).parents[2] / "tf_transformer" / "extensions" / "interop" / "engines" / "litert_client.py"
    runpy.run_path(str(client), run_name="__main__")
