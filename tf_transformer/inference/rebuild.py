"""Rebuilds a Keras model and its tokenizer from a run, a SavedModel or a checkpoint."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import keras

from tf_transformer import registry
from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.layers.layer import policy_of
from tf_transformer.models.families import build_model, check_weights, config_of, tokenizer_of
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.reading import check_kinds, reading

if TYPE_CHECKING:
    from tf_transformer.serving import savedmodel
else:
    savedmodel = lazily("tf_transformer.serving.savedmodel", "a SavedModel")

LIMITS = ("n_best", "max_beam_size", "max_length")  # options of an export
ORIGIN = ("origin", "commit", "license", "languages", "source_language", "target_language")  # metadata of a checkpoint


class Rebuilt(NamedTuple):
    """A model and the values stored with it."""

    model: Transformer  # or an `Ensemble`
    tokenizer: Tokenizer
    options: Mapping[str, Any]  # search options
    metadata: Mapping[str, Any]  # export metadata
    longest: int | None = None  # maximum length of a checkpoint's outputs, including EOS


def from_saved_model(path: str | os.PathLike[str]) -> Rebuilt:
    """Reads what `Translator.save` wrote: weights in their stored dtype, tokenizer and defaults."""
    # Not from the graph: it has operations and no layers. The configuration is stored next to it, for this.
    stored, tokenizer, weights = savedmodel.read_export(path)
    expected, models = "an export that this version can read", list[Transformer]()
    with reading(path, expected):
        check_kinds(stored, dict.fromkeys(LIMITS, int))
        names = [name for name, option in SEARCH_OPTIONS.items() if option.translator and name in stored]
        options = {name: SEARCH_OPTIONS[name].cast(stored[name]) for name in names}
        check_kinds(stored, {"config": dict, "dtype": str})
        config = config_of(stored["config"])
        keras.dtype_policies.get(policy_of(stored["dtype"]))  # raises for an unknown name
    # An ensemble stores the weights of its models one after the other.
    while weights or not models:
        with reading(path, expected):
            config.check_stored(sum(weight.nbytes for weight in weights))
        models.append(build_model(config, stored["dtype"]))
        size = len(models[-1].weights)
        check_weights(str(path), models[-1], weights[:size])
        with reading(path, expected):
            models[-1].set_weights(weights[:size])
        weights = weights[size:]
    # Saved again, the model keeps these, but not its scores, which may have been measured in another dtype.
    metadata = {name: stored[name] for name in (*LIMITS, *ORIGIN, "step") if name in stored}
    return Rebuilt(together(models), tokenizer_of(tokenizer), options, metadata)


def together(models: list[Transformer]) -> Any:
    """Returns one model, or several as an `Ensemble`."""
    return registry.find("services", "ensemble")(models) if len(models) > 1 else models[0]
