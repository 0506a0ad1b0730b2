"""From sentence pairs to batches: pairs of similar length, about as many tokens in every batch (section 5.1)."""

import functools
import hashlib
import itertools
import os
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tf_transformer.config import BadInput
from tf_transformer.corpora.ids import Batch, Batches, Ids, Order, batch_sizes, collected
from tf_transformer.masks import PAD_ID
from tf_transformer.text.tokenizer import Tokenizer, lines_of, open_text, sentences
from tf_transformer.type_names import Tensor

MAX_LENGTH = 256  # tokens a side, EOS included
MAX_BYTES = 16_384  # a longer line is not a sentence
EMPTY = "an empty line"
CHUNK = 2_048  # pairs that are tokenized together
SECONDS = 10  # between lines of progress

PairIds = Callable[[Any, Any], tuple[tf.RaggedTensor, tf.RaggedTensor]]
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]  # of one text file, or of several


@dataclass(frozen=True)
class Summary:
    """Counts from one pass over the batches."""

    batches: int
    pairs: int
    skipped: int
    source_tokens: int
    target_tokens: int
    padding: float | None = None  # share of the positions; None where it is not counted
    shapes: int | None = None  # how many shapes batches have that are filled to their buckets'

    def __str__(self) -> str:
        padding = "" if self.padding is None else f", {self.padding:.1%} padding"
        return (
            f"{self.pairs:,} pairs, {self.source_tokens:,} + {self.target_tokens:,} tokens, "
            f"{self.skipped:,} skipped, {self.batches:,} batches{padding}"
        )


def check_text_pairs(source: Paths, target: Paths, skip_bad_lines: bool = False, empty_lines: bool = False) -> int:
    """Read parallel text once and return its number of lines.

    Args:
        source: path, or list of paths, of plain or .gz files.
        target: likewise.
        skip_bad_lines: accept bad lines; `text_lines` can leave them out.
        empty_lines: do not count empty lines as bad.

    Raises:
        FileNotFoundError: a file is missing.
        BadInput: line counts differ, there are none, or a line is bad: empty, not UTF-8, or over 16,384 bytes.
    """
    total = 0
    for pair in zip(_paths(source), _paths(target), strict=True):
        counts = [_check_lines(path, skip_bad_lines, empty_lines) for path in pair]
        if counts[0] != counts[1]:
            raise BadInput(unequal(*pair, *counts))
        total += counts[0]
    if not total:
        raise BadInput(f"expected sentences, got an empty file: {source}")
    return total


def unequal(source: str, target: str, lines: int, others: int) -> str:
    """The error message for two files with these numbers of lines."""
    return f"expected the same number of lines in both files, got {lines:,} in {source} and {others:,} in {target}"


def read_text_pairs(
    source: str | os.PathLike[str], target: str | os.PathLike[str], empty_lines: bool = False
) -> tuple[list[str], list[str]]:
    """Check two parallel text files as `check_text_pairs` does, and return the lines of each."""
    check_text_pairs(source, target, empty_lines=empty_lines)
    return list(sentences([source])), list(sentences([target]))


def _paths(paths: Paths) -> list[str]:
    return [str(path) for path in (paths if isinstance(paths, list | tuple) else [paths])]


def in_memory(source: list[str], target: list[str]) -> tf.data.Dataset:
    """Pairs of strings (source, target) from two lists."""
    return tf.data.Dataset.from_tensor_slices((source, target))


def to_lists(pairs: tf.data.Dataset) -> tuple[list[str], list[str]]:
    """A dataset of pairs as two lists; the inverse of `in_memory`."""
    texts = list(each_sentence(pairs))
    return texts[::2], texts[1::2]


def each_sentence(pairs: tf.data.Dataset) -> Iterator[str]:
    """Every string of a dataset of pairs (source, target), one after the other."""
    for pair in pairs.as_numpy_iterator():
        for text in pair:
            yield text.decode("utf-8", "replace")


def _check_lines(path: str, skip_bad_lines: bool, empty_lines: bool) -> int:
    number = 0
    try:
        for number, line in enumerate(lines_of(path), 1):
            problem = None if skip_bad_lines else line_problem(line)
            if problem and not (empty_lines and problem == EMPTY):
                raise BadInput(f"{path}, line {number:,}: expected a sentence in UTF-8, got {problem}")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise FileNotFoundError(f"expected a text file, found none at {path}") from error
    except (EOFError, OSError) as error:  # a damaged .gz
        raise BadInput(f"{path}: cannot be read after line {number:,}: {error}") from error
    return number


def line_problem(line: bytes) -> str | None:
    """Why a line is no sentence: it is empty, not UTF-8, or over 16,384 bytes; None if it is one."""
    if len(line) > MAX_BYTES:
        return f"{len(line):,} bytes (at most {MAX_BYTES:,})"
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"the byte 0x{line[error.start]:02x} at column {error.start + 1}"
    if all(character.isspace() or unicodedata.category(character) in ("Cc", "Cf") for character in text):
        return EMPTY
    return None


def text_pairs(
    source: Paths,
    target: Paths,
    tokenizer: Tokenizer,
    batch_tokens: int = 25_000,
    max_length: int = MAX_LENGTH,
    shuffle: bool = True,
    repeat: bool = False,
    seed: int = 0,
    skip_bad_lines: bool = False,
) -> tf.data.Dataset:
    """Check parallel text, and return it as batches of ((source, target_in), target_out).

    Args:
        source: path, or list of paths, of plain or .gz files.
        target: path, or list of paths, line by line parallel to `source`.
        tokenizer: for both sides.
        batch_tokens: about how many source tokens, and how many target tokens, a batch has, padding included.
        max_length: pairs with a side of more tokens, EOS included, are skipped.
        shuffle: a new order every epoch, determined by `seed` and the epoch's number.
        repeat: go on for ever, epoch after epoch.
        seed: of the order.
        skip_bad_lines: leave out pairs with a side that is empty, not UTF-8, or longer than 16,384 bytes; otherwise
            such a pair is an error (`check_text_pairs`).

    Returns:
        A dataset of int32 ids: source [B, S] ends with EOS, target_in [B, T] begins with BOS, target_out [B, T] ends
        with EOS; 0 is padding.
    """
    check_text_pairs(source, target, skip_bad_lines)
    pairs = text_lines(source, target, skip_bad_lines)
    return token_batches(pairs, tokenizer, batch_tokens, max_length, shuffle, repeat, seed)


def text_lines(source: Paths, target: Paths, skip_bad_lines: bool = False) -> tf.data.Dataset:
    """Pairs of strings (source, target), line by line, from parallel text files or lists of files, plain or .gz."""

    def good(*pair: tf.Tensor) -> tf.Tensor:
        short = [tf.strings.length(text) <= MAX_BYTES for text in pair]
        valid = [tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="ignore") == text for text in pair]
        return tf.reduce_all(short + valid)

    for paths in (files := [*map(_paths, (source, target))]):
        if len({path.endswith(".gz") for path in paths}) > 1:
            raise BadInput(f"expected either plain or .gz files, got both: {', '.join(paths)}")

    def chunks() -> Iterator[tuple[tuple[bytes, ...], ...]]:
        sides = (itertools.chain.from_iterable(map(lines_of, paths)) for paths in files)
        both = zip(*sides, strict=False)  # `check_text_pairs` has compared their numbers
        while chunk := list(itertools.islice(both, CHUNK)):
            yield tuple(zip(*chunk, strict=True))

    texts = tf.TensorSpec((None,), tf.string)
    pairs = tf.data.Dataset.from_generator(chunks, output_signature=(texts, texts)).unbatch()
    return pairs.filter(good) if skip_bad_lines else pairs


def numbered(pairs: tf.data.Dataset) -> tf.data.Dataset:
    """Pairs with their numbers from 1: the line numbers, unless lines are skipped."""
    return pairs.enumerate(1).map(lambda number, pair: (*pair, number))


def tfds_pairs(name: str, split: str, languages: tuple[str, str], data_dir: str | None = None) -> tf.data.Dataset:
    """Pairs of strings (source, target) of a translation corpus of TensorFlow Datasets, downloaded at first use.

    Args:
        name: for example "wmt14_translate/de-en".
        split: for example "train", or "train[200:300]", a range of it.
        languages: of source and target, for example ("en", "de").
        data_dir: folder of the corpora; `None` means the default of TFDS.
    """
    import tensorflow_datasets as tfds

    builder = tfds.builder(name, data_dir=data_dir)
    if missing := set(languages) - set(builder.info.features):
        known = ", ".join(builder.info.features)
        raise BadInput(f"{name}: expected languages among {known}; got {', '.join(sorted(missing))}")
    builder.download_and_prepare()
    if split.partition("[")[0] not in builder.info.splits:
        raise BadInput(f"{name}: expected one of the splits {', '.join(builder.info.splits)}; got {split!r}")
    source, target = languages
    pairs = builder.as_dataset(split=split, shuffle_files=False).map(lambda pair: (pair[source], pair[target]))
    return pairs.apply(tf.data.experimental.assert_cardinality(builder.info.splits[split].num_examples))


def token_batches(
    pairs: tf.data.Dataset,
    tokenizer: Tokenizer,
    batch_tokens: int = 25_000,
    max_length: int = MAX_LENGTH,
    shuffle: bool = True,
    repeat: bool = False,
    seed: int = 0,
    pair_ids: PairIds | None = None,
) -> tf.data.Dataset:
    """Batches like those of `text_pairs`, from a dataset of (source, target) strings, which is tokenized once.

    Pairs with an empty side are skipped. If pairs have a third element, their number, so have the batches.

    Args:
        max_length: pairs with a side of more tokens, EOS included, are skipped.
        pair_ids: a function from source and target, strings [B], to their ids, ragged int32 [B, None]; `None` means
            the tokenizer.
    """
    batch_sizes([max_length], batch_tokens)
    epochs = itertools.count()

    @functools.cache
    def made() -> Batches:
        ids = ids_of(pairs, tokenizer, max_length, pair_ids)
        return Batches(ids, Order(ids.lengths(), batch_tokens, max_length, seed if shuffle else None))

    def batches() -> Iterator[Batch]:
        count = len(made().order)
        if not repeat:
            return itertools.islice(made().since(next(epochs) * count), count)  # each iteration has its own order
        if not count:
            raise BadInput(f"expected sentences of at most {max_length} tokens, got none")
        return made().since()

    return dataset(batches, lines=len(pairs.element_spec) > 2)


def ids_of(
    pairs: tf.data.Dataset, tokenizer: Tokenizer, max_length: int = MAX_LENGTH, pair_ids: PairIds | None = None
) -> Ids:
    """The ids of a dataset of (source, target) strings, or of (source, target, number), in parallel and once."""

    def tokenize(source: Tensor, target: Tensor, *number: Tensor) -> tuple[tf.Tensor, ...]:
        ids = pair_ids(source, target) if pair_ids else (tokenizer.tokenize(source), tokenizer.tokenize_target(target))
        flat = [part for side in ids for part in (side.flat_values, side.row_lengths())]
        return *flat, *number

    def chunks() -> Iterator[list[np.ndarray]]:
        read, began, said = 0, time.monotonic(), time.monotonic()
        cores = os.cpu_count() or 1  # AUTOTUNE took one of two, and twice the time
        for chunk in pairs.batch(CHUNK).map(tokenize, num_parallel_calls=cores).prefetch(4).as_numpy_iterator():
            source, source_lengths, target, target_lengths, *numbers = chunk
            count = len(source_lengths)
            lines = numbers[0] if numbers else np.arange(read + 1, read + count + 1)
            read += count
            if time.monotonic() - said > SECONDS:
                said = time.monotonic()
                print(f"  tokenized {read:,} pairs, {read / (said - began):,.0f} a second", flush=True)
            yield [source, source_lengths, target, target_lengths, lines]

    return collected(chunks(), max_length, tokenizer.vocab_size)


def dataset(batches: Callable[[], Iterator[Batch]], lines: bool = False) -> tf.data.Dataset:
    """Batches as a `tf.data.Dataset` of ((source, target_in), target_out), and the lines [B] if asked."""

    def parts() -> Iterator[Any]:
        for source, target_in, target_out, numbers in batches():
            yield ((source, target_in), target_out, numbers) if lines else ((source, target_in), target_out)

    ids = tf.TensorSpec((None, None), tf.int32)
    spec = ((ids, ids), ids, tf.TensorSpec((None,), tf.int64)) if lines else ((ids, ids), ids)
    return tf.data.Dataset.from_generator(parts, output_signature=spec).prefetch(16)


def for_replicas(batches: tf.data.Dataset, replicas: int) -> tf.data.Dataset:
    """Batches for a `tf.distribute` strategy: each is cut into `replicas` parts with the same number of rows.

    Rows of padding, which do not count, make the number of rows a multiple of `replicas`. Every worker makes the same
    batches and takes its own parts.
    """

    def pad(ids: Tensor) -> Any:
        return tf.pad(ids, [(0, -tf.shape(ids)[0] % replicas), (0, 0)], constant_values=PAD_ID)

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    even = batches.map(lambda inputs, target_out: ((pad(inputs[0]), pad(inputs[1])), pad(target_out)))
    return even.with_options(options)


def summary_of(ids: Ids, order: Order) -> Summary:
    """Of an epoch in this order; padding is not counted."""
    source, target = (int(side.lengths().sum()) for side in (ids.source, ids.target))
    return Summary(len(order), len(ids), ids.skipped, source, target, shapes=len(order.shapes()))


def checksum_of_text(path: str) -> str:
    """SHA-256 of a text file's contents, of a .gz unpacked."""
    with open_text(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def summarize(batches: tf.data.Dataset, pairs: int) -> Summary:
    """Count a finite dataset of batches; `pairs` is the number of pairs that went in."""

    def count(total: Tensor, inputs: Tensor, target_out: Tensor) -> Any:
        sizes = [1, tf.shape(target_out)[0], tf.size(inputs[0]), tf.size(target_out)]
        tokens = [tf.math.count_nonzero(inputs[0]), tf.math.count_nonzero(target_out)]
        return total + tf.stack([tf.cast(size, tf.int64) for size in (*sizes, *tokens)])

    total = batches.reduce(np.zeros(6, "int64"), lambda total, batch: count(total, *batch)).numpy()
    steps, rows, source_size, target_size, source_tokens, target_tokens = (int(number) for number in total)
    padding = 1 - (source_tokens + target_tokens) / max(1, source_size + target_size)
    return Summary(steps, rows, pairs - rows, source_tokens, target_tokens, padding)
