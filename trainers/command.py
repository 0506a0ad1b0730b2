"""What the programs have in common: how they begin, how they end, and the options of those that train."""

import argparse
import contextlib
import os
import runpy
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any


def options(
    program: str, description: str | None, epilog: str | None = None, package: str = "trainers"
) -> argparse.ArgumentParser:
    """A parser whose help fits a screen."""

    def formatter(prog: str) -> argparse.HelpFormatter:
        return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=110)

    prog, described = f"python -m {package}.{program}", (description or "").strip()
    return argparse.ArgumentParser(prog, f"{prog} [options]", described, epilog, formatter_class=formatter)


def add_tfds_options(add: Callable) -> None:
    """A corpus of TensorFlow Datasets; `add` is the parser's add_argument."""
    add("--tfds", metavar="NAME", help="a corpus of TensorFlow Datasets instead, e.g. wmt14_translate/de-en")
    add("--languages", nargs=2, default=["en", "de"], metavar="XX", help="its source and target (en de)")
    add("--tfds-dir", metavar="DIR", help="where TensorFlow Datasets keeps its corpora")


def add_training_options(add: Callable) -> None:
    """The options of every program that trains: a `Recipe`'s fields under their names, and some more."""
    add("--run", type=Path, metavar="DIR", help="the run's folder; one that was stopped goes on (runs/PRESET)")
    add("--steps", type=int, metavar="N", help="updates (the preset's)")
    add("--epochs", type=int, metavar="N", help="passes over the training text, instead of --steps")
    add("--batch-tokens", type=int, metavar="N", help="source tokens, and target tokens, a batch (the preset's)")
    add("--vocab-size", type=int, metavar="N", help="of the vocabulary that both sides share (the preset's)")
    add("--tokenizer", metavar="KIND", help="bpe or unigram (bpe)")
    add("--warmup-steps", type=int, metavar="N", help="steps in which the learning rate grows (the preset's)")
    add("--cooldown-steps", type=int, metavar="N", help="last steps, in which it falls to 0 (the preset's)")
    add("--factor", type=float, metavar="X", help="multiplies equation (3)'s learning rate (the preset's)")
    add("--learning-rate", type=float, metavar="X", help="constant after the warm-up, instead of equation (3)")
    add("--dropout", type=float, metavar="P", help="P_drop (the preset's)")
    add("--eval-every", type=int, metavar="N", help="steps between checkpoints and looks at the dev text")
    add("--average-last", type=int, metavar="N", help="checkpoints to keep, and to average at the end (5)")
    add("--mixed-precision", metavar="DTYPE", help="bfloat16 or float16 to compute in, with weights in float32")
    add("--devices", metavar="LIST", help="all, gpu:0,gpu:1, or cpu:2 to try it (one device; TF_CONFIG's workers)")
    add("--parts", type=int, metavar="N", help="compute a batch in N parts: same update, less memory (1)")
    add("--clip-norm", type=float, metavar="NORM", help="the largest norm of a gradient (no limit)")
    add("--on-nan", metavar="DO", help="stop, or skip the update (stop)")
    add("--seed", type=int, metavar="N", help="of weights, dropout and the order of the text (1)")
    add("--dry-run", nargs="?", const="8xP100", metavar="DEVICES", help="say what it would take on 8xP100, and stop")
    add("--export", type=Path, metavar="DIR", help="where the SavedModel goes (savedmodels/NAME OF THE RUN)")


def add_search_options(add: Callable, more: Sequence[str] = (), without: Sequence[str] = ()) -> None:
    """The options of a `Translator`, and `more` of those of a search, from their table, which needs no TensorFlow."""
    table = runpy.run_path(str(Path(__file__).parents[1] / "tf_transformer" / "serving" / "options.py"))
    for option in table["SEARCH_OPTIONS"].values():
        if (option.translator or option.name in more) and option.name not in without:
            kind, name = float if option.dtype == "float32" else int, option.name.replace("_", "-")
            add(f"--{name}", type=kind, metavar="X", help=f"{option.doc} ({option.default})")


def chosen(given: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The options of these names that have a value."""
    return {name: given[name] for name in names if given.get(name) is not None}


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Drop what C++ libraries write to standard error meanwhile; Python's own exceptions are still seen."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def load_tensorflow() -> None:
    """Import the package quietly: TensorFlow says much about drivers and instruction sets, whatever its log level."""
    with quiet_stderr():
        import tensorflow  # noqa: F401

        import tf_transformer  # noqa: F401


def in_chunks(translator: Callable, texts: Sequence, size: int = 2_000) -> Iterator[str]:
    """Translations as they come, chunk after chunk; of more than one, standard error says how far it is."""
    began = time.monotonic()
    for start in range(0, len(texts), size):
        yield from translator(texts[start : start + size])
        if len(texts) > size:
            done = min(start + size, len(texts))
            speed = done / (time.monotonic() - began)
            print(f"{done:,} of {len(texts):,} sentences, {speed:.0f} a second", file=sys.stderr, flush=True)


def run_program(main: Callable[[], None]) -> None:
    """Run a program: bad input is one line and exit status 2, Ctrl-C is 130."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # TensorFlow has it on with AVX-512 only; it helps without, too
    try:
        main()
    except KeyboardInterrupt:
        print("\nstopped; start it again with the same options to go on", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        import tensorflow as tf

        from tf_transformer.config import BadInput
        from tf_transformer.runs.callbacks import Stopped

        if isinstance(error, Stopped):
            print(f"\n{error}; start it again with the same options to go on", file=sys.stderr)
            sys.exit(128 + error.number)  # as the shell says of a process that the signal ended
        lost = tf.errors.UnavailableError | tf.errors.AbortedError | tf.errors.CancelledError
        lost |= tf.errors.DeadlineExceededError | tf.errors.InternalError
        if "TF_CONFIG" in os.environ and isinstance(error, lost):
            print(f"\nerror: another worker has gone, or cannot be reached: {error.message}", file=sys.stderr)
            print("start all workers again with the same options to go on from the last checkpoint", file=sys.stderr)
            sys.stderr.flush()
            os._exit(3)  # at once: what is left waits for the others
        if not isinstance(error, BadInput | OSError):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
