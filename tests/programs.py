"""Calling the programs as a user does."""

from pathlib import Path

import pytest

from trainers.command import run_program

ROOT = Path(__file__).parents[1]


def options(text, *more):
    sides = {split: [str(text / f"{split}.en"), str(text / f"{split}.de")] for split in ("train", "dev", "test")}
    return ["--train", *sides["train"], "--dev", *sides["dev"], *map(str, more)]


def fails(program, argv, capsys):
    """The one line that a program ends with, having got something wrong."""
    with pytest.raises(SystemExit) as stopped:
        run_program(lambda: program.main([str(argument) for argument in argv]))
    assert stopped.value.code == 2
    error = capsys.readouterr().err.strip()
    assert "Traceback" not in error
    return error.splitlines()[-1]
