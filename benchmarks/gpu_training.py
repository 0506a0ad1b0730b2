"""Runs a training on a machine with a GPU and without TensorFlow: the program `translation` under JAX in bfloat16.

It is killed once and resumed. Then the last checkpoints are packed without the optimizer's moments, one file each. If a
test set exists, their average is scored on it. Elsewhere, unpack them into one directory, and pass that to
`tf-transformer evaluate --model`.
"""

import argparse
import csv
import hashlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

# Runs step and evaluation of `Trainer`'s model for each shape of batches, so that JAX caches the compiled code.
COMPILE = """
import sys
import numpy as np
import tf_transformer as tt
from trainers.publishing import plan_of
from trainers.command import add_training_options, options
parser = options("translation", "")
parser.add_argument("--preset")
add = parser.add_argument
for name in ("--train", "--dev"):
    add(name, nargs=2)
add_training_options(parser)
count, *argv, number = sys.argv[1:]
args = parser.parse_args(argv)
config, recipe = plan_of(vars(args), "translation")
corpus = tt.TextCorpus(args.train, args.dev)
tokenizer = corpus.train_tokenizer(config.vocab_size, recipe.tokenizer)
from tf_transformer.data.corpus import Batching
batching = Batching(tokenizer, recipe.batch_tokens, recipe.seed)
model = tt.Trainer("unused", config, corpus, recipe).make_model(recipe.steps)
shapes = [(kind, shape) for kind in ("batches", "dev_batches") for shape in getattr(corpus, kind)(batching).shapes]
for kind, (rows, width) in shapes[int(number) :: int(count)]:
    ids = np.ones((rows, width), "int32")
    call = model.fit if kind == "batches" else model.evaluate
    call((ids, ids), ids, batch_size=rows, verbose=0)
"""


def main(argv=None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--text",
        type=Path,
        required=True,
        metavar="DIR",
        help="directory of train.en, train.de, dev.en, dev.de, and optionally test.en, test.de",
    )
    add("--run", type=Path, required=True, metavar="DIR", help="directory of the run")
    add("--to", type=Path, required=True, metavar="DIR", help="output directory of the packed checkpoints")
    add("--compilers", type=int, default=0, metavar="N", help="processes that compile all shapes first (0)")
    add(
        "--kill-at",
        type=int,
        default=1,
        metavar="N",
        help="kill the training once it has N checkpoints, or never if 0 (1)",
    )
    add("--minutes", type=float, default=60, metavar="M", help="stop after M minutes, and pack the checkpoints (60)")
    add("--keep", type=int, default=5, metavar="N", help="checkpoints to pack (5)")
    add("--preset", default="multi30k", metavar="NAME", help="configuration and recipe (multi30k)")
    add("options", nargs="*", help="options of tf-transformer translation, after --")
    args = parser.parse_args(argv)
    files = [[str(args.text / f"{part}.{side}") for side in ("en", "de")] for part in ("train", "dev")]
    command = [sys.executable, "-m", "trainers.translation", "--run", str(args.run)]
    command += ["--train", *files[0], "--dev", *files[1], "--preset", args.preset, "--mixed-precision", "bfloat16"]
    command += args.options
    cache = str(args.run.with_name(f"{args.run.name}-compiled"))
    environment = {"KERAS_BACKEND": "jax", "JAX_COMPILATION_CACHE_DIR": cache, "PYTHONUNBUFFERED": "1"} | os.environ
    began = time.monotonic()
    if args.compilers:
        first = [sys.executable, "-c", COMPILE, str(args.compilers), *command[5:]]
        shared = environment | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        for process in [subprocess.Popen([*first, str(i)], env=shared) for i in range(args.compilers)]:
            process.wait()
        print(f"compiled after {time.monotonic() - began:.0f} s", flush=True)
    program = subprocess.Popen(command, env=environment)
    if args.kill_at:
        while program.poll() is None and len(checkpoints(args.run)) < args.kill_at:
            time.sleep(0.2)
        time.sleep(1)  # between two checkpoints
        program.send_signal(signal.SIGKILL)
        program.wait()
        killed = time.monotonic() - began
        print(f"killed after {killed:.0f} s, resuming", flush=True)
        program = subprocess.Popen(command, env=environment)
    try:
        program.wait(max(1, began + 60 * args.minutes - time.monotonic()))
    except subprocess.TimeoutExpired:
        program.send_signal(signal.SIGTERM)  # saves a checkpoint
    if program.wait() not in (0, 128 + signal.SIGTERM):
        sys.exit(program.returncode)
    minutes = (time.monotonic() - began) / 60
    args.to.mkdir(parents=True, exist_ok=True)
    with tarfile.open(args.to / "run.tar", "w") as packed:
        for name in ("config.json", "tokenizer.model", "history.csv"):
            packed.add(args.run / name, name)
    for folder in checkpoints(args.run)[-args.keep :]:
        without_optimizer(folder)
        with tarfile.open(args.to / f"{folder.name}.tar", "w") as packed:
            packed.add(folder, f"checkpoints/{folder.name}")
    rows = list(csv.DictReader((args.run / "history.csv").read_text().splitlines()))
    speeds = sorted(float(row["tokens/s"]) for row in rows)
    line = {
        "benchmark": "gpu_training",
        "minutes": round(minutes, 2),
        "steps": int(rows[-1]["step"]),
        "tokens_per_second": [round(speeds[0]), round(speeds[len(speeds) // 2]), round(speeds[-1])],
        "val_loss": float(rows[-1]["val_loss"]),
        "val_perplexity": float(rows[-1]["val_perplexity"]),
    }
    source, reference = (args.text / f"test.{side}" for side in ("en", "de"))
    if source.is_file():
        began = time.monotonic()
        evaluate = [sys.executable, "-m", "trainers.evaluate", "--model", str(args.run)]
        subprocess.run([*evaluate, "--source", str(source), "--reference", str(reference)], env=environment, check=True)
        line["test_seconds"] = round(time.monotonic() - began, 1)  # loading and compiling included
    print(json.dumps(line))
    return line


def checkpoints(run: Path) -> list[Path]:
    return sorted(file.parent for file in run.glob("checkpoints/step-*/state.json"))


def without_optimizer(folder: Path) -> None:
    """Removes the optimizer's variables, two thirds of the file, from a checkpoint."""
    import h5py

    weights = folder / "model.weights.h5"
    smaller = weights.with_name("smaller.h5")
    with h5py.File(weights) as old, h5py.File(smaller, "w") as new:
        for name in old:
            if not name.startswith("optimizer"):
                old.copy(name, new)
        new.attrs.update(old.attrs)
    smaller.replace(weights)
    state = json.loads((folder / "state.json").read_text())
    state["sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    (folder / "state.json").write_text(json.dumps(state))


if __name__ == "__main__":
    main()
