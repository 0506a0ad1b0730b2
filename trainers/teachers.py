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

    With `args.ensemble` the model translates as well, and the teachers go on as it will: it is taught by the first,
    they by the next of them, and the last by the model.

    Args:
        run: the model's own.
        settings: of it; from then on they name its teachers.

    Returns:
        for the model's other steps: the configuration, with the recipe's `student_dropout`, and the texts, with what
        the teachers say.

    Raises:
        BadInput: a folder is given twice, or holds another run, or translations of another text, or went on without.
    """
    folders = [run.path, *args.teachers]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise tt.BadInput(
            f"expected different folders, got --run {run.path} --teachers {' '.join(map(str, args.teachers))}"
        )
    pairs = int(texts.train.reduce(0, lambda count, _: count + 1))
    both_directions, without_cooldown = recipe["bidirectional_steps"], recipe | {"cooldown_steps": 0}
    student = dataclasses.replace(config, dropout=recipe["student_dropout"])
    teachers = [_teacher(tt, args, number, settings) for number in range(1, len(args.teachers) + 1)]
    everyone = [*teachers, ("the model itself", run, settings)]
    taught_by = {run.path: args.teachers}
    if args.ensemble:
        taught_by = {folder: [of] for folder, of in zip(folders, [*args.teachers, run.path], strict=True)}
    untold = []  # the runs of those that are to translate, and have not
    for _, one, its_settings in everyone:  # all are looked at before the first is trained
        if one.path in taught_by:
            its_settings["data"] |= {"teachers": [str(folder) for folder in taught_by[one.path]]}
        is_there = one.exists(its_settings)
        if (one is not run or args.ensemble) and not (is_there and _has_translated(tt, one, both_directions, pairs)):
            untold.append(one)

    def texts_for(one):
        translations = tuple(map(_translations, taught_by[one.path]))
        count = (texts.count or 0) * (1 + 2 * len(translations))
        return dataclasses.replace(texts, count=count, translations=translations)

    def learn_until(steps: int, its_config, its_recipe, one, its_settings, its_texts) -> None:
        options = argparse.Namespace(**vars(args) | {"seed": its_settings["data"]["seed"], "steps": steps})
        learn(tt, options, strategy, its_config, its_recipe, one, its_settings, its_texts)

    for name, one, its_settings in everyone:
        newest = one.newest()
        if (one is run or one in untold) and (not newest or newest[1]["step"] < both_directions):
            print(f"\n{name}, in both directions to step {both_directions:,}: {one.path}", flush=True)
            learn_until(both_directions, config, without_cooldown, one, its_settings, texts)
        if one in untold:
            if tt.distribution.is_chief(strategy):
                translate(tt, args, one, _translations(one.path), tt.data.to_lists(texts.train))
            tt.distribution.wait_for_all(strategy)
    if args.ensemble:
        for name, one, its_settings in teachers:
            print(f"\n{name}, from a teacher of its own: {one.path}", flush=True)
            learn_until(args.steps or config.train_steps, student, recipe, one, its_settings, texts_for(one))
    print(f"\nthe model itself, from its teachers: {run.path}", flush=True)
    return student, texts_for(run)


def _teacher(tt, args, number: int, settings: dict):
    """A teacher's name, its run, and its settings: those of the model, but for the seed."""
    folder = args.teachers[number - 1]
    teacher, of_teacher = tt.run.Run(folder, keep=args.average_last), copy.deepcopy(settings)
    of_teacher["data"]["seed"] += number
    if (folder / "config.json").exists():
        begun = teacher.settings()
        own = ("seed",) if args.ensemble else ("seed", "teachers")
        of_teacher["data"] |= {name: begun["data"][name] for name in own if name in begun["data"]}
        if not args.ensemble:
            of_teacher["training"] |= {name: begun.get("training", {}).get(name) for name in LATER}
    return f"teacher {number} of {len(args.teachers)}", teacher, of_teacher


def _translations(folder: Path) -> tuple[Path, Path]:
    """What a run makes of every source, and of every target."""
    return folder / "forward.txt", folder / "backward.txt"


def _has_translated(tt, run, step: int, pairs: int) -> bool:
    """Whether a run has translated so many pairs, as it is to do at this step.

    Raises:
        BadInput: it has translated another text, or has gone on without.
    """
    forward, backward = _translations(run.path)
    if forward.exists() and backward.exists():
        lines = tt.data.check_text_pairs(forward, backward, empty_lines=True)
        if lines != pairs:
            raise tt.BadInput(
                f"{run.path}: expected as many translations as there are pairs to learn from, {pairs:,}, got "
                f"{lines:,}; without {forward.name} and {backward.name} they are made again"
            )
        return True
    newest = run.newest()
    if newest and newest[1]["step"] > step:
        raise tt.BadInput(
            f"{run.path}: expected {forward.name} and {backward.name}, made at step {step:,}, found a run that has "
            f"gone on to step {newest[1]['step']:,} without them"
        )
    return False


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
        tt.files.write_text(file, (f"{text}\n" for text in in_parts(translator, side)))
