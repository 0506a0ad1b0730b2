"""Engines for LiteRT and ONNX, and a client that needs neither TensorFlow nor this package."""

from tf_transformer.inference.openers import Opener
from tf_transformer.utils import folders
from tf_transformer.utils.lazy import lazily

_litert = lazily(f"{__name__}.litert", "a LiteRT export")
_onnx = lazily(f"{__name__}.onnx_export", "an ONNX export")
LITERT = Opener(
    "a LiteRT export",
    lambda path: folders.holds(path, folders.LITERT),
    lambda path, **options: _litert.LiteRT(path, **options),
    takes=frozenset({"threads"}),
)
ONNX = Opener(
    "an ONNX export",
    lambda path: folders.holds(path, folders.ONNX),
    lambda path, **options: _onnx.ONNX(path, **options),
    takes=frozenset({"threads"}),
)
