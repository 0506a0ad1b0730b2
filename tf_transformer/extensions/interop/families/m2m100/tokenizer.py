"""The tokenizer of an M2M100 or NLLB-200 checkpoint: one SentencePiece model, a table of its
pieces, and symbols for languages."""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tf_transformer.extensions.interop.families.pieces import (
    VOCABULARY,
    PieceTable,
    PieceTokenizer,
    archive_of,
    texts_of,
)
from tf_transformer.tokenizers.languages import LANGUAGES, check_language
from tf_transformer.tokenizers.strings import text_tensor
from tf_transformer.tokenizers.tokenizer import BOS_ID, FIRST_ID, Tokenizer
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import checked

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazily("tensorflow", "a tokenizer of tensors")

IDS, PIECES = "languages.json", "sentencepiece.bpe.model"


class M2M100Tokenizer(PieceTokenizer):
    """A `Tokenizer` of many languages: the first id of a text is that of its language.

    Ids and texts are those of `transformers.M2M100Tokenizer`, and those of NLLB's in its form of today, with the
    language first, as `PieceTokenizer` says; of white space alone, at the end of a text and before an added token,
    `transformers.NllbTokenizer` makes a piece.

    Args:
        model: the attribute `model` of another one, a zip archive of languages.json (their ids, the ids without a text,
            and the languages of texts), sentencepiece.bpe.model and vocabulary.json.
    """

    kind = "M2M100"
    codes = 1

    def read(self, pieces: list[str]) -> None:
        said = json.loads(self.contents[IDS])
        self._ids: dict[str, int] = {str(code): int(id) for code, id in said["ids"].items()}
        self._silent = [int(id) for id in said["silent"]]
        if not {*self._ids.values(), *self._silent} <= {*range(len(pieces))}:
            raise ValueError(f"expected ids below {len(pieces)}")
        self.first_piece = min({*range(FIRST_ID, len(pieces))}.difference(self._silent))
        self.source = self.target = PieceTable(self.contents[PIECES], pieces, self.added)
        self.texts = texts_of(pieces, self.source.processor)
        for id in self._silent:
            self.texts[id] = b""
        self._spoken = {name: said[name] and self._known(name, said[name]) for name in LANGUAGES}

    def _resources(self) -> "tf.Module":
        op = super()._resources()
        with tf.init_scope():
            ids = tf.lookup.KeyValueTensorInitializer([*self._ids], [*self._ids.values()], tf.string, tf.int32)
            op.languages = tf.lookup.StaticHashTable(ids, 0)
        return op

    @functools.cached_property
    def model(self) -> bytes:  # type: ignore[override]  # of a tokenizer that `for_languages` made
        return archive_of(self.contents | {IDS: self.said})

    @property
    def said(self) -> dict[str, Any]:
        """What languages.json says: ids by language, the ids without a text, and the languages of texts or `None`."""
        return {"ids": self._ids, "silent": self._silent, **self._spoken}

    @staticmethod
    def recognizes(model: bytes) -> bool:
        return model.startswith(b"PK") and model[30:].startswith(IDS.encode())  # the archive's first file

    @property
    def languages(self) -> Sequence[str]:  # type: ignore[override]
        return list(self._ids)

    @property
    def language_ids(self) -> Mapping[str, int]:  # type: ignore[override]
        return self._ids

    @property
    def vocabularies(self) -> dict[str, bytes]:
        pieces = list(self.target.pieces)
        for id in self._silent:
            pieces[id] = ""
        return {VOCABULARY: json.dumps(pieces, ensure_ascii=False).encode()}

    def for_languages(self, source_language: Any = None, target_language: Any = None) -> "M2M100Tokenizer":
        given = dict(zip(LANGUAGES, (source_language, target_language), strict=True))
        given = {name: language for name, language in given.items() if language is not None}
        other = object.__new__(type(self))
        vars(other).update(vars(self))  # the resources, too
        other._spoken = self._spoken | {name: self._known(name, language) for name, language in given.items()}
        other.__dict__.pop("model", None)  # it has the languages
        return other

    def spoken(self) -> tuple[Any, ...]:
        for name, language in self._spoken.items():
            if language is None:
                self._known(name, "")
        return tuple(self._spoken.values())

    def shares_vocabulary(self, other: Tokenizer) -> bool:
        return isinstance(other, M2M100Tokenizer) and self._vocabulary() == other._vocabulary()

    def _vocabulary(self) -> tuple[Any, ...]:
        return self.files, self.contents[VOCABULARY], self._ids, self._silent, self.added

    def _known(self, name: str, language: Any) -> Any:
        if isinstance(language, str | None) or not tf.is_tensor(language):
            check_language(name, language, list(self._ids))
        return language

    def _codes(self, rows: Tensor) -> "tuple[tf.Tensor, tf.Tensor]":
        """The ids of the languages of sources and targets, each int32 [rows]; 0 where one of the two is unknown."""
        languages = [tf.reshape(language, [-1]) for language in self.spoken()]
        source, target = (tf.broadcast_to(self.op.languages.lookup(language), [rows]) for language in languages)
        known = (source > 0) & (target > 0)
        return tf.where(known, source, 0), tf.where(known, target, 0)

    def _with_code(self, place: int, texts: Tensor) -> "tf.RaggedTensor":
        texts = tf.convert_to_tensor(text_tensor(texts))
        code = self._codes(tf.shape(texts)[0])[place]
        pieces, known = self.target.tokenize(texts), code > 0
        codes = tf.RaggedTensor.from_row_lengths(tf.boolean_mask(code, known), tf.cast(known, tf.int64))
        of_known = pieces.with_values(tf.gather(known, pieces.value_rowids()))
        return tf.concat([codes, tf.ragged.boolean_mask(pieces, of_known)], axis=1)

    def _encoded(self, place: int, texts: Sequence[str | bytes]) -> list[list[int]]:
        code = self._ids[self.spoken()[place]]
        return [[code, *row] for row in self.source.encode(texts)]

    @checked
    def encode(self, texts: Sequence[str | bytes]) -> list[list[int]]:
        return self._encoded(0, texts)

    @checked
    def encode_target(self, texts: Sequence[str | bytes]) -> list[list[int]]:
        return self._encoded(1, texts)

    def tokenize(self, texts: Tensor) -> "tf.RaggedTensor":
        return self._with_code(0, texts)

    def tokenize_target(self, texts: Tensor) -> "tf.RaggedTensor":
        return self._with_code(1, texts)

    def start_ids(self) -> list[int]:
        return [BOS_ID, self._ids[self.spoken()[1]]]

    def start(self, rows: Tensor) -> "tf.Tensor":
        return tf.stack([tf.fill([rows], BOS_ID), self._codes(rows)[1]], axis=1)
