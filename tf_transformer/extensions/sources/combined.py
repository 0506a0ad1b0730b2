"""Several sources together: with tags or languages for each, and with weights."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from tf_transformer.config import BadInput
from tf_transformer.data.held_out import Composite, Wrapper
from tf_transformer.data.sources import Languages, PairsOfPart, Part, Row, Source
from tf_transformer.tokenizers.tokenizer import check_symbols
from tf_transformer.utils.files import encoded, user_path
from tf_transformer.utils.values import Positive, check_fields, checked, convert, shown, span


@dataclass(frozen=True)
class TaggedSource(Composite):
    """Several sources, one after the other, with a tag before each source text.

    So one model learns several directions, and the tag of a text selects one:

        german, french = tt.sources.TextSource("train.en", "train.de"), tt.sources.TextSource("train.en", "train.fr")
        both = tt.sources.TaggedSource({"<2de>": german, "<2fr>": french})  # "<2de> A dog runs."

    Every tag is one token of a vocabulary that is trained on it. Another tokenizer must have the tags as tokens.
    Sources may handle bad lines differently.

    Attributes:
        sources: Sources by their tags, which are `user_defined_symbols` of a vocabulary. "" means no tag. A list of
            (tag, source) may repeat a tag.
        weights: How often an epoch has the pairs of each source. With 2.5, it has each pair twice and every other one a
            third time. `None` means 1 for all.
    """

    sources: Mapping[str, Source] | Sequence[tuple[str, Source]]
    weights: Sequence[Positive] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.sources, Mapping):
            object.__setattr__(self, "sources", tuple(self.sources))
        by_tag = self._by_tag()
        are_pairs = all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in by_tag)
        if not by_tag or not are_pairs or not all(isinstance(source, Source) for _, source in by_tag):
            raise BadInput(f"sources: expected sources of pairs by their tags, got {shown(self.sources)}")
        tags, sources = zip(*by_tag, strict=True)
        check_symbols(dict.fromkeys(tag for tag in tags if tag != ""), "sources")
        if kinds := {source.kind for source in sources} - {self.kind}:
            raise BadInput(f"sources: expected sources of {self.kind}, got one of {', '.join(kinds)}")
        if self.weights is not None:
            weights = tuple(convert("weights", weight, Positive) for weight in self.weights)
            if len(weights) != len(sources):
                raise BadInput(f"weights: expected one for each of {len(sources)} sources, got {len(weights)}")
            object.__setattr__(self, "weights", weights)
        inner_tags = (tag for source in sources for tag in source.symbols)
        object.__setattr__(self, "symbols", list(dict.fromkeys([*filter(None, tags), *inner_tags])))
        object.__setattr__(self, "max_length", max(source.max_length for source in sources))

    def _by_tag(self) -> list[tuple[str, Source]]:
        return list(self.sources.items() if isinstance(self.sources, Mapping) else self.sources)

    def describe(self) -> dict[str, Any]:
        contents = [(tag, source.contents()) for tag, source in self._by_tag()]
        checksums = [content.get("sha256") for _, content in contents]
        weights = {"weights": list(self.weights)} if self.weights else {}
        # A list, since the order of the sources counts.
        return {"tagged": list(map(list, contents))} | weights | ({"sha256": checksums} if all(checksums) else {})

    def segments(self, part: Part | None = None) -> Iterator[tuple[Languages, Iterator[Row]]]:
        sources, shard, last, is_open = list(enumerate(self._by_tag())), None, 0, False
        if part:
            index, shard = part.where
            sources, last = [sources[index]], part.first - shard.first
            shard = dataclasses.replace(shard, count=part.count)

        def copies(index: int, tag: str, first: int, rows: Iterator[Row]) -> Iterator[Row]:
            nonlocal last, is_open
            if is_open:  # The numbers of a source begin after the last one.
                raise RuntimeError("segments: expected each to be read to its end before the next one")
            is_open = True
            before = encoded(f"{tag} ") if tag else b""
            weight = self.weights[index] if self.weights else 1
            for number, text, target in rows:
                last = first + number
                # The first n pairs have int(n * weight) copies, without a seed. A product of floats may be just below a
                # whole number: 100 pairs of weight 0.29 have 28.
                for _ in range(int(number * weight) - int((number - 1) * weight)):
                    yield last, before + text if text else text, target
            is_open = False

        for index, (tag, source) in sources:
            first = last
            for languages, rows in source.segments(shard):
                yield languages, copies(index, tag, first, rows)

    @checked
    def parts(self, pairs: PairsOfPart, folder: str | os.PathLike[str]) -> list[Part]:
        shards, first = list[Part](), 0
        for index, (_, source) in enumerate(self._by_tag()):
            for shard in source.parts(pairs, user_path(folder)):
                shards.append(Part(len(shards), first, shard.count, (index, shard)))
                first += shard.count
        return shards


@checked
def JoinedSource(sources: Sequence[Source], weights: Sequence[Positive] | None = None) -> TaggedSource:
    """Joins at least one source, one after the other, without tags.

        both = tt.sources.JoinedSource([tt.sources.TextSource("old.en", "old.de"), new], weights=[1, 2.5])

    A source that occurs twice counts twice. Sources may handle bad lines differently, and be `DirectedSource`s of
    several languages. `weights` are those of `TaggedSource`, for example `temperature_weights(sources, 5)`.
    """
    return TaggedSource([("", source) for source in sources], weights)


@checked
def temperature_weights(sources: Sequence[Source], temperature: Annotated[float, span(1)]) -> list[float]:
    """Returns weights that sample each source in proportion to n^(1/T), where n is its number of pairs.

    The largest source has weight 1. M2M100 was trained with T=5 (Fan et al. 2020).

    Args:
        sources: Sources, whose pairs are counted.
        temperature: T. 1 keeps the sizes, and `math.inf` makes them equal.
    """
    counts = [sum(1 for _ in source.pairs()) for source in sources]
    if not all(counts):
        raise BadInput(f"sources: expected pairs in each, got none at index {counts.index(0)}")
    return [(max(counts) / count) ** (1 - 1 / temperature) for count in counts]


@dataclass(frozen=True)
class DirectedSource(Wrapper):
    """A source in a language pair of a multilingual model, such as M2M100 or NLLB-200. Join several for one run:

        german = tt.sources.DirectedSource(tt.sources.TextSource("train.en", "train.de"), ("en", "de"))
        both = tt.sources.JoinedSource([german, french])

    Attributes:
        source: Pairs.
        languages: The model's codes of source and target language.
    """

    source: Source
    languages: tuple[str, str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if inner := [languages for languages, _ in self.source.segments() if languages]:
            raise BadInput(f"source: expected one without languages, got one from {' to '.join(inner[0])}")

    def describe(self) -> dict[str, Any]:
        return {**self.source.describe(), "direction": list(self.languages)}

    def segments(self, part: Part | None = None) -> Iterator[tuple[Languages, Iterator[Row]]]:
        yield self.languages, self.source.rows(part)
