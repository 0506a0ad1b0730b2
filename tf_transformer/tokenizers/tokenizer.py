"""A SentencePiece tokenizer (section 5.1), the same in Python, in `tf.data` and inside a SavedModel.

Methods of lists, such as `encode`, need only SentencePiece. Those of tensors, such as `tokenize`, load tensorflow-text.
"""

import hashlib
import io
import itertools
import operator
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import sentencepiece

from tf_transformer.config import BadInput
from tf_transformer.masks import PAD_ID
from tf_transformer.tokenizers.strings import check_tensorflow_text, valid, valid_text
from tf_transformer.utils.files import encoded, new_file, user_path
from tf_transformer.utils.lazy import MadeOnce, lazily
from tf_transformer.utils.lines import lines_of
from tf_transformer.utils.reading import read_bytes
from tf_transformer.utils.terminal import quiet_stderr
from tf_transformer.utils.type_names import Tensor, VocabularyKind
from tf_transformer.utils.values import MOST, Count, between, checked, shown

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazily("tensorflow", "a tokenizer of tensors")

BOS_ID = 1
EOS_ID = 2
UNKNOWN_ID = 3
FIRST_ID = 4  # the first control token or user-defined symbol, if any, otherwise the first byte
NORMALIZATIONS = ("nmt_nfkc", "nfkc", "identity")
MANY = 1_000  # texts that are worth several threads
RESERVED = re.compile(r"<unk>|<s>|</s>|<pad>|<0x[0-9A-F]{2}>")  # pieces of every vocabulary


class Tokenizer:
    """A vocabulary shared by source and target: PAD 0, BOS 1, EOS 2, unknown 3, then bytes and pieces.

    Byte fallback spells what the pieces cannot, so no text is lost: `detokenize(tokenize(x))` is x in the vocabulary's
    normal form (see docs/reference/vocabulary.md). Control tokens written in a text are plain text.

    Args:
        model: Serialized SentencePiece model with these control ids. Other models may have control tokens,
            and no bytes: then characters outside the vocabulary become the unknown id.

    Raises:
        BadInput: If `model` is not such a model.

    Examples:
        >>> tokenizer = tt.Tokenizer.train_from_iterator(["The red door.", "Die rote Tür."] * 99, vocab_size=290)
        >>> tokenizer.decode(tokenizer.encode(["The red door."]))
        ['The red door.']
    """

    def __init__(self, model: bytes) -> None:
        processor = engine_of(model)
        ids = (processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id())
        if ids != (PAD_ID, BOS_ID, EOS_ID, UNKNOWN_ID):
            raise BadInput(f"expected a SentencePiece model with pad, bos, eos, unk = 0, 1, 2, 3; got {ids}")
        # The serialized model is kept for files, SavedModels and other processes.
        self.model = model
        self.processor = processor
        self.vocab_size: int = processor.vocab_size()
        ids_of_pieces = range(FIRST_ID, self.vocab_size)
        # The ids are in this order: control tokens, user-defined symbols, bytes, pieces of text.
        names = (processor.id_to_piece(id) for id in itertools.takewhile(processor.is_control, ids_of_pieces))
        # Those of `train_from_iterator` begin with a space. Others, such as ">>de<<", belong to models from elsewhere.
        controls = itertools.takewhile(lambda name: re.match(" .", name), names)
        self.control_tokens: list[str] = [name[1:] for name in controls]
        # User-defined symbols precede the bytes.
        after_bytes = max(filter(processor.is_byte, ids_of_pieces), default=FIRST_ID - 1) + 1
        kinds = (processor.is_control, processor.is_byte, processor.is_unused, processor.is_unknown)
        of_text = (id for id in range(after_bytes, self.vocab_size) if not any(is_kind(id) for is_kind in kinds))
        self.first_piece: int = next(of_text, 0)
        if not self.first_piece:
            raise BadInput(f"expected a SentencePiece model with pieces of text, got {self.vocab_size} others")
        self._op = MadeOnce(self._resources)

    def _resources(self) -> Any:
        # The first call may be inside the tracing of a function, which must not own the resource.
        with tf.init_scope():
            return durable_tokenizer(self.model)

    @property
    def op(self) -> Any:
        """Resources of the methods of tensors, which a SavedModel must track."""
        return self._op()

    def __repr__(self) -> str:
        languages = f", {len(self.languages)} languages" if self.languages else ""
        return f"{type(self).__name__}(vocab_size={self.vocab_size}{languages})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Resources do not pickle.
        return type(self), (self.model,)

    # Multilingual tokenizers override these. The ids of a source, and of a target, then begin with the id of their
    # language. A text whose languages are not all set has no ids.

    languages: Sequence[str] = ()  # supported languages, () if the model has one pair
    language_ids: Mapping[str, int] = {}  # ids of the languages
    num_language_tokens = 0  # number of language ids in a text

    # Tokens that are matched in a text before SentencePiece reads the rest, and whether a space before is also a token.
    added: Mapping[str, bool] = {}

    def with_languages(self, source_language: Any = None, target_language: Any = None) -> "Tokenizer":
        """Returns a tokenizer for other languages, among `languages`, or tensors of them [1] or [B]. `None` keeps one.

        Raises:
            BadInput: If a language is not supported.
        """
        language = target_language if source_language is None else source_language
        if language is None:
            return self
        raise BadInput(f"language: expected none, since this model has one pair of languages, got {language!r}")

    def current_languages(self) -> tuple[Any, ...]:
        """Returns the languages of sources and targets, all of which must be set; () if `languages` is empty."""
        return ()

    def shares_vocabulary(self, other: "Tokenizer") -> bool:
        """Returns whether the ids of another tokenizer mean the same, whatever languages are set."""
        return self.fingerprint == other.fingerprint

    def start_ids(self) -> list[int]:
        """Returns the ids before an output, those of `start` for one row."""
        return [BOS_ID]

    def start(self, rows: Tensor) -> "tf.Tensor":
        """Returns the ids before an output, int32 [rows, P]: BOS and, if there are `languages`, the target's id."""
        return tf.fill([rows, 1], BOS_ID)

    @staticmethod
    def recognizes(model: bytes) -> bool:
        """Returns whether these bytes may be the `model` of a tokenizer of this class."""
        return model.startswith(b"\n")  # the tag of a SentencePiece model's first field, its pieces

    @classmethod
    @checked
    def train(
        cls, files: Iterable[str | os.PathLike[str]], vocab_size: Count, kind: VocabularyKind = "bpe", **options: Any
    ) -> "Tokenizer":
        """Learns a vocabulary from text files, plain or .gz, one sentence per line.

        Args:
            files: Paths. Source and target together make a shared vocabulary.
            vocab_size: As in `train_from_iterator`, which also documents the other arguments.
        """
        return cls.train_from_iterator(sentences(files), vocab_size, kind, **options)

    @classmethod
    @checked
    def train_from_iterator(
        cls,
        sentences: Iterable[str],
        vocab_size: Count,
        kind: VocabularyKind = "bpe",
        sample: Annotated[int, between(101, MOST)] = 5_000_000,  # SentencePiece's range
        threads: Annotated[int, between(1, 1_024)] = 2,
        user_defined_symbols: Sequence[str] = (),
        control_tokens: Sequence[str] = (),
        normalization: str = "nmt_nfkc",
    ) -> "Tokenizer":
        """Learns a vocabulary from sentences, which are read once.

        Args:
            sentences: Sentences of both languages.
            vocab_size: Number of ids, including 4 control ids and 256 bytes.
            kind: "bpe" (Sennrich et al. 2016) or "unigram", the nearest kin of the word-piece model of Wu et al. 2016.
            sample: Maximum number of sentences to learn from, above 100, sampled without a seed. It bounds the memory.
            threads: Threads of SentencePiece's trainer. For "unigram", another number learns slightly other pieces.
            user_defined_symbols: Printable strings without whitespace that are always one piece, such as "<2de>".
            control_tokens: Control tokens, which no text contains, with the ids from 4 on, before user-defined ones.
            normalization: SentencePiece's normal form of texts, "nmt_nfkc", "nfkc" or "identity". The first changes
                "10² m" to "102 m" (docs/reference/vocabulary.md).

        Raises:
            BadInput: If an argument is invalid, or the text has too few different pieces for `vocab_size`.
        """
        if normalization not in NORMALIZATIONS:
            raise BadInput(f"normalization: expected one of {', '.join(NORMALIZATIONS)}; got {normalization!r}")
        user_defined, controls = list(user_defined_symbols), list(control_tokens)
        check_symbols(user_defined)
        least = FIRST_ID + len(controls) + len(user_defined) + 256 + 1
        if vocab_size < least:
            raise BadInput(f"vocab_size: expected at least {least} (symbols, bytes, a piece), got {vocab_size}")
        written, failures = io.BytesIO(), list[Exception]()
        # "byte-pair encoding, which has a shared source-target vocabulary" (section 5.1). With fallback to bytes no
        # text is unknown, so rare characters need no ids of their own: the coverage is below 1.
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
                user_defined_symbols=user_defined,
                # SentencePiece would hold all sentences in memory.
                input_sentence_size=sample,
                shuffle_input_sentence=True,
                num_threads=threads,
                minloglevel=2,
            )
        except RuntimeError as error:
            if failures:
                raise failures[0] from None
            message = f"cannot learn a vocabulary of {vocab_size} from this text: {str(error).strip().splitlines()[-1]}"
            if limit := re.search(r"(vs|value <=) (\d+)", str(error)):
                bound = "least" if limit[1] == "vs" else "most"
                message = f"vocab_size: expected at {bound} {limit[2]} for this text, got {vocab_size}"
            elif "sentences_.empty()" in str(error):
                message = "expected sentences to learn a vocabulary from, got none"
            raise BadInput(message) from error
        return cls(written.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Reads a SentencePiece model file."""
        if not (path := user_path(path)).is_file():
            raise FileNotFoundError(f"tokenizer: expected a SentencePiece model file, found none at {path}")
        try:
            return cls(read_bytes(path))
        except BadInput as error:
            raise BadInput(f"{path}: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the SentencePiece model atomically."""
        path = user_path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as temporary:
            temporary.write_bytes(self.model)

    @property
    def files(self) -> dict[str, bytes]:
        """SentencePiece models for other engines: contents by file name."""
        return {"tokenizer.model": self.model}

    @property
    def vocabularies(self) -> dict[str, bytes]:
        """Pieces by id for other engines: JSON lists by file name. Empty if the ids are SentencePiece's."""
        return {}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the model, which identifies the vocabulary."""
        return hashlib.sha256(self.model).hexdigest()

    @checked
    def encode(self, texts: Sequence[str | bytes]) -> list[list[int]]:
        """Returns the ids of each text, like `tokenize`, without TensorFlow. Many texts use all cores."""
        return encoded_by(self.processor, [valid(text) for text in texts], int)

    @checked
    def encode_target(self, texts: Sequence[str | bytes]) -> list[list[int]]:
        """Returns the ids of each target, like `tokenize_target`, without TensorFlow."""
        return self.encode(texts)

    @checked
    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Returns the text of each list of ids, like `detokenize`, without TensorFlow.

        Raises:
            BadInput: If an id is outside of the vocabulary, as in `tokens`.
        """
        # Without padding, BOS and EOS.
        rows = [[id for id in checked_ids(row, self.vocab_size) if id > EOS_ID] for row in ids]
        return list(self.processor.decode(rows, num_threads=-1 if len(rows) >= MANY else 1)) if rows else []

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns the pieces of an output's ids."""
        return [self.processor.id_to_piece(id) for id in checked_ids(ids, self.vocab_size)]

    def source_tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns the pieces of ids of `encode`. Other tokenizers may number sources differently."""
        return self.tokens(ids)

    def tokenize(self, texts: Tensor) -> "tf.RaggedTensor":
        """Converts any texts [B] to ids, ragged int32 [B, None], without BOS and EOS. It never raises."""
        return self.op.tokenize(valid_text(texts))

    def tokenize_target(self, texts: Tensor) -> "tf.RaggedTensor":
        """Converts targets [B] to ids, like `tokenize`. Other tokenizers may treat them differently."""
        return self.tokenize(texts)

    def detokenize(self, ids: Tensor) -> "tf.Tensor":
        """Converts ids, ragged or dense [B, N], to texts [B], and drops control ids.

        Raises:
            BadInput: If an id is outside of the vocabulary. In a graph, where no value raises, it is the unknown id.
        """
        ids = known_ids(ids, self.vocab_size)
        if not isinstance(ids, tf.RaggedTensor):
            ids = tf.RaggedTensor.from_tensor(ids)
        return self.op.detokenize(tf.ragged.boolean_mask(ids, ids > EOS_ID))

    def pieces(self, ids: Tensor) -> "tf.RaggedTensor":
        """Converts ids, ragged or dense [B, N], to pieces as strings [B, N]. Ids are checked as in `detokenize`."""
        return self.op.id_to_string(known_ids(ids, self.vocab_size))

    def source_pieces(self, ids: Tensor) -> "tf.RaggedTensor":
        """Converts ids of `tokenize` to pieces. Other tokenizers may number sources differently."""
        return self.pieces(ids)

    def ids(self, pieces: Tensor) -> "tf.RaggedTensor":
        """Converts pieces to ids. A piece outside the vocabulary becomes the unknown id."""
        return self.op.string_to_id(pieces)


def checked_ids(ids: Iterable[Any], vocab_size: int) -> list[int]:
    """Returns ids as Python's integers, or raises `BadInput` for one that is outside of the vocabulary."""
    try:
        numbers = [operator.index(id) for id in ids]
    except TypeError as error:
        raise BadInput(f"ids: expected lists of whole numbers, got {shown(ids)}") from error
    if wrong := [id for id in numbers if not 0 <= id < vocab_size]:
        raise BadInput(f"ids: expected 0 to {vocab_size - 1}, those of the vocabulary, got {wrong[0]}")
    return numbers


def known_ids(ids: Tensor, vocab_size: int) -> Any:
    """Returns ids, ragged or dense, as int32. Those outside of the vocabulary raise `BadInput`, or are the unknown id
    in a graph. SentencePiece's operations would end the process for some of them."""
    ids = ids if isinstance(ids, tf.RaggedTensor) else tf.convert_to_tensor(ids)
    if not ids.dtype.is_integer:
        raise BadInput(f"ids: expected whole numbers, got {ids.dtype.name}")
    flat = ids.flat_values if isinstance(ids, tf.RaggedTensor) else ids
    is_known = (flat >= 0) & (flat < tf.cast(min(vocab_size, flat.dtype.max), flat.dtype))
    if tf.executing_eagerly():
        checked_ids(tf.boolean_mask(flat, ~is_known).numpy()[:1], vocab_size)
    flat = tf.where(is_known, tf.cast(flat, tf.int32), UNKNOWN_ID)
    return ids.with_flat_values(flat) if isinstance(ids, tf.RaggedTensor) else flat


def sentences(files: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    """Yields the lines of text files, plain or .gz, file after file."""
    for path in files:
        for line in lines_of(path):
            yield line.decode("utf-8", "replace")


def _readable(texts: Iterable[Any], failures: list[Exception]) -> Iterator[str]:
    """Yields texts to SentencePiece's trainer, and keeps what is raised here, which the trainer's error omits."""
    try:
        for number, text in enumerate(texts, 1):
            if not isinstance(text, str | bytes):
                raise BadInput(f"sentences: expected str or bytes, got {shown(text)} as number {number:,}")
            yield encoded(text).decode("utf-8", "replace")
    except Exception as error:
        failures.append(error)
        raise


def check_symbols(strings: Iterable[str], name: str = "user_defined_symbols") -> None:
    """Raises `BadInput` with the option's name if a user-defined symbol is repeated or cannot be one piece."""
    checked = set[str]()
    for string in strings:
        if not isinstance(string, str) or not string.isprintable() or not string or set(" ▁") & set(string):
            raise BadInput(f"{name}: expected printable text without whitespace, such as '<2de>'; got {shown(string)}")
        if RESERVED.fullmatch(string):
            raise BadInput(f"{name}: expected text other than reserved tokens, got {string!r}")
        if string in checked:
            raise BadInput(f"{name}: expected unique strings, got {shown(string)} twice")
        checked.add(string)


def encoded_by(processor: sentencepiece.SentencePieceProcessor, texts: list[str], kind: type) -> Any:
    return processor.encode(texts, out_type=kind, num_threads=-1 if len(texts) >= MANY else 1)


def engine_of(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Returns SentencePiece's tokenizer with a serialized model whose pieces are UTF-8, or raises `BadInput`."""
    if hasattr(sentencepiece, "set_min_log_level"):
        sentencepiece.set_min_log_level(1)  # hides warnings about models without normalization
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        # Reads every piece once, so that one that is not UTF-8 raises here and not in the middle of a text.
        if not processor.id_to_piece(list(range(processor.vocab_size()))):
            raise ValueError("no pieces")
    except (RuntimeError, ValueError) as error:
        raise BadInput(f"expected a SentencePiece model, got {len(model)} other bytes") from error
    return processor


def durable_tokenizer(model: bytes, pieces: bool = False) -> Any:
    """Returns a tensorflow-text tokenizer, which makes ids or `pieces`, of a serialized model."""
    check_tensorflow_text()
    import tensorflow_text
    from tensorflow_text.python.ops.sentencepiece_tokenizer import gen_sentencepiece_tokenizer

    # Without a `shared_name` the resource belongs to the eager kernel, which `tf.random.set_seed` and Keras's
    # `set_random_seed` delete (tensorflow/text issues 570 and 802). The public class takes no name, hence this.
    name = "sentencepiece_" + hashlib.sha256(model).hexdigest()[:16]

    def create() -> Any:
        return gen_sentencepiece_tokenizer.sentencepiece_op(model=model, shared_name=name)

    with quiet_stderr():  # hides warnings about models without normalization
        tokenizer = tensorflow_text.SentencepieceTokenizer(model, out_type=tf.string if pieces else tf.int32)
        tokenizer._model_resource._create_resource = create
        tokenizer._model_resource._resource_handle = create()
    return tokenizer
