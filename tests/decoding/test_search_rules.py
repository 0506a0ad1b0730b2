"""Rules for which tokens may follow: minimum lengths, no repeats, prefixes, custom masks."""

import numpy as np
import oracle
import pytest
from conftest import close
from keras import ops
from markov import ALPHAS, END, START, agree, random_models, search

from tf_transformer.decoding.beams import Prefixes, begins_with, restricted
from tf_transformer.decoding.primitives import NEG_INF


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("V, L, B, shortest", [(3, 5, 24, 4), (4, 4, 16, 2), (5, 3, 16, 3)])
def test_outputs_of_a_minimum_length_are_those_of_exhaustive_search(V, L, B, shortest, alpha):
    """Shorter outputs are dropped, and their probability is lost."""
    models, n_best = random_models(B, L, V), 7
    models[..., END] += 2
    sizes = {"beam_size": V * (V - 1) ** (L - 1), "n_best": n_best}
    result = search(models, L, length_penalty=alpha, min_length=shortest, **sizes)
    shorter = 0
    for b in range(B):
        outputs = oracle.exhaustive_search(oracle.markov(models[b], START), V, END, L, alpha)
        expected = [(*output, True) for output in outputs if len(output[2]) >= shortest]
        agree(result, b, expected[:n_best])
        shorter += len(outputs[0][2]) < shortest
    assert shorter > B / 3  # the rule changes the best output


def masked(next_log_probs, is_masked):
    """Masks the tokens `is_masked(ids, V)` of a model."""

    def restricted(ids):
        log_probs = np.array(next_log_probs(ids))
        log_probs[is_masked(ids, len(log_probs))] = -np.inf
        return log_probs

    return restricted


def test_a_minimum_length_is_per_row():
    """0 and 1 have no effect, and the maximum length caps the minimum."""
    rows = [(1, 4, 6), (3, 5, 5), (4, 1, 0), (2, 0, 6), (7, 9, 2), (3, 1, 4), (2, 3, 6)]  # beam_size, min, max
    models = random_models(len(rows), 6, 5, seed=3)
    models[..., END] += 2
    beam_size, min_length, max_length = (np.array(column) for column in zip(*rows, strict=True))
    together = search(models, max_length, beam_size=beam_size, min_length=min_length, n_best=3)
    for b, (K, shortest, L) in enumerate(rows):
        too_short = lambda ids, V, shortest=shortest, L=L: [END] * (len(ids) + 1 < min(shortest, L))  # noqa: E731
        next_log_probs = masked(oracle.markov(models[b], START), too_short)
        agree(together, b, oracle.beam_search(next_log_probs, END, L, K, 0.6, 3))
        single = search(models[b : b + 1], L, beam_size=K, min_length=shortest, n_best=3)
        for part, of_batch in zip(single[1:], together[1:], strict=True):
            close(part[0], of_batch[b])
        assert np.array_equal(single.ids[0], together.ids[b, :, :L])


def test_a_model_that_can_only_end_has_no_output_of_a_minimum_length():
    models = np.full((2, 4, 5, 5), -np.inf, "float32")
    models[..., END] = 0
    result = search(models, 4, beam_size=3, n_best=3, min_length=[2, 1])
    agree(result, 0, [])
    agree(result, 1, [(0.0, 0.0, [END], True)])


# Repeats


def repeats(ids, V, size):
    """Yields tokens that would repeat an n-gram of `size`."""
    for token in range(V):
        ngrams = [(*ids, token)[n : n + size] for n in range(len(ids) + 2 - size)]
        if size and ngrams[-1:] and ngrams[-1] in ngrams[:-1]:
            yield token


def test_no_sequence_comes_twice():
    """Rows differ in size, and 0 allows all."""
    sizes = np.array([0, 1, 2, 3, 2, 4, 1, 3] * 4)
    beams = np.array([1, 2, 3, 4] * 8)
    models = random_models(len(sizes), 11, 5, seed=4)
    models[..., END] -= 3
    result = search(models, 11, beam_size=beams, no_repeat_ngram_size=sizes, n_best=3)
    changed = 0
    for b, (model, size, K) in enumerate(zip(models, sizes, beams, strict=True)):
        free = oracle.markov(model, START)
        without_repeats = masked(free, lambda ids, V, size=size: [*repeats(ids, V, size)])
        expected = oracle.beam_search(without_repeats, END, 11, K, 0.6, 3)
        if size != 1:  # after 4 of 5 tokens the rule would mask all, so it masks none
            agree(result, b, expected)
        changed += expected != oracle.beam_search(free, END, 11, K, 0.6, 3)
        ids = result.ids[b, 0, : result.lengths[b, 0]].tolist()
        ngrams = [tuple(ids[n : n + size]) for n in range(len(ids) + 1 - size)]
        assert not size or len(set(ngrams[: 4 if size == 1 else None])) == len(ngrams[: 4 if size == 1 else None])
    assert changed > 12  # the rule changes outputs


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_masked_tokens_are_those_of_transformers(size):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(size)
    ids, logits = rng.integers(2, 5, (31, 13)), rng.normal(size=(31, 7)).astype("float32")
    process = transformers.NoRepeatNGramLogitsProcessor(size)
    for position in (0, 1, 4, 13):
        theirs = process(torch.tensor(ids[:, :position]), torch.tensor(logits)).numpy()
        padded = np.where(np.arange(13) < position, ids, 0)[:, np.newaxis].astype("int32")
        of_rows = {"min_length": ops.zeros(31, "int32"), "no_repeat_ngram_size": ops.full((31,), size, "int32")}
        prefixes = Prefixes(ops.convert_to_tensor(padded), ops.convert_to_tensor(position, "int32"), END)
        ours = ops.convert_to_numpy(restricted(ops.convert_to_tensor(logits[:, np.newaxis]), prefixes, of_rows))[:, 0]
        assert np.array_equal(np.isinf(theirs), ours == np.float32(NEG_INF))
        assert np.array_equal(theirs[~np.isinf(theirs)], ours[~np.isinf(theirs)])


def test_a_prefix_may_repeat_itself():
    models, prefix = random_models(2, 6, 5, seed=2), np.array([[3, 3, 3, 4], [3, 4, 3, 4]], "int32")
    allowed = begins_with(prefix, 5)
    result = search(models, 6, beam_size=2, allowed=allowed, no_repeat_ngram_size=[1, 2])
    assert np.array_equal(result.ids[:, 0, :4], prefix)


# What may follow


def test_outputs_begin_with_their_prefix():
    models, prefixes = random_models(4, 5, 6, seed=2), [[3, 4, 2], [5, 0, 0], [0, 0, 0], [4, END, 0]]
    result = search(models, 5, beam_size=3, length_penalty=1.0, allowed=begins_with(np.array(prefixes, "int32"), 6))
    for b, (model, prefix) in enumerate(zip(models, prefixes, strict=True)):
        prefix = [token for token in prefix if token]
        wrong = lambda ids, V, prefix=prefix: [x for x in range(V) if [x] != (prefix[len(ids) :][:1] or [x])]  # noqa: E731
        agree(result, b, oracle.beam_search(masked(oracle.markov(model, START), wrong), END, 5, 3, 1.0))
        assert result.ids[b, 0, : len(prefix)].tolist() == prefix


def test_only_what_is_allowed_follows():
    """No token twice in a row, for each beam by itself."""

    def allowed(ids, position, row):
        newest = ops.expand_dims(ops.take(ids, ops.maximum(position - 1, 0), axis=2), 2)  # [B, K, 1]
        return (position == 0) | (ops.arange(5, dtype="int32") != newest)

    models = random_models(7, 6, 5, seed=4)
    models[:, :, np.arange(5), np.arange(5)] += 4  # repetition is the likeliest
    result = search(models, 6, beam_size=4, n_best=4, allowed=allowed)
    for b, model in enumerate(models):
        next_log_probs = masked(oracle.markov(model, START), lambda ids, V: list(ids[-1:]))
        agree(result, b, oracle.beam_search(next_log_probs, END, 6, 4, 0.6, 4))
