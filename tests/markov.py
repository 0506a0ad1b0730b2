"""Searches of Markov models: small problems with known answers."""

import math

import numpy as np
import tensorflow as tf
from conftest import close, normal

from tf_transformer.text.primitives import IMPOSSIBLE
from tf_transformer.text.search import Decoder, Fixed, SearchProblem, beam_search

START, END = 0, 1  # the start symbol can be an output like any other
ALPHAS = [0.0, 0.6, 1.0]


def search(logits, max_length, steps=None, **options):
    """Search Markov models, one a sentence: logits [B, L, V, V] of the next symbol by its place and the newest one.

    The search is exact if no patience is given.
    """
    logits = tf.convert_to_tensor(logits)
    B = logits.shape[0]

    def step(ids, position, slot, ancestry, cache):
        return tf.gather(cache[0][:, position], ids, batch_dims=1), cache

    max_length = np.broadcast_to(max_length, [B])
    fixed = steps and Fixed(int(np.max(options.get("beam_size", 4), initial=1)), steps)
    decoder = Decoder(step, [logits], lambda cache, slots: cache, fixed)
    start = SearchProblem(decoder, tf.fill([B], START), max_length, END)
    return beam_search(start, **({"patience": math.inf} | options))


def random_models(B, L, V, seed=0):
    return 1.5 * normal(B, L, V, V, seed=seed)


def agree(found, b, expected):
    """Sentence b of what was found is `expected`: (score, log-probability, ids, finished), best first, and no more."""
    found = [part.numpy()[b] for part in found]
    first = [part[: len(expected)] for part in found]
    for ids, score, log_prob, length, finished, wanted in zip(*first, expected, strict=True):
        assert (ids[:length].tolist(), bool(finished)) == (wanted[2], wanted[3])
        assert not ids[length:].any()
        close([score, log_prob], wanted[:2])
    ids, scores, log_probs, lengths, finished = (part[len(expected) :] for part in found)
    assert np.all(scores == np.float32(IMPOSSIBLE)) and np.all(log_probs == np.float32(IMPOSSIBLE))
    assert not (ids.any() or lengths.any() or finished.any())
