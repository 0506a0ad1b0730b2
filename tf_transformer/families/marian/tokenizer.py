"""The tokenizer of a MarianMT checkpoint: source.spm, target.spm and vocabulary as one, in TensorFlow's graph."""

import io
import json
import os
import zipfile
from pathlib import Path

import tensorflow as tf

from tf_transformer.base.reading import check_archive, read_bytes, reading
from tf_transformer.base.type_names import Tensor
from tf_transformer.config import BadInput
from tf_transformer.families.marian.files import has_two_vocabularies, read_vocabulary
from tf_transformer.families.pieces import PieceTable, joined, texts_of
from tf_transformer.text.tokenizer import FIRST_ID, Tokenizer, engine_of

SOURCE, TARGET, VOCABULARY = FILES = ("source.spm", "target.spm", "vocabulary.json")
SOURCE_VOCABULARY = "source_vocabulary.json"  # if it differs from the target's
# The code at the start of a text for a model of several target languages, as in ">>fra<< Good morning."; it ends at the
# first "<<".
CODE = "(?s)>>.*?<<"


class MarianTokenizer(Tokenizer):
    """A `Tokenizer` with two SentencePiece models, for sources and for targets, and one vocabulary for both.

    A checkpoint with two vocabularies has two tables; `pieces`, `ids` and `detokenize` then use the target's.

    Pieces, ids (in our order: `read_vocabulary`) and texts equal those of `transformers.MarianTokenizer` with
    `split_special_tokens=True`: a control symbol written in a text is plain text. Bytes that are not UTF-8 count as
    spaces. White space of any kind at the end of a text is nothing, so a text of white space alone is empty.

    Args:
        model: the attribute `model` of another one, a zip archive of source.spm, target.spm, vocabulary.json (the
            pieces in the order of their ids) and, with two vocabularies, source_vocabulary.json.
    """

    def __init__(self, model: bytes) -> None:
        with reading("vocabulary", "a tokenizer of MarianMT"):
            check_archive(io.BytesIO(model))
            with zipfile.ZipFile(io.BytesIO(model)) as archive:
                source, target, vocabulary = (archive.read(name) for name in FILES)
                separate = SOURCE_VOCABULARY in archive.namelist()
                source_vocabulary = archive.read(SOURCE_VOCABULARY) if separate else vocabulary
            pieces, source_pieces = json.loads(vocabulary), json.loads(source_vocabulary)
            texts = texts_of(pieces, target if separate else source)
            self.op = _Graph(_Side(source, source_pieces), _Side(target, pieces), texts)
        self.model = model
        self._files = {SOURCE: source, TARGET: target}
        self._vocabularies = {VOCABULARY: vocabulary} | ({SOURCE_VOCABULARY: source_vocabulary} if separate else {})
        self.vocab_size = len(pieces)
        self.controls = []
        self.first_piece = FIRST_ID

    @staticmethod
    def recognizes(model: bytes) -> bool:
        return model.startswith(b"PK")  # as a zip archive does

    @classmethod
    def from_checkpoint(cls, directory: str | os.PathLike[str]) -> "MarianTokenizer":
        """Read the tokenizer from a checkpoint's folder, which has source.spm and target.spm; see `load_marian`.

        Raises:
            BadInput: a file is missing, or holds something else.
        """
        directory, written = Path(directory), io.BytesIO()
        contents: dict[str, bytes | str] = {
            VOCABULARY: json.dumps(read_vocabulary(directory).pieces, ensure_ascii=False)
        }
        if has_two_vocabularies(directory):
            pieces = read_vocabulary(directory, "source").pieces
            contents[SOURCE_VOCABULARY] = json.dumps(pieces, ensure_ascii=False)
        for name in (SOURCE, TARGET):
            if not (directory / name).is_file():
                raise BadInput(f"expected the tokenizer of a checkpoint of MarianMT, found no {name} in {directory}")
            contents[name] = model = read_bytes(directory / name)
            with reading(directory / name, "a SentencePiece model"):
                engine_of(model)
        with zipfile.ZipFile(written, "w") as archive:
            for name in sorted(contents):
                archive.writestr(zipfile.ZipInfo(name), contents[name])  # without the time, for the fingerprint
        try:
            return cls(written.getvalue())
        except BadInput as error:
            raise BadInput(f"{directory}: {error}") from error

    @property
    def files(self) -> dict[str, bytes]:
        return self._files

    @property
    def vocabularies(self) -> dict[str, bytes]:
        return self._vocabularies

    def tokenize(self, texts: Tensor) -> tf.RaggedTensor:
        return self.op.source.tokenize(texts)

    def tokenize_target(self, texts: Tensor) -> tf.RaggedTensor:
        return self.op.target.tokenize(texts)

    def detokenize(self, ids: Tensor) -> tf.Tensor:
        """Ids, ragged or dense [B, N], to texts [B]; control symbols and the unknown symbol are dropped."""
        return self.op.detokenize(ids)

    def pieces(self, ids: Tensor) -> tf.RaggedTensor:
        return tf.gather(self.op.target.pieces, ids)

    def source_pieces(self, ids: Tensor) -> tf.RaggedTensor:
        return tf.gather(self.op.source.pieces, ids)

    def ids(self, pieces: Tensor) -> tf.RaggedTensor:
        return self.op.target.table.lookup(pieces)


class _Side(PieceTable):
    """The tokenizer of one side, sources or targets, which reads a code, too."""

    def pieces_of(self, texts: Tensor) -> tf.RaggedTensor:
        has_code = tf.strings.regex_full_match(texts, f"{CODE}.*")
        code = tf.strings.regex_replace(tf.boolean_mask(texts, has_code), f"({CODE}).*", r"\1", replace_global=False)
        text = tf.strings.regex_replace(texts, f"^{CODE}", "", replace_global=False)
        codes = tf.RaggedTensor.from_row_lengths(code, tf.cast(has_code, tf.int64))  # one or none a row
        return tf.concat([codes, super().pieces_of(text)], axis=1)


class _Graph(tf.Module):
    """The resources that a SavedModel must keep.

    Args:
        source, target: the two sides.
        texts: the text of each id.
    """

    def __init__(self, source: _Side, target: _Side, texts: list[bytes]) -> None:
        super().__init__()
        self.source, self.target, self.texts = source, target, tf.constant(texts)

    def detokenize(self, ids: Tensor) -> tf.Tensor:
        return joined(self.texts, ids)
