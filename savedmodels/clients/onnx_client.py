"""Translate with an ONNX folder: python onnx_client.py FOLDER < text

This runs tf_transformer/extensions/interop/engines/litert_client.py, which needs only onnxruntime, sentencepiece
and NumPy. Without the repository, copy only that file.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":
    client = Path(__file__).parents[2] / "tf_transformer" / "extensions" / "interop" / "engines" / "litert_client.py"
    runpy.run_path(str(client), run_name="__main__")
