"""The tokenizer of an M2M100 or NLLB-200 checkpoint, in TensorFlow's graph: one SentencePiece model, a table of its
pieces, and symbols for languages."""

import copy
import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tf_transformer.base.reading import check_archive, reading
from tf_transformer.base.type_names import Tensor
from tf_transformer.config import BadInput
from tf_transformer.families.m2m100.files import KIND, PIECES, default_languages, read_pieces, read_vocabulary
from tf_transformer.families.pieces import PieceTable, joined, texts_of
from tf_transformer.text.languages import LANGUAGES, check_language
from tf_transformer.text.tokenizer import BOS_ID, FIRST_ID, Tokenizer, text_tensor

IDS, VOCABULARY = "languages.json", "vocabulary.json"


class M2M100Tokenizer(Tokenizer):
    """A `Tokenizer` of many languages: the first id of a text is that of its language.

    Pieces, ids (in our order: `read_vocabulary`) and texts equal those of `transformers.M2M100Tokenizer` with
    `split_special_tokens=True`, and those of NLLB's in its form of today, with the language first: a control symbol
    written in a text is plain text. Bytes that are not UTF-8 count as spaces. White space of any kind at the end of a
    text is nothing, so a text of white space alone is empty; `transformers.NllbTokenizer` makes a piece of it.

    Args:
        model: the attribute `model` of another one, a zip archive of languages.json (their ids, and the languages of
            texts), sentencepiece.bpe.model and vocabulary.json (the pieces in the order of their ids).
    """

    codes = 1

    def __init__(self, model: bytes) -> None:
        with reading("vocabulary", f"a tokenizer of {KIND}"):
            check_archive(io.BytesIO(model))
            with zipfile.ZipFile(io.BytesIO(model)) as archive:
                self._contents = {name: archive.read(name) for name in (IDS, PIECES, VOCABULARY)}
            said, pieces = json.loads(self._contents[IDS]), json.loads(self._contents[VOCABULARY])
            self._ids: dict[str, int] = {str(code): int(id) for code, id in said["ids"].items()}
            self._silent = [int(id) for id in said["silent"]]
            if not {*self._ids.values(), *self._silent} <= {*range(len(pieces))}:
                raise ValueError(f"expected ids below {len(pieces)}")
            self.first_piece = min({*range(FIRST_ID, len(pieces))}.difference(self._silent))
            texts = texts_of(pieces, self._contents[PIECES])
            for id in self._silent:
                texts[id] = b""
            self.op = _Graph(PieceTable(self._contents[PIECES], pieces), texts, self._ids)
            self._spoken = {name: said[name] and self._known(name, said[name]) for name in LANGUAGES}
        self.vocab_size = len(pieces)
        self.controls = []

    @property
    def model(self) -> bytes:  # type: ignore[override]
        return self._model(self._spoken)

    def _model(self, spoken: dict[str, Any]) -> bytes:
        said = {"ids": self._ids, "silent": self._silent, **spoken}
        return _archive(self._contents | {IDS: _json(said)})

    @staticmethod
    def recognizes(model: bytes) -> bool:
        return model.startswith(b"PK") and model[30:].startswith(IDS.encode())  # the archive's first file

    @classmethod
    def from_checkpoint(cls, directory: Path) -> "M2M100Tokenizer":
        """Read the tokenizer from a checkpoint's folder, which has the files of `read_vocabulary`.

        Raises:
            BadInput: a file is missing, or holds something else.
        """
        vocabulary = read_vocabulary(directory)
        said: dict[str, Any] = {"ids": vocabulary.languages, "silent": vocabulary.silent}
        said |= dict.fromkeys(LANGUAGES) | default_languages(directory)
        contents = {PIECES: read_pieces(directory), VOCABULARY: _json(vocabulary.pieces), IDS: _json(said)}
        try:
            return cls(_archive(contents))
        except BadInput as error:
            raise BadInput(f"{directory}: {error}") from error

    @property
    def files(self) -> dict[str, bytes]:
        return {PIECES: self._contents[PIECES]}

    @property
    def vocabularies(self) -> dict[str, bytes]:
        return {VOCABULARY: self._contents[VOCABULARY]}

    @property
    def languages(self) -> Sequence[str]:  # type: ignore[override]
        return list(self._ids)

    def for_languages(self, source_language: Any = None, target_language: Any = None) -> "M2M100Tokenizer":
        other, given = copy.copy(self), dict(zip(LANGUAGES, (source_language, target_language), strict=True))
        given = {name: language for name, language in given.items() if language is not None}
        other._spoken = self._spoken | {name: self._known(name, language) for name, language in given.items()}
        return other

    def spoken(self) -> tuple[Any, ...]:
        for name, language in self._spoken.items():
            if language is None:
                self._known(name, "")
        return tuple(self._spoken.values())

    def shares_vocabulary(self, other: Tokenizer) -> bool:
        spoken = dict.fromkeys(LANGUAGES)
        return isinstance(other, M2M100Tokenizer) and self._model(spoken) == other._model(spoken)

    def _known(self, name: str, language: Any) -> Any:
        if not tf.is_tensor(language):
            check_language(name, language, list(self._ids))
        return language

    def _codes(self, rows: Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The ids of the languages of sources and targets, each int32 [rows]; 0 where one of the two is unknown."""
        languages = [tf.reshape(language, [-1]) for language in self.spoken()]
        source, target = (tf.broadcast_to(self.op.languages.lookup(language), [rows]) for language in languages)
        known = (source > 0) & (target > 0)
        return tf.where(known, source, 0), tf.where(known, target, 0)

    def _with_code(self, code: tf.Tensor, texts: Tensor) -> tf.RaggedTensor:
        pieces, known = self.op.table.tokenize(texts), code > 0
        codes = tf.RaggedTensor.from_row_lengths(tf.boolean_mask(code, known), tf.cast(known, tf.int64))
        of_known = pieces.with_values(tf.gather(known, pieces.value_rowids()))
        return tf.concat([codes, tf.ragged.boolean_mask(pieces, of_known)], axis=1)

    def tokenize(self, texts: Tensor) -> tf.RaggedTensor:
        texts = tf.convert_to_tensor(text_tensor(texts))
        return self._with_code(self._codes(tf.shape(texts)[0])[0], texts)

    def tokenize_target(self, texts: Tensor) -> tf.RaggedTensor:
        texts = tf.convert_to_tensor(text_tensor(texts))
        return self._with_code(self._codes(tf.shape(texts)[0])[1], texts)

    def start(self, rows: Tensor) -> tf.Tensor:
        return tf.stack([tf.fill([rows], BOS_ID), self._codes(rows)[1]], axis=1)

    def detokenize(self, ids: Tensor) -> tf.Tensor:
        """Ids, ragged or dense [B, N], to texts [B]; control symbols, languages and the unknown symbol are dropped."""
        return joined(self.op.texts, ids)

    def pieces(self, ids: Tensor) -> tf.RaggedTensor:
        return tf.gather(self.op.table.pieces, ids)

    def ids(self, pieces: Tensor) -> tf.RaggedTensor:
        return self.op.table.table.lookup(pieces)


class _Graph(tf.Module):
    """The resources that a SavedModel must keep.

    Args:
        table: of the pieces.
        texts: the text of each id.
        languages: ids by code.
    """

    def __init__(self, table: PieceTable, texts: list[bytes], languages: dict[str, int]) -> None:
        super().__init__()
        self.table, self.texts = table, tf.constant(texts)
        initializer = tf.lookup.KeyValueTensorInitializer(
            list(languages), list(languages.values()), tf.string, tf.int32
        )
        self.languages = tf.lookup.StaticHashTable(initializer, 0)

    def detokenize(self, ids: Tensor) -> tf.Tensor:
        return joined(self.texts, ids)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _archive(contents: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name in sorted(contents):
            archive.writestr(zipfile.ZipInfo(name), contents[name])  # without the time, for the fingerprint
    return written.getvalue()
