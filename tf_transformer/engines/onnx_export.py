"""An ONNX export as an engine. It loads no TensorFlow."""

from tf_transformer.engines.litert_client import ONNXTranslator
from tf_transformer.engines.one_sentence import OneSentence


class ONNX(OneSentence):
    """Calls an ONNX export, which translates one text after the other.

    Args:
        path: the folder of the export, or that of its versions, which means the newest.
        threads: of the engine.
        options: defaults of the calls, for options that the file takes.

    Raises:
        BadInput: onnxruntime is not installed, the folder holds something else, or an option has another value than it
            may have.
        FileNotFoundError: the folder lacks a file.
    """

    package = "onnxruntime", "onnx"
    translator = ONNXTranslator
