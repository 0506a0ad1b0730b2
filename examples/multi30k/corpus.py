"""A training text that changes: first both directions, then one, with translations and word dropout."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tf_transformer import BadInput
from tf_transformer.base.files import lines_of
from tf_transformer.corpora import data
from tf_transformer.corpora.corpus import Batching, PairCorpus
from tf_transformer.corpora.ids import Batch, Batches
from tf_transformer.corpora.pairs import Row
from tf_transformer.text.tokenizer import FIRST_ID, UNKNOWN_ID


@dataclasses.dataclass(frozen=True)
class Methods:
    """Methods of a run beyond the paper. The defaults gave the published scores.

    Attributes:
        dropout_steps: first steps, in which P_drop grows from 0 by thirds (Morerio et al. 2017).
        bidirectional_steps: first steps, which learn from every pair in both directions (Ding et al. 2021).
        word_dropout: share of the words that are hidden after the bidirectional steps (Bowman et al. 2016; in source
            and target, Sennrich and Zhang 2019).
        student_dropout: P_drop after the bidirectional steps, for a run with teachers.

    Raises:
        BadInput: a value is out of range.
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


class StagedCorpus(PairCorpus):
    """A text in both directions for the first steps, then in one direction, with the teachers' translations of it.

    Args:
        text: the training text, with its dev and test text.
        methods: how the text changes.
        teachers: folders of runs; the corpus includes their translations of the text.
    """

    def __init__(self, text: PairCorpus, methods: Methods, teachers: Sequence[str | Path] = ()):
        super().__init__(text.source, text.dev, text.test, text.languages)
        self.text, self.methods = text, methods
        self.teachers = [Path(folder) for folder in teachers]

    def describe(self) -> dict[str, Any]:
        settings = self.text.describe() | dataclasses.asdict(self.methods)
        if self.teachers:
            return settings | {"teachers": [str(folder) for folder in self.teachers]}
        del settings["student_dropout"]
        return settings

    def rows(self) -> Iterator[Row]:
        return with_translations(self.text.rows(), self.teachers)

    def batches(self, batching: Batching, first: int = 0, lines: bool = False) -> tf.data.Dataset:
        both_ways, one_way = self._stages(batching)
        steps = self.methods.bidirectional_steps

        def numbered() -> Iterator[Batch]:
            for number in itertools.count(first):
                yield both_ways[number] if number < steps else one_way[number - steps]

        batches = data.dataset(numbered, lines)
        return self._hide_words(batches, batching.seed, first) if self.methods.word_dropout else batches

    def _stages(self, batching: Batching) -> tuple[Batches, Batches]:
        """The batches of both stages, tokenized once."""
        key = (batching.tokenizer.fingerprint, batching.batch_tokens, batching.seed)
        if self._made is None or self._made[0] != key:
            stages = both_directions(self.text.rows()), self.rows()
            both_ways, one_way = (self.made_of(stage, batching) for stage in stages)
            self._made = key, (both_ways, one_way)
        return self._made[1]

    _made: tuple[Any, tuple[Batches, Batches]] | None = None

    def _hide_words(self, batches: tf.data.Dataset, seed: int, first: int) -> tf.data.Dataset:
        """Replace some input ids by the unknown id, by seed and step; labels stay as they are."""

        def hide(number: tf.Tensor, batch: tuple[Any, ...]) -> tuple[Any, ...]:
            rate = tf.where(number < self.methods.bidirectional_steps, 0.0, self.methods.word_dropout)
            seen = []
            for side, ids in enumerate(batch[0]):  # source, target_in
                hidden = tf.random.stateless_uniform(tf.shape(ids), (seed, 2 * number + side)) < rate
                seen.append(tf.where(hidden & (ids >= FIRST_ID), UNKNOWN_ID, ids))
            return tuple(seen), *batch[1:]

        return batches.enumerate(first).map(hide)


def translations_of(folder: Path) -> tuple[Path, Path]:
    """The files of a run's translations, of every source and of every target, a sentence a line."""
    return folder / "forward.txt", folder / "backward.txt"


def both_directions(rows: Iterable[Row]) -> Iterator[Row]:
    """Each pair, then the same pair with its sides exchanged; both have its number."""
    for number, source, target in rows:
        yield number, source, target
        yield number, target, source


def with_translations(rows: Iterable[Row], teachers: Sequence[Path]) -> Iterator[Row]:
    """Each pair, with two more pairs from each teacher: (source, its translation), (translation of target, target).

    Args:
        rows: pairs with their numbers, which the new pairs have, too.
        teachers: folders with translations of these pairs, line by line.
    """
    made = [lines_of(file) for folder in teachers for file in translations_of(folder)]
    for (number, source, target), *others in zip(rows, *made, strict=True):
        yield number, source, target
        for forward in others[::2]:
            yield number, source, forward
        for backward in others[1::2]:
            yield number, backward, target
