"""From sentence pairs to batches: pairs of similar length, about as many tokens in every batch (section 5.1)."""

import functools
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tf_transformer.base.files import encoded
from tf_transformer.base.terminal import say
from tf_transformer.base.type_names import Tensor
from tf_transformer.base.values import Count, Natural, Seed, checked
from tf_transformer.config import BadInput
from tf_transformer.corpora.ids import Batch, Batches, Ids, Order, batch_sizes, collected
from tf_transformer.corpora.pairs import Row, Text
from tf_transformer.corpora.sources import TextSource
from tf_transformer.corpora.text_files import Paths, file_pairs
from tf_transformer.corpora.text_files import check_text_pairs as check_text_pairs
from tf_transformer.corpora.text_files import read_text_pairs as read_text_pairs
from tf_transformer.masks import PAD_ID
from tf_transformer.text.tokenizer import Tokenizer

MAX_LENGTH = 256  # tokens a side, EOS included
CHUNK = 2_048  # pairs that are tokenized together
SECONDS = 10  # between lines of progress

PairIds = Callable[[Any, Any], tuple[tf.RaggedTensor, tf.RaggedTensor]]


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


@checked
def text_pairs(
    source: Paths,
    target: Paths,
    tokenizer: Tokenizer,
    batch_tokens: Count = 25_000,
    max_length: Count = MAX_LENGTH,
    shuffle: bool = True,
    repeat: bool = False,
    seed: Seed = 0,
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
    sources = (TextSource(*files, skip_bad_lines) for files in file_pairs(source, target))
    pairs = ((source, target) for files in sources for _, source, target in files.rows())
    return token_batches(pairs, tokenizer, batch_tokens, max_length, shuffle, repeat, seed)


@checked
def token_batches(
    pairs: Iterable[tuple[Text, Text]],
    tokenizer: Tokenizer,
    batch_tokens: Count = 25_000,
    max_length: Count = MAX_LENGTH,
    shuffle: bool = True,
    repeat: bool = False,
    seed: Seed = 0,
    pair_ids: PairIds | None = None,
) -> tf.data.Dataset:
    """Batches like those of `text_pairs`, from pairs of strings, which are tokenized once.

    Pairs with an empty side are skipped.

    Args:
        pairs: (source, target), for example `zip(sources, targets)`, or a dataset of them.
        max_length: pairs with a side of more tokens, EOS included, are skipped.
        pair_ids: a function from source and target, strings [B], to their ids, ragged int32 [B, None]; `None` means
            the tokenizer.
    """
    batch_sizes([max_length], batch_tokens)
    epochs = itertools.count()

    @functools.cache
    def made() -> Batches:
        texts = pairs.as_numpy_iterator() if isinstance(pairs, tf.data.Dataset) else pairs
        ids = ids_of(rows_of(texts), tokenizer, max_length, pair_ids)
        return Batches(ids, Order(ids.lengths(), batch_tokens, max_length, seed if shuffle else None))

    def batches() -> Iterator[Batch]:
        count = len(made().order)
        if not repeat:
            return itertools.islice(made().since(next(epochs) * count), count)  # each iteration has its own order
        if not count:
            raise BadInput(f"expected sentences of at most {max_length} tokens, got none")
        return made().since()

    return dataset(batches)


def rows_of(pairs: Iterable[tuple[Text, Text]]) -> Iterator[Row]:
    """Pairs with their numbers, from 1."""
    return ((number, encoded(source), encoded(target)) for number, (source, target) in enumerate(pairs, 1))


@checked
def ids_of(
    rows: Iterable[Row], tokenizer: Tokenizer, max_length: Count = MAX_LENGTH, pair_ids: PairIds | None = None
) -> Ids:
    """The ids of pairs, made in parallel and once.

    Args:
        rows: the pairs' numbers, sources and targets, as of `Source.rows`.
        tokenizer, max_length, pair_ids: as of `token_batches`.
    """
    failed: list[Exception] = []

    def texts() -> Iterator[tuple[tuple[Any, ...], ...]]:
        remaining = iter(rows)
        try:
            while chunk := list(itertools.islice(remaining, CHUNK)):
                yield tuple(zip(*chunk, strict=True))
        except Exception as error:  # TensorFlow would make an error of its own of it
            failed.append(error)

    def tokenize(numbers: Tensor, source: Tensor, target: Tensor) -> tuple[tf.Tensor, ...]:
        ids = pair_ids(source, target) if pair_ids else (tokenizer.tokenize(source), tokenizer.tokenize_target(target))
        return *(part for side in ids for part in (side.flat_values, side.row_lengths())), numbers

    def chunks() -> Iterator[list[np.ndarray]]:
        spec = tf.TensorSpec((None,), tf.int64), *[tf.TensorSpec((None,), tf.string)] * 2
        read, began, said = 0, time.monotonic(), time.monotonic()
        cores = os.cpu_count() or 1  # AUTOTUNE took one of two, and twice the time
        chunks = tf.data.Dataset.from_generator(texts, output_signature=spec)
        for chunk in chunks.map(tokenize, num_parallel_calls=cores).prefetch(4).as_numpy_iterator():
            read += len(chunk[-1])
            if time.monotonic() - said > SECONDS:
                said = time.monotonic()
                say(f"  tokenized {read:,} pairs, {read / (said - began):,.0f} a second")
            yield chunk
        if failed:
            raise failed[0]

    return collected(chunks(), max_length, tokenizer.vocab_size)


@checked
def dataset(batches: Callable[[], Iterator[Batch]], lines: bool = False) -> tf.data.Dataset:
    """Batches as a `tf.data.Dataset` of ((source, target_in), target_out), and the lines [B] if asked."""

    def parts() -> Iterator[Any]:
        for source, target_in, target_out, numbers in batches():
            yield ((source, target_in), target_out, numbers) if lines else ((source, target_in), target_out)

    ids = tf.TensorSpec((None, None), tf.int32)
    spec = ((ids, ids), ids, tf.TensorSpec((None,), tf.int64)) if lines else ((ids, ids), ids)
    return tf.data.Dataset.from_generator(parts, output_signature=spec).prefetch(16)


@checked
def for_replicas(batches: tf.data.Dataset, replicas: Count) -> tf.data.Dataset:
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
    """Count the batches, pairs and tokens of one epoch in this order, without padding."""
    source, target = (int(side.lengths().sum()) for side in (ids.source, ids.target))
    return Summary(len(order), len(ids), ids.skipped, source, target, shapes=len(order.shapes()))


@checked
def summarize(batches: tf.data.Dataset, pairs: Natural) -> Summary:
    """Count a finite dataset of batches; `pairs` is the number of pairs that went in."""

    def count(total: Tensor, inputs: Tensor, target_out: Tensor) -> Any:
        sizes = [1, tf.shape(target_out)[0], tf.size(inputs[0]), tf.size(target_out)]
        tokens = [tf.math.count_nonzero(inputs[0]), tf.math.count_nonzero(target_out)]
        return total + tf.stack([tf.cast(size, tf.int64) for size in (*sizes, *tokens)])

    total = batches.reduce(np.zeros(6, "int64"), lambda total, batch: count(total, *batch)).numpy()
    steps, rows, source_size, target_size, source_tokens, target_tokens = (int(number) for number in total)
    padding = 1 - (source_tokens + target_tokens) / max(1, source_size + target_size)
    return Summary(steps, rows, pairs - rows, source_tokens, target_tokens, padding)
