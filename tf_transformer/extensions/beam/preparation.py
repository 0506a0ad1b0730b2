"""Writes the records of a corpus by a Beam pipeline."""

from typing import Any

import apache_beam as beam

from tf_transformer.data.sources import Part
from tf_transformer.extensions.records.preparation import Preparation, buckets, repeated
from tf_transformer.tokenizers.tokenizer import Tokenizer


class Prepare(beam.PTransform):
    """Writes the records of a corpus by the steps of `Preparation.run`, on many workers. A pipeline starts with it.

    Run the pipeline inside `with preparation.locked():`, so that no other process writes to the directory. The
    output is one element, the final content of records.json.

    Args:
        preparation: The work. All workers see its directory and the files of its source.
        parts: Parts of the source.
        tokenizer: Tokenizer of source and target.

    Raises:
        BadInput: If the directory has records of something else.
    """

    def __init__(self, preparation: Preparation, parts: list[Part], tokenizer: Tokenizer) -> None:
        super().__init__()
        preparation.begin(parts, tokenizer)
        self._preparation = preparation
        self._parts = parts

    def expand(self, pipeline: Any) -> Any:
        # Beam would otherwise fuse the steps, and run all parts on the worker that creates them.
        parts = pipeline | beam.Create(self._parts) | "Spread" >> beam.Reshuffle()
        work = self._preparation
        if not work.filters.duplicates:
            shards = parts | "Write" >> beam.Map(work.write)
        else:
            drops = (
                parts
                | "Hash" >> beam.FlatMap(work.hashes, buckets(self._parts))
                | "ByBucket" >> beam.GroupByKey()
                | "Repeated" >> beam.FlatMapTuple(lambda _, hashes: repeated(hashes))
            )
            numbered = parts | "Number" >> beam.Map(lambda part: (part.number, part))
            both = {"part": numbered, "drops": drops} | "ByShard" >> beam.CoGroupByKey()
            shards = both | "Write" >> beam.MapTuple(lambda _, inputs: work.write(inputs["part"][0], inputs["drops"]))
        return shards | "Collect" >> beam.combiners.ToList() | "Finish" >> beam.Map(work.finish)
