"""LiteRT exports as an engine, without TensorFlow."""

from tf_transformer.extensions.interop.engines.litert_client import LiteRTTranslator
from tf_transformer.extensions.interop.engines.portable import PortableEngine


class LiteRT(PortableEngine):
    """Engine for a LiteRT export. It translates one text after the other.

    Args:
        path: Directory of the export, or of its versions, which means the newest.
        threads: Number of threads.
        batch_size: Ignored, since LiteRT takes one text.
        options: Defaults of calls, for options that the export takes.

    Raises:
        BadInput: If ai-edge-litert is not installed, the directory holds something else, or an option is out of range.
        FileNotFoundError: If a file is missing.
    """

    package = "ai_edge_litert", "litert"
    translator = LiteRTTranslator
