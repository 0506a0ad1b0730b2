"""Run the experiments of docs/explanation/claims.md: train their models, score them, and append a line for each.

A stopped or killed program resumes when you run it again. DIR holds multi30k/{train,dev,test2016}.{en,de} and
treebank/gum.{train,dev}.trees.
"""

import hashlib
import json
import shutil
import time
from pathlib import Path

from examples.claims.plan import EXPERIMENTS, SCORING, Line, Trial, estimate, trials_of
from tf_transformer.utils.files import write_text
from trainers.command import as_path, load_tensorflow, options, positive, run_program

RESULTS = Path(__file__).with_name("results.jsonl")


def read(path: Path) -> list[Line]:
    """Returns the lines of a file of results, if it exists."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def append(path: Path, line: Line) -> None:
    """Appends a line. The file is replaced, so a killed process leaves no part of one."""
    write_text(path, "".join(f"{json.dumps(one)}\n" for one in (*read(path), line)))


def folder_of(trial: Trial) -> str:
    """Returns the name of a trial's folder, which holds its checkpoints until it is scored."""
    return hashlib.sha256(json.dumps(trial.described, sort_keys=True).encode()).hexdigest()[:10]


def next_trial(name: str, lines: list[Line], steps: int | None) -> Trial | None:
    """Returns the first trial of an experiment that has not run."""
    return next((trial for trial in trials_of(name, lines, steps) if not trial.line(lines)), None)


def show_plan(names: list[str], lines: list[Line]) -> None:
    """Prints all trials in their order, with estimates. A trial of several experiments counts in the first."""
    seen, total = list[Trial](), 0.0
    for name in names:
        trials = [trial for trial in trials_of(name, lines) if trial not in seen]
        seen += trials
        print(f"{name}: {len(trials)} trials")
        for trial in trials:
            total += 0 if trial.line(lines) else estimate(trial) / 3600
            state = "done" if trial.line(lines) else f"{estimate(trial) / 60:.0f} minutes"
            print(f"  {json.dumps(trial.described) if trial.described else 'base'}: {state}")
        print(f"  with these, {total:.1f} hours on one core")


def main(argv: list[str] | None = None) -> None:
    parser = options("run", __doc__, package="examples.claims")
    add = parser.add_argument
    add("--data", type=as_path, metavar="DIR", help="directory of the corpora")
    add("--experiment", choices=[*EXPERIMENTS], metavar="NAME", help=f"{', '.join(EXPERIMENTS)} (all, in this order)")
    add("--hours", type=float, default=20.0, metavar="H", help="stop before so many hours have passed (20)")
    add("--steps", type=positive, metavar="N", help="train so many steps, to try the programs (2,000)")
    add("--plan", action="store_true", help="print all trials and their estimated times, and stop")
    add("--run", type=as_path, default=Path("runs/claims"), metavar="DIR", help="run directory (runs/claims)")
    add(
        "--results",
        type=as_path,
        default=RESULTS,
        metavar="FILE",
        help="file of the lines (examples/claims/results.jsonl)",
    )
    args = parser.parse_args(argv)
    names = [args.experiment] if args.experiment else [*EXPERIMENTS]
    if not args.plan and not args.data:
        parser.error("expected --data DIR or --plan")
    end = time.monotonic() + 3600 * args.hours
    load_tensorflow()
    if args.plan:
        return show_plan(names, read(args.results))
    import keras

    from examples.claims.measure import measure
    from tf_transformer.utils.terminal import TrainingInterrupted

    for name in names:
        # Rates of later trials depend on lines of the first ones.
        while trial := next_trial(name, read(args.results), args.steps):
            reserved = estimate(trial) if trial.model == "pcfg" else SCORING[bool(trial.trees)]
            print(f"\n{name}: {json.dumps(trial.described)}, about {estimate(trial) / 60:.0f} minutes", flush=True)
            if time.monotonic() > end - reserved:
                return print("no time left: run the same command again to resume")
            keras.utils.clear_session()
            folder = args.run / folder_of(trial)
            try:
                line = measure(trial, args.data, folder, end - reserved)
            except TrainingInterrupted as stop:
                return print(f"{stop}: run the same command again to resume")
            append(args.results, line)
            shutil.rmtree(folder, ignore_errors=True)
        print(f"{name}: complete")


if __name__ == "__main__":
    run_program(main)
