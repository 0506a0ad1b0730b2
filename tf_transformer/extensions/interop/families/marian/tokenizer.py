"""The tokenizer of a MarianMT checkpoint: source.spm, target.spm and vocabulary as one."""

import json
from typing import TYPE_CHECKING

from tf_transformer.extensions.interop.engines.litert_client import CODE, split_codes, texts_of
from tf_transformer.extensions.interop.families.pieces import VOCABULARY, PieceTable, PieceTokenizer
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.type_names import Tensor

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazily("tensorflow", "a tokenizer of tensors")

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
        self.source, self.target = _Side(source, source_pieces, self.added), _Side(target, pieces, self.added)
        speller = self.target if separate else self.source
        self.texts = texts_of(pieces, self.target.tokens, speller.processor, self.target.processor)

    def _resources(self) -> "tf.Module":
        op = super()._resources()
        op.source = self.source.op
        return op

    @staticmethod
    def recognizes(model: bytes) -> bool:
        return model.startswith(b"PK")  # a zip archive


class _Side(PieceTable):
    """Table for sources or targets, which may start with a code."""

    def split(self, texts: list[str]) -> list[list[str]]:
        return split_codes(super().split, texts)

    def split_in_graph(self, texts: Tensor) -> "tf.RaggedTensor":
        has_code = tf.strings.regex_full_match(texts, f"{CODE}(?s:.*)")
        code = tf.boolean_mask(texts, has_code)
        code = tf.strings.regex_replace(code, f"({CODE})(?s:.*)", r"\1", replace_global=False)
        text = tf.strings.regex_replace(texts, f"^{CODE}", "", replace_global=False)
        codes = tf.RaggedTensor.from_row_lengths(code, tf.cast(has_code, tf.int64))  # one or none per row
        return tf.concat([codes, super().split_in_graph(text)], axis=1)
