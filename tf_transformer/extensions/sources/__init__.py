"""All sources of pairs: those of the core, Parquet, TensorFlow Datasets, and several sources together."""

from tf_transformer.data.held_out import Composite, HeldOut, Wrapper
from tf_transformer.data.sources import MemorySource, Part, Source, TextSource
from tf_transformer.extensions.sources.combined import DirectedSource, JoinedSource, TaggedSource, temperature_weights
from tf_transformer.extensions.sources.parquet import ParquetSource
from tf_transformer.extensions.sources.tfds import TfdsSource

__all__ = ["Composite", "DirectedSource", "HeldOut", "JoinedSource", "MemorySource", "ParquetSource", "Part", "Source"]
__all__ += ["TaggedSource", "TextSource", "TfdsSource", "Wrapper", "temperature_weights"]
