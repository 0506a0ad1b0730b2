"""Search and sampling for any model: `tt.decoding.beam_search`, `sample` and their arguments."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tf_transformer.decoding.beams import Hypotheses as Hypotheses
    from tf_transformer.decoding.sampling import sample as sample
    from tf_transformer.decoding.sampling import uniforms_of as uniforms_of
    from tf_transformer.decoding.search import Decoder as Decoder
    from tf_transformer.decoding.search import FixedShapes as FixedShapes
    from tf_transformer.decoding.search import SearchProblem as SearchProblem
    from tf_transformer.decoding.search import beam_search as beam_search

_HOMES = dict.fromkeys(("Decoder", "FixedShapes", "SearchProblem", "beam_search"), "decoding.search")
_HOMES |= {"Hypotheses": "decoding.beams"}
_HOMES |= dict.fromkeys(("sample", "uniforms_of"), "decoding.sampling")


# Loaded on first use, since engines without Keras read `search_options` of this subpackage.
def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"tf_transformer.{_HOMES[name]}"), name)
