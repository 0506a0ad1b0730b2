"""From sentence pairs to what `model.fit` takes: pairs of similar length, about as many tokens in every batch (section
5.1). On the TensorFlow backend that is a `tf.data.Dataset`, on others a `keras.utils.PyDataset`."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras

from tf_transformer.data.batches import Batches, Block, batch_sizes
from tf_transformer.data.ids import Batch, tokenized
from tf_transformer.data.pairs import MAX_LENGTH as MAX_LENGTH
from tf_transformer.data.pairs import Text, encoder_of, rows_of
from tf_transformer.data.sources import TextSource
from tf_transformer.data.text_files import Paths, file_pairs
from tf_transformer.data.text_files import check_text_pairs as check_text_pairs
from tf_transformer.data.text_files import read_text_pairs as read_text_pairs
from tf_transformer.masks import PAD_ID
from tf_transformer.tokenizers.tokenizer import Tokenizer
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
        first_epoch: index of the epoch to begin with, for example `Checkpoints.epoch` of a run that resumes.

    Returns:
        a dataset of int32 ids: source [B, S] ends with EOS, target_in [B, T] begins with BOS, target_out [B, T] ends
        with EOS; 0 is padding.
    """
    check_text_pairs(source, target, skip_bad_lines)
    sources = (TextSource(*files, skip_bad_lines) for files in file_pairs(source, target))
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
    """Batches like those of `text_pairs`, from pairs of strings, which are tokenized once.

    Pairs with an empty side are skipped.

    Args:
        pairs: (source, target), for example `zip(sources, targets)`, or a `tf.data.Dataset` of them.
        max_length: pairs with a side of more tokens, EOS included, are skipped.
    """
    batch_sizes([max_length], batch_tokens)

    texts: Any = pairs.as_numpy_iterator() if hasattr(pairs, "as_numpy_iterator") else pairs
    ids = tokenized(rows_of(texts), encoder_of(tokenizer), max_length, tokenizer.vocab_size)
    made = Batches([Block.of(ids, max_length)], batch_tokens, seed if shuffle else None)
    count = None if repeat else len(made)
    if keras.backend.backend() != "tensorflow":
        return Feed(made, first_epoch * len(made), count)
    epochs = itertools.count(first_epoch)

    def batches() -> Iterator[Batch]:
        if count is None:
            return made.since(first_epoch * len(made))
        first = next(epochs) * count  # each iteration has its own order
        return (made[number] for number in range(first, first + count))

    import tensorflow as tf

    size = tf.data.INFINITE_CARDINALITY if count is None else count  # without it Keras warns at the end of an epoch
    return dataset(batches).apply(tf.data.experimental.assert_cardinality(size))


class Feed(keras.utils.PyDataset):
    """Batches for `fit` on any backend: ((source, target_in), target_out).

    Args:
        batches: by their numbers.
        first: the number of the first one.
        count: of an epoch; the next epoch has the next ones. `None` means without end.
    """

    @checked
    def __init__(self, batches: Batches, first: Natural = 0, count: Natural | None = None) -> None:
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
    """Batches as a `tf.data.Dataset` of ((source, target_in), target_out)."""
    import tensorflow as tf

    ids, options = tf.TensorSpec((None, None), tf.int32), tf.data.Options()
    options.autotune.enabled = False  # nothing here needs it, and whoever drops an iterator waits up to a minute for it
    pairs = tf.data.Dataset.from_generator(lambda: map(Batch.pair, batches()), output_signature=((ids, ids), ids))
    return pairs.prefetch(16).with_options(options)


@checked
def for_replicas(batches: Any, replicas: Count) -> Any:
    """Batches, a `tf.data.Dataset`, for a `tf.distribute` strategy: each is cut into `replicas` parts with the same
    number of rows.

    Rows of padding, which do not count, make the number of rows a multiple of `replicas`. Every worker makes the same
    batches and takes its own parts.
    """
    import tensorflow as tf

    def pad(ids: Tensor) -> Any:
        return tf.pad(ids, [(0, -tf.shape(ids)[0] % replicas), (0, 0)], constant_values=PAD_ID)

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    even = batches.map(lambda inputs, target_out: ((pad(inputs[0]), pad(inputs[1])), pad(target_out)))
    return even.with_options(options)


@checked
def fed(batches: Batches, replicas: Count, first: Natural = 0, count: Natural | None = None) -> Any:
    """What a `Trainer` gives to `fit`.

    Args:
        batches: by their numbers.
        replicas: devices that share a batch, on TensorFlow.
        first: the number of the first batch.
        count: of batches; `None` means without end.
    """
    if keras.backend.backend() != "tensorflow":
        return Feed(batches, first, count)
    made = dataset(lambda: itertools.islice(batches.since(first), count))
    return for_replicas(made, replicas)
