"""Sampling against the probabilities of every output, and against greedy search."""

import numpy as np
import oracle
import tensorflow as tf
from conftest import close
from test_search import END, START, random_models, search

from tf_transformer.text.sampling import sample
from tf_transformer.text.search import Decoder, SearchProblem


def draw(logits, max_length, seed, **options):
    def step(ids, position, slot, ancestry, cache):
        assert np.array_equal(ancestry[0, 0], np.arange(ancestry.shape[2]) <= slot)
        return tf.gather(cache[0][:, position], ids, batch_dims=1), cache

    B = len(logits)
    start_ids = tf.fill([B], START)
    start = SearchProblem(Decoder(step, [tf.constant(logits)], lambda cache, slots: cache), start_ids, max_length, END)
    return sample(start, seed, **options)


def test_samples_come_as_often_as_they_are_likely():
    """Twenty thousand outputs of one model against the probability of each."""
    B, V, L, temperature = 20_011, 3, 3, 1.7
    model = random_models(1, L, V, seed=5)[0]
    found = draw(np.repeat(model[np.newaxis], B, axis=0), [L] * B, seed=3, temperature=temperature)
    counts = {}
    for ids, length in zip(found.ids[:, 0].numpy(), found.lengths[:, 0].numpy(), strict=True):
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
    assert sum(expected.values()) < 1e-3  # what never came is unlikely


def test_a_sample_and_its_log_probability():
    models, lengths = random_models(9, 6, 5, seed=6), [6, 6, 3, 0, 6, 1, 6, 6, 2]
    found = draw(models, lengths, seed=1, k=2)
    for b, model in enumerate(models):
        next_log_probs, length = oracle.markov(model, START), int(found.lengths[b, 0])
        ids, log_prob = found.ids[b, 0].numpy().tolist(), 0.0
        for n in range(length):
            log_probs = next_log_probs(ids[:n])
            log_prob += log_probs[ids[n]]
            assert ids[n] in np.argsort(log_probs)[-2:]  # k = 2
        close(found.log_probs[b, 0], log_prob)
        assert not any(ids[length:]) and length <= lengths[b]
        assert bool(found.finished[b, 0]) == (END in ids[:length])
        assert found.finished[b, 0] or length == lengths[b]
    again, other = draw(models, lengths, seed=1, k=2), draw(models, lengths, seed=2, k=2)
    assert np.array_equal(found.ids, again.ids) and not np.array_equal(found.ids, other.ids)


def test_samples_of_a_least_length():
    """No end before it; the other symbols share its probability when they are drawn, and not in the log-probability."""
    models, least = np.repeat(random_models(1, 3, 4, seed=6), 20_011, axis=0), np.arange(20_011) % 5
    models[..., END] += 1
    found = draw(models, [3] * 20_011, seed=2, min_length=least)
    lengths = found.lengths[:, 0].numpy()
    assert all(set(lengths[least == n]) == set(range(max(min(n, 3), 1), 4)) for n in range(5))
    log_probs = oracle.markov(models[0], START)([])
    first, rest = found.ids[:, 0, 0].numpy()[least == 2], 1 - np.exp(log_probs[END])
    for symbol in {0, 2, 3}:
        p = np.exp(log_probs[symbol]) / rest
        assert abs((first == symbol).sum() - len(first) * p) < 5 * np.sqrt(len(first) * p * (1 - p)), symbol
    for b in range(0, 20_011, 997):
        ids = found.ids[b, 0, : lengths[b]].numpy().tolist()
        next_log_probs = oracle.markov(models[b], START)
        close(found.log_probs[b, 0], sum(next_log_probs(ids[:n])[id] for n, id in enumerate(ids)))


def test_samples_without_repeats():
    models, sizes = random_models(211, 9, 4, seed=8), np.arange(211) % 4
    models[..., END] -= 5
    found = draw(models, [9] * 211, seed=3, no_repeat_ngram_size=sizes)
    lengths, repeated = found.lengths[:, 0].numpy(), [0] * 4
    for b, size in enumerate(sizes):
        ids = found.ids[b, 0, : lengths[b]].numpy().tolist()
        size = size or 2
        ngrams = [tuple(ids[n : n + size]) for n in range(len(ids) + 1 - size)][: 3 if size == 1 else None]
        repeated[sizes[b]] += len(set(ngrams)) < len(ngrams)
    assert repeated[1:] == [0, 0, 0] and repeated[0] > 20


def test_without_heat_a_sample_is_greedy_search():
    models = random_models(11, 6, 5)
    found = draw(models, [6] * 11, seed=0, temperature=1e-6)
    for part, expected in zip(found[2:], search(models, 6, beam_size=1)[2:], strict=True):
        close(part, expected)
