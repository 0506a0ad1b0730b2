"""Random sampling of outputs, with the same decoding step as the search. The paper does not sample."""

from typing import Any

import numpy as np
import tensorflow as tf

from tf_transformer.base.type_names import Tensor
from tf_transformer.base.values import Count, Natural, Positive, Seed, checked
from tf_transformer.text.beams import Hypotheses
from tf_transformer.text.logits import IMPOSSIBLE, RULES, Prefixes, restricted
from tf_transformer.text.search import SearchProblem
from tf_transformer.text.search_options import SEARCH_OPTIONS


@checked
def seeds_of(seed: Seed, rows: Natural) -> np.ndarray:
    """A seed of each row of a list, for `sample`, of one seed for all: uint64 [rows].

    It depends on the seed and the row's place alone, so that a row's output does not depend on how the list is batched.
    """
    return np.random.PCG64(seed).random_raw(rows)


@checked
def sample(
    problem: SearchProblem,
    seeds: Tensor,
    temperature: Positive | tf.Tensor = 1.0,
    k: Count | tf.Tensor | None = None,
    **options: int | tf.Tensor,
) -> Hypotheses:
    """Sample an output for each sentence, symbol by symbol, from softmax(logits / temperature) of the k likeliest ones.

    Each row has its own stream of random numbers: rows that begin alike have independent outputs if their seeds differ,
    and a row's output is the same in every batch.

    Args:
        problem: the model's step, and the beginning of each row.
        seeds: uint64 [B], such as those of `seeds_of`; equal seeds give equal numbers.
        temperature: float32 above 0; near 0 it draws the likeliest symbol.
        k: the number of symbols to choose from, which may be an int32 tensor; `None` means all.
        options: int32, each a number or [B]: those of a search that `logits.RULES` names, such as min_length.

    Returns:
        `Hypotheses` with N = 1. Log-probabilities are the model's own, at temperature 1, and scores equal them.
    """
    decoder, start_ids, max_length, end_id = problem
    B = tf.shape(start_ids)[0]
    max_length = tf.cast(max_length, tf.int32)
    rules = {
        name: tf.broadcast_to(tf.cast(options.get(name, SEARCH_OPTIONS[name].default), tf.int32), [B]) for name in RULES
    }
    rules["min_length"] = tf.minimum(rules["min_length"], max_length)
    L = tf.maximum(tf.reduce_max(max_length), 0)
    chances = _chances(seeds, L)

    def draw(
        position: Tensor,
        newest: Tensor,
        ids: Tensor,
        log_probs: Tensor,
        lengths: Tensor,
        running: Tensor,
        finished: Tensor,
        cache: Any,
    ) -> Any:
        seen = tf.broadcast_to(tf.range(L) <= position, [B, 1, L])
        logits, cache, *_ = decoder.step(newest[:, tf.newaxis], position, position, seen, cache)
        logits = tf.cast(logits, tf.float32)
        possible = restricted(logits, Prefixes(ids[:, tf.newaxis], position, end_id), rules)[:, 0]
        logits, V = logits[:, 0], tf.shape(logits)[2]  # [B, V]
        chance = tf.gather(chances, position, axis=1)
        if k is None:
            newest = _drawn(possible, temperature, chance)
        else:
            top_logits, symbols = tf.math.top_k(possible, tf.minimum(k, V))
            newest = tf.gather(symbols, _drawn(top_logits, temperature, chance), batch_dims=1)
        log_prob = tf.gather(logits, newest, batch_dims=1) - tf.reduce_logsumexp(logits, axis=1)
        ids += tf.where(running, newest, 0)[:, tf.newaxis] * tf.one_hot(position, L, dtype=tf.int32)
        log_probs += tf.where(running, log_prob, 0.0)
        lengths += tf.cast(running, tf.int32)
        finished |= running & (newest == end_id)
        running &= ~finished & (lengths < max_length)
        return position + 1, newest, ids, log_probs, lengths, running, finished, cache

    none = tf.zeros([B], tf.int32)
    loop = (
        tf.constant(0),
        start_ids,
        tf.zeros([B, L], tf.int32),
        tf.zeros([B]),
        none,
        max_length > 0,
        none > 0,
    )
    _, _, *found, _, finished, _ = tf.while_loop(
        lambda *state: tf.reduce_any(state[5]),
        draw,
        (*loop, decoder.keep(decoder.cache, tf.zeros([B, L], tf.int32))),
    )
    ids, log_probs, lengths = (part[:, tf.newaxis] for part in found)
    return Hypotheses(ids, log_probs, log_probs, lengths, finished[:, tf.newaxis])


def _chances(seeds: Tensor, L: Tensor) -> Any:
    """Each row's numbers in [0, 1), which draw its symbols: float64 [B, L].

    They are SplitMix64's (Steele et al. 2014), since TensorFlow's own generators take one seed for all rows.
    """

    def mixed(bits: Tensor, shift: int, factor: int = 1) -> Any:
        return (bits ^ tf.bitwise.right_shift(bits, tf.constant(shift, tf.uint64))) * tf.constant(factor, tf.uint64)

    number = tf.cast(tf.range(1, L + 1), tf.uint64) * tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    bits = mixed(tf.cast(seeds, tf.uint64)[:, tf.newaxis] + number, 30, 0xBF58476D1CE4E5B9)
    bits = mixed(mixed(bits, 27, 0x94D049BB133111EB), 31)
    return tf.cast(tf.bitwise.right_shift(bits, tf.constant(11, tf.uint64)), tf.float64) * 2.0**-53


def _drawn(logits: Tensor, temperature: Tensor, chance: Tensor) -> Any:
    """The first symbol up to which softmax(logits [B, V] / temperature) adds up to more than chance [B]: int32 [B].

    In float64, since the probabilities of a large vocabulary's rare symbols are below the steps of float32.
    """
    below = tf.cast(logits - tf.reduce_max(logits, axis=1, keepdims=True), tf.float64)  # 0 at the likeliest
    heated = tf.where(below < IMPOSSIBLE / 2, tf.float64.min, below / tf.cast(temperature, tf.float64))
    total = tf.cumsum(tf.nn.softmax(heated), axis=1)
    symbol = tf.reduce_sum(tf.cast(total <= chance[:, tf.newaxis] * total[:, -1:], tf.int32), axis=1)
    return tf.minimum(symbol, tf.shape(logits)[1] - 1)
