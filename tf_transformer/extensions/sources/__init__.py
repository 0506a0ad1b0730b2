"""All sources of pairs: those of the core, Parquet, TensorFlow Datasets, and several sources together."""

from tf_transformer.data.sources import Composite as Composite
from tf_transformer.data.sources import HeldOut as HeldOut
from tf_transformer.data.sources import MemorySource as MemorySource
from tf_transformer.data.sources import Part as Part
from tf_transformer.data.sources import Source as Source
from tf_transformer.data.sources import TextSource as TextSource
from tf_transformer.data.sources import Wrapper as Wrapper
from tf_transformer.extensions.sources.combined import DirectedSource as DirectedSource
from tf_transformer.extensions.sources.combined import JoinedSource as JoinedSource
from tf_transformer.extensions.sources.combined import TaggedSource as TaggedSource
from tf_transformer.extensions.sources.combined import temperature_weights as temperature_weights
from tf_transformer.extensions.sources.parquet import ParquetSource as ParquetSource
from tf_transformer.extensions.sources.tfds import TfdsSource as TfdsSource
