"""The tokenizer of an M2M100 or NLLB-200 checkpoint: a SentencePiece model, a table of its tokens, and languages."""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tf_transformer.decoding.search_options import LANGUAGES, check_language
from tf_transformer.extensions.interop.engines.litert_client import texts_of
from tf_transformer.extensions.interop.families.pieces import VOCABULARY, PieceTable, PieceTokenizer, archive_of
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
    """A multilingual `Tokenizer`: the first id of a text is its language.

    Ids and texts are those of `transformers.M2M100Tokenizer`, and those of NLLB's current version, with the language
    first, as `PieceTokenizer` describes. But `transformers.NllbTokenizer` 5 makes a token of whitespace at the end of
    a text and in a text of nothing else.

    Args:
        model: Attribute `model` of another one: a zip archive of languages.json (ids of languages, ids without a text,
            and the languages of texts), sentencepiece.bpe.model and vocabulary.json.
    """

    kind = "M2M100"
    num_language_tokens = 1

    def read(self, pieces: list[str]) -> None:
        description = json.loads(self.contents[IDS])
        self._ids: dict[str, int] = {str(code): int(id) for code, id in description["ids"].items()}
        self._silent = [int(id) for id in description["silent"]]
        silent = {*self._silent}
        if not {*self._ids.values(), *silent} <= {*range(len(pieces))}:
            raise ValueError(f"expected ids below {len(pieces)}")
        self.first_piece = min({*range(FIRST_ID, len(pieces))} - silent)
        self.source = self.target = PieceTable(self.contents[PIECES], pieces, self.added)
        self._audible = ["" if id in silent else piece for id, piece in enumerate(pieces)]
        self.texts = texts_of(self._audible, self.source.tokens, self.source.processor, self.source.processor)
        self._spoken = {name: description[name] and self._checked(name, description[name]) for name in LANGUAGES}

    def _resources(self) -> "tf.Module":
        op = super()._resources()
        with tf.init_scope():
            ids = tf.lookup.KeyValueTensorInitializer([*self._ids], [*self._ids.values()], tf.string, tf.int32)
            op.languages = tf.lookup.StaticHashTable(ids, 0)
        return op

    @functools.cached_property
    def model(self) -> bytes:  # type: ignore[override]
        # Made here for tokenizers that `with_languages` returned.
        return archive_of(self.contents | {IDS: self.description})

    @property
    def description(self) -> dict[str, Any]:
        """Contents of languages.json: ids by language, ids without a text, and the languages of texts or `None`."""
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
        return super().vocabularies | {VOCABULARY: json.dumps(self._audible, ensure_ascii=False).encode()}

    def with_languages(self, source_language: Any = None, target_language: Any = None) -> "M2M100Tokenizer":
        languages = zip(LANGUAGES, (source_language, target_language), strict=True)
        chosen = {name: self._checked(name, language) for name, language in languages if language is not None}
        # The copy shares the resources. Its `model` includes the languages, so it is made again.
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other._spoken = self._spoken | chosen
        other.__dict__.pop("model", None)
        return other

    def current_languages(self) -> tuple[Any, ...]:
        for name, language in self._spoken.items():
            if language is None:
                self._checked(name, "")
        return tuple(self._spoken.values())

    def shares_vocabulary(self, other: Tokenizer) -> bool:
        return isinstance(other, M2M100Tokenizer) and self._vocabulary() == other._vocabulary()

    def _vocabulary(self) -> tuple[Any, ...]:
        return self.files, self.contents[VOCABULARY], self._ids, self._silent, self.added

    def _checked(self, name: str, language: Any) -> Any:
        # A tensor has a language per text, and an unknown one makes its row empty.
        if isinstance(language, str | None) or not tf.is_tensor(language):
            check_language(name, language, list(self._ids))
        return language

    def _codes(self, rows: Tensor) -> "tuple[tf.Tensor, tf.Tensor]":
        """Returns ids of source and target languages, each int32 [rows], or 0 where one of both is unknown."""
        languages = [tf.reshape(language, [-1]) for language in self.current_languages()]
        source, target = (tf.broadcast_to(self.op.languages.lookup(language), [rows]) for language in languages)
        is_known = (source > 0) & (target > 0)
        return tf.where(is_known, source, 0), tf.where(is_known, target, 0)

    def _with_code(self, side: int, texts: Tensor) -> "tf.RaggedTensor":
        texts = tf.convert_to_tensor(text_tensor(texts))
        code = self._codes(tf.shape(texts)[0])[side]  # [B]
        pieces, is_known = self.target.tokenize(texts), code > 0  # [B, None], [B]
        codes = tf.RaggedTensor.from_row_lengths(tf.boolean_mask(code, is_known), tf.cast(is_known, tf.int64))
        of_known = pieces.with_values(tf.gather(is_known, pieces.value_rowids()))
        return tf.concat([codes, tf.ragged.boolean_mask(pieces, of_known)], axis=1)

    @checked
    def encode(self, texts: Sequence[str | bytes]) -> list[list[int]]:
        code = self._ids[self.current_languages()[0]]
        return [[code, *row] for row in self.source.encode(texts)]

    @checked
    def encode_target(self, texts: Sequence[str | bytes]) -> list[list[int]]:
        code = self._ids[self.current_languages()[1]]
        return [[code, *row] for row in self.source.encode(texts)]

    def tokenize(self, texts: Tensor) -> "tf.RaggedTensor":
        return self._with_code(0, texts)

    def tokenize_target(self, texts: Tensor) -> "tf.RaggedTensor":
        return self._with_code(1, texts)

    def start_ids(self) -> list[int]:
        return [BOS_ID, self._ids[self.current_languages()[1]]]

    def start(self, rows: Tensor) -> "tf.Tensor":
        return tf.stack([tf.fill([rows], BOS_ID), self._codes(rows)[1]], axis=1)
