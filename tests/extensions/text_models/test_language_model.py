"""Decoder-only models: cached = whole, search = exhaustive search, samples by probability, exports with text."""

import functools
import itertools

import keras
import numpy as np
import pytest
from conftest import TEXTS, array
from promises import tensorflow_only
from served import Served

import tf_transformer as tt
from tf_transformer.decoding.beams import penalty
from tf_transformer.tokenizers.strings import utf8
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID

V = 13
PROMPTS = [[1], [1, 5, 6], [1, 4, 4, 4, 7, 8, 9]]


class NoPadding(keras.layers.Layer):
    """Logits of the embedding table, without PAD, which hides itself from a whole sequence."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding, self.supports_masking = embedding, True

    def call(self, x):
        logits = self.embedding.logits(x)
        return keras.ops.where(keras.ops.arange(logits.shape[-1]) == 0, -1e4, logits)


def language_model(vocab_size=V, positions="sinusoidal", scale=0.7, num_layers=1):
    embedding = tt.layers.PositionalEmbedding(vocab_size, 14, positions, max_length=53, dropout=0.0)
    layers = [tt.layers.DecoderLayer(num_heads=2, d_ff=31, norm_first=True, dropout=0.0) for _ in range(num_layers)]
    model = tt.LanguageModel(embedding, layers, keras.layers.LayerNormalization(), NoPadding(embedding))
    model(np.ones((1, 2), "int32"))
    random = np.random.default_rng(7)
    for weight in model.weights:
        weight.assign(scale * random.normal(size=weight.shape))
    return model


@pytest.fixture(scope="module")
def learned():
    return language_model(positions="learned", num_layers=2)


@pytest.fixture(scope="module")
def sinusoidal():
    return language_model(scale=0.5, num_layers=2)


def log_probs(model, rows):
    """Returns the log-probabilities of the next token at each position, from whole sequences: `[B, T, V]`."""
    logits = keras.ops.convert_to_numpy(model(np.array(rows))).astype("float64")
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_cached_is_the_whole_sequence(positions, request):
    model = request.getfixturevalue(positions)
    for prompt, (output,) in zip(PROMPTS, model.search(PROMPTS, max_length=11, beam_size=1), strict=True):
        ids = output.ids + [EOS_ID] * output.finished
        assert output.finished or len(ids) == 11
        scores = log_probs(model, [prompt + ids])[0, len(prompt) - 1 : -1]
        assert scores.argmax(axis=-1).tolist() == ids
        assert output.log_prob == pytest.approx(scores.max(axis=-1).sum(), abs=1e-3)


def test_a_wide_beam_is_exhaustive_search():
    model, longest, prompt = language_model(vocab_size=5), 3, [1, 4]
    bodies = [body for n in range(longest) for body in itertools.product([1, 3, 4], repeat=n)]
    rows = [[*prompt, *body, EOS_ID, *[1] * (longest - 1 - len(body))] for body in bodies]
    outputs = {}
    for body, row, scores in zip(bodies, rows, log_probs(model, rows), strict=True):
        total = sum(scores[i - 1][row[i]] for i in range(2, len(body) + 3))
        outputs[body] = total / float(penalty(len(body) + 1, 0.6))
    best = sorted(outputs.items(), key=lambda pair: -pair[1])[:3]
    options = {"beam_size": 27, "patience": 9.0, "length_penalty": 0.6}
    result = model.search([prompt], max_length=longest, n_best=3, **options)[0]
    assert [tuple(output.ids) for output in result] == [body for body, _ in best]
    np.testing.assert_allclose([output.score for output in result], [score for _, score in best], atol=1e-4)


@pytest.mark.parametrize(("options", "count"), [({"k": 3}, 3), ({"p": 4}, 4), ({"temperature": 2.5}, 12)])
def test_samples_have_their_probabilities(options, count, sinusoidal):
    size = 1009
    exact = np.exp(log_probs(sinusoidal, [PROMPTS[1]])[0, -1] / options.get("temperature", 1.0))
    exact /= exact.sum()
    order = np.argsort(-exact)
    if "p" in options:  # p is reached by exactly four tokens.
        options = {"p": float(np.cumsum(exact[order])[count - 1] - 1e-3)}
    exact[order[count:]] = 0
    exact /= exact.sum()
    samples = sinusoidal.sample([PROMPTS[1]] * size, max_length=1, seed=11, **options)
    counts = np.bincount([output.ids[0] if output.ids else EOS_ID for (output,) in samples], minlength=V)
    assert not counts[exact == 0].any()
    expected = size * exact[exact > 0]
    chi_square = ((counts[exact > 0] - expected) ** 2 / expected).sum()
    assert chi_square < 33  # 12 degrees of freedom pass it once in a thousand seeds


def test_adapters_count_after_a_search():
    model, options = language_model(), {"max_length": 3, "beam_size": 1}
    trained = keras.Model(ids := keras.Input((None,), dtype="int32"), model(ids))
    before = model.search(PROMPTS, **options)
    tt.enable_lora(trained, rank=2)
    for weight in trained.trainable_weights:
        weight.assign(np.ones(weight.shape))
    assert model.search(PROMPTS, **options) != before


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
def test_wrong_prompts(prompts, options, message, learned):
    with pytest.raises(tt.BadInput, match=message):
        learned.search(prompts, **options)


def test_wrong_layers(learned, translator):
    embedding, layer = tt.layers.PositionalEmbedding(V, 14), tt.layers.DecoderLayer(num_heads=2, d_ff=31)
    for layers in ([], layer, [tt.layers.EncoderLayer(num_heads=2, d_ff=31)]):
        with pytest.raises(tt.BadInput, match="^layers: expected a list of DecoderLayers"):
            tt.LanguageModel(embedding, layers)
    with pytest.raises(tt.BadInput, match="^layers: expected built layers"):
        tt.LanguageModel(embedding, [layer]).search([[1]])
    with pytest.raises(tt.BadInput, match="^prompts: expected at most 53 learned positions"):
        tt.TextGenerator(learned, translator.tokenizer)


def small(shared=False, **options):
    """Returns a language model, and a functional model of it."""
    make = functools.partial(tt.layers.DecoderLayer, num_heads=2, d_ff=9, norm_first=True)
    layers = [make()] * 2 if shared else [make(), make()]
    embedding = tt.layers.PositionalEmbedding(V, 6, **options)
    lm = tt.LanguageModel(embedding, layers, keras.layers.LayerNormalization())
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, lm(ids))
    random = np.random.default_rng(5)
    for weight in model.weights:
        weight.assign(random.normal(size=weight.shape))
    return lm, model


ROWS = np.random.default_rng(2).integers(1, V, (3, 7))


class Around(keras.Model):
    """A model of one's own with a language model and another layer."""

    def __init__(self):
        super().__init__()
        self.lm, self.scale = small()[0], keras.layers.Dense(V)

    def call(self, ids, training=None):
        return self.scale(self.lm(ids, training=training))


def test_a_model_around_has_its_weights(tmp_path):
    """They are trained, stored and loaded."""
    model = Around()
    before, logits = [np.array(weight) for weight in model.lm.weights], array(model(ROWS))
    assert len(model.weights) == len(model.lm.weights) + 2 == 29
    model.save_weights(tmp_path / "a.weights.h5")
    model.compile("sgd", tt.SmoothedCrossEntropy(0.0), run_eagerly=True)
    model.fit(ROWS[:, :-1], ROWS[:, 1:], verbose=0)
    assert all(np.any(np.array(now) != was) for now, was in zip(model.lm.weights[1:], before[1:], strict=True))
    other = Around()
    other(ROWS)
    other.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_allclose(array(other(ROWS)), logits, atol=1e-6)


def test_a_frozen_language_model_is_not_trained():
    embedding, layers = tt.layers.PositionalEmbedding(V, 6), [tt.layers.DecoderLayer(num_heads=2, d_ff=9)]
    model = keras.Sequential([tt.LanguageModel(embedding, layers, trainable=False), keras.layers.Dense(3)])
    model(ROWS)
    assert len(model.trainable_weights) == 2 < len(model.weights)


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_keeps_search_and_samples(shared, translator, tmp_path):
    lm, model = small(shared, positions="learned", max_length=40)
    model.save(tmp_path / "a.keras")
    loaded = keras.models.load_model(tmp_path / "a.keras")
    again = loaded.layers[-1]
    assert isinstance(again, tt.LanguageModel) and len(again.weights) == len(lm.weights)
    np.testing.assert_array_equal(array(loaded(ROWS)), array(model(ROWS)))
    options = {"max_length": 5}
    if shared:  # the search compiles for seconds, and reads the model as the logits do
        assert again.search(PROMPTS, **options) == lm.search(PROMPTS, **options)
    else:
        assert again.sample(PROMPTS, **options) == lm.sample(PROMPTS, **options)
    clone = keras.models.clone_model(model)
    assert [tuple(weight.shape) for weight in clone.weights] == [tuple(weight.shape) for weight in model.weights]


def test_names_and_order_of_weights_are_those_of_its_layers():
    lm, model = small()
    parts = [lm.embedding, *lm.layers, lm.norm]
    assert [id(weight) for weight in model.weights] == [id(weight) for part in parts for weight in part.weights]
    assert all(weight.path.startswith(part.name) for part in parts for weight in part.weights)


def test_weights_of_earlier_versions_are_loaded(tmp_path):
    """There, a functional model had the layers themselves."""
    lm, model = small()
    ids = keras.Input((None,), dtype="int32")
    x = lm.embedding(ids)
    for layer in lm.layers:
        x = layer(x)
    keras.Model(ids, lm.embedding(lm.norm(x), reverse=True)).save_weights(tmp_path / "former.weights.h5")
    expected, other = array(model(ROWS)), small()[1]
    for weight in other.weights:
        weight.assign(weight * 0)
    other.load_weights(tmp_path / "former.weights.h5")
    np.testing.assert_allclose(array(other(ROWS)), expected, atol=1e-6)


class Positioned(keras.layers.Layer):
    def __init__(self, positions=True):
        super().__init__()
        self.words, self.places = keras.layers.Embedding(V, 6), keras.layers.Embedding(30, 6)
        self.positions = positions

    def call(self, ids):
        words = self.words(ids)
        return words + self.places(keras.ops.arange(keras.ops.shape(ids)[1])) if self.positions else words


class Mixed(tt.layers.PositionalEmbedding):
    """Vectors that depend on the token before."""

    def call(self, ids, **options):
        vectors = super().call(ids, **options)
        if options.get("reverse"):
            return vectors
        return vectors + keras.ops.pad(vectors[:, :-1], [[0, 0], [1, 0], [0, 0]])


@pytest.mark.parametrize(
    ("make", "refused"),
    [
        (lambda: keras.layers.Embedding(V, 6), False),
        (lambda: Positioned(False), False),
        (Positioned, True),
        (lambda: keras.Sequential([keras.layers.Embedding(V, 6), tt.layers.PositionalEncoding()]), True),
        (lambda: Mixed(V, 6), True),
        (lambda: keras.Sequential([keras.layers.Embedding(V, 6), keras.layers.Conv1D(6, 2, padding="causal")]), True),
    ],
    ids=["embedding", "own", "own positions", "sequential", "token before", "convolution"],
)
def test_embeddings_of_ones_own_are_right_or_refused(make, refused, translator):
    layers = [tt.layers.DecoderLayer(num_heads=2, d_ff=9, dropout=0.0)]
    model = tt.LanguageModel(make(), layers, head=keras.layers.Dense(V))
    model(ROWS)
    if refused:
        for continued in (model.search, model.sample):
            with pytest.raises(tt.BadInput, match="^embedding: expected a PositionalEmbedding, or vectors that do not"):
                continued(PROMPTS, max_length=3)
        with pytest.raises(tt.BadInput, match="^embedding: "):
            tt.TextGenerator(model, translator.tokenizer)
        return
    text = [1, 5]
    (output,) = model.search([text], max_length=6, beam_size=1, end_id=EOS_ID)[0]
    for token in output.ids:
        scores = log_probs(model, [text])[0, -1]
        assert token == 1 + scores[1:].argmax()  # id 0 is padding
        text.append(token)


def test_every_id_may_be_a_token():
    """Bytes have no padding: 0 is read and written, and may be the end."""
    model, _ = small(mask_zero=False, dropout=0.0)
    prompt, found = [0, 5, 0], []
    (output,) = model.search([prompt], max_length=9, beam_size=1, end_id=V - 1)[0]
    for _ in range(9):
        token = int(log_probs(model, [prompt + found])[0, -1].argmax())
        if token == V - 1:
            break
        found.append(token)
    assert output.ids == found
    likeliest = int(log_probs(model, [prompt])[0, -1].argmax())
    table = model.embedding.embeddings
    table.assign(np.array(table)[[likeliest, *(id for id in range(V) if id != likeliest)]])  # now 0 is the likeliest
    ended = model.search([[5, 0]], max_length=30, beam_size=4, end_id=0)[0][0]
    assert ended.finished and 0 not in ended.ids
    assert small()[0].search([[5]], max_length=9, end_id=0)[0][0].finished is False  # there it is padding


@tensorflow_only
def test_an_export_generates_what_python_does(tmp_path, translator):
    model = language_model(translator.tokenizer.vocab_size, scale=0.3)
    generator = tt.TextGenerator(model, translator.tokenizer, max_length=5, max_prompt_length=23, n_best=3)
    generator.save(tmp_path / "generator/1")
    served = Served(tmp_path / "generator/1")
    outputs, listed = served({"text": TEXTS}), served({"text": TEXTS}, "generate")
    served.close()
    texts = [text.decode() for text in outputs["text"]]
    assert texts == generator(TEXTS) == [row[0].decode() for row in listed["texts"]]
    best = model.search(generator.encode(TEXTS), 5)
    np.testing.assert_allclose(outputs["score"], [output.score for (output, *_) in best], atol=1e-4)
    assert tt.load(tmp_path / "generator/1")(TEXTS) == texts
    with pytest.raises(tt.BadInput, match="^options: expected those of either search or sampling"):
        generator(["door"], beam_size=2, seed=3)
    # The text as it is, whatever the model reads of it, then what it adds.
    for text, output in zip(TEXTS, texts, strict=True):
        assert output.startswith(utf8(text)) and not output.removeprefix(utf8(text)).startswith("  ")
    for text in ("\uff2fLD  Door\u00a0", "The old woman sees " * 30):  # not in normal form, and long
        assert generator(text).startswith(text) and not generator(text).removeprefix(text).startswith(" ")
    (long,) = generator.encode(["door " * 99])
    assert long[0] == BOS_ID and len(long) == 23
