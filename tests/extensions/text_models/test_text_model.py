"""Keras models with text in: the same outputs in Python, in a batch, and through TensorFlow's C++ loader."""

import itertools

import keras
import numpy as np
import pytest
from conftest import TEXTS
from promises import tensorflow_only
from served import Served

import tf_transformer as tt
from tf_transformer.tokenizers.tokenizer import EOS_ID, UNKNOWN_ID

LABELS = ["statement", "question", "other"]
TEXTS = [*TEXTS, "the  old\u3000woman\topens", "x" * 400]


@pytest.fixture(scope="module")
def tokenizer(translator):
    return translator.tokenizer


def encoder(vocab_size):
    ids = keras.Input((None,), dtype="int32")
    x = tt.layers.PositionalEmbedding(vocab_size, 16)(ids)
    return ids, tt.layers.EncoderLayer(num_heads=2, d_ff=31)(x)


def classifier(vocab_size):
    ids, x = encoder(vocab_size)
    return keras.Model(ids, keras.layers.Dense(3, "softmax")(keras.layers.GlobalAveragePooling1D()(x)))


def tagger(vocab_size):
    ids, x = encoder(vocab_size)
    return keras.Model(ids, keras.layers.Dense(3, "softmax")(x))


def as_bytes(text):
    return text if isinstance(text, bytes) else text.encode()


def test_a_classifier_reads_texts(tokenizer):
    model = classifier(tokenizer.vocab_size)
    labelled = tt.TextModel(model, tokenizer, max_length=19, labels=LABELS)(TEXTS, batch_size=3)
    assert [len(labelled), labelled[1].scores.shape] == [len(TEXTS), (3,)]
    for text, (label, score, scores) in zip(TEXTS, labelled, strict=True):
        ids = np.array([[*tokenizer.encode([text])[0][:18], EOS_ID]])
        expected = keras.ops.convert_to_numpy(model(ids))[0]
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-6)
        assert (label, score) == (LABELS[expected.argmax()], pytest.approx(expected.max(), rel=1e-4))


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "Bidirectional", "GlobalMaxPooling1D", "none"])
def test_an_export_takes_an_empty_batch_for_any_layer(layer, tokenizer):
    """Recurrent layers of Keras do not."""
    ids, x = encoder(tokenizer.vocab_size)
    if layer == "Bidirectional":
        x = keras.layers.Bidirectional(keras.layers.GRU(4, return_sequences=True))(x)
    elif layer == "GlobalMaxPooling1D":
        x = keras.layers.GlobalMaxPooling1D()(x)
    elif layer != "none":
        x = getattr(keras.layers, layer)(4, return_sequences=True)(x)
    by_word = layer != "GlobalMaxPooling1D"
    model = keras.Model(ids, keras.layers.Dense(3, "softmax")(x))
    tf = pytest.importorskip("tensorflow")
    for labels in (LABELS, None):
        reader = tt.TextModel(model, tokenizer, 23, labels, by_word=by_word and labels is not None)
        graph = tf.function(reader._serve, input_signature=[tf.TensorSpec([None], tf.string)])
        some, none = graph(tf.constant(["Two doors."])), graph(tf.constant([], tf.string))
        for name, output in some.items():
            assert (output.shape[0], none[name].shape[0], none[name].dtype) == (1, 0, output.dtype)


def test_a_word_has_the_label_of_its_first_token(tokenizer):
    model, longest = tagger(tokenizer.vocab_size), 23
    labelled = tt.TextModel(model, tokenizer, longest, LABELS, by_word=True)
    for text, result in zip(TEXTS, labelled(TEXTS), strict=True):
        words = (
            as_bytes(text)
            .decode("utf-8", "replace")
            .replace("\ufffd", " ")
            .replace("\x00", " ")
            .replace("\x01", " ")
            .split()
        )
        tokens = [tokens or [UNKNOWN_ID] for tokens in tokenizer.encode(words)]
        ends = list(itertools.accumulate(map(len, tokens)))
        read = [i for i, end in enumerate(ends) if end < longest]
        row = np.array([[*itertools.chain(*tokens[: len(read)]), EOS_ID]])
        classes = keras.ops.convert_to_numpy(model(row))[0].argmax(-1)
        assert result == [(words[i], LABELS[classes[ends[i] - len(tokens[i])]]) for i in read]


@tensorflow_only
@pytest.mark.parametrize("kind", ["scores", "labels", "words"])
def test_an_export_returns_what_python_does(tokenizer, tmp_path, kind):
    make = tagger if kind == "words" else classifier
    labels = None if kind == "scores" else LABELS
    model = tt.TextModel(make(tokenizer.vocab_size), tokenizer, 19, labels, kind == "words")
    model.save(tmp_path / "model/1", checked=kind == "words", license="MIT")
    served = Served(tmp_path / "model/1")
    outputs, expected = served({"text": TEXTS}), model(TEXTS)
    served.close()
    if kind == "scores":
        np.testing.assert_allclose(outputs["output"], expected, rtol=1e-4, atol=1e-6)
        expected = "expected .* one string for `text`, got 0 for text. Import tensorflow_text"
        with pytest.raises(tt.BadInput, match=expected):
            tt.load(tmp_path / "model/1")
    elif kind == "labels":
        assert [label.decode() for label in outputs["label"]] == [label.label for label in expected]
        np.testing.assert_allclose(outputs["scores"], [label.scores for label in expected], rtol=1e-4, atol=1e-6)
    else:
        joined = [[" ".join(column) for column in zip(*row, strict=True)] or ["", ""] for row in expected]
        assert [
            [row.decode() for row in pair] for pair in zip(outputs["words"], outputs["labels"], strict=True)
        ] == joined
        with pytest.warns(UserWarning, match="more tokens than the model reads"):
            assert tt.load(tmp_path / "model")(TEXTS) == [labels for _, labels in joined]
    assert outputs["truncated"].tolist() == [row.truncated for row in model.encode(TEXTS)]


@tensorflow_only
@pytest.mark.parametrize("by_word", [False, True])
def test_a_huge_text_is_truncated_before_tokenization(tokenizer, monkeypatch, by_word):
    model = tagger(tokenizer.vocab_size) if by_word else classifier(tokenizer.vocab_size)
    text_model, sizes = tt.TextModel(model, tokenizer, 19, LABELS, by_word), []
    tokenize = tokenizer.tokenize
    monkeypatch.setattr(tokenizer, "tokenize", lambda texts: sizes.append(texts.numpy()) or tokenize(texts))
    *_, truncated = text_model._encode_in_graph(["a red door " * 4000, "a door"])
    assert sum(len(text) for texts in sizes for text in texts) < 64 * 20 + 20
    assert truncated.numpy().tolist() == [True, False]


def test_wrong_models(tokenizer):
    model, by_word = classifier(tokenizer.vocab_size), tagger(tokenizer.vocab_size)
    vectors = keras.Input((7,))
    for wrong, options, message in (
        (model, {"labels": LABELS[:2]}, "labels: expected a model with the output"),
        (model, {"labels": LABELS, "by_word": True}, "labels: expected a model with the output"),
        (by_word, {"by_word": True}, "labels: expected the names"),
        (by_word, {"labels": ["a b", "c", "d"], "by_word": True}, "labels: expected names without spaces"),
        (model, {"labels": ["a", "a", "b"]}, "labels: expected unique single-line names"),
        (model, {"labels": [0, 1, 2]}, "labels: expected unique single-line names"),
        (keras.Model(vectors, keras.layers.Dense(3)(vectors)), {}, "model: expected one input"),
        (keras.Model(model.input, {"truncated": model.output}), {}, "model: expected outputs with other names"),
        (classifier(tokenizer.vocab_size - 1), {}, r"tokenizer: expected at most vocab_size=349 of \S+, got 350"),
    ):
        with pytest.raises(tt.BadInput, match=f"^{message}"):
            tt.TextModel(wrong, tokenizer, **options)
    for texts in ([], [None], [3]):
        with pytest.raises(tt.BadInput, match="^texts: "):
            tt.TextModel(model, tokenizer)(texts)


def test_texts_are_cut_to_the_learned_positions(tokenizer):
    ids = keras.Input((None,), dtype="int32")
    x = tt.layers.PositionalEmbedding(tokenizer.vocab_size, 16, positions="learned", max_length=7)(ids)
    model = tt.TextModel(keras.Model(ids, keras.layers.GlobalAveragePooling1D()(x)), tokenizer)
    assert [len(row.ids) for row in model.encode(["a door " * 13])] == [7]
    assert model(["a door " * 13, "a"]).shape == (2, 16)


def test_outputs_of_tokens_need_one_batch(tokenizer):
    vectors = tt.TextModel(keras.Model(*encoder(tokenizer.vocab_size)), tokenizer)
    with pytest.raises(tt.BadInput, match=r"^batch_size: expected outputs of one shape .* Pass batch_size=3\.$"):
        vectors(["a", "a red door", "a"], batch_size=2)
    assert vectors(["a", "a red door", "a"], batch_size=3).shape[::2] == (3, 16)
