"""What a run learns to do: how its texts are read, decoded and scored."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tf_transformer.config import BadInput
from tf_transformer.data import corpus
from tf_transformer.data.corpus import Files
from tf_transformer.data.pairs import Texts
from tf_transformer.decoding.text_decoder import TextDecoder
from tf_transformer.evaluation import bleu
from tf_transformer.extensions.parsing import corpus as parsing
from tf_transformer.extensions.parsing import evalb, treebank
from tf_transformer.extensions.parsing.parser import EXTRA_LENGTH, Parser
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
    """

    metric: str
    read: Callable[[Files], Texts]
    scores: Callable[[list[str], list[str]], dict[str, Any]]
    decoder: Callable[[TextDecoder, Tokenizer], Answers]

    def score(self, outputs: list[str], references: list[str]) -> float:
        """The score that a training is watched with."""
        value: float = self.scores(outputs, references)[self.metric].value
        return value


def _of_translations(outputs: list[str], references: list[str]) -> dict[str, Any]:
    return {"BLEU": bleu.bleu(outputs, references), "chrF": bleu.chrf(outputs, references)}


def _of_trees(outputs: list[str], references: list[str]) -> dict[str, Any]:
    return {"F1": evalb.total(map(treebank.read_tree, references), map(treebank.read_tree, outputs))}


def _translator(model: TextDecoder, tokenizer: Tokenizer) -> Answers:
    return Translator(model, tokenizer, beam_size=1)


def _parser(model: TextDecoder, tokenizer: Tokenizer) -> Answers:
    return Parser(Translator(model, tokenizer, beam_size=1, length_penalty=0.0, extra_length=EXTRA_LENGTH))


TASKS = {  # by the kind of a corpus
    "translation": Task("BLEU", corpus.read_texts, _of_translations, _translator),
    "parsing": Task("F1", parsing.read_texts, _of_trees, _parser),
}


def task_of(kind: str) -> Task:
    """The task of a kind of run.

    Raises:
        BadInput: there is none.
    """
    if kind not in TASKS:
        raise BadInput(f"kind: expected a run of {' or '.join(TASKS)}, got {kind!r}")
    return TASKS[kind]
