"""Search through a Transformer's cache, against a search without one and the oracle."""

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from conftest import close, draw_weights, normal, weights_of
from test_search import END, keep_tokens

from tf_transformer import SmoothedCrossEntropy, TokenAccuracy, Transformer, TransformerConfig, WarmupSchedule
from tf_transformer.decoding import tensor_translator
from tf_transformer.decoding.decoder import decoder_of
from tf_transformer.decoding.search import Decoder, SearchProblem, beam_search, detailed_search

BOS = 2


def tiny(vocab_size, **sizes):
    model = Transformer(TransformerConfig(dropout=0.0, vocab_size=vocab_size, **sizes))
    model.build()
    return model


def search_transformer(model, source, max_length, bias=None, search=beam_search, **options):
    """Searches like the translator, with ids. `bias` [L, V] is added to the logits."""
    bias = np.zeros((max(max_length), model.config.vocab_size), "float32") if bias is None else bias
    memory, memory_mask, _ = model.encode(source)
    inner = decoder_of(model, memory, memory_mask)

    def step(ids, position, slot, ancestry, cache):
        logits, *others = inner.step(ids, position, slot, ancestry, cache)
        return logits + tf.constant(bias)[position], *others

    return search(
        SearchProblem(Decoder(step, inner.cache, inner.keep), tf.fill([len(source)], BOS), max_length, END), **options
    )


def search_without_cache(model, source, max_length, bias, **options):
    """Searches without a cache: each step decodes all tokens of all beams."""

    def step(ids, position, slot, ancestry, cache):
        (B, K), tokens = ids.shape, cache[1].numpy()  # [B, C], the token in each slot
        tokens[:, slot : slot + K] = ids
        rows = [[row[seen] for seen in beams] for row, beams in zip(tokens, ancestry.numpy(), strict=True)]
        targets = np.array(rows).reshape(B * K, -1)  # [B * K, position + 1]
        assert targets.shape[1] == position + 1
        every_beam = (tf.repeat(memory, K, axis=0) for memory in cache[0])
        logits, _, _ = model.decode(targets, *every_beam)
        return tf.reshape(logits[:, -1] + bias[position], [B, K, -1]), (cache[0], tf.constant(tokens))

    cache = (model.encode(source)[:2], tf.zeros([len(source), 1], tf.int32))
    return beam_search(
        SearchProblem(Decoder(step, cache, keep_tokens), tf.fill([len(source)], BOS), max_length, END), **options
    )


@pytest.mark.parametrize(
    "K, alpha, other",
    [
        (4, 1.0, {"num_layers": 1, "num_decoder_layers": 2, "norm_first": True, "activation": "gelu"}),
        (3, 0.6, {}),
    ],
)
def test_search_through_the_cache_is_search_without_one(K, alpha, other, monkeypatch):
    monkeypatch.setattr("tf_transformer.decoding.growing.STEPS", 2)
    monkeypatch.setattr("tf_transformer.decoding.growing.ROUND", 1)
    sizes = {"num_layers": 2, "d_model": 11, "d_ff": 19, "num_heads": 3, "d_k": 5, "d_v": 7}
    model = draw_weights(tiny(13, **sizes | other))
    source = np.array([[3, 9, 12, 4, 0], [8, 5, 0, 0, 0], [6, 6, 7, 2, 11]])  # [B, S]
    # A random Transformer repeats itself. Random biases make beams part and meet before they end. Id 0 is excluded,
    # since a whole target would hide it as padding.
    bias = 2 * normal(7, 13, seed=1)
    bias[:3, END], bias[:, 0] = -9, -np.inf
    options = {"max_length": [6, 7, 5], "beam_size": K, "length_penalty": alpha, "n_best": K, "bias": bias}
    result, details = search_transformer(model, source, search=detailed_search, **options)
    expected = search_without_cache(model, source, **options)
    for part in ("ids", "lengths", "finished"):
        assert np.array_equal(getattr(result, part), getattr(expected, part))
    close(result.log_probs, expected.log_probs, atol=1e-4)
    close(result.scores, expected.scores, atol=1e-4)
    # A single sentence, without padding, has the same outputs.
    single = search_transformer(model, source[1:2, :2], **options | {"max_length": [7]})
    assert np.array_equal(single.ids[0], result.ids[1])
    close(single.scores[0], result.scores[1], atol=1e-4)
    # The oracle computes the same log-probabilities and attention, so each beam reads the cache of its ancestors.
    weights, other = weights_of(model), {"num_layers": 2} | other
    for b, k in np.argwhere(result.lengths):
        ids = result.ids[b, k, : result.lengths[b, k]].numpy()
        logits, scores = oracle.transformer(source[b], [BOS, *ids[:-1]], weights, num_heads=3, **other)
        log_probs = [oracle.log_softmax(row)[token] for row, token in zip(logits + bias[: len(ids)], ids, strict=True)]
        close(result.log_probs[b, k], sum(log_probs), atol=1e-4)
        close(details.log_probs[b, k, : len(ids)], log_probs, atol=1e-5)
        attention = np.mean(scores["cross"][-1], axis=0)[:, : np.count_nonzero(source[b]) - 1]  # without EOS
        assert details.attended[b, k, : len(ids)].numpy().tolist() == attention.argmax(axis=1).tolist()


@pytest.mark.slow
def test_a_copy_task_is_learned_and_decoded_exactly():
    """Copies sentences of 1 to 5 tokens, trained by the recipe of section 5, in greedy and beam search."""
    V, L, position = 11, 6, np.arange(6)
    random = np.random.default_rng(0)

    def sentences(count):
        lengths = random.integers(1, L, (count, 1))
        tokens = random.integers(BOS + 1, V, (count, L))
        return np.where(position < lengths, tokens, np.where(position == lengths, END, 0))  # [B, L]

    model = tiny(V, num_layers=1, d_model=32, d_ff=64, num_heads=4)
    model.compile(
        optimizer=keras.optimizers.Adam(WarmupSchedule(32, warmup_steps=200), beta_1=0.9, beta_2=0.98, epsilon=1e-9),
        loss=SmoothedCrossEntropy(0.1),
        metrics=[TokenAccuracy()],
    )
    source = sentences(64 * 700)
    shifted = np.where(source == 0, 0, np.pad(source[:, :-1], [(0, 0), (1, 0)], constant_values=BOS))
    model.fit((source, shifted), source, batch_size=64, verbose=0)
    source = sentences(50)
    for options in ({"beam_size": 1}, {"beam_size": 3}):
        result = search_transformer(model, source, [L + 2] * len(source), **options)
        assert np.all(result.finished)
        assert np.array_equal(result.ids[:, 0, :L], source)
        assert not np.any(result.ids[:, 0, L:])


@pytest.mark.parametrize(("beam_size", "widest"), [(8, 8), (np.array([2, 6]), 6), (None, 4)])
def test_a_search_of_fixed_shapes_has_the_beams_of_its_request(beam_size, widest, translator, monkeypatch):
    """On JAX and PyTorch, whatever the translator's own beam size is."""
    monkeypatch.setattr(tensor_translator, "ON_TENSORFLOW", False)
    monkeypatch.setattr(
        tensor_translator.TensorTranslator, "problem", lambda self, source, length, most, start, fixed, _: fixed
    )
    options = {} if beam_size is None else {"beam_size": beam_size}
    fixed, _ = translator.replace(beam_size=4)._request(np.ones((2, 5), "int32"), np.array([4, 4]), options, None, None)
    assert fixed.beams == widest
