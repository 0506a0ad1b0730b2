"""Engines for LiteRT and ONNX, and a client that needs neither TensorFlow nor this package."""

from tf_transformer.inference.loading import Opener
from tf_transformer.utils import folders
from tf_transformer.utils.lazy import lazily

_portable = lazily(f"{__name__}.portable", "a LiteRT or an ONNX export")
LITERT = Opener(
    "a LiteRT export",
    lambda path: folders.holds(path, folders.LITERT),
    lambda path, **options: _portable.LiteRT(path, **options),
    takes=frozenset({"threads"}),
)
ONNX = Opener(
    "an ONNX export",
    lambda path: folders.holds(path, folders.ONNX),
    lambda path, **options: _portable.ONNX(path, **options),
    takes=frozenset({"threads"}),
)
