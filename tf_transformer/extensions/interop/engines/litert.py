"""A LiteRT export as an engine. It loads no TensorFlow."""

from tf_transformer.extensions.interop.engines.litert_client import LiteRTTranslator
from tf_transformer.extensions.interop.engines.portable import PortableEngine


class LiteRT(PortableEngine):
    """Calls a LiteRT export, which translates one text after the other.

    Args:
        path: the folder of the export, or that of its versions, which means the newest.
        threads: of the engine.
        batch_size: of no effect: the engine takes one text.
        options: defaults of the calls, for options that the file takes.

    Raises:
        BadInput: ai-edge-litert is not installed, the folder holds something else, or an option has another value than
            it may have.
        FileNotFoundError: the folder lacks a file.
    """

    package = "ai_edge_litert", "litert"
    translator = LiteRTTranslator
