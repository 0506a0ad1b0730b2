"""Which 8-bit products are exact on this processor."""

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tf_transformer.utils.lazy import lazily

if TYPE_CHECKING:
    import numpy as np
else:
    np = lazily("numpy", "a product of integers")  # programs show their help without it

MAX_INT8_PAIR = "max_int8_pair"  # entry of an export's metadata
# The largest sum of two weights for which oneDNN and onnxruntime are exact on every processor. On x86-64 without VNNI,
# they multiply inputs of 0 to 255 and add two neighboring products in 16 bits, which saturate: 255 * 128 < 2**15.
EXACT_INT8_PAIR = 128
VNNI = {"avx512_vnni", "avx_vnni", "amx_int8"}
OLDER = {"SSE41", "AVX", "AVX2", "AVX512_CORE"}  # values of ONEDNN_MAX_CPU_ISA that exclude VNNI


@functools.cache
def lacks_vnni() -> bool:
    """Returns whether this is an x86-64 processor without instructions that add 8-bit products in 32 bits."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # On systems other than Linux, it is unknown.
        return False
    # arm64 lists "Features", and has such instructions or none that saturate.
    return any(line.startswith("flags") and VNNI.isdisjoint(line.split()) for line in lines)


def saturates(metadata: Mapping[str, Any], onednn: bool = False) -> bool:
    """Returns whether products of an export in int8 are known to saturate here. It may be of an earlier version.

    Args:
        metadata: The export's metadata.
        onednn: Whether oneDNN multiplies, which an environment variable can limit to older instructions.
    """
    is_wide = metadata.get("dtype") == "int8" and metadata.get(MAX_INT8_PAIR) not in range(EXACT_INT8_PAIR + 1)
    is_limited = onednn and os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in OLDER
    return is_wide and (is_limited or lacks_vnni())


def pair_sums(matrix: "np.ndarray", axis: int) -> "np.ndarray":
    """Returns the magnitudes of sums of two weights that meet in 16 bits along `axis`: [pairs, channels].

    Only weights of one sign are added, since inputs are not negative.
    """
    rows = np.moveaxis(matrix if matrix.dtype.kind == "f" else matrix.astype("int32"), axis, 0)
    # oneDNN divides other numbers of rows into blocks that may begin at any row.
    if len(rows) % 4:
        return 2 * np.abs(rows)
    positive, negative = (np.maximum(signed, 0) for signed in (rows, -rows))
    return np.maximum(positive[::2] + positive[1::2], negative[::2] + negative[1::2])
