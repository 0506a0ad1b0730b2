"""Searches of Markov models: small problems with known solutions."""

import math

import numpy as np
import pytest
from conftest import close, normal
from keras import ops

from tf_transformer.decoding.beams import Hypotheses
from tf_transformer.decoding.primitives import NEG_INF, ON_TENSORFLOW, gather
from tf_transformer.decoding.search import Decoder, FixedShapes, SearchProblem, beam_search

START, END = 0, 1  # START can be an output like any other token
ALPHAS = [0.0, 0.6, 1.0]

on_tensorflow = pytest.mark.skipif(not ON_TENSORFLOW, reason="a feature of TensorFlow")


def problem_of(logits, max_length, fixed=None):
    """Returns the search problem of a Markov model per sentence, whose logits [B, L, V, V] of the next token depend on
    its position and the newest token."""

    def step(ids, position, slot, ancestry, cache):
        return gather(cache[0][:, position], ids, batch_dims=1), cache

    B = logits.shape[0]
    decoder = Decoder(step, [ops.convert_to_tensor(logits)], lambda cache, slots: cache, fixed)
    return SearchProblem(decoder, ops.full((B,), START, "int32"), np.broadcast_to(max_length, [B]).astype("int32"), END)


def search(logits, max_length, steps=None, **options):
    """Searches Markov models and returns arrays of NumPy. The search is exact by default."""
    longest = steps or int(np.max(max_length, initial=0))
    fixed = None
    if steps or not ON_TENSORFLOW:
        fixed = FixedShapes(int(np.max(options.get("beam_size", 4), initial=1)), max(longest, 1))
        logits = ops.pad(logits, ((0, 0), (0, max(0, 1 - logits.shape[1])), (0, 0), (0, 0)))
    hypotheses = beam_search(problem_of(logits, max_length, fixed), **({"patience": math.inf} | options))
    hypotheses = Hypotheses(*map(ops.convert_to_numpy, hypotheses))
    return hypotheses._replace(ids=hypotheses.ids[:, :, :longest])


def random_models(B, L, V, seed=0):
    return 1.5 * normal(B, L, V, V, seed=seed)


def agree(hypotheses, b, expected):
    """Checks that sentence b has exactly the expected outputs (score, log-probability, ids, finished), best first."""
    hypotheses = [ops.convert_to_numpy(part)[b] for part in hypotheses]
    first = [part[: len(expected)] for part in hypotheses]
    for ids, score, log_prob, length, finished, output in zip(*first, expected, strict=True):
        assert (ids[:length].tolist(), bool(finished)) == (output[2], output[3])
        assert not ids[length:].any()
        close([score, log_prob], output[:2])
    ids, scores, log_probs, lengths, finished = (part[len(expected) :] for part in hypotheses)
    assert np.all(scores == np.float32(NEG_INF)) and np.all(log_probs == np.float32(NEG_INF))
    assert not (ids.any() or lengths.any() or finished.any())
