"""Decoder-only models: cached = whole, search = exhaustive search, samples by probability, exports with text."""

import itertools

import keras
import numpy as np
import pytest
from exported_texts import TEXTS, served

import tf_transformer as tt
from tf_transformer.decoding.beams import penalty
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID

V = 13
PROMPTS = [[1], [1, 5, 6], [1, 4, 4, 4, 7, 8, 9]]


class NoPadding(keras.layers.Layer):
    """Logits of the embedding's table, without PAD, which hides itself from a whole sequence."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding, self.supports_masking = embedding, True

    def call(self, x):
        logits = self.embedding.logits(x)
        return keras.ops.where(keras.ops.arange(logits.shape[-1]) == 0, -1e4, logits)


def language_model(vocab_size=V, positions="sinusoidal", scale=0.7):
    embedding = tt.layers.PositionalEmbedding(vocab_size, 14, positions, max_length=53, dropout=0.0)
    layers = [tt.layers.DecoderLayer(num_heads=2, d_ff=31, norm_first=True, dropout=0.0) for _ in range(2)]
    model = tt.LanguageModel(embedding, layers, keras.layers.LayerNormalization(), NoPadding(embedding))
    model(np.ones((1, 2), "int32"))
    random = np.random.default_rng(7)
    for weight in model.weights:
        weight.assign(scale * random.normal(size=weight.shape))
    return model


def log_probs(model, ids):
    """The log-probabilities of the next token, from the whole sequence."""
    logits = keras.ops.convert_to_numpy(model(np.array([ids])))[0, -1].astype("float64")
    logits -= logits.max()
    return logits - np.log(np.exp(logits).sum())


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_cached_is_the_whole_sequence(positions):
    model = language_model(positions=positions)
    for prompt, (found,) in zip(PROMPTS, model.search(PROMPTS, max_length=11, beam_size=1), strict=True):
        ids, total = list(prompt), 0.0
        for _ in range(11):
            scores = log_probs(model, ids)
            ids.append(int(scores.argmax()))
            total += scores.max()
            if ids[-1] == EOS_ID:
                break
        assert found.ids == [id for id in ids[len(prompt) :] if id != EOS_ID]
        assert found.log_prob == pytest.approx(total, abs=1e-3)
        assert found.finished == (ids[-1] == EOS_ID)


def test_a_wide_beam_is_exhaustive_search():
    model, longest, tokens = language_model(vocab_size=5), 3, [1, 3, 4]
    outputs = {}
    for n in range(longest):
        for body in itertools.product(tokens, repeat=n):
            row = [1, 4, *body, EOS_ID]
            total = sum(log_probs(model, row[:i])[row[i]] for i in range(2, len(row)))
            outputs[body] = total / float(penalty(n + 1, 0.6))
    best = sorted(outputs.items(), key=lambda pair: -pair[1])[:3]
    options = {"beam_size": 27, "patience": 9.0, "length_penalty": 0.6}
    found = model.search([[1, 4]], max_length=longest, n_best=3, **options)[0]
    assert [tuple(one.ids) for one in found] == [body for body, _ in best]
    np.testing.assert_allclose([one.score for one in found], [score for _, score in best], atol=1e-4)


@pytest.mark.parametrize(("options", "keep"), [({}, 12), ({"k": 3}, 3), ({"p": 4}, 4), ({"temperature": 2.5}, 12)])
def test_samples_have_their_probabilities(options, keep):
    model, count = language_model(scale=0.5), 1009
    exact = np.exp(log_probs(model, PROMPTS[1]) / options.get("temperature", 1.0))
    exact /= exact.sum()
    order = np.argsort(-exact)
    if "p" in options:  # The four likeliest tokens are the fewest whose probabilities add up to p.
        options = {"p": float(np.cumsum(exact[order])[keep - 1] - 1e-3)}
    exact[order[keep:]] = 0
    exact /= exact.sum()
    found = model.sample([PROMPTS[1]] * count, max_length=1, seed=11, **options)
    drawn = np.bincount([one.ids[0] if one.ids else EOS_ID for (one,) in found], minlength=V)
    assert not drawn[exact == 0].any()
    expected = count * exact[exact > 0]
    chi_square = ((drawn[exact > 0] - expected) ** 2 / expected).sum()
    assert chi_square < 33  # 12 degrees of freedom pass it once in a thousand seeds


def test_adapters_count_after_a_search():
    model = language_model()
    trained, before = keras.Model(ids := keras.Input((None,), dtype="int32"), model(ids)), model.search(PROMPTS)
    tt.enable_lora(trained, rank=2)
    for weight in trained.trainable_weights:
        weight.assign(np.ones(weight.shape))
    tuned = model.search(PROMPTS)
    assert tuned != before
    fresh = tt.LanguageModel(model.embedding, model.layers, model.norm, model.head)
    assert fresh.search(PROMPTS) == tuned


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([], {}, "^prompts: expected lists of at least one id"),
        ([[]], {}, "^prompts: expected lists of at least one id"),
        ([1, 5], {}, "^prompts: expected lists of at least one id"),
        ([[1, V]], {}, r"^prompts: expected ids from 1 to 12, got \[1, 13\]$"),
        ([[1, 0, 5]], {}, "^prompts: expected ids from 1"),
        ([[1.5]], {}, "^prompts: expected ids from 1"),
        ([[1]], {"max_length": 99}, "learned positions"),
        ([[1]], {"beams": 4}, "^options: "),
        ([[1]], {"n_best": 5}, "^n_best: expected at most beam_size=4"),
    ],
)
def test_prompts_that_are_refused(prompts, options, message):
    with pytest.raises(tt.BadInput, match=message):
        language_model(positions="learned").search(prompts, **options)


def test_layers_that_are_refused():
    embedding, layer = tt.layers.PositionalEmbedding(V, 14), tt.layers.DecoderLayer(num_heads=2, d_ff=31)
    for layers in ([], layer, [tt.layers.EncoderLayer(num_heads=2, d_ff=31)]):
        with pytest.raises(tt.BadInput, match="^layers: expected a list of DecoderLayers"):
            tt.LanguageModel(embedding, layers)
    with pytest.raises(tt.BadInput, match="^layers: expected built layers"):
        tt.LanguageModel(embedding, [layer]).search([[1]])


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="SavedModels need TensorFlow")
def test_an_export_generates_what_python_does(tmp_path):
    tokenizer = tt.Tokenizer.train_from_iterator(["Where is the red door?", "The old woman opens it."] * 53, 310)
    model = language_model(tokenizer.vocab_size, scale=0.3)
    generator = tt.TextGenerator(model, tokenizer, max_length=7, max_prompt_length=23, n_best=3)
    generator.save(tmp_path / "own/1", checked=True)
    outputs = served(tmp_path / "own/1", TEXTS)
    assert outputs["text"] == generator(TEXTS)
    best = model.search(generator.encode(TEXTS), 7)
    np.testing.assert_allclose(outputs["score"], [one.score for (one, *_) in best], atol=1e-4)
    listed = served(tmp_path / "own/1", TEXTS, "generate")
    assert [texts[0] for texts in listed["texts"]] == outputs["text"]
    assert tt.load(tmp_path / "own/1")(TEXTS) == outputs["text"]
    with pytest.raises(tt.BadInput, match="^options: expected those of either search or sampling"):
        generator(["door"], beam_size=2, seed=3)
    assert generator.encode(["door " * 99])[0][0] == BOS_ID and len(generator.encode(["door " * 99])[0]) == 23
