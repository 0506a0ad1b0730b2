"""Train the preset small on a small corpus with methods beyond the paper, score it, and export it (see README.md)."""

import dataclasses
from pathlib import Path
from typing import Any

from trainers.command import (
    EXPORTS,
    add_search_options,
    add_training_options,
    as_path,
    chosen,
    load_tensorflow,
    options,
    run_program,
)


def main(argv: list[str] | None = None) -> None:
    parser = options("train", __doc__, package="examples.multi30k")
    add = parser.add_argument
    files: dict[str, Any] = {"nargs": 2, "metavar": ("SOURCE", "TARGET")}
    add("--train", **files, required=True, help="parallel text, one sentence per line, plain or .gz")
    add("--dev", **files, required=True, help="dev set, to validate on")
    add("--test", **files, help="test set to score the result on (the dev set)")
    add("--skip-bad-lines", action="store_true", help="train without empty, over-long and invalid lines")
    add("--dropout-steps", type=int, metavar="N", help="P_drop grows from 0, by a third at a time, in N steps (4500)")
    add("--bidirectional-steps", type=int, metavar="N", help="learn both directions in the first N steps (6000)")
    add("--word-dropout", type=float, metavar="P", help="share of the words hidden after these steps (0.1)")
    teachers = "train teachers in these runs, for the bidirectional steps, and learn from their translations"
    add("--teachers", nargs="+", default=[], type=as_path, metavar="DIR", help=teachers)
    add("--student-dropout", type=float, metavar="P", help="P_drop while learning from teachers (0.1)")
    ensemble = "train the teachers to the end, each taught by the next, and translate with all"
    add("--ensemble", action="store_true", help=ensemble)
    add_training_options(parser, without=["epochs"])  # stages end at steps
    add_search_options(parser, without=EXPORTS)
    args = parser.parse_args(argv)
    for option, is_set in (("student-dropout", args.student_dropout is not None), ("ensemble", args.ensemble)):
        if is_set and not args.teachers:
            parser.error(f"--{option}: expected --teachers with it, got none")
    print("loading TensorFlow ...", flush=True)
    load_tensorflow()
    import tf_transformer as tt
    from examples.multi30k.corpus import Methods, StagedCorpus
    from examples.multi30k.stages import StagedTrainer
    from examples.multi30k.teachers import learn_from_teachers, runs_of
    from trainers import publishing

    # TensorFlow's devices can only be set before it computes anything.
    strategy = tt.distribution.strategy(args.devices)
    config, recipe = publishing.plan_of(vars(args) | {"preset": "small"}, "translation")
    methods = Methods(**chosen(vars(args), [field.name for field in dataclasses.fields(Methods)]))
    search = publishing.search_of(vars(args))

    # All input is checked before anything is written.
    folder = args.run or Path("runs/small")
    root = publishing.export_folder(vars(args), folder, strategy)
    corpus = StagedCorpus.of(tt.TextCorpus(args.train, args.dev, args.test, args.skip_bad_lines), methods)
    model = StagedTrainer(folder, config, corpus, recipe, strategy=strategy)
    if args.dry_run is not None:
        for trainer in runs_of(model, args.teachers, args.ensemble) if args.teachers else [model]:
            trainer.check()
        publishing.show_plan(config, recipe, args.dry_run)
        cost = "as much" if args.ensemble else f"{methods.bidirectional_steps:,} steps"
        if args.teachers:
            print(f"and {cost} for each of {len(args.teachers)} teachers")
        return
    trainer = learn_from_teachers(model, args.teachers, args.ensemble, search) if args.teachers else model.learn()
    if not trainer.writes or publishing.is_complete(trainer):
        return
    translator = publishing.averaged(trainer, search, args.teachers if args.ensemble else [])
    publishing.score_and_publish(trainer, translator, root)


if __name__ == "__main__":
    run_program(main)
