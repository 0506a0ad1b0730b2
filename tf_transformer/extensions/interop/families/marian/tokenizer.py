"""The tokenizer of a MarianMT checkpoint: source.spm, target.spm and vocabulary as one."""

import json
from typing import Any

from tf_transformer.extensions.interop.engines.litert_client import texts_of
from tf_transformer.extensions.interop.families.pieces import VOCABULARY, PieceTable, PieceTokenizer

SOURCE, TARGET = "source.spm", "target.spm"
SOURCE_VOCABULARY = "source_vocabulary.json"  # if it differs from the target's


class MarianTokenizer(PieceTokenizer):
    """A `Tokenizer` with SentencePiece models for sources and for targets, and one vocabulary for both.

    A checkpoint with two vocabularies has two tables. `pieces`, `ids` and `detokenize` then use the target's. Ids and
    texts are those of `transformers.MarianTokenizer`, as `PieceTokenizer` describes.

    Args:
        model: Attribute `model` of another one: a zip archive of source.spm, target.spm, vocabulary.json and, with two
            vocabularies, source_vocabulary.json.
    """

    kind = "MarianMT"

    def read(self, pieces: list[str]) -> None:
        source, target = self.contents[SOURCE], self.contents[TARGET]
        separate = SOURCE_VOCABULARY in self.contents
        source_pieces = json.loads(self.contents[SOURCE_VOCABULARY if separate else VOCABULARY])
        self.source = PieceTable(source, source_pieces, self.added, has_codes=True)
        self.target = PieceTable(target, pieces, self.added, has_codes=True)
        speller = self.target if separate else self.source
        self.texts = texts_of(pieces, self.target.tokens, speller.processor, self.target.processor)

    def _resources(self) -> Any:
        op = super()._resources()
        op.source = self.source.op
        return op

    @staticmethod
    def recognizes(model: bytes) -> bool:
        return model.startswith(b"PK")  # a zip archive
