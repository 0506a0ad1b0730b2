"""The tokenizer of a MarianMT checkpoint: source.spm, target.spm and vocabulary as one, in TensorFlow's graph."""

import json

import tensorflow as tf

from tf_transformer.base.type_names import Tensor
from tf_transformer.families.pieces import VOCABULARY, Graph, PieceTable, PieceTokenizer, texts_of

SOURCE, TARGET = "source.spm", "target.spm"
SOURCE_VOCABULARY = "source_vocabulary.json"  # if it differs from the target's
# The code at the start of a text for a model of several target languages, as in ">>fra<< Good morning."; it ends at the
# first "<<".
CODE = "(?s)>>.*?<<"


class MarianTokenizer(PieceTokenizer):
    """A `Tokenizer` with two SentencePiece models, for sources and for targets, and one vocabulary for both.

    A checkpoint with two vocabularies has two tables; `pieces`, `ids` and `detokenize` then use the target's. Ids and
    texts are those of `transformers.MarianTokenizer`, as `PieceTokenizer` says.

    Args:
        model: the attribute `model` of another one, a zip archive of source.spm, target.spm, vocabulary.json and, with
            two vocabularies, source_vocabulary.json.
    """

    kind = "MarianMT"

    def graph(self, pieces: list[str]) -> Graph:
        source, target = self.contents[SOURCE], self.contents[TARGET]
        separate = SOURCE_VOCABULARY in self.contents
        source_pieces = json.loads(self.contents[SOURCE_VOCABULARY if separate else VOCABULARY])
        texts = texts_of(pieces, target if separate else source)
        return Graph(texts, _Side(target, pieces), source=_Side(source, source_pieces))

    @staticmethod
    def recognizes(model: bytes) -> bool:
        return model.startswith(b"PK")  # as a zip archive does

    def tokenize(self, texts: Tensor) -> tf.RaggedTensor:
        return self.op.source.tokenize(texts)

    def tokenize_target(self, texts: Tensor) -> tf.RaggedTensor:
        return self.op.target.tokenize(texts)

    def source_pieces(self, ids: Tensor) -> tf.RaggedTensor:
        return tf.gather(self.op.source.pieces, ids)


class _Side(PieceTable):
    """The tokenizer of one side, sources or targets, which reads a code, too."""

    def pieces_of(self, texts: Tensor) -> tf.RaggedTensor:
        has_code = tf.strings.regex_full_match(texts, f"{CODE}.*")
        code = tf.strings.regex_replace(tf.boolean_mask(texts, has_code), f"({CODE}).*", r"\1", replace_global=False)
        text = tf.strings.regex_replace(texts, f"^{CODE}", "", replace_global=False)
        codes = tf.RaggedTensor.from_row_lengths(code, tf.cast(has_code, tf.int64))  # one or none a row
        return tf.concat([codes, super().pieces_of(text)], axis=1)
