"""Parsing as the task of a run (section 6.3)."""

from typing import Any

from tf_transformer.decoding.decoder import TextDecoder
from tf_transformer.extensions.parsing import corpus, evalb, treebank
from tf_transformer.extensions.parsing.parser import EXTRA_LENGTH, RUN_OPTIONS, Parser
from tf_transformer.inference.translator import Translator
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.training.callbacks import Answers
from tf_transformer.training.tasks import Task


def _scores(outputs: list[str], references: list[str]) -> dict[str, Any]:
    return {"F1": evalb.total(map(treebank.read_tree, references), map(treebank.read_tree, outputs))}


def _decoder(model: TextDecoder, tokenizer: Tokenizer) -> Answers:
    return Parser(Translator(model, tokenizer, beam_size=1, length_penalty=0.0, extra_length=EXTRA_LENGTH))


PARSING = Task(
    "F1",
    corpus.read_texts,
    _scores,
    _decoder,
    Parser,
    lambda tokenizer: bool(tokenizer.controls),
    RUN_OPTIONS,
)
