"""Beam search (section 6.1) against exhaustive search, greedy search and the same algorithm in plain lists."""

import math

import numpy as np
import oracle
import pytest
import tensorflow as tf
from conftest import close
from hypothesis import given
from hypothesis import strategies as st
from keras import ops
from markov import ALPHAS, END, START, agree, on_tensorflow, problem_of, random_models, search

from tf_transformer.decoding.beams import Hypotheses
from tf_transformer.decoding.primitives import NEG_INF, ON_TENSORFLOW
from tf_transformer.decoding.search import Decoder, FixedShapes, SearchProblem, beam_search, detailed_search

# Against other searches


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("V, L, B", [(3, 5, 24), (4, 4, 16), (5, 3, 16), (5, 4, 3)])
def test_a_beam_as_wide_as_the_candidates_is_exhaustive_search(V, L, B, alpha):
    models, n_best = random_models(B, L, V), 7
    result = search(models, L, beam_size=V * (V - 1) ** (L - 1), length_penalty=alpha, n_best=n_best)
    for b in range(B):
        expected = oracle.exhaustive_search(oracle.markov(models[b], START), V, END, L, alpha)
        agree(result, b, [(*output, True) for output in expected[:n_best]])


@pytest.mark.parametrize("alpha", [*ALPHAS, 3.0])
def test_one_beam_is_greedy_search(alpha):
    models = random_models(48, 6, 5)
    result = search(models, 6, beam_size=1, length_penalty=alpha)
    finished = 0
    for b, model in enumerate(models):
        ids, log_prob = oracle.greedy(oracle.markov(model, START), END, 6)
        agree(result, b, [(log_prob / oracle.length_penalty(len(ids), alpha), log_prob, ids, ids[-1] == END)])
        finished += ids[-1] == END
    assert 5 < finished < 43  # the models are of both kinds


@pytest.mark.parametrize("beam_size", [1, 3])
def test_an_end_with_id_0_is_an_end_like_any_other(beam_size):
    """It is followed by zeros, which are no tokens. Equal to a search in which the ids 0 and 1 are exchanged."""
    models, names = random_models(24, 6, 5, seed=2), np.array([1, 0, 2, 3, 4])
    options = {"beam_size": beam_size, "n_best": beam_size, "patience": math.inf}
    fixed = None if ON_TENSORFLOW else FixedShapes(beam_size, 6)
    problem = problem_of(models[:, :, names][..., names], 6, fixed)
    problem = problem._replace(start_ids=ops.ones((24,), "int32"), end_id=0)
    got = Hypotheses(*map(ops.convert_to_numpy, beam_search(problem, **options)))
    want = search(models, 6, **options)
    close(got.scores, want.scores)
    for part in ("lengths", "finished"):
        np.testing.assert_array_equal(getattr(got, part), getattr(want, part), err_msg=part)
    is_token = np.arange(6) < want.lengths[..., np.newaxis]
    np.testing.assert_array_equal(got.ids, np.where(is_token, names[want.ids], 0))
    assert 0 < want.finished.sum() < want.finished.size and len({*want.lengths.flat}) > 3


@pytest.mark.parametrize("exact_n", [1, 2])
def test_the_wanted_outputs_are_those_of_a_search_for_as_many(exact_n):
    """A search for five ends when the first `exact_n` are certain. The others are best effort."""
    models, sizes = random_models(31, 7, 5, seed=5), {"beam_size": 5, "length_penalty": 0.6}
    result = search(models, 7, n_best=5, exact_n=ops.convert_to_tensor(exact_n), **sizes)
    for part, single in zip(result, search(models, 7, n_best=exact_n, **sizes), strict=True):
        np.testing.assert_array_equal(part[:, :exact_n], single)
    whole = search(models, 7, n_best=5, **sizes)
    assert not np.array_equal(result.ids, whole.ids)


@given(
    V=st.integers(2, 6),
    L=st.integers(0, 6),
    K=st.integers(1, 5),
    n_best=st.integers(1, 4),
    alpha=st.sampled_from(ALPHAS),
    seed=st.integers(0, 999),
)
def test_any_size_of_search(V, L, K, n_best, alpha, seed):
    models = random_models(5, L, V, seed)
    result = search(models, L, beam_size=K, length_penalty=alpha, n_best=n_best)
    assert result.ids.shape == (5, n_best, L)
    for b, model in enumerate(models):
        expected = oracle.beam_search(oracle.markov(model, START), END, L, K, alpha, n_best)
        agree(result, b, expected)


@pytest.mark.parametrize("patience", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("alpha", [1.0, 3.0])
def test_a_search_ends_when_patience_times_the_beams_have_ended(patience, alpha):
    models = random_models(40, 9, 5, seed=7)
    result = search(models, 9, beam_size=4, length_penalty=alpha, n_best=4, patience=patience)
    exact = search(models, 9, beam_size=4, length_penalty=alpha, n_best=4)
    for b, model in enumerate(models):
        agree(result, b, oracle.beam_search(oracle.markov(model, START), END, 9, 4, alpha, 4, patience))
    assert (result.scores <= exact.scores + 1e-6).all()
    assert alpha < 3 or not np.array_equal(result.ids, exact.ids)  # where an exact search is long


# Rows


def test_a_row_is_searched_as_if_alone():
    """Beam size, length penalty, maximum length and patience may differ from row to row."""
    beam_size, max_length = np.array([1, 3, 4, 2, 4, 3, 1, 4, 4]), np.array([6, 5, 0, 6, 1, 3, 2, 6, 6])
    alpha, patience = np.array([0, 0.6, 1, 0, 0.6, 1, 1, 0, 3]), np.array([math.inf] * 6 + [2.0, 1.0, 0.5])
    models = random_models(9, 6, 5, seed=3)
    options = {"beam_size": beam_size, "length_penalty": alpha, "patience": patience}
    together = search(models, max_length, n_best=3, **options)
    assert together.ids.shape == (9, 3, 6)
    for b, L in enumerate(max_length):
        of_row = {name: value[b].item() for name, value in options.items()}
        expected = oracle.beam_search(
            oracle.markov(models[b], START), END, L, of_row["beam_size"], alpha[b], 3, patience[b]
        )
        agree(together, b, expected)
        single = search(models[b : b + 1], L, n_best=3, **of_row)
        for part, of_batch in zip(single[1:], together[1:], strict=True):
            close(part[0], of_batch[b])
        assert np.array_equal(single.ids[0], together.ids[b, :, :L])


def keep_tokens(cache, slots):
    """Keeps slots of a cache with one value per row and the tokens by slot [B, C]."""
    return cache[0], tf.gather(cache[1], slots, batch_dims=1)


@on_tensorflow
def test_one_sentence_has_matmuls_of_a_fixed_size():
    """In a traced search, as converters to other engines need them."""
    shapes = []

    def step(ids, position, slot, ancestry, cache):
        shapes.append(ids.shape.as_list())
        return tf.zeros([*ids.shape, 5]) + tf.cast(position, tf.float32), cache

    problem = SearchProblem(Decoder(step, (), lambda cache, _: cache), tf.constant([START]), tf.constant([7]), END)
    tf.function(lambda: beam_search(problem, beam_size=3, n_best=3), autograph=False).get_concrete_function()
    assert shapes == [[1, 3]]


def test_a_search_of_fixed_steps_is_whole_or_empty():
    models, options = random_models(23, 11, 5), {"beam_size": 3, "n_best": 3, "patience": 1.0}
    whole = search(models, 11, **options)
    ended = []
    for steps in (3, 5, 7, 11):
        result = search(models, 11, steps, **options)
        assert result.ids.shape == (23, 3, steps)
        has = result.lengths[:, 0] > 0
        for part, expected in zip(result, whole, strict=True):
            expected = expected[:, :, :steps] if part.ndim == 3 else expected
            # The shapes of the two differ, and with them the order of additions.
            np.testing.assert_allclose(part[has], expected[has], rtol=1e-6)
        assert np.all(result.scores[~has] == np.float32(NEG_INF)) and not result.ids[~has].any()
        ended.append(int(has.sum()))
    assert 0 < ended[0] < ended[1] < ended[2] and ended[3] == 23


@on_tensorflow
@pytest.mark.parametrize("steps, round_", [(1, 1), (3, 1), (2, 7)])
def test_rows_and_slots_leave_without_a_trace(steps, round_, monkeypatch):
    """A step gets only running rows, and each beam attends only to the slots of its history, in order."""
    monkeypatch.setattr("tf_transformer.decoding.growing.STEPS", steps)
    monkeypatch.setattr("tf_transformer.decoding.growing.ROUND", round_)
    models = random_models(19, 11, 5, seed=8)
    models[:, :, :, END] += np.linspace(9, -9, 19)[:, np.newaxis, np.newaxis]  # some end soon, some never
    sizes = set()

    def step(ids, position, slot, ancestry, cache):
        of_row, tokens = cache[0], cache[1].numpy()  # [B, C], the token in each slot
        tokens[:, slot : slot + ids.shape[1]] = ids
        assert of_row.shape[0] == ids.shape[0] == ancestry.shape[0] and tokens.shape[1] == ancestry.shape[2]
        sizes.add((ids.shape[0], tokens.shape[1]))
        histories = [[row[seen] for seen in beams] for row, beams in zip(tokens, ancestry.numpy(), strict=True)]
        assert np.array(histories).shape == (*ids.shape, position + 1)
        assert np.array_equal(np.array(histories)[:, :, -1], ids)
        logits = tf.gather(of_row[:, position], ids, batch_dims=1)
        return logits, (of_row, tf.constant(tokens)), 10 * position + ids

    cache = (tf.constant(models), tf.zeros([19, 1], tf.int32))
    most = np.resize([11, 5, 7], 19)
    problem = SearchProblem(Decoder(step, cache, keep_tokens), tf.fill([19], START), most, END)
    result, details = detailed_search(problem, beam_size=3, n_best=3)
    for b, model in enumerate(models):
        next_log_probs = oracle.markov(model, START)
        agree(result, b, oracle.beam_search(next_log_probs, END, most[b], 3, 0.6, 3))
        for ids, log_probs, attended, length in zip(
            *(part[b].numpy() for part in (*details, result.lengths)), strict=True
        ):
            before = [START, *ids[: max(length - 1, 0)]]
            expected = [next_log_probs(tuple(ids[:t]))[ids[t]] for t in range(length)]
            close(log_probs, np.pad(expected, [0, 11 - length]))
            assert attended.tolist() == [10 * t + before[t] if t < length else 0 for t in range(11)]
    rows, slots = (sorted(set(column)) for column in zip(*sizes, strict=True))
    assert rows[0] <= 9 and rows[-1] == 19
    assert slots[0] == 3 * steps and slots[-1] < 33  # fewer than of all steps and beams


# Ends


@on_tensorflow
def test_the_search_stops_when_nothing_better_can_come():
    """Three certain tokens of at most a hundred take three steps."""
    positions = []
    logits = np.full((3, 5, 5), -30.0, "float32")
    for newest, following in ((START, 2), (2, 3), (3, END)):
        logits[:, newest, following] = 0

    def step(ids, position, slot, ancestry, cache):
        positions.append(int(position))
        return tf.gather(tf.constant(logits), ids, batch_dims=1), cache

    result = beam_search(
        SearchProblem(Decoder(step, [], lambda cache, slots: cache), tf.fill([3], START), [100] * 3, END)
    )
    assert positions == [0, 1, 2]
    assert np.array_equal(result.ids[:, 0, :3], [[2, 3, END]] * 3)


@pytest.mark.parametrize("K", [1, 2, 4])
def test_equals_may_come_in_any_order(K):
    """Outputs of equal length tie. Each occurs once, and the shortest is best."""
    V, L = 4, 3
    result = search(np.zeros((2, L, V, V), "float32"), L, beam_size=K, length_penalty=0.0, n_best=K)
    for b in range(2):
        lengths = [int(length) for length in result.lengths[b] if length]
        outputs = [result.ids[b, k, :length].tolist() for k, length in enumerate(lengths)]
        close(result.scores[b, : len(lengths)], np.array(lengths) * np.log(1 / V))
        assert outputs and len({tuple(ids) for ids in outputs}) == len(outputs)
        assert lengths == sorted(lengths)
        assert K < V or outputs[0] == [END]  # wide enough to see it


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_scores_are_float32_whatever_the_logits(dtype):
    logits = ops.cast(random_models(1, 6, 5), dtype)
    result = search(logits, 6, beam_size=3)
    assert result.scores.dtype == result.log_probs.dtype == "float32"
    rounded = ops.convert_to_numpy(ops.cast(logits[0], "float32")).astype("float64")
    agree(result, 0, oracle.beam_search(oracle.markov(rounded, START), END, 6, 3, 0.6))
