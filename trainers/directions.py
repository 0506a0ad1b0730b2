"""`--directions FILE`: language pairs of a multilingual model for one run, and their text."""

import argparse
import shlex
from collections.abc import Callable
from typing import Any

from tf_transformer.config import BadInput
from tf_transformer.decoding.search_options import LANGUAGES
from tf_transformer.utils.files import lines_of, user_path
from tf_transformer.utils.values import Positive, convert

from .command import add_languages, chosen

COLUMNS = "LANGUAGE LANGUAGE SOURCE TARGET [DEV_SOURCE DEV_TARGET] [WEIGHT]"


def add_directions(add: Callable[..., Any]) -> None:
    """Adds the options for `directed`."""
    add("--directions", metavar="FILE", help="train on several language pairs, one per line (docs/guides/languages.md)")
    temperature = "sample these language pairs in proportion to size to the power of 1/T (1)"
    add("--temperature", type=float, metavar="T", help=temperature)
    add_languages(add)


def directed(args: argparse.Namespace, model: Any, check: bool) -> tuple[Any, Any, Any]:
    """Reads the file of --directions, and its text if `check`.

    Returns:
        The model, a translator or a tokenizer, with the languages of the options or of the first line, and the sources
        of training and dev set, or `None`.
    """
    languages = chosen(vars(args), LANGUAGES)
    if languages and not (args.start or args.tokenizer_file):
        raise BadInput("--source-language and --target-language: expected --from MODEL, a multilingual model")
    if args.temperature is not None and not args.directions:
        raise BadInput("--temperature: expected --directions as well")
    if not args.directions:
        return model, None, None
    from tf_transformer.extensions.sources import DirectedSource, JoinedSource, TextSource, temperature_weights

    tokenizer, weights = getattr(model, "tokenizer", model), list[float]()
    train, dev = list[DirectedSource](), list[DirectedSource]()
    for number, line in enumerate(lines_of(args.directions), 1):
        try:
            if not (columns := shlex.split(line.decode(), comments=True)):
                continue
            if not 4 <= len(columns) <= 7:
                raise BadInput(f"expected {COLUMNS}, got {len(columns)} columns")
            weights.append(convert("weight", _number(columns.pop()), Positive) if len(columns) % 2 else 1.0)
            pair, files = (columns[0], columns[1]), [str(user_path(file).absolute()) for file in columns[2:]]
            tokenizer.with_languages(*pair)
            for sources, start in [(train, 0), (dev, 2)][: len(files) // 2]:
                text = TextSource(files[start], files[start + 1], args.skip_bad_lines)
                if check or start:
                    text.check()
                sources.append(DirectedSource(text, pair))
        except (OSError, ValueError) as error:
            raise BadInput(f"{args.directions}, line {number}: {error}") from error
    if not train:
        raise BadInput(f"{args.directions}: expected lines of {COLUMNS}, got none")
    if args.temperature is not None:
        balance = temperature_weights(train, args.temperature)
        weights = [weight * more for weight, more in zip(weights, balance, strict=True)]
    languages = dict(zip(LANGUAGES, train[0].languages, strict=True)) | languages
    model = (model.with_languages if tokenizer is model else model.replace)(**languages)
    return model, JoinedSource(train, weights), JoinedSource(dev) if dev else None


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text  # `convert` reports it.
