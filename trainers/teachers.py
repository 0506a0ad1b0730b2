"""Data diversification (Nguyen et al. 2020): a model learns also from what others, its teachers, make of its text."""

import argparse
import copy
import dataclasses
from pathlib import Path

from trainers.command import in_parts
from trainers.learning import Texts, averaged, learn

LATER = ("word_dropout", "student_dropout", "cooldown_steps")  # options of a recipe that do not change a teacher


def learn_from_teachers(tt, args, strategy, config, recipe, run, settings, texts: Texts):
    """Train `args.teachers`, and have them translate every source and every target.

    A teacher is a run like the model's own with another seed, trained as far as the model learns both directions; so
    far the model itself is trained here, too. What is there already is not done again.

    Args:
        run: the model's own.
        settings: of it; from then on they name the teachers.

    Returns:
        for the model's other steps: the configuration, with the recipe's `student_dropout`, and the texts, with what
        the teachers say.

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
        of_teacher = copy.deepcopy(settings)
        of_teacher["data"]["seed"] += number
        if (folder / "config.json").exists():
            begun = teacher.settings()
            of_teacher["data"]["seed"] = begun["data"]["seed"]
            of_teacher["training"] |= {name: begun.get("training", {}).get(name) for name in LATER}
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

    both_directions, without_cooldown = recipe["bidirectional_steps"], recipe | {"cooldown_steps": 0}

    def learn_both_directions(what: str, one, its_settings) -> None:
        newest = one.newest()
        if not newest or newest[1]["step"] < both_directions:
            print(f"\n{what}, in both directions to step {both_directions:,}: {one.path}", flush=True)
            options = vars(args) | {"seed": its_settings["data"]["seed"], "steps": both_directions}
            learn(tt, argparse.Namespace(**options), strategy, config, without_cooldown, one, its_settings, texts)

    for number, (teacher, of_teacher, files, complete) in enumerate(teachers, 1):
        if not complete:
            learn_both_directions(f"teacher {number} of {len(teachers)}", teacher, of_teacher)
            if tt.distribution.is_chief(strategy):
                translate(tt, args, teacher, files, tt.data.to_lists(texts.train))
            tt.distribution.wait_for_all(strategy)
    learn_both_directions("the model itself", run, settings)
    print(f"\nthe model itself, from its teachers: {run.path}", flush=True)
    return dataclasses.replace(config, dropout=recipe["student_dropout"]), dataclasses.replace(
        texts,
        count=(texts.count or 0) * (1 + 2 * len(teachers)),
        translations=tuple(files for _, _, files, _ in teachers),
    )


def translate(tt, args, run, files: tuple[Path, Path], sides: tuple[list[str], list[str]]) -> None:
    """Write what the run's averaged checkpoints (section 6.1) make of every source, and of every target.

    An output is longer than its source by no more than the sides of some pair of the text differ: the less may yet
    come, the sooner a search knows that nothing better will.
    """
    translator = averaged(tt, args, run)
    if args.mixed_precision:
        translator = translator.astype(args.mixed_precision)
    of_source, of_target = (translator.tokenizer.tokenize(side).row_lengths().numpy() for side in sides)
    longest = int(abs(of_source - of_target).max())
    translator.extra_length = min(max(longest, 1), translator.extra_length)
    for file, side in zip(files, sides, strict=True):
        print(f"{len(side):,} sentences to {file}", flush=True)
        tt.run.write_text(file, (f"{text}\n" for text in in_parts(translator, side)))
