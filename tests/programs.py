"""Helpers that call programs as a user does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import pytest

import tf_transformer as tt
from tf_transformer.utils.files import checksum
from trainers.command import run_program

ROOT = Path(__file__).parents[1]


def run_python(program, *arguments, **environment):
    """Runs a program in a fresh process. Returns its standard output."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"KERAS_BACKEND": keras.backend.backend()} | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


def without_the_package(folder):
    """Returns an environment in which `import tf_transformer` fails."""
    (folder / "tf_transformer.py").write_text("raise ImportError('the package')\n")
    return os.environ | {"PYTHONPATH": str(folder)}


def options(text, *more):
    sides = {split: [str(text / f"{split}.en"), str(text / f"{split}.de")] for split in ("train", "dev", "test")}
    return ["--train", *sides["train"], "--dev", *sides["dev"], *map(str, more)]


def fails(program, argv, capsys):
    """Returns the last line of a program that exits with an error."""
    with pytest.raises(SystemExit) as stopped:
        run_program(lambda: program.main([str(argument) for argument in argv]))
    assert stopped.value.code == 2
    error = capsys.readouterr().err.strip()
    assert "Traceback" not in error
    return error.splitlines()[-1]


def trainer_of(program, argv):
    """Returns the trainer that a program makes, without training it."""
    fit = mock.patch.object(tt.Trainer, "fit", autospec=True, side_effect=KeyboardInterrupt)
    with fit as fit, pytest.raises(KeyboardInterrupt):
        program.main([str(argument) for argument in argv])
    return fit.call_args.args[0]


def checkpoint(run, step):
    """Writes a checkpoint that a run accepts, without a model."""
    folder = run / f"checkpoints/step-{step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.weights.h5").write_text(f"weights of {step}")
    state = {"step": step, "sha256": checksum(folder / "model.weights.h5")}
    (folder / "state.json").write_text(json.dumps(state))


def same_weights(*runs):
    """Checks that the last checkpoints of runs are the same."""
    models = [tt.Translator.from_pretrained(run, average_last=1).model for run in runs]
    for weights, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(weights, other)
