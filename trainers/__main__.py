"""The command tf-transformer, which runs all programs."""

import argparse
import sys
from pathlib import Path

from tf_transformer import registry
from tf_transformer.utils.version import __version__

from .command import run_program

PROGRAMS = {
    "translation": "train a translator, score it, and export it",
    "parsing": "train a parser of English, score it, and export it",
    "prepare": "tokenize a large corpus once, into records for training",
    "evaluate": "score translations or models against references",
    "translate": "translate or parse texts with an export, a run or a checkpoint",
    "serve": "serve a model over HTTP: a page, TensorFlow Serving's REST and LibreTranslate's API",
    "attention": "draw a model's attention weights",
    "export": "export a run or a pretrained checkpoint, as a SavedModel or for other engines",
    "check": "check that an export can be served",
}
# The check is an extension's.
registry.core["commands"] = {name: f"{__package__}.{name}:main" for name in PROGRAMS if name != "check"}


def main() -> None:
    run_program(run)


def run() -> None:
    """Runs the program that the command line names."""
    command = "tf-transformer" if Path(sys.argv[0]).stem == "tf-transformer" else f"python -m {__package__}"
    plugins = [name for name in registry.names("commands") if name not in PROGRAMS]
    programs = PROGRAMS | dict.fromkeys(plugins, "from another package")
    lines = "\n".join(["programs:", *(f"  {name:13}{purpose}" for name, purpose in programs.items())])
    usage, epilog = f"{command} PROGRAM [options]", f"{command} PROGRAM --help shows a program's options."
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(command, usage, lines, epilog, formatter_class=formatter)
    parser.add_argument("program", metavar="PROGRAM", choices=programs, help="one of the programs above")
    parser.add_argument("--version", action="version", version=__version__)
    name = parser.parse_args(sys.argv[1:2]).program
    sys.argv = [f"{command} {name}", *sys.argv[2:]]
    registry.find("commands", name)()


if __name__ == "__main__":
    main()
