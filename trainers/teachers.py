"""Data diversification (Nguyen et al. 2020): a model learns also from what others, its teachers, make of its text."""

import argparse
import dataclasses
from pathlib import Path

from trainers.command import in_parts
from trainers.learning import Texts, averaged, learn


def with_teachers(tt, args, strategy, config, recipe, run, settings, texts: Texts):
    """Train `args.teachers`, and have them translate every source and every target.

    A teacher is a run like the model's own with another seed, trained as far as the model learns both directions; so
    far the model itself is trained here, too. What is there already is not done again.

    Args:
        run: the model's own.
        settings: of it; from then on they name the teachers.

    Returns:
        texts with the translations, and the configuration to learn from them with, which has the recipe's
        `student_dropout`.

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

    def learn_both_directions(one, its_settings) -> None:
        options = vars(args) | {"seed": its_settings["data"]["seed"], "steps": steps, "epochs": None}
        learn(tt, argparse.Namespace(**options), strategy, config, recipe, one, its_settings, texts)

    for number, (teacher, of_teacher, files, complete) in enumerate(teachers, 1):
        if not complete:
            print(
                f"\nteacher {number} of {len(teachers)}, in both directions, {steps:,} steps: {teacher.path}",
                flush=True,
            )
            learn_both_directions(teacher, of_teacher)
            if tt.distribution.is_chief(strategy):
                translate(tt, args, teacher, files, tt.data.to_lists(texts.train))
            tt.distribution.wait_for_all(strategy)
    newest = run.newest()
    if not newest or newest[1]["step"] < steps:
        print(f"\nthe model itself, in both directions, {steps:,} steps: {run.path}", flush=True)
        learn_both_directions(run, settings)
    count = (texts.count or 0) * (1 + 2 * len(teachers))
    translations = tuple(files for _, _, files, _ in teachers)
    texts = dataclasses.replace(texts, count=count, translations=translations)
    return texts, dataclasses.replace(config, dropout=recipe["student_dropout"])


def translate(tt, args, run, files: tuple[Path, Path], sides: tuple[list[str], list[str]]) -> None:
    """Write what the run's averaged checkpoints (section 6.1) make of every source, and of every target."""
    translator = averaged(tt, args, run)
    for file, side in zip(files, sides, strict=True):
        print(f"{len(side):,} sentences to {file}", flush=True)
        tt.run.write_text(file, (f"{text}\n" for text in in_parts(translator, side)))
