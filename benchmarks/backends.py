"""Translates a text with a trained run on Keras's backend: sentences/s in batches and one by one.

Run it once for each KERAS_BACKEND, one after the other. Equal `outputs` mean equal translations.
"""

import argparse
import hashlib
import json
import logging
import os
import sys
import time
from pathlib import Path

from benchmarks import common


def main(argv=None) -> dict:
    parser = argparse.ArgumentParser("python -m benchmarks.backends", description=__doc__)
    add = parser.add_argument
    add("--threads", type=int, default=2, help="threads per operation (2)")
    add("--run", type=Path, required=True, metavar="DIR", help="a trained run")
    add("--source", type=Path, required=True, metavar="FILE", help="text, one sentence per line")
    add("--sentences", type=int, default=500, metavar="N", help="number of lines (500)")
    add(
        "--one-by-one",
        type=int,
        default=50,
        metavar="N",
        help="lines that are also translated one by one (50)",
    )
    add("--repeats", type=int, default=3, help="timed passes (3)")
    args = parser.parse_args(argv)
    common.prepare(args)
    import keras

    import tf_transformer as tt

    backend = keras.backend.backend()
    if backend == "tensorflow":
        common.prepare_tensorflow(args)
    elif backend == "torch":
        import torch

        torch.set_num_threads(args.threads)
    compiled = Compilations()
    translator = tt.load(args.run, batch_size=32)
    lines = args.source.read_text(encoding="utf-8").splitlines()[: args.sentences]
    sample = lines[:: -(-len(lines) // args.one_by_one)]

    def one():
        return [translator(line) for line in sample]

    result = {"backend": backend, "threads": args.threads, "cores": os.cpu_count()}
    for name, count, translate in (
        ("batches", len(lines), lambda: translator(lines)),
        ("one", len(sample), one),
    ):
        first = timed(translate)
        again = min(timed(translate) for _ in range(args.repeats))
        result |= {f"{name}_per_second": round(count / again, 1), f"{name}_first_seconds": round(first, 1)}
    result["compiled"] = compiled.count
    result["outputs"] = hashlib.sha256(json.dumps(translator(lines)).encode()).hexdigest()[:12]
    print(json.dumps(result))
    return result


def timed(function) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


class Compilations(logging.Handler):
    """Counts the searches that JAX logs to have compiled. 0 on another backend."""

    count = 0

    def __init__(self) -> None:
        super().__init__()
        if "jax" in sys.modules:
            sys.modules["jax"].config.update("jax_log_compiles", True)
        logger = logging.getLogger("jax")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.getMessage().startswith("Finished XLA compilation of jit(stateless)")


if __name__ == "__main__":
    main()
