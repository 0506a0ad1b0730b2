"""A training set that changes: first both directions, then one, with translations and word dropout."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tf_transformer import BadInput
from tf_transformer.data.batches import Batches
from tf_transformer.data.corpus import Batching, Corpus
from tf_transformer.data.ids import Batch, Block, tokenized
from tf_transformer.data.sources import Row, Source
from tf_transformer.tokenizers.tokenizer import FIRST_ID, UNKNOWN_ID
from tf_transformer.utils.lines import lines_of


@dataclasses.dataclass(frozen=True)
class Methods:
    """Methods of a run beyond the paper. The defaults reproduce the published scores.

    Attributes:
        dropout_steps: First steps, in which P_drop grows from 0 by thirds (Morerio et al. 2017).
        bidirectional_steps: First steps, which train on every pair in both directions (Ding et al. 2021).
        word_dropout: Share of the words that are hidden after the bidirectional steps, in the source (Bowman et al.
            2016) and the target (Sennrich and Zhang 2019).
        student_dropout: P_drop after the bidirectional steps, for a run with teachers.

    Raises:
        BadInput: If a value is out of range.
    """

    dropout_steps: int = 4_500
    bidirectional_steps: int = 6_000
    word_dropout: float = 0.1
    student_dropout: float = 0.1

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if name.endswith("steps") and value < 0:
                raise BadInput(f"{name}: expected 0 or more, got {value}")
            if name.endswith("dropout") and not 0 <= value < 1:
                raise BadInput(f"{name}: expected a rate in [0, 1), got {value}")


@dataclasses.dataclass(frozen=True)
class StagedCorpus(Corpus):
    """A text in both directions for the first steps, then in one direction, with the teachers' translations of it.

    Attributes:
        methods: Methods, which determine how the text changes.
        teachers: Folders of runs, whose translations of the text are in the corpus.
    """

    methods: Methods = dataclasses.field(default_factory=Methods)
    teachers: tuple[Path, ...] = ()

    @classmethod
    def of(cls, text: Corpus, methods: Methods, teachers: Sequence[str | Path] = ()) -> "StagedCorpus":
        """Returns a corpus with these methods."""
        fields = {field.name: getattr(text, field.name) for field in dataclasses.fields(Corpus)}
        return cls(**fields, methods=methods, teachers=tuple(map(Path, teachers)))

    def describe(self) -> dict[str, Any]:
        settings = self.train.describe() | dataclasses.asdict(self.methods)
        if self.teachers:
            return settings | {"teachers": [str(folder) for folder in self.teachers]}
        del settings["student_dropout"]
        return settings

    def batches(self, batching: Batching) -> "StagedBatches":
        assert isinstance(self.train, Source)
        texts = both_directions(self.train.rows()), with_translations(self.train.rows(), self.teachers)
        encode, longest = self.train.encoder(batching.tokenizer), self.max_length or 0
        stages = [tokenized([(encode, text)], longest, batching.tokenizer.vocab_size) for text in texts]
        both_ways, one_way = (Batches([Block.of(ids, longest)], batching.batch_tokens, batching.seed) for ids in stages)
        return StagedBatches(both_ways, one_way, self.methods)

    def keep_ids(self, batching: Batching, batches: Batches) -> None:
        """Stores nothing: the ids change with the teachers, and tokenizing takes only seconds."""


class StagedBatches(Batches):
    """Batches of one text, then those of another, in which some words are hidden."""

    def __init__(self, both_ways: Batches, one_way: Batches, methods: Methods) -> None:
        super().__init__(one_way.blocks, one_way.batch_tokens, one_way.seed)
        self.both_ways, self.methods = both_ways, methods

    def __getitem__(self, number: int) -> Batch:
        steps = self.methods.bidirectional_steps
        if number < steps:
            self.both_ways.fixed_shapes = self.fixed_shapes
            return self.both_ways[number]
        batch = super().__getitem__(number - steps)
        sides = [self._hidden(ids, [self.seed or 0, number, side]) for side, ids in enumerate(batch[:2])]
        return batch._replace(source=sides[0], target_in=sides[1])

    def _hidden(self, ids: np.ndarray, seed: Sequence[int]) -> np.ndarray:
        """Replaces some input ids by the unknown id. Labels don't change."""
        hidden = np.random.default_rng(seed).random(ids.shape) < self.methods.word_dropout
        return np.where(hidden & (ids >= FIRST_ID), np.int32(UNKNOWN_ID), ids)


def translations_of(folder: Path) -> tuple[Path, Path]:
    """Returns the files of a run's translations of all sources and all targets, one sentence per line."""
    return folder / "forward.txt", folder / "backward.txt"


def both_directions(rows: Iterable[Row]) -> Iterator[Row]:
    """Yields each pair, then the same pair with its sides exchanged. Both have its number."""
    for number, source, target in rows:
        yield number, source, target
        yield number, target, source


def with_translations(rows: Iterable[Row], teachers: Sequence[Path]) -> Iterator[Row]:
    """Yields each pair, and two pairs from each teacher: (source, its translation), (translation of target, target).

    Args:
        rows: Pairs with their numbers, which the new pairs share.
        teachers: Folders with translations of these pairs, line by line.
    """
    files = [lines_of(file) for folder in teachers for file in translations_of(folder)]
    for (number, source, target), *translations in zip(rows, *files, strict=True):
        yield number, source, target
        for forward in translations[::2]:
            yield number, source, forward
        for backward in translations[1::2]:
            yield number, backward, target
