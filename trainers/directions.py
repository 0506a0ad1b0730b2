"""A file of directions, `--directions FILE`: the language pairs of one run of a multilingual model, and their text."""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tf_transformer.config import BadInput
from tf_transformer.tokenizers.languages import LANGUAGES

from .command import chosen

if TYPE_CHECKING:
    from tf_transformer.data.pairs import Source, Texts

COLUMNS = "LANGUAGE LANGUAGE SOURCE TARGET [DEV_SOURCE DEV_TARGET] [WEIGHT]"


@dataclass(frozen=True)
class Direction:
    """A line of the file. Without a weight or dev files, these are `None`."""

    languages: tuple[str, str]
    train: "Source"
    dev: "Texts | None"
    weight: float | None


def add_directions(add: Any) -> None:
    """Adds the options for `read_directions` and `joined`."""
    add("--directions", metavar="FILE", help=f"a language pair per line: {COLUMNS}")
    temperature = "sample each pair of languages in proportion to the 1/T-th power of its size (1; M2M100: 5)"
    add("--temperature", type=float, metavar="T", help=temperature)


def directed(args: argparse.Namespace, model: Any, check: bool = True) -> tuple[Any, list[Direction]]:
    """Returns the directions of the options, and a translator or tokenizer whose languages are the first one's.

    Args:
        args: Options.
        model: Translator or tokenizer that has the languages.
        check: Whether to check the text to train on.
    """
    tokenizer = getattr(model, "tokenizer", model)
    directions = list[Direction]()
    languages = chosen(vars(args), LANGUAGES)
    if languages and not (args.start or args.tokenizer_file):
        raise BadInput("--source-language and --target-language: expected --from MODEL, a multilingual model")
    if not args.directions:
        if args.temperature:
            raise BadInput("--temperature: expected --directions as well")
        return model, directions
    from tf_transformer.utils.files import lines_of

    for number, line in enumerate(lines_of(args.directions), 1):
        try:
            if columns := shlex.split(line.decode(), comments=True):
                directions.append(_direction(columns, tokenizer, args.skip_bad_lines, check))
        except (OSError, ValueError) as error:
            raise BadInput(f"{args.directions}, line {number}: {error}") from error
    if not directions:
        raise BadInput(f"{args.directions}: expected lines of {COLUMNS}, got none")
    if args.temperature and any(one.weight for one in directions):
        raise BadInput("--temperature: cannot be combined with weights in the file")
    languages = dict(zip(LANGUAGES, directions[0].languages, strict=True)) | languages
    return (model.with_languages if tokenizer is model else model.replace)(**languages), directions


def _direction(columns: list[str], tokenizer: Any, skip_bad_lines: bool, check: bool) -> Direction:
    from tf_transformer.data.corpus import read_texts
    from tf_transformer.data.sources import TextSource

    if not 4 <= len(columns) <= 7:
        raise BadInput(f"expected {COLUMNS}, got {len(columns)} columns")
    source_language, target_language, source, target, *more = columns
    tokenizer.with_languages(source_language, target_language)
    weight = positive_number(more.pop()) if len(more) % 2 else None
    train = TextSource(str(Path(source).absolute()), str(Path(target).absolute()), skip_bad_lines)
    if check:
        train.check()
    return Direction((source_language, target_language), train, read_texts(more, "dev") if more else None, weight)


def positive_number(text: str) -> float:
    try:
        if (number := float(text)) > 0:
            return number
    except ValueError:
        pass
    raise BadInput(f"weight: expected a positive number, got {text}")


def joined(directions: Sequence[Direction], temperature: float | None) -> "Source":
    """Returns the training set of all directions, weighted."""
    from tf_transformer.data.sources import DirectedSource, JoinedSource, temperature_weights

    sources = [DirectedSource(one.train, one.languages) for one in directions]
    if temperature:
        return JoinedSource(sources, temperature_weights(sources, temperature))
    has_weights = any(one.weight for one in directions)
    return JoinedSource(sources, [one.weight or 1 for one in directions] if has_weights else None)


def dev_of(directions: Sequence[Direction]) -> "Source":
    """Returns the dev sets of the directions that have one."""
    from tf_transformer.data.sources import DirectedSource, JoinedSource, MemorySource

    dev = [DirectedSource(MemorySource(*one.dev), one.languages) for one in directions if one.dev]
    if not dev:
        raise BadInput("--directions: expected dev files in some lines or a share such as --dev 0.02, got neither")
    return JoinedSource(dev)
