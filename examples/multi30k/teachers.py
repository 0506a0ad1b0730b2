"""Data diversification (Nguyen et al. 2020): a model also trains on translations of its text by other models, its
teachers."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from examples.multi30k.corpus import translations_of
from examples.multi30k.stages import StagedTrainer
from tf_transformer import BadInput, distribution
from tf_transformer.data.sources import Source, lists_of
from tf_transformer.training.recipe import PAPER_STEPS
from tf_transformer.training.run import Run
from tf_transformer.utils.files import write_text
from tf_transformer.utils.lines import check_text_pairs
from trainers.command import answered
from trainers.publishing import averaged


def learn_from_teachers(
    model: StagedTrainer, folders: Sequence[Path], ensemble: bool, search: dict[str, Any]
) -> StagedTrainer:
    """Trains the teachers of a run, lets them translate every source and every target of its text, and trains the run.

    A teacher is a run with another seed, trained for the bidirectional steps. Finished work is not repeated. In an
    ensemble, all runs translate at that step, the model included, and all continue. Each folder teaches the previous
    one. The first teaches the model, and the model teaches the last.

    Args:
        model: Trainer of the run, with a `StagedCorpus` without teachers.
        folders: Folders of the teachers' runs.
        ensemble: Whether the teachers continue.
        search: Options of `Translator` for the translations.

    Returns:
        The last stage of the model's run.

    Raises:
        BadInput: If there are too few steps, a folder occurs twice, or a folder holds another run, translations of
            another text, or a run that continued without translations.
    """
    both = model.corpus.methods.bidirectional_steps
    model, *others = runs_of(model, folders, ensemble)
    assert isinstance(model.corpus.train, Source)
    sides = lists_of((source, target) for _, source, target in model.corpus.train.rows())
    pending = []  # trainers that have not translated yet
    for trainer in [*others, model]:  # all are checked before the first is trained
        exists = trainer.run.exists(trainer.settings)
        if (trainer is not model or ensemble) and not (exists and _has_translated(trainer, len(sides[0]))):
            pending.append(trainer)

    for trainer in [*others, model]:
        if (trainer is model or trainer in pending) and trainer.step < both:
            print(f"\n{trainer.path}: in both directions to step {both:,}", flush=True)
            trainer.learn_both_directions()
        if trainer in pending:
            if trainer.writes:
                translate(trainer, sides, search)
            distribution.wait_for_all(model.strategy or tf.distribute.get_strategy())
    for trainer in [*(others if ensemble else []), model]:
        print(f"\n{trainer.path}: to the end, from {' '.join(map(str, trainer.corpus.teachers))}", flush=True)
        last = trainer.learn()
    return last


def runs_of(model: StagedTrainer, folders: Sequence[Path], ensemble: bool) -> list[StagedTrainer]:
    """Returns the trainers of the run and of its teachers, each with its teachers, as in `learn_from_teachers`."""
    steps, both = model.recipe.steps or PAPER_STEPS, model.corpus.methods.bidirectional_steps
    if not 0 < both < steps:
        expected = f"expected bidirectional_steps from 1 to {steps - 1:,}, below all steps, to train them for"
        raise BadInput(f"teachers: {expected}; got {both:,}")
    paths = [Path(model.path), *folders]
    if len({path.resolve() for path in paths}) < len(paths):
        raise BadInput(
            f"expected different directories, got the run {paths[0]}, teachers {' '.join(map(str, folders))}"
        )
    runs = [model, *(_teacher(model, folder, number, ensemble) for number, folder in enumerate(folders, 1))]
    if ensemble:
        runs = [_taught(trainer, [by]) for trainer, by in zip(runs, [*paths[1:], paths[0]], strict=True)]
    else:
        runs[0] = _taught(model, folders)
    return runs


def _taught(trainer: StagedTrainer, by: Sequence[Path]) -> StagedTrainer:
    return dataclasses.replace(trainer, corpus=dataclasses.replace(trainer.corpus, teachers=tuple(by)))


def _teacher(model: StagedTrainer, folder: Path, number: int, ensemble: bool) -> StagedTrainer:
    """Returns a trainer like the model's, with another seed. An existing teacher may also differ in its later steps."""
    recipe: dict[str, Any] = {"seed": model.recipe.seed + number}
    methods, teachers = dict[str, Any](), []
    if (folder / "config.json").exists():
        settings = Run(folder).settings()
        stored, corpus = settings["recipe"], settings["corpus"]
        recipe["seed"] = stored.get("seed", recipe["seed"])
        if not ensemble:
            recipe["cooldown_steps"] = stored.get("cooldown_steps", 0)
            methods = {name: corpus.get(name, 0.0) for name in ("word_dropout", "student_dropout")}
            teachers = corpus.get("teachers", [])
    its_methods = dataclasses.replace(model.corpus.methods, **methods)
    its_corpus = dataclasses.replace(model.corpus, methods=its_methods, teachers=tuple(map(Path, teachers)))
    return dataclasses.replace(
        model, path=folder, recipe=dataclasses.replace(model.recipe, **recipe), corpus=its_corpus
    )


def _has_translated(trainer: StagedTrainer, pairs: int) -> bool:
    """Returns whether a run has translated its text, or raises `BadInput` if it is past the bidirectional steps."""
    (forward, backward), step = translations_of(trainer.run.path), trainer.corpus.methods.bidirectional_steps
    if forward.exists() and backward.exists():
        lines = check_text_pairs(forward, backward, empty_lines=True)
        if lines == pairs:
            return True
        expected = f"expected a translation for each of {pairs:,} training pairs, got {lines:,}"
        raise BadInput(f"{trainer.path}: {expected}. Remove {forward.name} and {backward.name} to make them again.")
    if trainer.step > step:
        expected = f"expected {forward.name} and {backward.name}, made at step {step:,}"
        raise BadInput(
            f"{trainer.path}: {expected}, found a run that has gone on to step {trainer.step:,} without them"
        )
    return False


def translate(trainer: StagedTrainer, sides: tuple[list[str], list[str]], search: dict[str, Any]) -> None:
    """Writes translations of all sources and all targets, by the average of the run's checkpoints (section 6.1).

    The maximum difference in length within a pair limits how much longer an output may be than its source, which ends
    searches sooner.
    """
    translator = averaged(trainer, search)
    if trainer.recipe.mixed_precision:
        translator = translator.astype(trainer.recipe.mixed_precision)
    of_source, of_target = (translator.tokenizer.tokenize(side).row_lengths().numpy() for side in sides)
    longest = int(abs(of_source - of_target).max())
    translator = translator.replace(extra_length=min(max(longest, 1), translator.extra_length))
    trainer.run.lock()
    for file, side in zip(translations_of(trainer.run.path), sides, strict=True):
        print(f"{len(side):,} sentences to {file}", flush=True)
        write_text(file, (f"{reply.line}\n" for reply in answered(translator, side)))
    trainer.run.unlock()
