"""A SentencePiece tokenizer (section 5.1), the same in Python, in `tf.data` and inside a SavedModel.

Methods that take lists and give lists, such as `encode`, need SentencePiece alone. Those of tensors, such as
`tokenize`, need TensorFlow and tensorflow-text, too, which are loaded when the first of them is called.
"""

import hashlib
import io
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import sentencepiece

from tf_transformer.config import BadInput
from tf_transformer.masks import PAD_ID
from tf_transformer.tokenizers.piece_engine import durable_tokenizer, encoded_by, engine_of, threads_for
from tf_transformer.tokenizers.strings import valid, valid_text
from tf_transformer.utils.files import encoded, lines_of, new_file, user_path
from tf_transformer.utils.lazy import Once, lazily
from tf_transformer.utils.reading import read_bytes
from tf_transformer.utils.type_names import Tensor, VocabularyKind
from tf_transformer.utils.values import MOST, Count, between, checked, shown

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazily("tensorflow", "a tokenizer of tensors")

BOS_ID = 1
EOS_ID = 2
UNKNOWN_ID = 3
FIRST_ID = 4  # of controls and symbols, if any; bytes and pieces follow them
NORMALIZATIONS = ("nmt_nfkc", "nfkc", "identity")
RESERVED = re.compile(r"<unk>|<s>|</s>|<pad>|<0x[0-9A-F]{2}>")  # pieces of every vocabulary


class Tokenizer:
    """A vocabulary shared by source and target: PAD 0, BOS 1, EOS 2, unknown 3, then bytes and pieces.

    Byte fallback spells what the pieces cannot, so no text is lost: `detokenize(tokenize(x))` is x in the vocabulary's
    normal form (docs/reference/vocabulary.md says what it changes). Control symbols written in a text are plain text.

    Args:
        model: a serialized SentencePiece model whose control ids are as above. One that somebody else has learned may
            lack the bytes, so that characters outside its pieces become the unknown id, and may have control symbols.

    Raises:
        BadInput: the bytes are no such model.
    """

    def __init__(self, model: bytes) -> None:
        processor = engine_of(model)
        ids = (processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id())
        if ids != (PAD_ID, BOS_ID, EOS_ID, UNKNOWN_ID):
            raise BadInput(f"expected a SentencePiece model with pad, bos, eos, unk = 0, 1, 2, 3; got {ids}")
        self.model = model
        self.processor = processor
        self.vocab_size: int = processor.vocab_size()
        ids_of_pieces = range(FIRST_ID, self.vocab_size)
        names = (processor.id_to_piece(id) for id in itertools.takewhile(processor.is_control, ids_of_pieces))
        # Those of `learn_from` begin with a space; others, such as ">>de<<", are somebody's own.
        controls = itertools.takewhile(lambda name: re.match(" .", name), names)
        self.controls: list[str] = [name[1:] for name in controls]
        no_text = (processor.is_control, processor.is_byte, processor.is_unused, processor.is_unknown)
        after_bytes = max(filter(processor.is_byte, ids_of_pieces), default=FIRST_ID - 1) + 1  # symbols are before them
        texts = (id for id in range(after_bytes, self.vocab_size) if not any(is_other(id) for is_other in no_text))
        self.first_piece: int = next(texts, 0)
        if not self.first_piece:
            raise BadInput(f"expected a SentencePiece model with pieces of text, got {self.vocab_size} others")
        self._op = Once(self._resources)

    def _resources(self) -> Any:
        with tf.init_scope():  # also where the first call is traced
            return durable_tokenizer(self.model)

    @property
    def op(self) -> Any:
        """What a SavedModel must keep of it: the resources of the methods of tensors."""
        return self._op()

    def __repr__(self) -> str:
        languages = f", {len(self.languages)} languages" if self.languages else ""
        return f"{type(self).__name__}(vocab_size={self.vocab_size}{languages})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without them."""
        return type(self), (self.model,)

    # A tokenizer of several languages overrides these. The ids of a source, and of a target, then begin with the code
    # of their language. If it does not know both languages of a text, the text has no ids.

    languages: Sequence[str] = ()  # that texts may be in; none if the model has one pair
    language_ids: Mapping[str, int] = {}  # their codes in ids
    codes = 0  # how many ids of a text are those of its language

    added: Sequence[str] = ()  # tokens that are matched in a text before SentencePiece reads what is between them

    def for_languages(self, source_language: Any = None, target_language: Any = None) -> "Tokenizer":
        """A tokenizer of sources and targets in other languages; `None` leaves a language as it is.

        Args:
            source_language: one of `languages`, or a tensor of strings, [1] or [B].
            target_language: as the other.

        Raises:
            BadInput: there is no such language.
        """
        given = target_language if source_language is None else source_language
        if given is None:
            return self
        raise BadInput(f"language: expected none, since this model has one pair of languages, got {given!r}")

    def spoken(self) -> tuple[Any, ...]:
        """The languages of sources and of targets, as `for_languages` takes them; () if `languages` has none.

        Raises:
            BadInput: one is missing.
        """
        return ()

    def shares_vocabulary(self, other: "Tokenizer") -> bool:
        """Whether the ids of another tokenizer mean the same; the languages that texts are in may differ."""
        return self.fingerprint == other.fingerprint

    def start_ids(self) -> list[int]:
        """The ids before an output, those of `start` for one row."""
        return [BOS_ID]

    def start(self, rows: Tensor) -> "tf.Tensor":
        """The ids before an output, int32 [rows, P]: the start symbol and, if there are `languages`, the target's."""
        return tf.fill([rows, 1], BOS_ID)

    @staticmethod
    def recognizes(model: bytes) -> bool:
        """Whether these bytes may be the attribute `model` of a tokenizer of this class."""
        return True

    @classmethod
    @checked
    def learn(
        cls, files: Iterable[str | os.PathLike[str]], vocab_size: Count, kind: VocabularyKind = "bpe", **options: Any
    ) -> "Tokenizer":
        """Learn a vocabulary from text files, plain or .gz, one sentence a line. `learn_from` takes sentences, and has
        the other arguments.

        Args:
            files: paths; source and target together make a shared vocabulary.
        """
        return cls.learn_from(sentences(files), vocab_size, kind, **options)

    @classmethod
    @checked
    def learn_from(
        cls,
        sentences: Iterable[str],
        vocab_size: Count,
        kind: VocabularyKind = "bpe",
        sample: Annotated[int, between(101, MOST)] = 5_000_000,  # as SentencePiece has it
        threads: Annotated[int, between(1, 1_024)] = 2,
        symbols: Sequence[str] = (),
        controls: Sequence[str] = (),
        normalization: str = "nmt_nfkc",
    ) -> "Tokenizer":
        """Learn a vocabulary from sentences, read once.

        Args:
            sentences: of both languages.
            vocab_size: number of ids, the 4 control symbols and 256 bytes included.
            kind: "bpe" (Sennrich et al. 2016) or "unigram", the nearest kin of the word-piece model of Wu et al. 2016.
            sample: the most sentences to learn from, above 100; it bounds the memory. SentencePiece chooses them anew
                each time.
            threads: for SentencePiece's trainer.
            symbols: each is one piece wherever a text contains it, such as "<2de>" for a language
                (SentencePiece's user_defined_symbols): printable, without white space.
            controls: control symbols, which no text contains, with the ids from 4 on; symbols follow them.
            normalization: the form in which it reads texts, in SentencePiece's names: "nmt_nfkc" makes "10² m" "102 m"
                and takes the zero width non-joiner out of Persian words (docs/reference/vocabulary.md lists what
                changes), "nfkc" keeps the latter, "identity" keeps both.
        """
        if normalization not in NORMALIZATIONS:
            raise BadInput(f"normalization: expected one of {', '.join(NORMALIZATIONS)}; got {normalization!r}")
        symbols, controls = list(symbols), list(controls)
        check_symbols(symbols)
        least = FIRST_ID + len(controls) + len(symbols) + 256 + 1
        if vocab_size < least:
            raise BadInput(f"vocab_size: expected at least {least} (symbols, bytes, a piece), got {vocab_size}")
        written, failures = io.BytesIO(), list[Exception]()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_readable(sentences, failures),
                model_writer=written,
                vocab_size=vocab_size,
                model_type=kind,
                normalization_rule_name=normalization,
                byte_fallback=True,
                character_coverage=0.9999,
                pad_id=PAD_ID,
                bos_id=BOS_ID,
                eos_id=EOS_ID,
                unk_id=UNKNOWN_ID,
                control_symbols=[f" {control}" for control in controls],  # no piece has a space
                user_defined_symbols=symbols,
                input_sentence_size=sample,
                shuffle_input_sentence=True,
                num_threads=threads,
                minloglevel=2,
            )
        except RuntimeError as error:
            if failures:
                raise failures[0] from None
            raise BadInput(_why_not_learned(str(error), vocab_size)) from error
        return cls(written.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Read a SentencePiece model file."""
        path = user_path(path)
        if not path.is_file():
            raise FileNotFoundError(f"tokenizer: expected a SentencePiece model file, found none at {path}")
        try:
            return cls(read_bytes(path))
        except BadInput as error:
            raise BadInput(f"{path}: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the SentencePiece model, whole or not at all."""
        path = user_path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as temporary:
            temporary.write_bytes(self.model)

    @property
    def files(self) -> dict[str, bytes]:
        """SentencePiece models for the engines of other projects: contents by file name."""
        return {"tokenizer.model": self.model}

    @property
    def vocabularies(self) -> dict[str, bytes]:
        """For other engines, {file name: JSON list of pieces by id}, "" for what no text has; {} if SentencePiece's own
        ids are used."""
        return {}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the model, which tells two vocabularies apart."""
        return hashlib.sha256(self.model).hexdigest()

    @checked
    def encode(self, texts: Sequence[str | bytes]) -> list[list[int]]:
        """The ids of each text, those of `tokenize`, by SentencePiece alone. Many texts take all cores."""
        return encoded_by(self.processor, [valid(text) for text in texts], int)

    @checked
    def encode_target(self, texts: Sequence[str | bytes]) -> list[list[int]]:
        """As `encode`, for targets; the ids of `tokenize_target`."""
        return self.encode(texts)

    @checked
    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each list of ids, that of `detokenize`, by SentencePiece alone."""
        kept = [[id for id in row if id > EOS_ID] for row in ids]
        return list(self.processor.decode(kept, num_threads=threads_for(kept))) if kept else []

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The pieces of an output's ids."""
        return [self.processor.id_to_piece(id) for id in ids]

    def source_tokens(self, ids: Iterable[int]) -> list[str]:
        """As `tokens`, for the ids that `encode` gives; other kinds of tokenizer may number sources differently."""
        return self.tokens(ids)

    def tokenize(self, texts: Tensor) -> "tf.RaggedTensor":
        """Texts [B] to ids, ragged int32 [B, None], without BOS and EOS. It never raises: invalid UTF-8 and control
        characters count as white space."""
        return self.op.tokenize(valid_text(texts))

    def tokenize_target(self, texts: Tensor) -> "tf.RaggedTensor":
        """As `tokenize`, for targets; other kinds of tokenizer may treat them differently."""
        return self.tokenize(texts)

    def detokenize(self, ids: Tensor) -> "tf.Tensor":
        """Ids, ragged or dense [B, N], to texts [B]; control symbols are dropped."""
        if not isinstance(ids, tf.RaggedTensor):
            ids = tf.RaggedTensor.from_tensor(ids)
        return self.op.detokenize(tf.ragged.boolean_mask(ids, ids > EOS_ID))

    def pieces(self, ids: Tensor) -> "tf.RaggedTensor":
        """Ids, ragged or dense [B, N], to pieces as strings [B, N]."""
        return self.op.id_to_string(ids)

    def source_pieces(self, ids: Tensor) -> "tf.RaggedTensor":
        """As `pieces`, for the ids that `tokenize` gives; other kinds of tokenizer may number sources differently."""
        return self.pieces(ids)

    def ids(self, pieces: Tensor) -> "tf.RaggedTensor":
        """Pieces to ids, the inverse of `pieces`; a piece outside the vocabulary becomes the unknown id."""
        return self.op.string_to_id(pieces)


def sentences(files: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    """The lines of text files, plain or .gz, one after the other."""
    for path in files:
        for line in lines_of(path):
            yield line.decode("utf-8", "replace")


def _readable(texts: Iterable[Any], failures: list[Exception]) -> Iterator[str]:
    """Yields texts for SentencePiece's trainer, whose own error does not name what was raised here."""
    try:
        for number, text in enumerate(texts, 1):
            if not isinstance(text, str | bytes):
                raise BadInput(f"sentences: expected str or bytes, got {shown(text)} as number {number:,}")
            yield encoded(text).decode("utf-8", "replace")
    except Exception as error:
        failures.append(error)
        raise


def check_symbols(symbols: Iterable[str], name: str = "symbols") -> None:
    """Check that a text may contain these symbols, each a piece of its own.

    Args:
        symbols: each is printable, has no white space and no "▁", and is no piece of every vocabulary, such as "<s>".
        name: of the option.

    Raises:
        BadInput: one is something else, or is there twice.
    """
    before = set[str]()
    for symbol in symbols:
        if not isinstance(symbol, str) or not symbol.isprintable() or not symbol or set(" ▁") & set(symbol):
            raise BadInput(f"{name}: expected printable text without white space, such as '<2de>'; got {shown(symbol)}")
        if RESERVED.fullmatch(symbol):
            raise BadInput(f"{name}: expected none of the vocabulary's own pieces, got {symbol!r}")
        if symbol in before:
            raise BadInput(f"{name}: expected each symbol once, got {shown(symbol)} again")
        before.add(symbol)


def _why_not_learned(message: str, vocab_size: int) -> str:
    most = re.search(r"value <= (\d+)", message)
    if most:
        return f"vocab_size: expected at most {most[1]}, which is what this text supports; got {vocab_size}"
    if "sentences_.empty()" in message:
        return "expected sentences to learn a vocabulary from, got none"
    return f"cannot learn a vocabulary of {vocab_size} from this text: {message.strip().splitlines()[-1]}"
