"""Batches of sentence pairs for `model.fit`: a `tf.data.Dataset` on TensorFlow, else a `keras.utils.PyDataset`."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras

from tf_transformer.config import BadInput
from tf_transformer.data.batches import Batches, batch_sizes
from tf_transformer.data.ids import Batch, Block, tokenized
from tf_transformer.data.sources import MAX_LENGTH, Text, TextSource, encoder_of, rows_of
from tf_transformer.masks import PAD_ID
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.utils.lines import Paths, empty_file, file_pairs
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import Count, Natural, Seed, checked


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
    first_epoch: Natural = 0,
) -> Any:
    """Checks parallel text and returns it as batches of ((source, target_in), target_out).

    For example, `model.fit(tt.data.text_pairs("train.en", "train.de", tokenizer), shuffle=False)`.

    Args:
        source: Path, or list of paths, of plain or .gz files.
        target: Path, or list of paths, line by line parallel to `source`.
        tokenizer: Tokenizer of both sides.
        batch_tokens: Approximate number of source tokens, and of target tokens, in a batch, padding included.
        max_length: Pairs with a side of more tokens, EOS included, are skipped.
        shuffle: Whether each epoch has a new order, determined by `seed` and the index of the epoch.
        repeat: Whether the epochs continue without end.
        seed: Shuffling seed.
        skip_bad_lines: Whether to skip pairs with a side that is empty, not UTF-8, or longer than 16,384 bytes.
            Otherwise such a pair is an error (`check_text_pairs`).
        first_epoch: Index of the first epoch, for example `Checkpoints.epoch` of a run that resumes.

    Returns:
        int32 ids, padded with 0: source [B, S] and target_out [B, T] end with EOS, target_in [B, T] begins with BOS.
    """
    sources = [TextSource(*files, skip_bad_lines) for files in file_pairs(source, target)]
    # A bad line raises before the texts are tokenized, which may take minutes.
    if not sum([files.check() for files in sources]):
        raise empty_file(source)
    pairs = ((source, target) for files in sources for _, source, target in files.rows())
    return token_batches(pairs, tokenizer, batch_tokens, max_length, shuffle, repeat, seed, first_epoch)


@checked
def token_batches(
    pairs: Iterable[tuple[Text, Text]],
    tokenizer: Tokenizer,
    batch_tokens: Count = 25_000,
    max_length: Count = MAX_LENGTH,
    shuffle: bool = True,
    repeat: bool = False,
    seed: Seed = 0,
    first_epoch: Natural = 0,
) -> Any:
    """Tokenizes pairs of strings once and returns batches like those of `text_pairs`. Skips pairs with an empty side.

    Args:
        pairs: (source, target), for example `zip(sources, targets)`, or a `tf.data.Dataset` of them.
        max_length: Pairs with a side of more tokens, EOS included, are skipped.
    """
    batch_sizes([max_length], batch_tokens)  # raises before the texts are tokenized, which may take minutes

    texts: Any = pairs.as_numpy_iterator() if hasattr(pairs, "as_numpy_iterator") else pairs
    ids = tokenized([(encoder_of(tokenizer), rows_of(texts))], max_length, tokenizer.vocab_size)
    if not len(ids):
        raise BadInput(f"pairs: expected at least one of 1 to max_length={max_length} tokens per side, got none")
    batches = Batches([Block.of(ids, max_length)], batch_tokens, seed if shuffle else None)
    count = None if repeat else len(batches)
    if keras.backend.backend() != "tensorflow":
        return Feed(batches, first_epoch * len(batches), count)
    epochs = itertools.count(first_epoch)

    def epoch() -> Iterator[Batch]:
        if count is None:
            return batches.since(first_epoch * len(batches))
        # Every iteration over the dataset is the next epoch.
        first = next(epochs) * count
        return (batches[number] for number in range(first, first + count))

    import tensorflow as tf

    # Keras warns at the end of an epoch whose size is unknown.
    size = tf.data.INFINITE_CARDINALITY if count is None else count
    return dataset(epoch).apply(tf.data.experimental.assert_cardinality(size))


class Feed(keras.utils.PyDataset):
    """Batches for `fit` on any backend from number `first`, `count` an epoch, or `None` for one without end."""

    def __init__(self, batches: Batches, first: int = 0, count: int | None = None) -> None:
        super().__init__()
        self.batches, self.first, self.count = batches, first, count

    @property
    def num_batches(self) -> int | None:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.batches[self.first + index].pair()

    def on_epoch_end(self) -> None:
        self.first += self.count or 0


@checked
def dataset(batches: Callable[[], Iterator[Batch]]) -> Any:
    """Returns batches as a `tf.data.Dataset` of ((source, target_in), target_out)."""
    import tensorflow as tf

    ids, options = tf.TensorSpec((None, None), tf.int32), tf.data.Options()
    # Tuning is not needed, and can delay the deletion of an iterator by a minute.
    options.autotune.enabled = False
    # Batches are made in NumPy, in a thread of TensorFlow's, while the previous ones train.
    pairs = tf.data.Dataset.from_generator(lambda: map(Batch.pair, batches()), output_signature=((ids, ids), ids))
    return pairs.prefetch(16).with_options(options)


@checked
def for_replicas(batches: Any, replicas: Count) -> Any:
    """Pads the batches of a `tf.data.Dataset`, so that a `tf.distribute` strategy can split each between replicas.

    Rows of padding, which do not count, make the number of rows a multiple of `replicas`. Every worker makes the same
    batches and takes its part of each.
    """
    import tensorflow as tf

    def pad(ids: Tensor) -> Any:
        return tf.pad(ids, [(0, -tf.shape(ids)[0] % replicas), (0, 0)], constant_values=PAD_ID)

    # DATA gives each worker its rows of every batch. AUTO, the default, looks for files to divide first.
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    even = batches.map(lambda inputs, target_out: ((pad(inputs[0]), pad(inputs[1])), pad(target_out)))
    return even.with_options(options)


def fed(batches: Batches, replicas: int, first: int = 0, count: int | None = None) -> Any:
    """Returns `count` batches from number `first`, or batches without end, as a `Trainer` passes them to `fit`."""
    if keras.backend.backend() != "tensorflow":
        return Feed(batches, first, count)
    return for_replicas(dataset(lambda: itertools.islice(batches.since(first), count)), replicas)
