"""What a run learns to do: how its texts are read, decoded and scored."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tf_transformer import registry
from tf_transformer.data import corpus
from tf_transformer.data.corpus import Files
from tf_transformer.data.pairs import Texts
from tf_transformer.decoding.decoder import TextDecoder
from tf_transformer.evaluation import bleu
from tf_transformer.inference.engine import Engine
from tf_transformer.inference.translator import Translator
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.training.callbacks import Answers


@dataclass(frozen=True)
class Task:
    """What a run learns to do.

    Attributes:
        metric: the name of the score that a training is watched with.
        read: sources and references from files; it raises BadInput where they are others.
        scores: of outputs and references, by name, `metric` among them; each has a `value` and a `signature`.
        decoder: a function of a list of sources that gives the outputs of greedy search.
        engine: the engine that does the task by a translator.
        recognizes: whether a SavedModel with this tokenizer does the task.
        run_options: the translator's defaults for a run.
    """

    metric: str
    read: Callable[[Files], Texts]
    scores: Callable[[list[str], list[str]], dict[str, Any]]
    decoder: Callable[[TextDecoder, Tokenizer], Answers]
    engine: Callable[[Translator], Engine] = lambda translator: translator
    recognizes: Callable[[Tokenizer], bool] = lambda tokenizer: False
    run_options: Mapping[str, Any] = field(default_factory=dict)

    def score(self, outputs: list[str], references: list[str]) -> float:
        """The score that a training is watched with."""
        value: float = self.scores(outputs, references)[self.metric].value
        return value


def _scores(outputs: list[str], references: list[str]) -> dict[str, Any]:
    return {"BLEU": bleu.bleu(outputs, references), "chrF": bleu.chrf(outputs, references)}


def _decoder(model: TextDecoder, tokenizer: Tokenizer) -> Answers:
    return Translator(model, tokenizer, beam_size=1)


TRANSLATION = Task("BLEU", corpus.read_texts, _scores, _decoder)


def task_of(kind: str) -> Task:
    """Returns the task of a kind of run.

    Raises:
        BadInput: If there is none.
    """
    found: Task = registry.find("tasks", kind)
    return found
