"""A GRU as a search calls it, beside exhaustive search over its outputs."""

import itertools

import keras
import numpy as np

import tf_transformer as tt
from tf_transformer.decoding.beams import penalty

V, UNITS, END = 5, 7, 2


def network():
    keras.utils.set_random_seed(5)
    embedding, cell, dense = keras.layers.Embedding(V, 3), keras.layers.GRUCell(UNITS), keras.layers.Dense(V)

    def step(ids, state):
        output, state = cell(embedding(ids), state)
        return 3.0 * dense(output), state

    step(np.array([1]), [np.zeros((1, UNITS), "float32")])
    return step


def log_prob(step, state, ids):
    total = 0.0
    for before, id in itertools.pairwise([1, *ids]):
        logits, state = step(np.array([before]), state)
        logits = keras.ops.convert_to_numpy(logits)[0].astype("float64")
        total += logits[id] - np.log(np.exp(logits).sum())
    return total


def test_a_wide_beam_is_exhaustive_search():
    step, longest, beams = network(), 3, 27
    first = np.random.default_rng(3).normal(size=(2, UNITS)).astype("float32")
    fixed = None if keras.backend.backend() == "tensorflow" else tt.decoding.FixedShapes(beams, longest)
    decoder = tt.recurrent_decoder(step, [keras.ops.convert_to_tensor(first)], fixed)
    start, limit = (keras.ops.convert_to_tensor(np.array([n, n], "int32")) for n in (1, longest))
    problem = tt.decoding.SearchProblem(decoder, start, limit, END)
    found = tt.decoding.beam_search(problem, beam_size=beams, n_best=2, patience=9.0, length_penalty=0.6)
    for row in range(2):
        outputs = {}
        for n in range(longest):
            for body in itertools.product([0, 1, 3, 4], repeat=n):
                total = log_prob(step, [first[row : row + 1]], [*body, END])
                outputs[body] = total / float(penalty(n + 1, 0.6))
        best = sorted(outputs, key=outputs.get)[::-1][:2]
        ids = [[int(id) for id in ids if id] for ids in keras.ops.convert_to_numpy(found.ids)[row]]
        assert ids == [[id for id in (*body, END) if id] for body in best]
        scores = keras.ops.convert_to_numpy(found.scores)[row]
        np.testing.assert_allclose(scores, [outputs[body] for body in best], atol=1e-4)
