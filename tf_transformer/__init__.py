"""Attention Is All You Need (Vaswani et al. 2017) on TensorFlow and Keras 3.

`import tf_transformer` loads neither Keras nor TensorFlow: a name's module is imported when the name is first used. So
programs show their help at once, and layers, model and training work without TensorFlow.
"""

import importlib
import os
import pkgutil
import sys
from typing import TYPE_CHECKING, Any

from tf_transformer.base.version import __version__
from tf_transformer.config import PRESETS, BadInput, TransformerConfig

_LAZY = {
    "Adam": ("training", "Adam"),
    "beam": ("beam", None),
    "bleu": ("evaluation.bleu", None),
    "callbacks": ("fitting.callbacks", None),
    "Cooldown": ("training", "Cooldown"),
    "Corpus": ("corpora.corpus", "Corpus"),
    "data": ("corpora.data", None),
    "distribution": ("distribution", None),
    "Ensemble": ("ensemble", "Ensemble"),
    "Filters": ("corpora.filters", "Filters"),
    "layers": ("layers", None),
    "load": ("loading", "load"),
    "Parser": ("parsing.parser", "Parser"),
    "Perplexity": ("training", "Perplexity"),
    "Preparation": ("corpora.preparation", "Preparation"),
    "Records": ("corpora.records", "Records"),
    "Recipe": ("runs.recipe", "Recipe"),
    "RECIPES": ("runs.recipe", "RECIPES"),
    "SmoothedCrossEntropy": ("training", "SmoothedCrossEntropy"),
    "sources": ("corpora.sources", None),
    "TextCorpus": ("corpora.corpus", "TextCorpus"),
    "TfdsCorpus": ("corpora.corpus", "TfdsCorpus"),
    "TokenAccuracy": ("training", "TokenAccuracy"),
    "TokenCount": ("training", "TokenCount"),
    "Tokenizer": ("text.tokenizer", "Tokenizer"),
    "toy_corpus": ("corpora.toy_corpus", None),
    "ToyCorpus": ("corpora.corpus", "ToyCorpus"),
    "Trainer": ("fitting.trainer", "Trainer"),
    "Transformer": ("model", "Transformer"),
    "Translator": ("engines.translator", "Translator"),
    "TreebankCorpus": ("parsing.corpus", "TreebankCorpus"),
    "visualize": ("evaluation.visualize", None),
    "WarmupSchedule": ("training", "WarmupSchedule"),
}

__all__ = ["PRESETS", "BadInput", "TransformerConfig", "__version__", *_LAZY]

if TYPE_CHECKING:  # the same names, for type checkers
    from tf_transformer import beam as beam
    from tf_transformer import distribution as distribution
    from tf_transformer import layers as layers
    from tf_transformer.corpora import data as data
    from tf_transformer.corpora import sources as sources
    from tf_transformer.corpora import toy_corpus as toy_corpus
    from tf_transformer.corpora.corpus import Corpus as Corpus
    from tf_transformer.corpora.corpus import TextCorpus as TextCorpus
    from tf_transformer.corpora.corpus import TfdsCorpus as TfdsCorpus
    from tf_transformer.corpora.corpus import ToyCorpus as ToyCorpus
    from tf_transformer.corpora.filters import Filters as Filters
    from tf_transformer.corpora.preparation import Preparation as Preparation
    from tf_transformer.corpora.records import Records as Records
    from tf_transformer.engines.translator import Translator as Translator
    from tf_transformer.ensemble import Ensemble as Ensemble
    from tf_transformer.evaluation import bleu as bleu
    from tf_transformer.evaluation import visualize as visualize
    from tf_transformer.fitting import callbacks as callbacks
    from tf_transformer.fitting.trainer import Trainer as Trainer
    from tf_transformer.loading import load as load
    from tf_transformer.model import Transformer as Transformer
    from tf_transformer.parsing.corpus import TreebankCorpus as TreebankCorpus
    from tf_transformer.parsing.parser import Parser as Parser
    from tf_transformer.runs.recipe import RECIPES as RECIPES
    from tf_transformer.runs.recipe import Recipe as Recipe
    from tf_transformer.text.tokenizer import Tokenizer as Tokenizer
    from tf_transformer.training import Adam as Adam
    from tf_transformer.training import Cooldown as Cooldown
    from tf_transformer.training import Perplexity as Perplexity
    from tf_transformer.training import SmoothedCrossEntropy as SmoothedCrossEntropy
    from tf_transformer.training import TokenAccuracy as TokenAccuracy
    from tf_transformer.training import TokenCount as TokenCount
    from tf_transformer.training import WarmupSchedule as WarmupSchedule
else:

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, attribute = _LAZY[name]
        found = importlib.import_module(f"{__name__}.{module}")
        globals()[name] = found = found if attribute is None else getattr(found, attribute)
        _register()
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _register() -> None:
    """Register the classes with Keras, if it is loaded: of a .keras file it makes registered classes alone."""
    if "keras" in sys.modules:
        families = pkgutil.iter_modules([os.path.join(path, "families") for path in __path__])
        for module in ("layers", "model", "training", *(f"families.{one.name}.model" for one in families if one.ispkg)):
            importlib.import_module(f"{__name__}.{module}")


_register()
