"""Matmuls and models in 8-bit integers, compared with NumPy's integers and the model in float32."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import draw_weights
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_transformer as tt
from tf_transformer.layers import int8
from trainers.publishing import say_dtypes

needs_int8 = pytest.mark.usefixtures("needs_int8")


@pytest.fixture(autouse=True)
def every_size_in_8_bits(monkeypatch):
    monkeypatch.setattr(int8, "MIN_INT8_ELEMENTS", 0)


TEXTS = ["Two doors.", "The red door opens.", "", "A small key."]


def by_hand(x, matrix):
    """Returns x [B, d] @ matrix [d, n], computed in integers with scales of rows and columns."""
    row_scale = np.abs(x).max(axis=1, keepdims=True)
    column_scale = step_by_hand(matrix)
    rows = np.rint(x * np.float32(127) / row_scale).astype(int)
    columns = np.rint(matrix / column_scale).astype(int)
    return (rows @ columns) * (row_scale.astype(float) * column_scale.astype(float) / 127)


def pairs_by_hand(column):
    """Returns sums of weights of one sign that can meet: of neighbors in fours, else of any two."""
    meeting = [column[k : k + 2] for k in range(0, len(column), 2)]
    if len(column) % 4:
        meeting = [column[[k, k]] for k in range(len(column))]
    return [abs(sum(w for w in pair if sign * w > 0)) for pair in meeting for sign in (1, -1)]


def step_by_hand(matrix):
    """Returns what 1 stands for in each column of a matrix [d, n]: the largest sum of a pair / 127."""
    return np.array([max(pairs_by_hand(column)) / np.float32(127) for column in matrix.T], "float32")


@needs_int8
@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 11), st.integers(1, 17).map(lambda k: 4 * k), st.integers(1, 53), st.booleans(), st.integers(0, 999)
)
def test_int8_product_is_that_of_integers(B, d, n, transposed, seed):
    random = np.random.default_rng(seed)
    x, matrix = random.normal(size=(B, d)).astype("float32"), random.normal(size=(d, n)).astype("float32")
    x *= np.exp(3 * random.normal(size=(B, 1))).astype("float32")  # rows of different sizes
    integers, largest = int8.quantized(matrix, axis=0)
    output = int8.int8_product(x, integers.T if transposed else integers, largest, transposed)
    expected = by_hand(x, matrix)
    # A component that lies between two whole numbers may be rounded to either.
    step = np.abs(x).max(axis=1, keepdims=True) * step_by_hand(matrix)
    np.testing.assert_array_less(np.abs(output - expected), 1e-5 * np.abs(expected) + 1.01 * step)
    assert np.mean(np.abs(output - expected) > 1e-4 * step) < 0.05


@needs_int8
def test_rows_do_not_depend_on_each_other():
    random = np.random.default_rng(0)
    x = random.normal(size=(13, 37)).astype("float32")
    integers, largest = int8.quantized(random.normal(size=(37, 29)), 0)
    x[3] = 0
    x[5] *= 1e6
    together = np.asarray(int8.int8_product(x, integers, largest))
    for i, row in enumerate(x):
        np.testing.assert_array_equal(int8.int8_product(row[np.newaxis], integers, largest)[0], together[i])
    assert not together[3].any() and int8.int8_product(x[:0], integers, largest).shape == (0, 29)


@pytest.mark.parametrize("d", [32, 34])
def test_whole_numbers_stand_for_their_weights_to_half_a_step(d):
    matrix = np.random.default_rng(1).normal(size=(d, 17)).astype("float32")
    matrix[:, 4] = 0
    for axis in (0, 1):
        integers, largest = int8.quantized(matrix if axis == 0 else matrix.T, axis)
        integers = integers if axis == 0 else integers.T
        pairs = [max(pairs_by_hand(column.astype(int))) for column in integers.T]
        assert integers.dtype == np.int8 and max(pairs) <= 128 and min(pairs[:4] + pairs[5:]) >= 126
        # Weights of two signs do not count together, so that some are larger than half of a pair.
        assert (np.abs(integers.astype(int)).max() > 64) == (d == 32)
        assert (np.abs(integers * largest / 127 - matrix) <= largest / 253).all()


@needs_int8
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("d", [512, 258, 31])
def test_sums_do_not_saturate(d, transposed):
    """The largest weights meet the largest inputs of their sign, at which pairs of products are largest in 16 bits."""
    random = np.random.default_rng(5)
    signs = random.choice([-1, 1], size=(d, 31))
    matrix = (signs * random.uniform(0.4, 1, size=(d, 31))).astype("float32")
    x = np.concatenate([signs.T, -signs.T, np.ones((2, d))]).astype("float32")
    integers, largest = int8.quantized(matrix, axis=0)
    output = int8.int8_product(x, integers.T if transposed else integers, largest, transposed)
    expected = (x.astype(int) @ integers) * (largest / 127.0)
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)


@needs_int8
def test_files_of_earlier_versions():
    """Their integers go up to 127, with the magnitude that 127 stands for beside them, as now."""
    random = np.random.default_rng(6)
    integers = random.integers(-127, 128, size=(64, 24)).astype("int8")
    integers[1::2] = 0  # One weight in each pair does not saturate without VNNI.
    scales = random.uniform(0.5, 2, 24).astype("float32")
    x = random.integers(-127, 128, size=(3, 64)).astype("float32")
    x[:, 0] = 127
    expected = x @ (integers * (scales / 127))
    np.testing.assert_allclose(int8.int8_product(x, integers, scales), expected, rtol=1e-5, atol=1e-5)


def test_small_matrices_stay_float32(monkeypatch):
    monkeypatch.setattr(int8, "MIN_INT8_ELEMENTS", 11 * 17)
    x = np.random.default_rng(2).normal(size=(5, 11)).astype("float32")
    layers = [int8.Int8Dense(units, dtype=int8.Int8()) for units in (13, 17)]
    for layer in layers:
        layer.build(x.shape)
    assert [layer.kernel.dtype for layer in layers] == ["float32", "int8"]
    kernel, bias = np.random.default_rng(3).normal(size=(11, 13)), np.arange(13)
    layers[0].set_weights([kernel, bias])
    np.testing.assert_allclose(layers[0](x), x @ kernel + bias, rtol=1e-5, atol=1e-5)


def close_to(translator, texts=TEXTS):
    """Checks that a translator's model in 8 bits has nearly the logits of float32."""
    eight = translator.astype("int8")
    matrices = [weight for weight in eight.model.weights if weight.dtype == "int8"]
    assert {str(weight.dtype) for weight in eight.model.weights} == {"int8", "float32"} and matrices
    assert {len(weight.shape) for weight in eight.model.weights if weight.dtype == "float32"} == {1}
    source, *_ = translator.source(tf.constant(texts))
    target = np.random.default_rng(4).integers(4, translator.tokenizer.vocab_size, (len(texts), 9))
    logits, expected = (np.asarray(each.model((source, target))) for each in (eight, translator))
    # Sums that saturate are 0.15 off.
    assert 1e-6 < np.linalg.norm(logits - expected) / np.linalg.norm(expected) < 0.08
    return eight


@needs_int8
@pytest.mark.program
def test_a_translator_in_8_bits(translator, tmp_path):
    eight = close_to(translator)
    assert eight(TEXTS) == [eight(text) for text in TEXTS]
    with pytest.raises(tt.BadInput, match="expected a model in another dtype than int8 to convert to float32"):
        eight.astype("float32")
    eight.save(tmp_path / "1", source_language="en")
    metadata = json.loads((tmp_path / "1/assets.extra/tf_transformer.json").read_text())
    assert (metadata["dtype"], metadata["parameters"]) == ("int8", translator.model.count_params())
    assert 120 <= metadata["max_int8_pair"] <= 128
    again = tt.Translator.from_pretrained(tmp_path / "1")
    for weight, expected in zip(again.model.weights, eight.model.weights, strict=True):
        assert weight.dtype == expected.dtype
        np.testing.assert_array_equal(weight, expected)
    expected = [best.text for best, *_ in eight.n_best(TEXTS, 1)]
    assert again(TEXTS) == tt.load(tmp_path / "1")(TEXTS) == expected


@pytest.mark.program
@needs_int8
def test_every_kind_of_model(translator):
    """Covers an ensemble, learned positions, and a shallow decoder with norms first."""
    ensemble = tt.Translator(tt.Ensemble([translator.model, translator.model]), translator.tokenizer)
    close_to(ensemble)
    other = {"num_decoder_layers": 2, "norm_first": True, "activation": "gelu"}
    model = tt.Transformer(tt.TransformerConfig(3, 12, 17, 3, vocab_size=350, **other))
    model.build()
    close_to(tt.Translator(draw_weights(model), translator.tokenizer))
    config = tt.TransformerConfig(1, 12, 17, 3, positions="learned", max_length=19, vocab_size=350)
    model = tt.Transformer(config)
    model.build()
    eight = tt.Translator(model, translator.tokenizer).astype("int8").model
    np.testing.assert_array_equal(eight.embedding.position_embeddings, model.embedding.position_embeddings)


@needs_int8
@pytest.mark.extensions
def test_8_bit_weights_are_not_converted_to_another_format(translator, tmp_path):
    with pytest.raises(tt.BadInput, match="expected weights of 16 or 32 bits"):
        translator.astype("int8").save(tmp_path / "1", format="ctranslate2", dtype="int8")


def test_weights_that_keras_quantized_are_not_converted():
    model = tt.Transformer(tt.TransformerConfig(1, 12, 17, 3, vocab_size=350))
    model.build()
    model.encoder_layers[0].feed_forward.hidden.quantize("int8")
    for dtype in ("bfloat16", "int8"):
        with pytest.raises(tt.BadInput, match=f"int8 to convert to {dtype}, got weights of 8 bits"):
            model.astype(dtype)


@needs_int8
@pytest.mark.extensions
def test_marian_in_8_bits():
    close_to(tt.Translator.from_pretrained("tests/marian/trained"), ["A man rides a horse.", "Two dogs play."])


@needs_int8
def test_a_model_comes_back_from_a_file(translator, tmp_path):
    model = translator.astype("int8").model
    pair = np.array([[5, 6, 7]]), np.array([[1, 8]])
    expected = model(pair)
    model.save(tmp_path / "eight.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "eight.keras")(pair), expected)


def test_a_machine_without_the_kernel(translator, monkeypatch):
    def product(*_):
        raise tf.errors.NotFoundError(None, None, "No OpKernel was registered to support Op '_QuantizedMatMul'\nmore")

    monkeypatch.setattr(int8, "_onednn_product", product)
    int8.check_kernel.cache_clear()
    with pytest.raises(tt.BadInput, match="_QuantizedMatMul, as on Linux, got one without: No OpKernel.*Mul'$"):
        translator.astype("int8")
    int8.check_kernel.cache_clear()


def test_the_share_in_8_bits(tmp_path, capsys):
    """Counts only weights. If most have 32 bits, bfloat16 is smaller."""
    weights = [tf.zeros(shape, dtype) for shape, dtype in (((3, 5), tf.int8), ((7,), tf.float32))]
    root = tf.train.Checkpoint(weights=[*map(tf.Variable, weights)], table=tf.Variable(tf.zeros([11], tf.int8)))
    root.write(str(tmp_path / "variables" / "variables"))
    assert int8.share_in_8_bits(tmp_path) == pytest.approx(15 / 22)
    with pytest.warns(UserWarning, match="^int8 is larger than bfloat16 here, .*; take --dtype bfloat16$"):
        say_dtypes(tmp_path, 45, 22)
    say_dtypes(tmp_path, 44, 22)
    line = "68 % of the weights have 8 bits; in float32 the weights take 88 bytes, in bfloat16 44\n"
    assert capsys.readouterr().out == 2 * line
