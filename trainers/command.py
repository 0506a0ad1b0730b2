"""Shared code of the programs: options, start and end."""

import argparse
import dataclasses
import functools
import io
import os
import re
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args

import tf_transformer as tt
from tf_transformer.config import PRESETS, BadInput, TransformerConfig
from tf_transformer.decoding.search_options import LANGUAGES, SEARCH_OPTIONS, SearchOptions, options_of
from tf_transformer.inference.engine import Engine, TranslationResult, warn_of_truncated
from tf_transformer.training.recipe import RECIPES, Recipe
from tf_transformer.utils.files import user_path
from tf_transformer.utils.lines import lines_of
from tf_transformer.utils.terminal import Progress, quiet_import, quiet_stderr
from tf_transformer.utils.type_names import VocabularyKind
from tf_transformer.utils.values import Positive, convert, documentation, plain_type

HERE = "here"  # the device of --dry-run without a value
CONFIG_OPTIONS = ("vocab_size", "dropout", "num_layers", "num_decoder_layers")
EXPORTS = ("extra_length", "max_source_length")  # search options of `tf-transformer export`, not of training
METAVARS = {int: "N", float: "X", str: "WORD"}
CORPUS_NEEDS = {"skip_bad_lines": ("train", "directions"), "languages": ("tfds",), "tfds_dir": ("tfds",)}
CORPUS_NEEDS |= {"temperature": ("directions",)}
COLUMNS = "LANGUAGE LANGUAGE SOURCE TARGET [DEV_SOURCE DEV_TARGET] [WEIGHT]"  # in a file of --directions


def options(
    program: str, description: str | None, epilog: str | None = None, package: str | None = __package__
) -> argparse.ArgumentParser:
    """Returns a parser whose help fits a screen, and whose usage has the command that called the program."""
    formatter = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=31, width=110)
    from_main = sys.argv[0].endswith(f" {program}")  # __main__.py sets this
    prog, text = sys.argv[0] if from_main else f"python -m {package}.{program}", (description or "").strip()
    usage = f"{prog} [options]"
    return argparse.ArgumentParser(prog, usage, text, epilog, formatter_class=formatter, allow_abbrev=False)


def as_path(text: str) -> Path:
    """Converts an option's value to a path."""
    try:
        return user_path(text)
    except BadInput as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def positive(text: str) -> int:
    """Converts an option's value to a positive integer."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text}")
    return number


def model_name(text: str) -> str:
    """Checks an option's value as a model's name, which becomes a directory and a part of a server's addresses."""
    if not re.fullmatch(r"[^/\\:]+", text) or text in (".", "..") or not text.isprintable():
        raise argparse.ArgumentTypeError(f"expected the name of a directory, without slashes and colons, got {text!r}")
    return text


def add_corpus_options(add: Callable[..., Any]) -> None:
    """Adds the options of a parallel corpus and its tokenizer. `add` is the parser's add_argument."""
    add("--train", nargs=2, metavar=("SOURCE", "TARGET"), help="parallel text, one sentence per line, plain or .gz")
    add("--skip-bad-lines", action="store_true", help="skip empty, over-long and invalid lines")
    add("--filter", nargs="+", default=[], metavar="NAME", help="training pairs to drop: duplicates, identical")
    add("--tfds", metavar="NAME", help="TensorFlow Datasets corpus instead of --train, such as wmt14_translate/de-en")
    add("--languages", nargs=2, metavar="XX", help="source and target language of --tfds (en de)")
    add("--tfds-dir", metavar="DIR", help="data directory of TensorFlow Datasets (its default)")
    add("--directions", metavar="FILE", help="train on several language pairs, one per line (docs/guides/languages.md)")
    temperature = "sample these language pairs in proportion to size to the power of 1/T (1)"
    add("--temperature", type=float, metavar="T", help=temperature)
    add_languages(add)
    tokenizer = "use this tokenizer.model, such as a run's, instead of training one"
    add("--tokenizer", type=as_path, dest="tokenizer_file", metavar="FILE", help=tokenizer)


def check_needs(parser: argparse.ArgumentParser, args: argparse.Namespace, needs: Mapping[str, Sequence[str]]) -> None:
    """Exits with an error if an option has a value, and none of the options that it needs has one."""
    for name, others in needs.items():
        if getattr(args, name, None) not in (None, False) and not any(getattr(args, other) for other in others):
            option, *needed = (f"--{word.replace('_', '-')}" for word in (name, *others))
            parser.error(f"{option}: expected {' or '.join(needed)} as well")


def opened(args: argparse.Namespace, check: bool) -> tuple[Any, Any, Any, Any]:
    """Opens what --from, --tokenizer and --directions name. Reads the text of --directions if `check`.

    Returns:
        A translator and a tokenizer, with the languages of the options or of the first line of --directions, and the
        sources of its training and dev set. Each is `None` if no option names it.
    """
    languages = chosen(vars(args), LANGUAGES)
    if languages and not (args.start or args.tokenizer_file):
        raise BadInput("--source-language and --target-language: expected --from MODEL, a multilingual model")
    from tf_transformer.models.families import load_tokenizer

    start = tt.Translator.from_pretrained(args.start, **languages) if args.start else None
    if start and start.tokenizer.control_tokens:
        raise BadInput(f"--from {args.start}: expected a model that translates, got a parser")
    tokenizer = load_tokenizer(args.tokenizer_file).with_languages(**languages) if args.tokenizer_file else None
    if not args.directions:
        return start, tokenizer, None, None
    vocabulary: Any = start.tokenizer if start else tokenizer
    train, dev, weights = list[Any](), list[Any](), list[float]()
    for number, line in enumerate(lines_of(args.directions), 1):
        try:
            if not (columns := shlex.split(line.decode(), comments=True)):
                continue
            if not 4 <= len(columns) <= 7:
                raise BadInput(f"expected {COLUMNS}, got {len(columns)} columns")
            weights.append(convert("weight", number_in(columns.pop()), Positive) if len(columns) % 2 else 1.0)
            pair, files = (columns[0], columns[1]), [str(user_path(file).absolute()) for file in columns[2:]]
            vocabulary.with_languages(*pair)
            for sources, first in [(train, 0), (dev, 2)][: len(files) // 2]:
                text = tt.sources.TextSource(files[first], files[first + 1], args.skip_bad_lines)
                if check or sources is dev:
                    text.check()
                sources.append(tt.sources.DirectedSource(text, pair))
        except (OSError, ValueError) as error:
            raise BadInput(f"{args.directions}, line {number}: {error}") from error
    if not train:
        raise BadInput(f"{args.directions}: expected lines of {COLUMNS}, got none")
    if args.temperature is not None:
        balance = tt.sources.temperature_weights(train, args.temperature)
        weights = [weight * more for weight, more in zip(weights, balance, strict=True)]
    languages = dict(zip(LANGUAGES, train[0].languages, strict=True)) | languages
    start, tokenizer = start and start.replace(**languages), tokenizer and tokenizer.with_languages(**languages)
    return start, tokenizer, tt.sources.JoinedSource(train, weights), tt.sources.JoinedSource(dev) if dev else None


def number_in(text: str) -> float | str:
    """Converts a text to a number, if it is one: to an `int` if it is written as one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def add_fields(
    add: Callable[..., Any], kind: type, names: Iterable[str], presets: Iterable[Any], whose: str = "the preset's"
) -> None:
    """Adds an option for each of these fields of a dataclass, with help from its annotation and docstring.

    The default is that of the presets if they agree, otherwise `whose`.
    """
    types, docs = {field.name: plain_type(field.type) for field in dataclasses.fields(kind)}, documentation(kind)
    for name in names:
        first, *others = {getattr(preset, name) for preset in presets} or (whose, whose)
        default = f" ({whose})" if others else "" if first is None else f" ({first})"
        description = docs.get(name, "").replace("`", "") + default
        add(f"--{name.replace('_', '-')}", type=types[name], metavar=METAVARS[types[name]], help=description)


def add_training_options(parser: argparse.ArgumentParser, without: Iterable[str] = ()) -> None:
    """Adds the options of every training program: a `Recipe`'s fields under their names, and some more."""
    add = parser.add_argument_group("training").add_argument
    folder = "run directory, where a stopped run resumes (one in runs/, which is printed)"
    add("--run", type=as_path, metavar="DIR", help=folder)
    without = "dev_sentences", "tokenizer", *without
    names = [field.name for field in dataclasses.fields(Recipe) if field.name not in without]
    add_fields(add, Recipe, names, RECIPES.values())
    add("--devices", metavar="LIST", help="all, gpu:0,gpu:1, or cpu:2 for a trial (one device, or TF_CONFIG's workers)")
    cost = "check input and cost, and stop: measured here, or for devices such as 8x9.5"
    add("--dry-run", nargs="?", const=HERE, metavar="NxTFLOPS", help=cost)
    model = parser.add_argument_group("model").add_argument
    add_vocabulary_kind(model)
    add_fields(model, TransformerConfig, CONFIG_OPTIONS, PRESETS.values())
    add = parser.add_argument_group("export").add_argument
    add("--name", type=model_name, metavar="NAME", help="SavedModel's name on a server (the run's)")
    add("--base", type=as_path, metavar="DIR", help="parent directory of all SavedModels (savedmodels)")


def add_vocabulary_kind(add: Callable[..., Any]) -> None:
    """Adds the option of a `Recipe`'s `tokenizer`."""
    add("--vocab-kind", dest="tokenizer", choices=get_args(VocabularyKind), help="kind of vocabulary to learn (bpe)")


def add_search_options(parser: argparse.ArgumentParser, more: Sequence[str] = (), without: Sequence[str] = ()) -> None:
    """Adds the options of a `Translator`, and `more` of a search."""
    add = parser.add_argument_group("search").add_argument
    names = [name for name, option in SEARCH_OPTIONS.items() if "translator" in option.where or name in more]
    add_fields(add, SearchOptions, [name for name in names if name not in without], [SearchOptions()])


def add_call_options(add: Callable[..., Any]) -> None:
    """Adds the options for `engine` and `of_calls`: search options and languages."""
    add_fields(add, SearchOptions, [name for name in SEARCH_OPTIONS if name != "n_best"], [], "the model's")
    add_languages(add)


def add_workers(add: Callable[..., Any]) -> None:
    """Adds the option of `pooled`."""
    workers = "batches at the same time; LiteRT has a process for each (the cores; a SavedModel: 2, a run: 1)"
    add("--workers", type=positive, metavar="N", help=workers)


def add_languages(add: Callable[..., Any]) -> None:
    """Adds the options of a multilingual model's languages."""
    for name in LANGUAGES:
        side = name.partition("_")[0]
        add(f"--{side}-language", metavar="CODE", help=f"{side} language, for a multilingual model (the model's)")


def of_calls(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options that a call may have."""
    return chosen(options, (*LANGUAGES, *options_of("request")))


def chosen(options: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Returns the options of these names that have a value."""
    return {name: options[name] for name in names if options.get(name) is not None}


def load_tensorflow() -> None:
    """Imports TensorFlow quietly: it logs drivers and instruction sets at any log level."""
    with quiet_stderr(), quiet_import():
        import tensorflow  # noqa: F401


def load_backend() -> str:
    """Imports Keras quietly, and returns the name of its backend."""
    with quiet_stderr(), quiet_import():
        import keras
    return str(keras.backend.backend())


def engine(model: str | Path, options: dict[str, Any], **more: Any) -> Engine:
    """Opens a model by `tt.load`, with those of `add_call_options` that belong to the model and not to a call."""
    from tf_transformer.utils.folders import find_saved_model, needs_no_tensorflow

    if "://" in str(model) or find_saved_model(model):
        load_tensorflow()
    elif not needs_no_tensorflow(model):  # LiteRT and ONNX need neither TensorFlow nor Keras
        load_backend()
    fixed = [name for name, option in SEARCH_OPTIONS.items() if "request" not in option.where and name != "n_best"]
    opened = tt.load(model, **more, **chosen(options, fixed))
    if opened.languages:
        source, target = (options.get(name) or opened.metadata.get(name) for name in LANGUAGES)
        if source and target:  # otherwise the call raises an error
            print(f"from {source} to {target}", file=sys.stderr)
    return opened


def answered(engine: Engine, texts: Iterable[Any], n: int | None = None, **options: Any) -> Iterator[TranslationResult]:
    """Yields the replies of `engine.stream`, with progress and warnings on standard error."""
    truncated, count = list[Any](), 0
    with Progress(len(texts) if isinstance(texts, Sequence) else None, "sentences", log=True) as progress:
        for count, reply in enumerate(engine.stream(texts, n, **options), 1):  # noqa: B007
            if reply.truncated:
                truncated.append(reply.source)
            yield reply
            progress.add(1)
    warn_of_truncated(truncated, count)


def run_program(main: Callable[[], None]) -> None:
    """Runs a program. Bad input prints one line and exits with status 2, Ctrl-C with 130.

    A program whose reader has gone, such as `head`, ends quietly. Both streams take every character. SIGTERM and SIGHUP
    raise, so that no half-written file is left.
    """
    received = list[int]()

    def stop(number: int, _: object = None) -> NoReturn:
        received.append(number)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)  # the shell's status for it

    # One of several workers must end at once: to clean up, it would wait for the others.
    handles = "TF_CONFIG" not in os.environ and threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))  # not on Windows
    for number in numbers if handles else ():
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, stop)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # A closed stream (`<&-`) is replaced, so that the next file does not take its number.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        elif mode == "w" and isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # TensorFlow turns it on only with AVX-512
    try:
        try:
            main()
        except (SystemError, RuntimeError):
            # TensorFlow's C++ code turns the exceptions of `stop` into these.
            if not received:
                raise
            stop(received[0])
        finally:
            try:
                sys.stdout.flush()
            except OSError:
                # Python would flush again at exit, and fail again.
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                raise
        # LiteRT prints its accelerators when the process ends.
        if sys.__stderr__ and "ai_edge_litert" in sys.modules:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    except BrokenPipeError:
        sys.exit(141)  # the shell's status for a process that SIGPIPE ended
    except KeyboardInterrupt as error:  # a `TrainingInterrupted` has a message and the signal's number
        print(f"\n{str(error) or 'stopped'}; start it again with the same options to resume", file=sys.stderr)
        sys.exit(128 + getattr(error, "number", signal.SIGINT))  # the shell's status for a process that it ended
    except (BadInput, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        if "TF_CONFIG" not in os.environ:
            raise
        load_tensorflow()
        import tensorflow as tf

        lost = tf.errors.UnavailableError | tf.errors.AbortedError | tf.errors.CancelledError
        lost |= tf.errors.DeadlineExceededError | tf.errors.InternalError
        if isinstance(error, lost):
            print(f"\nerror: another worker has gone, or cannot be reached: {error.message}", file=sys.stderr)
            print("start all workers again with the same options to resume at the last checkpoint", file=sys.stderr)
            sys.stderr.flush()
            os._exit(3)  # A normal exit would wait for the other workers.
        raise
