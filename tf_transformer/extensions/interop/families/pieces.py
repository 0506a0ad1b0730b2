"""Tokenizers of checkpoints: SentencePiece splits texts into tokens, and a table of the checkpoint has their ids."""

import functools
import io
import json
import zipfile
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from tf_transformer.extensions.interop.engines.litert_client import CODE, encoded, one_of, split_codes
from tf_transformer.tokenizers.strings import text_tensor, utf8
from tf_transformer.tokenizers.tokenizer import (
    FIRST_ID,
    UNKNOWN_ID,
    Tokenizer,
    checked_ids,
    durable_tokenizer,
    encoded_by,
    engine_of,
    known_ids,
)
from tf_transformer.utils.lazy import MadeOnce, lazily
from tf_transformer.utils.reading import check_archive, reading
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import checked

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazily("tensorflow", "a tokenizer of tensors")

VOCABULARY, ADDED, SPACE = "vocabulary.json", "tokens.json", "▁"
# Serialized SentencePiece models.
SCHEMA = """name: "pieces.proto" syntax: "proto2"
message_type { name: "Piece" field { name: "piece" number: 1 type: TYPE_BYTES }
  field { name: "score" number: 2 type: TYPE_FLOAT } field { name: "type" number: 3 type: TYPE_INT32 } }
message_type { name: "Trainer" field { name: "model_type" number: 3 type: TYPE_INT32 } }
message_type { name: "Model" field { name: "trainer" number: 2 type: TYPE_MESSAGE type_name: "Trainer" }
  field { name: "pieces" number: 1 type: TYPE_MESSAGE type_name: "Piece" label: LABEL_REPEATED } }"""
NORMAL, USER_DEFINED, SPECIAL, BPE = 1, 4, (2, 3, 6), 2  # special are unknown token, control tokens and bytes
PREFERRED = 100.0  # others have negative scores
# Trailing whitespace, like that of `str.rstrip`. SentencePiece itself only ignores spaces.
END_SPACE = r"[\p{Z}\t-\r\x{1C}-\x{1F}\x{85}]+$"


class PieceTable:
    """Encodes texts: a SentencePiece model splits them, and a table has the ids.

    Bytes that are not UTF-8 count as spaces, and trailing whitespace is ignored.

    Args:
        model: Serialized SentencePiece model.
        pieces: Tokens by id.
        added: Tokens that are matched first, the longest at each position, and whether whitespace before one is also a
            token. SentencePiece splits what is between them.
        has_codes: Whether texts may start with the code of a target language, as in ">>fra<< Good morning."
    """

    def __init__(self, model: bytes, pieces: list[str], added: Mapping[str, bool], has_codes: bool = False) -> None:
        self.model, self.pieces, self.processor, self.has_codes = model, pieces, engine_of(model), has_codes
        # Raises here for tokens that are not strings, or not UTF-8.
        "".join(pieces).encode()
        # No text contains control tokens.
        self.ids = {piece: id for id, piece in enumerate(pieces) if piece and id >= UNKNOWN_ID}
        space = self.ids.get(SPACE, UNKNOWN_ID)
        self.tokens = {token: [space] * is_spaced + [self.ids[token]] for token, is_spaced in added.items()}
        self._op = MadeOnce(self._resources)

    def _resources(self) -> "tf.Module":
        # A graph that is traced now must not own what others use too.
        with tf.init_scope():
            op = tf.Module()
            ids = tf.lookup.KeyValueTensorInitializer([*self.ids], [*self.ids.values()], tf.string, tf.int32)
            op.engine = durable_tokenizer(self.model, pieces=True)
            op.table = tf.lookup.StaticHashTable(ids, UNKNOWN_ID)
            op.pieces = tf.constant(self.pieces)
        return op

    @property
    def op(self) -> "tf.Module":
        """Resources that a SavedModel must keep."""
        return self._op()

    def encode(self, texts: Sequence[str | bytes]) -> list[list[int]]:
        """Returns the ids of each text."""
        return encoded([utf8(text) for text in texts], self.ids, self.tokens, self.split)

    def tokenize(self, texts: Tensor) -> "tf.RaggedTensor":
        """Does what `encode` does in TensorFlow: texts [B] to ids, ragged int32 [B, None]."""
        texts = text_tensor(texts)
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace", replacement_char=ord(" "))
        texts = tf.strings.regex_replace(texts, END_SPACE, "", replace_global=False)
        if not self.tokens:
            return self.op.table.lookup(self.split_in_graph(texts))
        added = one_of(self.tokens)
        spaced = one_of(token for token, ids in self.tokens.items() if len(ids) > 1)
        # No text in UTF-8 has the byte 0xff.
        rows = tf.strings.split(tf.strings.regex_replace(texts, f"({added})", b"\xff\\1\xff"), b"\xff")  # [B, None]
        parts = rows.flat_values  # [P]
        is_added = tf.strings.regex_full_match(parts, added)
        after_space = tf.concat([[False], tf.strings.regex_full_match(parts, f"(?s:.*){END_SPACE}")[:-1]], axis=0)
        # An added token becomes itself, perhaps after a space. SentencePiece splits the other parts.
        is_used = tf.stack([after_space & tf.strings.regex_full_match(parts, spaced), is_added], axis=1)
        tokens = tf.ragged.boolean_mask(tf.stack([tf.fill(tf.shape(parts), SPACE), parts], axis=1), is_used)
        pieces = tf.concat([tokens, self.split_in_graph(tf.where(is_added, "", parts))], axis=1)  # [P, None]
        return self.op.table.lookup(rows.with_values(pieces).merge_dims(1, 2))

    def split(self, texts: list[str]) -> list[list[str]]:
        """Splits each text into tokens."""
        split = functools.partial(encoded_by, self.processor, kind=str)
        return split_codes(split, texts) if self.has_codes else split(texts)

    def split_in_graph(self, texts: Tensor) -> "tf.RaggedTensor":
        """Splits texts [B], which are UTF-8, into tokens, ragged string [B, None]."""
        if not self.has_codes:
            return self.op.engine.tokenize(texts)
        has_code = tf.strings.regex_full_match(texts, f"{CODE}(?s:.*)")
        code = tf.boolean_mask(texts, has_code)
        code = tf.strings.regex_replace(code, f"({CODE})(?s:.*)", r"\1", replace_global=False)
        text = tf.strings.regex_replace(texts, f"^{CODE}", "", replace_global=False)
        codes = tf.RaggedTensor.from_row_lengths(code, tf.cast(has_code, tf.int64))  # one or none per row
        return tf.concat([codes, self.op.engine.tokenize(text)], axis=1)


class PieceTokenizer(Tokenizer):
    """A `Tokenizer` of a pretrained checkpoint.

    Tokens, ids (in our order, see `Vocabulary`) and texts equal those of the tokenizer in `transformers` with
    `split_special_tokens=True`: control tokens in a text are plain text. Added tokens are matched first, and decoded
    with a space before unless spaces are tokens. So does version 4 of `transformers`. Version 5 joins them otherwise.
    Bytes that are not UTF-8 count as spaces. Trailing whitespace of any kind is ignored.

    Args:
        model: Zip archive of SentencePiece models, vocabulary.json (tokens by id), tokens.json (`added`, if any) and
            other files of a subclass, as from `archive_of`.
    """

    kind = ""  # name of the checkpoint's kind, for messages
    source: PieceTable
    target: PieceTable
    texts: list[bytes]  # one per id

    def __init__(self, model: bytes) -> None:
        with reading("vocabulary", f"a tokenizer of {self.kind}"):
            check_archive(io.BytesIO(model))
            with zipfile.ZipFile(io.BytesIO(model)) as archive:
                self.contents = {name: archive.read(name) for name in archive.namelist()}
            pieces = json.loads(self.contents[VOCABULARY])
            self.first_piece = FIRST_ID
            added = json.loads(self.contents.get(ADDED, b"{}"))
            added = dict.fromkeys(added, False) if isinstance(added, list) else dict(added)  # a list in earlier files
            self.added = {str(token): bool(is_spaced) for token, is_spaced in added.items()}
            self.read(pieces)
        self.model, self.vocab_size, self.control_tokens = model, len(pieces), []
        self._op = MadeOnce(self._resources)

    def read(self, pieces: list[str]) -> None:
        """Sets `source`, `target` and `texts` from the archive's contents and the target's tokens by id."""
        raise NotImplementedError

    def _resources(self) -> "tf.Module":
        with tf.init_scope():
            op = tf.Module()
            op.texts, op.target = tf.constant(self.texts), self.target.op
        return op

    @property
    def files(self) -> dict[str, bytes]:
        return {name: content for name, content in self.contents.items() if not name.endswith(".json")}

    @property
    def vocabularies(self) -> dict[str, bytes]:
        tables = {name: content for name, content in self.contents.items() if name.endswith(VOCABULARY)}
        tokens = json.dumps(self.source.tokens, ensure_ascii=False).encode()
        return tables | ({ADDED: tokens} if self.added else {})

    @checked
    def encode(self, texts: Sequence[str | bytes]) -> list[list[int]]:
        return self.source.encode(texts)

    @checked
    def encode_target(self, texts: Sequence[str | bytes]) -> list[list[int]]:
        return self.target.encode(texts)

    @checked
    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        spelled = (b"".join(self.texts[id] for id in checked_ids(row, self.vocab_size)) for row in ids)
        return [text.strip().decode("utf-8", "replace") for text in spelled]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self.target.pieces[id] for id in checked_ids(ids, len(self.target.pieces))]

    def source_tokens(self, ids: Iterable[int]) -> list[str]:
        return [self.source.pieces[id] for id in checked_ids(ids, len(self.source.pieces))]

    def tokenize(self, texts: Tensor) -> "tf.RaggedTensor":
        return self.source.tokenize(texts)

    def tokenize_target(self, texts: Tensor) -> "tf.RaggedTensor":
        return self.target.tokenize(texts)

    def detokenize(self, ids: Tensor) -> "tf.Tensor":
        """Decodes ids, ragged or dense [B, N], to texts [B], without control tokens, languages and unknown tokens."""
        spelled = tf.strings.reduce_join(tf.gather(self.op.texts, known_ids(ids, self.vocab_size)), axis=-1)
        return tf.strings.strip(tf.strings.unicode_transcode(spelled, "UTF-8", "UTF-8", errors="replace"))

    def pieces(self, ids: Tensor) -> "tf.RaggedTensor":
        return tf.gather(self.target.op.pieces, known_ids(ids, len(self.target.pieces)))

    def source_pieces(self, ids: Tensor) -> "tf.RaggedTensor":
        return tf.gather(self.source.op.pieces, known_ids(ids, len(self.source.pieces)))

    def ids(self, pieces: Tensor) -> "tf.RaggedTensor":
        return self.target.op.table.lookup(pieces)


def archive_of(contents: Mapping[str, Any]) -> bytes:
    """Returns the attribute `model` of a `PieceTokenizer`, from values of .json files and bytes of others, by name."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, content in sorted(contents.items()):
            if not isinstance(content, bytes):
                content = json.dumps(content, ensure_ascii=False).encode()
            # `ZipInfo` has a fixed time, so that equal contents have one fingerprint.
            archive.writestr(zipfile.ZipInfo(name), content)
    return written.getvalue()


def with_pieces(model: bytes, names: Container[str] | None, new: Sequence[str]) -> bytes:
    """Returns a serialized SentencePiece model with its special pieces, those in `names` (`None` means all), and new
    ones, which are preferred to all others."""
    parsed = _message_class().FromString(model)
    if names is not None:
        pieces = [piece for piece in parsed.pieces if piece.type in SPECIAL or piece.piece.decode() in names]
        del parsed.pieces[:]
        parsed.pieces.extend(pieces)
    for piece in new:
        # Byte pairs do not merge into a long normal piece, and unigrams may outweigh a user-defined one.
        kind = USER_DEFINED if parsed.trainer.model_type == BPE and len(piece) > 1 else NORMAL
        parsed.pieces.add(piece=piece.encode(), score=PREFERRED, type=kind)
    return bytes(parsed.SerializeToString())


@functools.cache
def _message_class() -> Any:
    # SentencePiece's Python module needs a newer protobuf than Apache Beam. Fields without a description are copied.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(SCHEMA, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Model"))
