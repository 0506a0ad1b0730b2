"""What the programs have in common: how they begin and how they end."""

import argparse
import contextlib
import os
import sys
import time
import warnings
from collections.abc import Iterator


def options(program: str, description: str, epilog: str | None = None) -> argparse.ArgumentParser:
    """A parser whose help fits a screen."""

    def formatter(prog):
        return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=110)

    prog = f"python -m trainers.{program}"
    return argparse.ArgumentParser(prog, f"{prog} [options]", description.strip(), epilog, formatter_class=formatter)


@contextlib.contextmanager
def quiet_stderr():
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


def load_tensorflow():
    """Import the package, quietly: TensorFlow says much about drivers and instruction sets, whatever its log level."""
    with quiet_stderr():
        import tensorflow  # noqa: F401

        import tf_transformer

    return tf_transformer


def add_tfds_options(add) -> None:
    """A corpus of TensorFlow Datasets; `add` is the parser's add_argument."""
    add("--tfds", metavar="NAME", help="a corpus of TensorFlow Datasets instead, e.g. wmt14_translate/de-en")
    add("--languages", nargs=2, default=["en", "de"], metavar="XX", help="its source and target (en de)")
    add("--tfds-dir", metavar="DIR", help="where TensorFlow Datasets keeps its corpora")


def languages(settings, given=None) -> dict:
    """Source and target as the names of the training files end, train.en and train.de, if not given."""
    train = settings["data"]["train"]
    if not given and train == "grammar":
        given = ("en", "de")
    if not given and isinstance(train, list):
        endings = [name.removesuffix(".gz").rpartition(".")[2] for name in train]
        given = endings if all(len(ending) == 2 and ending.isalpha() for ending in endings) else None
    return dict(zip(("source_language", "target_language"), given, strict=True)) if given else {}


def in_parts(translator, texts, part: int = 2_000) -> Iterator[str]:
    """Translations as they come, `part` after `part`; of more than one, standard error says how far it is."""
    began = time.monotonic()
    for start in range(0, len(texts), part):
        yield from translator(texts[start : start + part])
        if len(texts) > part:
            done = min(start + part, len(texts))
            speed = done / (time.monotonic() - began)
            print(f"{done:,} of {len(texts):,} sentences, {speed:.0f} a second", file=sys.stderr, flush=True)


def run_program(main) -> None:
    """Run a program: what the user gave wrong is one line and exit status 2, Ctrl-C is 130."""
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
