"""Texts to ids, and back, where a SentencePiece model makes pieces and a table of its own numbers them."""

from typing import Any

import tensorflow as tf

from tf_transformer.base.type_names import Tensor
from tf_transformer.text.tokenizer import FIRST_ID, UNKNOWN_ID, durable_tokenizer, engine_of, text_tensor

# White space at the end of a text, as `str.rstrip` has it; SentencePiece itself leaves out spaces alone.
END_SPACE = r"[\p{Z}\t-\r\x{1C}-\x{1F}\x{85}]+$"


class PieceTable(tf.Module):
    """Texts to ids. Bytes that are not UTF-8 count as spaces, and white space at the end of a text is nothing.

    Args:
        model: a serialized SentencePiece model.
        pieces: by id.
    """

    def __init__(self, model: bytes, pieces: list[str]) -> None:
        super().__init__()
        self.engine = durable_tokenizer(model, tf.string)
        ids = {piece: id for id, piece in enumerate(pieces) if piece and id >= UNKNOWN_ID}  # a text has no controls
        initializer = tf.lookup.KeyValueTensorInitializer(list(ids), list(ids.values()), tf.string, tf.int32)
        self.table = tf.lookup.StaticHashTable(initializer, UNKNOWN_ID)
        self.pieces = tf.constant(pieces)

    def tokenize(self, texts: Tensor) -> tf.RaggedTensor:
        """Texts [B] to ids, ragged int32 [B, None]."""
        texts = text_tensor(texts)
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace", replacement_char=ord(" "))
        return self.table.lookup(self.pieces_of(tf.strings.regex_replace(texts, END_SPACE, "", replace_global=False)))

    # A variant overrides this method to read more than SentencePiece does.

    def pieces_of(self, texts: Tensor) -> tf.RaggedTensor:
        """Texts [B], in UTF-8, to pieces, ragged string [B, None]."""
        return self.engine.tokenize(texts)


def texts_of(pieces: list[str], model: bytes) -> list[bytes]:
    """The text of each piece: empty for a control symbol, and one byte for a byte piece.

    Args:
        pieces: by id, our control symbols first.
        model: a serialized SentencePiece model.
    """
    engine = engine_of(model)
    return [b""] * FIRST_ID + [_text(piece, engine) for piece in pieces[FIRST_ID:]]


def _text(piece: str, engine: Any) -> bytes:
    id = engine.piece_to_id(piece)
    if engine.is_byte(id):
        return bytes([int(piece[1:-1], 16)])
    return b"" if engine.is_control(id) else piece.replace("▁", " ").encode()


def joined(texts: Tensor, ids: Tensor) -> tf.Tensor:
    """The texts [V] of ids, ragged or dense [B, N], put together: [B]."""
    found = tf.strings.reduce_join(tf.gather(texts, ids), axis=-1)
    return tf.strings.strip(tf.strings.unicode_transcode(found, "UTF-8", "UTF-8", errors="replace"))
