"""Tokenizers where SentencePiece's models make pieces and tables of their own number them."""

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_transformer.base.reading import check_archive, reading
from tf_transformer.base.type_names import Tensor
from tf_transformer.text.tokenizer import FIRST_ID, UNKNOWN_ID, Tokenizer, durable_tokenizer, engine_of, text_tensor

VOCABULARY = "vocabulary.json"
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


class Graph(tf.Module):
    """What a SavedModel must keep of a tokenizer.

    Args:
        texts: the text of each id.
        target: the pieces of targets.
        others: further resources, which become attributes.
    """

    def __init__(self, texts: list[bytes], target: PieceTable, **others: Any) -> None:
        super().__init__()
        self.texts, self.target = tf.constant(texts), target
        for name, other in others.items():
            setattr(self, name, other)

    def detokenize(self, ids: Tensor) -> tf.Tensor:
        """Ids, ragged or dense [B, N], to texts [B]."""
        found = tf.strings.reduce_join(tf.gather(self.texts, ids), axis=-1)
        return tf.strings.strip(tf.strings.unicode_transcode(found, "UTF-8", "UTF-8", errors="replace"))


class PieceTokenizer(Tokenizer):
    """A `Tokenizer` of a pretrained checkpoint.

    Pieces, ids (in our order: `Vocabulary`) and texts equal those of the tokenizer of `transformers` with
    `split_special_tokens=True`: a control symbol written in a text is plain text. Bytes that are not UTF-8 count as
    spaces. White space of any kind at the end of a text is nothing, so a text of white space alone is empty.

    Args:
        model: a zip archive of SentencePiece's models, vocabulary.json (the pieces in the order of their ids) and what
            else a kind of tokenizer has; see `archive_of`.
    """

    kind = ""  # of checkpoint, for messages

    def __init__(self, model: bytes) -> None:
        with reading("vocabulary", f"a tokenizer of {self.kind}"):
            check_archive(io.BytesIO(model))
            with zipfile.ZipFile(io.BytesIO(model)) as archive:
                self.contents = {name: archive.read(name) for name in archive.namelist()}
            pieces = json.loads(self.contents[VOCABULARY])
            self.first_piece = FIRST_ID
            self.op = self.graph(pieces)
        self.model, self.vocab_size, self.controls = model, len(pieces), []

    def graph(self, pieces: list[str]) -> Graph:
        """The resources, made of the archive's contents.

        Args:
            pieces: of targets, by id.
        """
        raise NotImplementedError

    @property
    def files(self) -> dict[str, bytes]:
        return {name: content for name, content in self.contents.items() if not name.endswith(".json")}

    @property
    def vocabularies(self) -> dict[str, bytes]:
        return {name: content for name, content in self.contents.items() if name.endswith(VOCABULARY)}

    def detokenize(self, ids: Tensor) -> tf.Tensor:
        """Ids, ragged or dense [B, N], to texts [B]; control symbols, languages and the unknown symbol are dropped."""
        return self.op.detokenize(ids)

    def pieces(self, ids: Tensor) -> tf.RaggedTensor:
        return tf.gather(self.op.target.pieces, ids)

    def ids(self, pieces: Tensor) -> tf.RaggedTensor:
        return self.op.target.table.lookup(pieces)


def archive_of(contents: Mapping[str, Any]) -> bytes:
    """The attribute `model` of a `PieceTokenizer`.

    Args:
        contents: by name, of .json the values, and of other files the bytes.
    """
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, content in sorted(contents.items()):
            if not isinstance(content, bytes):
                content = json.dumps(content, ensure_ascii=False).encode()
            archive.writestr(zipfile.ZipInfo(name), content)  # without the time, for the fingerprint
    return written.getvalue()


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
