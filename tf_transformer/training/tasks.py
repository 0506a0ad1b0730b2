"""Tasks of a run: how texts are read, decoded and scored."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tf_transformer import registry
from tf_transformer.data import corpus
from tf_transformer.data.corpus import Files
from tf_transformer.data.pairs import Texts
from tf_transformer.evaluation import bleu
from tf_transformer.evaluation.bleu import Metric
from tf_transformer.inference.engine import Engine
from tf_transformer.inference.translator import Translator
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.training.callbacks import Translate


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
