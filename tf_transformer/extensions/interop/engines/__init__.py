"""Engines for LiteRT and ONNX, and a client that needs neither TensorFlow nor this package."""

from typing import Any

from tf_transformer.inference.engine import Engine
from tf_transformer.inference.openers import Opener
from tf_transformer.utils import folders


def _open_litert(path: str, **options: Any) -> Engine:
    from tf_transformer.extensions.interop.engines.litert import LiteRT

    return LiteRT(path, **options)


def _open_onnx(path: str, **options: Any) -> Engine:
    from tf_transformer.extensions.interop.engines.onnx_export import ONNX as OnnxExport

    return OnnxExport(path, **options)


THREADS = frozenset({"threads"})
LITERT = Opener("a LiteRT export", lambda path: folders.holds(path, folders.LITERT), _open_litert, takes=THREADS)
ONNX = Opener("an ONNX export", lambda path: folders.holds(path, folders.ONNX), _open_onnx, takes=THREADS)
