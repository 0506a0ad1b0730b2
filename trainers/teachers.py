"""Data diversification (Nguyen et al. 2020): a model learns also from what others, its teachers, make of its text."""

import argparse
import dataclasses
from pathlib import Path

from trainers.command import in_parts
from trainers.learning import Texts, learn


def with_teachers(tt, args, strategy, config, recipe, run, settings, texts: Texts) -> Texts:
    """Texts with the translations of every source, and of every target, that `args.teachers` make of them.

    A teacher is a run like the model's own with another seed, trained as far as the model learns both directions. What
    is there already of it is not done again.

    Args:
        run: the model's own.
        settings: of it; from then on they name the teachers.

    Raises:
        BadInput: a folder is given twice, or holds another run, or translations of another text.
    """
    folders = [run.path, *args.teachers]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise tt.BadInput(
            f"expected different folders, got --run {run.path} --teachers {' '.join(map(str, args.teachers))}"
        )
    pairs = int(texts.train.reduce(0, lambda count, _: count + 1))
    teachers = []
    for number, folder in enumerate(args.teachers, 1):  # all are looked at before the first is trained
        teacher = tt.run.Run(folder, keep=args.average_last)
        begun = (folder / "config.json").exists()
        seed = teacher.settings()["data"]["seed"] if begun else args.seed + number
        of_teacher = settings | {"data": settings["data"] | {"seed": seed}}
        files = folder / "forward.txt", folder / "backward.txt"
        complete = teacher.exists(of_teacher) and all(file.exists() for file in files)
        if complete and (lines := tt.data.check_text_pairs(*files, empty_lines=True)) != pairs:
            raise tt.BadInput(
                f"{folder}: expected as many translations as there are pairs to learn from, {pairs:,}, got {lines:,}; "
                f"without {files[0].name} and {files[1].name} they are made again"
            )
        teachers.append((teacher, of_teacher, files, complete))
    settings["data"] |= {"teachers": [str(folder) for folder in args.teachers]}
    run.exists(settings)

    steps = recipe["bidirectional_steps"]
    for number, (teacher, of_teacher, files, complete) in enumerate(teachers, 1):
        if not complete:
            print(
                f"\nteacher {number} of {len(teachers)}, in both directions, {steps:,} steps: {teacher.path}",
                flush=True,
            )
            options = vars(args) | {"seed": of_teacher["data"]["seed"], "steps": steps, "epochs": None}
            learn(tt, argparse.Namespace(**options), strategy, config, recipe, teacher, of_teacher, texts)
            if tt.distribution.is_chief(strategy):
                translate(tt, args, teacher, files, tt.data.to_lists(texts.train))
            tt.distribution.wait_for_all(strategy)
    count = (texts.count or 0) * (1 + 2 * len(teachers))
    return dataclasses.replace(texts, count=count, translations=tuple(files for _, _, files, _ in teachers))


def translate(tt, args, run, files: tuple[Path, Path], sides: tuple[list[str], list[str]]) -> None:
    """Write what the run's averaged checkpoints (section 6.1) make of every source, and of every target."""
    translator = tt.Translator.from_run(run.path, args.average_last, beam_size=args.beam_size, alpha=args.alpha)
    for file, side in zip(files, sides, strict=True):
        print(f"{len(side):,} sentences to {file}", flush=True)
        tt.run.write_text(file, (f"{text}\n" for text in in_parts(translator, side)))
