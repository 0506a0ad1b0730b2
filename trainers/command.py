"""Code that the programs share: their options, their start and their end."""

import argparse
import dataclasses
import io
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from tf_transformer.config import PRESETS, BadInput, TransformerConfig
from tf_transformer.decoding.search_options import SEARCH_OPTIONS, SearchOptions
from tf_transformer.inference.engine import Engine, Reply, warn_of_truncated
from tf_transformer.tokenizers.languages import LANGUAGES
from tf_transformer.training.recipe import RECIPES, Recipe
from tf_transformer.utils.files import user_path
from tf_transformer.utils.terminal import Progress, Stopped, quiet_import, quiet_stderr
from tf_transformer.utils.type_names import VocabularyKind
from tf_transformer.utils.values import documentation, plain_type

HERE = "here"  # --dry-run's device: this machine's
CONFIG_OPTIONS = ("vocab_size", "dropout", "num_decoder_layers")
EXPORTS = ("extra_length", "max_source_length")  # options of a search for `tf-transformer export`, not for a training
METAVARS = {int: "N", float: "X", str: "WORD"}


def options(
    program: str, description: str | None, epilog: str | None = None, package: str | None = __package__
) -> argparse.ArgumentParser:
    """A parser whose help fits a screen, and whose usage says the command by which the program was called."""

    def formatter(prog: str) -> argparse.HelpFormatter:
        return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=110)

    called = sys.argv[0].endswith(f" {program}")  # by __main__.py
    prog, text = sys.argv[0] if called else f"python -m {package}.{program}", (description or "").strip()
    usage = f"{prog} [options]"
    return argparse.ArgumentParser(prog, usage, text, epilog, formatter_class=formatter, allow_abbrev=False)


def as_path(text: str) -> Path:
    """The type of an option that is a path."""
    try:
        return user_path(text)
    except BadInput as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def positive(text: str) -> int:
    """The type of an option that is a positive whole number."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text}")
    return number


def model_name(text: str) -> str:
    """The type of an option that is a model's name: that of a folder, and a part of a server's addresses."""
    if not re.fullmatch(r"[^/\\:]+", text) or text in (".", "..") or not text.isprintable():
        raise argparse.ArgumentTypeError(f"expected the name of a folder, without slashes and colons, got {text!r}")
    return text


def add_tfds_options(add: Callable[..., Any]) -> None:
    """Add the options of a corpus of TensorFlow Datasets; `add` is the parser's add_argument."""
    add("--tfds", metavar="NAME", help="a corpus of TensorFlow Datasets instead of --train, e.g. wmt14_translate/de-en")
    add("--languages", nargs=2, default=["en", "de"], metavar="XX", help="its source and target language (en de)")
    add("--tfds-dir", metavar="DIR", help="where TensorFlow Datasets keeps its corpora")


def add_fields(
    add: Callable[..., Any], kind: type, names: Iterable[str], presets: Iterable[Any], whose: str = "the preset's"
) -> None:
    """Add an option for each of these fields of a dataclass. Annotation and docstring say what it is, and presets its
    default, if they agree, and else whose it is."""
    types, docs = {field.name: plain_type(field.type) for field in dataclasses.fields(kind)}, documentation(kind)
    for name in names:
        first, *others = {getattr(preset, name) for preset in presets} or (whose, whose)
        default = f" ({whose})" if others else "" if first is None else f" ({first})"
        words = {"metavar": METAVARS[types[name]], "help": docs.get(name, "").replace("`", "") + default}
        add(f"--{name.replace('_', '-')}", type=types[name], **words)


def add_training_options(add: Callable[..., Any]) -> None:
    """Add the options of every program that trains: a `Recipe`'s fields under their names, and some more."""
    folder = "the run's folder; a stopped run goes on (one in runs/, which is printed)"
    add("--run", type=as_path, metavar="DIR", help=folder)
    apart = ("dev_sentences", "tokenizer")
    names = [field.name for field in dataclasses.fields(Recipe) if field.name not in apart]
    add_fields(add, Recipe, names, RECIPES.values())
    add_vocabulary_kind(add)
    add_fields(add, TransformerConfig, CONFIG_OPTIONS, PRESETS.values())
    add("--devices", metavar="LIST", help="all, gpu:0,gpu:1, or cpu:2 for a trial (one device, or TF_CONFIG's workers)")
    cost = "estimate the cost here, by some steps, or on devices such as 8x9.5, and stop"
    add("--dry-run", nargs="?", const=HERE, metavar="NxTFLOPS", help=cost)
    add("--name", type=model_name, metavar="NAME", help="the SavedModel's name on a server (the run's)")
    add("--base", type=as_path, metavar="DIR", help="the folder of all SavedModels (savedmodels)")


def export_folder(given: dict[str, Any], run: Path) -> Path:
    """The folder of the SavedModel's versions, by --base and --name."""
    return (given["base"] or Path("savedmodels")) / (given["name"] or run.absolute().resolve().name)


def add_vocabulary_kind(add: Callable[..., Any]) -> None:
    """Add the option of the vocabulary to learn, a `Recipe`'s `tokenizer`."""
    kinds = get_args(VocabularyKind)
    add("--vocab-kind", dest="tokenizer", choices=kinds, help="kind of vocabulary to learn (bpe)")


def add_search_options(add: Callable[..., Any], more: Sequence[str] = (), without: Sequence[str] = ()) -> list[str]:
    """Add the options of a `Translator`, and `more` of a search; returns their names."""
    known = [name for name, option in SEARCH_OPTIONS.items() if option.translator or name in more]
    names = [name for name in known if name not in without]
    add_fields(add, SearchOptions, names, [SearchOptions()])
    return names


def add_call_options(add: Callable[..., Any]) -> None:
    """Add the options of calls of a model, for `engine` and `of_calls`: of a search, and languages."""
    names = [name for name in SEARCH_OPTIONS if name != "n_best"]
    add_fields(add, SearchOptions, names, [], "the model's")
    for name in LANGUAGES:
        side = name.partition("_")[0]
        what = f"the {side}'s, for a model of several languages (the model's)"
        add(f"--{side}-language", metavar="CODE", help=what)


def of_calls(given: dict[str, Any]) -> dict[str, Any]:
    """The options that a call may give."""
    return chosen(given, (*LANGUAGES, *(name for name, option in SEARCH_OPTIONS.items() if option.request)))


def chosen(given: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The options of these names that have a value."""
    return {name: given[name] for name in names if given.get(name) is not None}


def load_tensorflow() -> None:
    """Import TensorFlow quietly: it logs drivers and instruction sets, whatever its log level."""
    with quiet_stderr(), quiet_import():
        import tensorflow  # noqa: F401


def load_backend() -> str:
    """Import Keras with its backend, quietly, and return the backend's name.

    Raises:
        BadInput: there is no such backend, or it is not installed.
    """
    with quiet_stderr(), quiet_import():
        import keras
    backend: str = keras.backend.backend()
    return backend


def engine(model: str | Path, given: dict[str, Any], **options: Any) -> Engine:
    """Whatever `tt.load` opens, with the options of `add_call_options` in `given` that no call takes."""
    import tf_transformer as tt
    from tf_transformer.utils.folders import find_saved_model, needs_no_tensorflow

    if "://" in str(model) or find_saved_model(model):
        load_tensorflow()
    elif not needs_no_tensorflow(model):  # which needs neither
        load_backend()
    fixed = [name for name, option in SEARCH_OPTIONS.items() if not option.request and name != "n_best"]
    opened = tt.load(model, **options, **chosen(given, fixed))
    if opened.languages:
        source, target = (given.get(name) or opened.facts.get(name) for name in LANGUAGES)
        if source and target:  # otherwise the call asks for them
            print(f"from {source} to {target}", file=sys.stderr)
    return opened


def answered(engine: Engine, texts: Iterable[Any], n: int | None = None, **options: Any) -> Iterator[Reply]:
    """Replies as they come, with progress and warnings on standard error; the arguments are those of `stream`."""
    long, count = list[Any](), 0
    with Progress(len(texts) if isinstance(texts, Sequence) else None, "sentences", log=True) as progress:
        for count, reply in enumerate(engine.stream(texts, n, **options), 1):  # noqa: B007
            if reply.truncated:
                long.append(reply.source)
            yield reply
            progress.add(1)
    warn_of_truncated(long, count)


def run_program(main: Callable[[], None]) -> None:
    """Run a program: bad input is one line and exit status 2, Ctrl-C is 130.

    A program whose reader has gone, such as `head`, ends quietly. Both streams take every character. SIGTERM and SIGHUP
    end it as an exception does, so that no half-written file is left; one of several workers they end at once, since
    it would wait for the others.
    """
    able = "TF_CONFIG" not in os.environ and threading.current_thread() is threading.main_thread()
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)) if able else ():  # Windows lacks SIGHUP
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda number, _: sys.exit(128 + number))  # the shell's status for it
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it is closed: `<&-`; no other file may take its number
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        elif mode == "w" and isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # TensorFlow turns it on only with AVX-512
    try:
        try:
            main()
        finally:
            try:
                sys.stdout.flush()
            except OSError:  # Python tries again at its exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                raise
        if sys.__stderr__ and "ai_edge_litert" in sys.modules:  # which lists its accelerators when the process ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    except BrokenPipeError:
        sys.exit(141)  # the shell's status for a process that SIGPIPE ended
    except Stopped as error:
        print(f"\n{error}; start it again with the same options to go on", file=sys.stderr)
        sys.exit(128 + error.number)  # the shell's status for a process that the signal ended
    except KeyboardInterrupt:
        print("\nstopped; start it again with the same options to go on", file=sys.stderr)
        sys.exit(130)
    except (BadInput, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        if "TF_CONFIG" not in os.environ:  # no workers; TensorFlow's own errors need TensorFlow, which takes seconds
            raise
        load_tensorflow()  # quietly, if the program did not
        import tensorflow as tf

        lost = tf.errors.UnavailableError | tf.errors.AbortedError | tf.errors.CancelledError
        lost |= tf.errors.DeadlineExceededError | tf.errors.InternalError
        if isinstance(error, lost):
            print(f"\nerror: another worker has gone, or cannot be reached: {error.message}", file=sys.stderr)
            print("start all workers again with the same options to go on from the last checkpoint", file=sys.stderr)
            sys.stderr.flush()
            os._exit(3)  # at once: a normal exit waits for the other workers
        raise
