"""Tasks of a run: how texts are read, decoded and scored, and how `tt.load` opens a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tf_transformer import registry
from tf_transformer.data import corpus
from tf_transformer.data.corpus import Files
from tf_transformer.data.sources import Texts
from tf_transformer.evaluation import bleu
from tf_transformer.evaluation.bleu import Metric
from tf_transformer.inference.engine import Engine
from tf_transformer.inference.translator import Translator
from tf_transformer.models.families import (
    Rebuilt,
    build_model,
    config_of,
    ensemble_of,
    load_tokenizer,
)
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.training.callbacks import Translate
from tf_transformer.training.losses import average_weights
from tf_transformer.training.recipe import Recipe
from tf_transformer.training.run import Run
from tf_transformer.utils.reading import check_h5, made_of, reading
from tf_transformer.utils.values import BadInput, Count, checked


@dataclass(frozen=True)
class Task:
    """A task of a run.

    Attributes:
        metric: Metric to validate by, unless the recipe names one.
        read: Function that reads sources and references from files. It raises BadInput if it cannot.
        scores: Function of outputs and references that returns scores by name, that of `metric` included. Each has a
            `value` and a `signature`.
        decoder: Function that returns a decoder: from a list of sources to the outputs of greedy search.
        engine: Function that returns the engine for the task, which uses a translator.
        recognizes: Function that returns whether a SavedModel with this tokenizer does the task.
        run_options: The translator's defaults for a run.
    """

    metric: Metric
    read: Callable[[Files], Texts]
    scores: Callable[[list[str], list[str]], dict[str, Any]]
    decoder: Callable[[Transformer, Tokenizer], Translate]
    engine: Callable[[Translator], Engine] = lambda translator: translator
    recognizes: Callable[[Tokenizer], bool] = lambda tokenizer: False
    run_options: Mapping[str, Any] = field(default_factory=dict)


TRANSLATION = Task(
    metric=Metric("BLEU"),
    read=corpus.read_texts,
    scores=lambda outputs, references: {"BLEU": bleu.bleu(outputs, references), "chrF": bleu.chrf(outputs, references)},
    decoder=lambda model, tokenizer: Translator(model, tokenizer, beam_size=1),
)


def task_of(kind: str) -> Task:
    """Returns the task of a kind of run. Raises `BadInput` if the kind is unknown."""
    return registry.find("tasks", kind)


@checked
def from_runs(folders: list[str | Path], average_last: Count | None = None, step: Count | None = None) -> Rebuilt:
    """Loads the average of a run's checkpoints, or that of a step, in float32. Several runs form an `Ensemble`.

    Raises:
        BadInput: If a directory holds no run or no such checkpoint, or runs differ in configuration or tokenizer.
    """
    runs = [Run(folder) for folder in folders]
    models, tokenizers, settings = [], list[Tokenizer](), dict[str, Any]()
    for run in runs:
        settings = run.settings()
        weights = run.weights(average_last or made_of(Recipe, settings["recipe"]).averaged, step)
        if not weights:
            raise BadInput(f"{run.path}: expected checkpoints, found none in {run.path / 'checkpoints'}")
        expected = "checkpoints of the model in config.json"
        with reading(run.path, expected):
            config = config_of(settings["model"], settings.get("family"))
            for file in weights:
                check_h5(file)
                config.check_stored(file.stat().st_size)
        models.append(build_model(config, "float32"))
        with reading(run.path, expected):
            average_weights(models[-1], weights)
        tokenizers.append(load_tokenizer(run.path / "tokenizer.model", settings.get("family")))
    if not all(map(tokenizers[0].shares_vocabulary, tokenizers)):
        raise BadInput(f"expected runs with one tokenizer, got {' '.join(str(run.path) for run in runs)} with several")
    start = settings.get("start")
    # The step of the start is not the run's.
    metadata = {name: value for name, value in start.items() if name != "step"} if isinstance(start, dict) else {}
    return Rebuilt(ensemble_of(models), tokenizers[0], {}, metadata)


def open_runs(folders: list[str], **options: Any) -> Engine:
    """Returns the engine of a run's task. Several runs form an `Ensemble`."""
    task = task_of(Run(folders[0]).settings()["kind"])
    return task.engine(Translator.from_pretrained(folders, **{**task.run_options, **options}))
