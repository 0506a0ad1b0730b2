"""An ONNX export as an engine. It loads no TensorFlow."""

from tf_transformer.extensions.interop.engines.litert_client import ONNXTranslator
from tf_transformer.extensions.interop.engines.portable import PortableEngine


class ONNX(PortableEngine):
    """Calls an ONNX export, in batches of texts.

    Args:
        path: the folder of the export, or that of its versions, which means the newest.
        threads: of the engine.
        batch_size: texts a batch, in float32; they are sorted by length first. In int8, and of a folder that an earlier
            version wrote, a batch is one text.
        options: defaults of the calls, for options that the file takes.

    Raises:
        BadInput: onnxruntime is not installed, the folder holds something else, or an option has another value than it
            may have.
        FileNotFoundError: the folder lacks a file.
    """

    package = "onnxruntime", "onnx"
    translator = ONNXTranslator
