"""Attention Is All You Need (Vaswani et al. 2017) on TensorFlow and Keras 3.

Modules that run on every Keras backend are imported here. Modules that need TensorFlow (data, search, tokenizer,
translator) are imported on first use, so `import tf_transformer` works without it.
"""

import importlib
from typing import Any

from tf_transformer import layers, masks, training
from tf_transformer.config import PRESETS, BadInput, TransformerConfig
from tf_transformer.ensemble import Ensemble
from tf_transformer.model import AttentionScores, Transformer
from tf_transformer.training import (
    Adam,
    Cooldown,
    Perplexity,
    SmoothedCrossEntropy,
    TokenAccuracy,
    TokenCount,
    WarmupSchedule,
    average_weights,
)
from tf_transformer.version import __version__

_LAZY = {
    "beam": ("beam", None),
    "bleu": ("evaluation.bleu", None),
    "callbacks": ("runs.callbacks", None),
    "Corpus": ("corpora.corpus", "Corpus"),
    "costs": ("evaluation.costs", None),
    "ctranslate2": ("interop.ctranslate2", None),
    "data": ("corpora.data", None),
    "distribution": ("distribution", None),
    "evalb": ("parsing.evalb", None),
    "files": ("files", None),
    "Filters": ("corpora.filters", "Filters"),
    "load": ("loading", "load"),
    "load_marian": ("interop.marian.files", "load_marian"),
    "PairCorpus": ("corpora.corpus", "PairCorpus"),
    "Parser": ("parsing.parser", "Parser"),
    "Preparation": ("corpora.preparation", "Preparation"),
    "PreparedCorpus": ("corpora.corpus", "PreparedCorpus"),
    "Recipe": ("runs.recipe", "Recipe"),
    "RECIPES": ("runs.recipe", "RECIPES"),
    "records": ("corpora.records", None),
    "run": ("runs.run", None),
    "SavedTranslator": ("serving.saved_translator", "SavedTranslator"),
    "search": ("text.search", None),
    "sources": ("corpora.sources", None),
    "TextCorpus": ("corpora.corpus", "TextCorpus"),
    "TfdsCorpus": ("corpora.corpus", "TfdsCorpus"),
    "Tokenizer": ("text.tokenizer", "Tokenizer"),
    "tokenizer": ("text.tokenizer", None),
    "toy_corpus": ("corpora.toy_corpus", None),
    "ToyCorpus": ("corpora.corpus", "ToyCorpus"),
    "Trainer": ("runs.trainer", "Trainer"),
    "Translator": ("text.translator", "Translator"),
    "treebank": ("parsing.treebank", None),
    "TreebankCorpus": ("parsing.corpus", "TreebankCorpus"),
    "visualize": ("evaluation.visualize", None),
}

__all__ = [
    "PRESETS",
    "Adam",
    "AttentionScores",
    "BadInput",
    "Cooldown",
    "Ensemble",
    "Perplexity",
    "SmoothedCrossEntropy",
    "TokenAccuracy",
    "TokenCount",
    "Transformer",
    "TransformerConfig",
    "WarmupSchedule",
    "average_weights",
    "layers",
    "masks",
    "training",
    "__version__",
    *_LAZY,
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    found = importlib.import_module(f"{__name__}.{module}")
    return found if attribute is None else getattr(found, attribute)
