"""ONNX exports as an engine, without TensorFlow."""

from tf_transformer.extensions.interop.engines.litert_client import ONNXTranslator
from tf_transformer.extensions.interop.engines.portable import PortableEngine


class ONNX(PortableEngine):
    """Engine for an ONNX export. It translates batches of texts.

    Args:
        path: Directory of the export, or of its versions, which means the newest.
        threads: Number of threads.
        batch_size: Texts per batch, which are sorted by length. It is 1 for int8 and for exports of earlier versions.
        options: Defaults of calls, for options that the export takes.

    Raises:
        BadInput: If onnxruntime is not installed, the directory holds something else, or an option is out of range.
        FileNotFoundError: If a file is missing.
    """

    package = "onnxruntime", "onnx"
    translator = ONNXTranslator
