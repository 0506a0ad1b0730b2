"""Random sampling of outputs, with the same decoding step as the search. The paper does not sample."""

from typing import Any

import tensorflow as tf

from tf_transformer.text.logits import RULES, Prefixes, restricted
from tf_transformer.text.search import Hypotheses, SearchProblem
from tf_transformer.text.search_options import SEARCH_OPTIONS
from tf_transformer.type_names import Tensor


def sample(
    problem: SearchProblem,
    seed: int | tf.Tensor,
    temperature: float | tf.Tensor = 1.0,
    k: int | None = None,
    **options: int | tf.Tensor,
) -> Hypotheses:
    """Sample an output for each sentence, symbol by symbol, from softmax(logits / temperature) of the k likeliest ones.

    Args:
        problem: the model's step, and the beginning of each row.
        seed: int; equal seeds give equal outputs.
        temperature: float32 above 0; near 0 it draws the likeliest symbol.
        k: the number of symbols to choose from; `None` means all.
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
        logits, cache = decoder.step(newest[:, tf.newaxis], position, position, seen, cache)
        logits = tf.cast(logits, tf.float32)
        possible = restricted(logits, Prefixes(ids[:, tf.newaxis], position, end_id), rules)[:, 0]
        logits, V = logits[:, 0], tf.shape(logits)[2]  # [B, V]
        top_logits, symbols = tf.math.top_k(possible, tf.minimum(k or V, V))
        drawn = tf.random.stateless_categorical(top_logits / temperature, 1, tf.stack([seed, position]), tf.int32)
        newest = tf.gather(symbols, drawn, batch_dims=1)[:, 0]
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
