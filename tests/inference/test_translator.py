"""Translations of strings in Python. `test_export.py` has the same from a SavedModel."""

import functools
import json
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import TEXTS

import tf_transformer as tt
from tf_transformer.decoding import tensor_translator
from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.tokenizers.tokenizer import EOS_ID


@pytest.fixture(scope="module")
def one_by_one(translator):
    """Translator with a batch size of 1, whose searches are traced once."""
    return translator.replace(batch_size=1)


def test_warnings_of_truncated_texts(translator, loaded):
    texts = ["door " * 99, "Two doors.", "door " * 113]
    message = "more tokens than the model reads in {} texts, truncated: {}$".format
    doors = r"'(door ){8}'\.\.\."
    for function in (translator, functools.partial(translator.sample, k=1), loaded):
        with pytest.warns(UserWarning, match=message("2 of 3", f"{doors}, {doors}")):
            first, _, last = function(text for text in texts)
        assert first == last != ""
        with warnings.catch_warnings(action="error"):
            function(["door", ""])
    with pytest.warns(UserWarning, match=message("4 of 4", r"('\ufffd(door ){7}door'\.\.\.,? ){3}and others")):
        loaded([b"\xff" + b"door " * 99] * 4)


def test_n_best_is_sorted_and_distinct(translator, loaded):
    assert translator(TEXTS[0]) == translator([TEXTS[0]])[0] == loaded(TEXTS[0]) != ""
    (hypotheses,) = translator.n_best(TEXTS[:1], 5)
    assert len(hypotheses) == 3  # at most beam_size
    scores = [hypothesis.score for hypothesis in hypotheses]
    assert scores == sorted(scores, reverse=True)
    assert len({hypothesis.text for hypothesis in hypotheses}) > 1


def test_translations_begin_with_their_prefix(translator):
    texts, prefixes = TEXTS[:1] * 2 + [TEXTS[6], ""], ["two doors", "", "a tower", "two"]
    result = translator.n_best(texts, 2, prefixes)
    begin = [
        [hypothesis.text.startswith(prefix) for hypothesis in row] for row, prefix in zip(result, prefixes, strict=True)
    ]
    assert begin == [[True] * 2, [True] * 2, [True] * 2, [False]]  # nothing in, nothing out
    free = translator.n_best(TEXTS[:1], 2)[0]
    assert [hypothesis.text for hypothesis in result[1]] == [hypothesis.text for hypothesis in free]
    with pytest.raises(tt.BadInput, match="expected a prefix for each of 2 texts, got 1"):
        translator.n_best(TEXTS[:2], 1, ["a"])


def test_a_prefix_fits_into_an_output_or_raises(translator):
    texts, (word,) = [TEXTS[0], "Two doors.", ""], translator.tokenizer.tokenize(["a"]).to_list()
    most = [len(row) + 7 for row in translator.tokenizer.tokenize(texts).to_list()]  # extra_length is 7
    prefixes = ["a " * (count // len(word)) for count in most]
    result = translator.n_best(texts, 2, prefixes)
    assert [row[0].text for row in result] == [prefixes[0].strip(), prefixes[1].strip(), ""]
    prefixes[1] += "a"
    with pytest.raises(
        tt.BadInput, match=f"prefixes: .* at most the {most[1]} tokens .* got {most[1] + 1} at index 1$"
    ):
        translator.n_best(texts, 1, prefixes)
    with pytest.raises(tt.BadInput, match="^texts: expected strings, got int at index 0$"):
        translator.n_best(texts, 1, [3, "", ""])


@pytest.mark.extensions
def test_a_prefix_out_of_vocabulary_raises():
    """MarianMT's vocabularies have no bytes."""
    pretrained = tt.Translator.from_pretrained(Path(__file__).parents[1] / "marian/trained")
    with pytest.raises(tt.BadInput, match="^prefixes: expected tokens of the vocabulary, got '東京 x' at index 1$"):
        pretrained.n_best(["a", "a"], 1, ["a", "東京 x"])


def test_samples(translator):
    texts = TEXTS[:1] * 5 + [""]
    samples = translator.sample(texts, temperature=1.0, seed=3)
    assert samples == translator.sample(texts, temperature=1.0, seed=3)
    assert len(set(samples)) == 6 and samples[-1] == ""
    assert translator.sample(texts[:1], temperature=1.0, seed=3) == samples[:1]  # whatever else is in the batch
    assert translator.sample(texts, seed=-1) != translator.sample(texts, seed=2**80)
    assert translator.sample(TEXTS[:1], temperature=1e-6) == translator.sample(TEXTS[:1], k=1)
    traced = len(translator._functions)
    assert translator.sample(texts, k=2**30) == translator.sample(texts, k=350) != translator.sample(texts, k=2)
    assert len(translator._functions) == traced  # not one for each k
    with pytest.raises(tt.BadInput, match="temperature: expected a positive number that float32 holds, got 0"):
        translator.sample(texts, temperature=0)


@pytest.mark.program
def test_weights_in_another_dtype(translator):
    cast = translator.astype("bfloat16")
    assert {weight.dtype for weight in cast.model.weights} == {"bfloat16"}
    for result, expected in zip(cast.model.get_weights(), translator.model.get_weights(), strict=True):
        np.testing.assert_allclose(result.astype("float32"), expected, rtol=1 / 128, atol=1e-6)
    source, target = (translator.source(tf.constant(texts))[0] for texts in (TEXTS, TEXTS[::-1]))
    log_probs, expected = cast.score_targets(source, target), translator.score_targets(source, target)
    assert log_probs.dtype == tf.float32
    np.testing.assert_allclose(log_probs, expected, atol=0.2)
    assert cast.n_best(TEXTS, 2)[0][0].score == pytest.approx(translator.n_best(TEXTS, 2)[0][0].score, rel=0.05)
    with pytest.raises(tt.BadInput, match="dtype: expected 'float32', 'bfloat16', 'float16' or 'int8', got 'int4'"):
        translator.astype("int4")


def test_reads_the_current_weights_of_a_model(translator):
    before = translator(TEXTS[0])
    bias = translator.model.decoder_layers[0].feed_forward.output_projection.bias
    value = bias.numpy()
    bias.assign(value + 3 * np.arange(len(value)))
    assert translator(TEXTS[0]) != before
    bias.assign(value)
    assert translator(TEXTS[0]) == before


def test_wrong_arguments(translator):
    small = tt.Transformer(tt.TransformerConfig(1, 12, 17, 3, vocab_size=30))
    with pytest.raises(tt.BadInput, match="^model: expected a tt.Transformer, got Sequential. Put a tokenizer"):
        tt.Translator(keras.Sequential([keras.layers.Dense(3)]), translator.tokenizer)
    with pytest.raises(tt.BadInput, match="vocab_size=30, got 350"):
        tt.Translator(small, translator.tokenizer)


@pytest.mark.parametrize("name", ["beam_size", "model", "batch_size", "tokenizer", "options"])
def test_a_translator_does_not_change(translator, name):
    """A traced function would keep using the former value."""
    translator(["Two doors."])
    with pytest.raises(AttributeError):
        setattr(translator, name, 1)
    with pytest.raises(AttributeError, match="no attribute 'alpha'"):
        _ = translator.alpha


def test_another_setting_is_another_translator(translator):
    """`replace` leaves the first one unchanged."""
    texts = ["Two doors.", "The red door."]
    before = translator.n_best(texts, 2)
    greedy = translator.replace(beam_size=1, extra_length=3)
    assert greedy.n_best(texts, 1) != [row[:1] for row in before]
    assert translator.n_best(texts, 2) == before
    assert greedy.options == translator.options | {"beam_size": 1, "extra_length": 3}
    assert greedy.replace(batch_size=3).options == greedy.options and greedy.batch_size == translator.batch_size


@pytest.mark.program
def test_options_of_a_call_are_traced_once(one_by_one):
    best = [one_by_one.n_best(["Two doors."], n)[0] for n in (1, 2, 3, 7)]
    assert [len(result) for result in best] == [1, 2, 3, 3] and best[0] == best[3][:1] and best[1] == best[3][:2]
    samples = [one_by_one.sample(["Two doors."], k=k, seed=5) for k in (1, 2, 3, 5, 349, 350, 2**31 - 1)]
    assert samples[-1] == samples[-2] != samples[0] and one_by_one.sample(["Two doors."], seed=5)
    functions = [function for _, function in one_by_one._functions.values()]
    assert len(functions) == 3 and all(function.experimental_get_tracing_count() == 1 for function in functions)


@pytest.mark.program
def test_a_model_that_gets_adapters_is_traced_again(translator):
    model = tt.Transformer(tt.TransformerConfig(1, 12, 17, 3, vocab_size=350))
    model.build()
    tuned = tt.Translator(model, translator.tokenizer, beam_size=1, extra_length=2)
    before = tuned.n_best(["Two doors."], 1)
    model.embedding.enable_lora(3)
    assert tuned.n_best(["Two doors."], 1)[0][0].text == before[0][0].text  # adapters begin with zeros
    model.embedding.lora_embeddings_b.assign(
        np.random.default_rng(1).normal(size=model.embedding.lora_embeddings_b.shape)
    )
    assert tuned.n_best(["Two doors."], 1) != before


def test_no_warning_of_functions_that_are_traced_once_each(translator, monkeypatch):
    """TensorFlow counts traces of all closures with the same code together."""
    warned = []
    monkeypatch.setattr(tf.get_logger(), "warning", warned.append)

    def plus(n):
        return lambda x: x + n

    fresh = translator.replace()
    assert [fresh.traced(f"plus {n}", plus(n))(tf.constant(3)).numpy() for n in range(11)] == [*range(3, 14)]
    assert not warned


def test_no_option_is_lost_or_unknown(translator):
    """Every option of the table that a `Translator` takes is an attribute, and goes along with a copy."""
    options = {
        name: np.int64(option.lowest + 2) for name, option in SEARCH_OPTIONS.items() if "translator" in option.where
    }
    first = tt.Translator(translator.model, translator.tokenizer, batch_size=17, **options)
    copy = first.astype("bfloat16")
    assert first.options == copy.options == options and copy.batch_size == 17
    assert {name: getattr(copy, name) for name in options} == options
    assert json.loads(json.dumps(copy.options)) == options  # plain numbers
    plain = tt.Translator(translator.model, translator.tokenizer).options
    assert plain == {name: SEARCH_OPTIONS[name].default for name in options}
    with pytest.raises(TypeError, match="expected beam_size, .*; got alpha"):
        tt.Translator(translator.model, translator.tokenizer, alpha=0.6)


def test_learned_positions_bound_the_lengths(translator):
    config = tt.TransformerConfig(1, 12, 17, 3, positions="learned", max_length=9, vocab_size=350)
    model = tt.Transformer(config)
    model.build()
    short = tt.Translator(model, translator.tokenizer)
    assert len(short(["door " * 50, "a"])) == 2
    scores = short.attention_scores("door " * 50, "Tür " * 50)  # cut at the maximum length
    assert scores.cross[-1].shape == (1, 3, 9, 9)


def test_an_unbuilt_model(translator):
    """It has the weights that it would have in training."""
    config = tt.TransformerConfig(1, 12, 17, 3, vocab_size=350)
    result = []
    for is_built in (False, True):
        keras.utils.set_random_seed(5)
        model = tt.Transformer(config)
        if is_built:
            model.build()
        result.append(tt.Translator(model, translator.tokenizer, extra_length=2))
    for weight, expected in zip(*(built.model.get_weights() for built in result), strict=True):
        np.testing.assert_array_equal(weight, expected)


def test_outputs_agree_with_the_whole_sequence(translator, monkeypatch):
    """Beams share cache slots, and each must read its history. Scoring takes four rows at a time."""
    monkeypatch.setattr(tensor_translator, "MAX_SCORED_TOKENS", 4 * 9 + 1)
    source, length, _ = translator.source(tf.constant([TEXTS[0], TEXTS[6], TEXTS[8]]))
    result, details = translator.detailed_search(source, length, n_best=5, beam_size=5, max_length=9)
    B, N, L = result.ids.shape
    sources, ids = np.repeat(source, N, axis=0), result.ids.numpy().reshape(B * N, L)
    shifted = np.pad(ids, [(0, 0), (1, 0)], constant_values=1)[:, :-1]
    logits, scores = translator.model((sources, shifted), return_attention_scores=True)
    every = np.take_along_axis(tf.nn.log_softmax(logits).numpy(), ids[:, :, None], axis=2)[:, :, 0]
    np.testing.assert_allclose(translator.score_targets(sources, ids), every, rtol=1e-4, atol=1e-4)
    is_token = np.arange(L) < result.lengths.numpy().reshape(B * N, 1)
    assert (result.lengths.numpy() > 1).all()
    log_probs = details.log_probs.numpy().reshape(B * N, L)
    np.testing.assert_allclose(log_probs, np.where(is_token, every, 0.0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(result.log_probs.numpy().reshape(B * N), log_probs.sum(-1), rtol=1e-5, atol=1e-5)
    attention = np.mean(scores.cross[-1], axis=1)
    attended = np.where((sources > EOS_ID)[:, None], attention, 0.0).argmax(-1)
    assert (attended != attention.argmax(-1)).any() and len(np.unique(attended)) > 2
    np.testing.assert_array_equal(details.attended.numpy().reshape(B * N, L), np.where(is_token, attended, 0))


HALF = "Two \ud83d doors"  # a lone surrogate, which is invalid in UTF-8
HALF_BYTES = b"Two \xed\xa0\xbd doors"


@pytest.mark.program
def test_half_an_emoji_counts_as_the_bytes_that_are_not_utf_8(translator, loaded):
    """Every call reads it as whitespace."""
    whole = translator(["Two doors", "The old woman"])
    assert translator([HALF, "The old woman"]) == translator([HALF_BYTES, "The old woman"]) == whole
    assert loaded([HALF, "The old woman"]) == whole
    assert translator.n_best([HALF], 2, [HALF]) == translator.n_best([HALF_BYTES], 2, [HALF_BYTES])
    result, expected = translator.attention(HALF, HALF), translator.attention("Two doors", "Two doors")
    assert (result.source, result.target) == (expected.source, expected.target)
    with pytest.warns(UserWarning, match="texts, truncated: "):
        translator([HALF * 99])


def test_attention_is_the_models_own(translator):
    """Compares a given translation and the best one, token by token."""
    tokens = [translator.tokenizer.tokenize([text])[0].numpy() for text in (TEXTS[0], "Zwei Türen.")]
    pieces = [[piece.decode() for piece in translator.tokenizer.pieces([ids])[0].numpy()] for ids in tokens]
    attention = translator.attention(TEXTS[0], "Zwei Türen.")
    assert (attention.source, attention.target) == tuple([*row, "</s>"] for row in pieces)
    source, target = tf.constant([[*tokens[0], 2]]), tf.constant([[1, *tokens[1]]])
    _, expected = translator.model((source, target), return_attention_scores=True)
    for result, scores in (
        (attention.scores, expected),
        (translator.attention_scores(TEXTS[0], "Zwei Türen."), expected),
    ):
        for one, other in zip(tf.nest.flatten(result), tf.nest.flatten(scores), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)

    result = translator.attention(TEXTS[0])
    ids = translator.tokenizer.ids([result.target])
    assert [text.decode() for text in translator.tokenizer.detokenize(ids).numpy()] == translator(TEXTS[:1])
    assert result.scores.cross[-1].shape == (1, 3, len(result.target), len(result.source))


def test_wrong_arguments_of_attention(translator):
    for text in TEXTS[1:4]:
        with pytest.raises(tt.BadInput, match="expected a sentence, got an empty text"):
            translator.attention(text)
    assert len(translator.attention("a " * 41, "b").source) == 42
    with pytest.raises(tt.BadInput, match="expected a sentence of at most 41 tokens, got 42"):
        translator.attention("a " * 42)
    with pytest.raises(tt.BadInput, match="expected a translation, got an empty text"):
        translator.attention("a", " ")
    with pytest.raises(tt.BadInput, match="expected a translation of at most 47 tokens, got 48"):
        translator.attention("a", "a " * 48)
    assert translator.attention_scores("door " * 50, "a").encoder[0].shape[-1] == 42  # longer texts are truncated
