"""Sampling against the probabilities of every output, and against greedy search."""

import numpy as np
import oracle
import pytest
from conftest import close
from keras import ops
from markov import END, START, problem_of, random_models, search

from tf_transformer.decoding.beams import Hypotheses
from tf_transformer.decoding.primitives import ON_TENSORFLOW
from tf_transformer.decoding.sampling import sample, uniforms_of
from tf_transformer.decoding.search import FixedShapes


def sampled(logits, max_length, seed, rows=None, **options):
    longest = max(max_length)
    problem = problem_of(logits, max_length, None if ON_TENSORFLOW else FixedShapes(1, longest))

    def step(ids, position, slot, ancestry, cache):
        if ON_TENSORFLOW:  # where the loop is not compiled
            assert np.array_equal(ancestry[0, 0], np.arange(ancestry.shape[2]) <= slot)
        return problem.decoder.step(ids, position, slot, ancestry, cache)

    checked = problem._replace(decoder=problem.decoder._replace(step=step))
    return Hypotheses(
        *map(ops.convert_to_numpy, sample(checked, uniforms_of(seed, rows or range(len(logits)), longest), **options))
    )


def test_samples_have_their_probabilities():
    """Compares counts of 20,011 samples of one model with the probability of each output."""
    B, V, L, temperature = 20_011, 3, 3, 1.7
    model = random_models(1, L, V, seed=5)[0]
    result = sampled(np.repeat(model[np.newaxis], B, axis=0), [L] * B, seed=3, temperature=temperature)
    counts = {}
    for ids, length in zip(result.ids[:, 0], result.lengths[:, 0], strict=True):
        counts[tuple(ids[:length])] = counts.get(tuple(ids[:length]), 0) + 1
    expected = {
        tuple(ids): np.exp(log_prob)
        for _, log_prob, ids in oracle.exhaustive_search(oracle.markov(model / temperature, START), V, END, L, 0.0)
    }
    for ids, count in counts.items():
        p = expected.pop(ids, None)
        if p is None:  # not finished
            assert len(ids) == L and END not in ids
        else:
            assert abs(count - B * p) < 5 * np.sqrt(B * p * (1 - p)), ids
    assert sum(expected.values()) < 1e-3  # all other outputs are unlikely


def test_a_rows_sample_is_the_same_in_every_batch():
    """Other rows and their lengths have no effect."""
    models, lengths = random_models(13, 11, 5, seed=6), np.array([11, 2, 5, 3, 1, 11, 7, 2, 2, 0, 9, 4, 6])
    models[..., END] -= 1
    whole = sampled(models, lengths, 2**70)
    for rows in ([4], [8, 1, 7], [12, 3], range(9)):
        part = sampled(models[list(rows)], lengths[list(rows)], 2**70, list(rows))
        for result, expected in zip(part, whole, strict=True):
            expected = expected[list(rows)]
            close(result, expected[..., : result.shape[2]] if result.ndim == 3 else expected)


def test_rows_that_begin_alike_are_independent():
    """First tokens of neighboring rows are independent: pairs occur by the product of their probabilities."""
    pairs, V = 20_011, 5
    model = random_models(1, 2, V, seed=5)[0]
    tokens = sampled(np.repeat(model[np.newaxis], 2 * pairs, axis=0), [1] * 2 * pairs, seed=3).ids[:, 0, 0]
    p = np.exp(oracle.markov(model, START)([]))
    for first, second in ((tokens[::2], tokens[1::2]), (tokens[:pairs], tokens[pairs:])):
        counts = np.bincount(V * first + second, minlength=V * V).reshape(V, V)
        expected = pairs * np.outer(p, p)
        freedom = V * V - 1
        assert np.sum((counts - expected) ** 2 / expected) < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("temperature", [1.3e-38, 3.3e38])
def test_the_ends_of_temperature(temperature):
    """Near 0 the likeliest token, near infinity all alike, but never a masked one."""
    models = np.repeat(random_models(1, 3, 4, seed=6), 4_001, axis=0)
    result = sampled(models, [3] * 4_001, seed=2, min_length=4, temperature=temperature).ids[:, 0]
    if temperature < 1:
        assert np.array_equal(result, np.repeat(result[:1], 4_001, axis=0))
    counts = np.bincount(result[:, 0], minlength=4)
    possible = [token for token in range(4) if token != END]
    assert counts[END] == 0
    if temperature > 1:
        assert np.abs(counts[possible] - 4_001 / 3).max() < 5 * np.sqrt(4_001 * 2 / 9)


def test_a_sample_and_its_log_probability():
    models, lengths = random_models(9, 6, 5, seed=6), [6, 6, 3, 0, 6, 1, 6, 6, 2]
    result = sampled(models, lengths, seed=1, k=2)
    for b, model in enumerate(models):
        next_log_probs, length = oracle.markov(model, START), int(result.lengths[b, 0])
        ids, log_prob = result.ids[b, 0].tolist(), 0.0
        for n in range(length):
            log_probs = next_log_probs(ids[:n])
            log_prob += log_probs[ids[n]]
            assert ids[n] in np.argsort(log_probs)[-2:]  # k = 2
        close(result.log_probs[b, 0], log_prob)
        assert not any(ids[length:]) and length <= lengths[b]
        assert bool(result.finished[b, 0]) == (END in ids[:length])
        assert result.finished[b, 0] or length == lengths[b]
    again, other = sampled(models, lengths, seed=1, k=2), sampled(models, lengths, seed=2, k=2)
    assert np.array_equal(result.ids, again.ids) and not np.array_equal(result.ids, other.ids)


def test_samples_of_a_minimum_length():
    """No EOS before it. The other tokens share its probability in sampling, but not in the log-probability."""
    models, min_length = np.repeat(random_models(1, 3, 4, seed=6), 20_011, axis=0), np.arange(20_011) % 5
    models[..., END] += 1
    result = sampled(models, [3] * 20_011, seed=2, min_length=min_length)
    lengths = result.lengths[:, 0]
    assert all(set(lengths[min_length == n]) == set(range(max(min(n, 3), 1), 4)) for n in range(5))
    log_probs = oracle.markov(models[0], START)([])
    first, rest = result.ids[:, 0, 0][min_length == 2], 1 - np.exp(log_probs[END])
    for token in {0, 2, 3}:
        p = np.exp(log_probs[token]) / rest
        assert abs((first == token).sum() - len(first) * p) < 5 * np.sqrt(len(first) * p * (1 - p)), token
    for b in range(0, 20_011, 997):
        ids = result.ids[b, 0, : lengths[b]].tolist()
        next_log_probs = oracle.markov(models[b], START)
        close(result.log_probs[b, 0], sum(next_log_probs(ids[:n])[id] for n, id in enumerate(ids)))


def test_samples_without_repeats():
    models, sizes = random_models(211, 9, 4, seed=8), np.arange(211) % 4
    models[..., END] -= 5
    result = sampled(models, [9] * 211, seed=3, no_repeat_ngram_size=sizes)
    lengths, repeated = result.lengths[:, 0], [0] * 4
    for b, size in enumerate(sizes):
        ids = result.ids[b, 0, : lengths[b]].tolist()
        size = size or 2
        ngrams = [tuple(ids[n : n + size]) for n in range(len(ids) + 1 - size)][: 3 if size == 1 else None]
        repeated[sizes[b]] += len(set(ngrams)) < len(ngrams)
    assert repeated[1:] == [0, 0, 0] and repeated[0] > 20


def test_without_heat_a_sample_is_greedy_search():
    models = random_models(11, 6, 5)
    result = sampled(models, [6] * 11, seed=0, temperature=1e-6)
    for part, expected in zip(result[2:], search(models, 6, beam_size=1)[2:], strict=True):
        close(part, expected)
