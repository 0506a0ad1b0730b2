"""Run the experiments of docs/explanation/claims.md: train their models, score them, and append a line for each.

A stopped or killed program resumes when you run it again. DIR holds multi30k/{train,dev,test2016}.{en,de},
tatoeba-en-de/{train,dev}.{en,de} and treebank/gum.{train,dev}.trees. Parts of the plan run beside each other with
different --only, --run and --results, the last a copy of the lines that the rates come from.
"""

import json
import re
import shutil
import time
from pathlib import Path

from examples.claims.plan import NAMES, Line, Trial, estimate, scoring, trials_of
from tf_transformer.utils.files import write_text
from trainers.command import as_path, load_backend, options, positive, run_program

RESULTS = Path(__file__).with_name("results.jsonl")


def read(path: Path) -> list[Line]:
    """Returns the lines of a file of results, if it exists."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def missing(name: str, results: Path, steps: int | None, only: str = "") -> list[Trial]:
    """Returns the trials of an experiment that have not run, or those of them whose settings match."""
    lines = read(results)
    trials = [trial for trial in trials_of(name, lines, steps) if not trial.line(lines)]
    return [trial for trial in trials if re.search(only, json.dumps(trial.described))]


def show_plan(names: list[str], results: Path) -> None:
    """Prints the trials that have not run, with estimates. A trial of several experiments counts in the first."""
    seen, total = list[Trial](), 0.0
    for name in names:
        trials = [trial for trial in missing(name, results, None) if trial not in seen]
        seen += trials
        for trial in trials:
            print(f"{name} {json.dumps(trial.described)}: {estimate(trial) / 60:.0f} minutes")
        total += sum(map(estimate, trials)) / 3600
        print(f"{name}: {len(trials)} trials to run. Up to here, {total:.1f} hours on one core")


def main(argv: list[str] | None = None) -> None:
    parser = options("run", __doc__, package="examples.claims")
    add = parser.add_argument
    add("--data", type=as_path, metavar="DIR", help="directory of the corpora")
    add("--experiment", choices=NAMES, metavar="NAME", help=f"{', '.join(NAMES)} (all, in this order)")
    add("--only", default="", metavar="REGEX", help="run trials whose settings, as the plan prints them, match")
    add("--hours", type=float, default=20.0, metavar="H", help="stop before so many hours have passed (20)")
    add("--plan", action="store_true", help="print the trials to run and their estimated times")
    add("--run", type=as_path, default=Path("runs/claims"), metavar="DIR", help="run directory (runs/claims)")
    add("--results", type=as_path, default=RESULTS, metavar="FILE", help="the lines (examples/claims/results.jsonl)")
    add("--steps", type=positive, metavar="N", help="train so many steps, to try the program")
    args = parser.parse_args(argv)
    end = time.monotonic() + 3600 * args.hours
    names = [args.experiment] if args.experiment else NAMES
    if not args.plan and not args.data:
        parser.error("expected --data DIR or --plan")
    load_backend()
    import keras

    from examples.claims.measure import measure
    from tf_transformer.utils.terminal import TrainingInterrupted

    if args.plan:
        return show_plan(names, args.results)
    for name in names:
        # Later trials depend on the lines of the first ones.
        while waiting := missing(name, args.results, args.steps, args.only):
            trial = waiting[0]
            print(f"\n{name} {json.dumps(trial.described)}: about {estimate(trial) / 60:.0f} minutes", flush=True)
            folder = args.run / trial.run
            keras.utils.clear_session()
            try:
                if time.monotonic() > (last := end - scoring(trial)):
                    raise TrainingInterrupted("no time left")
                line = measure(trial, args.data, folder, last)
            except TrainingInterrupted as stop:
                return print(f"{stop}. To resume, run this command again.")
            # The whole file is written, so that a killed process leaves no part of a line.
            write_text(args.results, "".join(f"{json.dumps(one)}\n" for one in (*read(args.results), line)))
            if all(other.run != trial.run for other in waiting[1:]):
                shutil.rmtree(folder, ignore_errors=True)
        print(f"{name}: complete")


if __name__ == "__main__":
    run_program(main)
