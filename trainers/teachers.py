"""Data diversification (Nguyen et al. 2020): a model learns also from what others, its teachers, make of its text."""

import argparse
import dataclasses
from pathlib import Path

from trainers.command import in_parts
from trainers.learning import Texts, learn


def with_teachers(tt, args, strategy, config, recipe, settings, texts: Texts) -> Texts:
    """Texts with the translations of every source, and of every target, that `args.teachers` make of them.

    A teacher is a run like the model's own with another seed, trained as far as the model learns both directions. What
    is there already of it is not done again.

    Args:
        settings: of the model's own run; from then on they name the teachers.
    """
    steps = recipe["bidirectional_steps"]
    translations = []
    for number, folder in enumerate(args.teachers, 1):
        run = tt.run.Run(folder, keep=args.average_last)
        begun = (run.path / "config.json").exists()
        seed = run.settings()["data"]["seed"] if begun else args.seed + number
        of_teacher = settings | {"data": settings["data"] | {"seed": seed}}
        files = run.path / "forward.txt", run.path / "backward.txt"
        if not (run.exists(of_teacher) and all(file.exists() for file in files)):
            print(
                f"\nteacher {number} of {len(args.teachers)}, in both directions, {steps:,} steps: {folder}", flush=True
            )
            options = argparse.Namespace(**vars(args) | {"seed": seed, "steps": steps, "epochs": None})
            learn(tt, options, strategy, config, recipe, run, of_teacher, texts)
            if tt.distribution.is_chief(strategy):
                translate(tt, args, run, files, tt.data.to_lists(texts.train))
            tt.distribution.wait_for_all(strategy)
        translations.append(files)
    settings["data"] |= {"teachers": [str(folder) for folder in args.teachers]}
    count = (texts.count or 0) * (1 + 2 * len(translations))
    return dataclasses.replace(texts, count=count, translations=tuple(translations))


def translate(tt, args, run, files: tuple[Path, Path], sides: tuple[list[str], list[str]]) -> None:
    """Write what the run's averaged checkpoints (section 6.1) make of every source, and of every target."""
    translator = tt.Translator.from_run(run.path, args.average_last, beam_size=args.beam_size, alpha=args.alpha)
    for file, side in zip(files, sides, strict=True):
        print(f"{len(side):,} sentences to {file}", flush=True)
        tt.run.write_text(file, (f"{text}\n" for text in in_parts(translator, side)))
