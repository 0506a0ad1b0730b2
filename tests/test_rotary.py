"""Tests examples/rotary.py with NumPy's complex numbers, and on the paths that the package's models take."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import draw_weights
from keras import ops
from promises import assert_cached_is_whole

import tf_transformer as tt
from examples.rotary import (
    GroupedAttention,
    NoPositions,
    RotaryAttention,
    RotaryDecoderLayer,
    RotaryTransformer,
    rotated,
)

CONFIG = tt.TransformerConfig(2, 24, 32, 6, vocab_size=300, dropout=0.0)
TEXTS = ["Two doors.", "", "The red door opens.", "A small key."]


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    model = RotaryTransformer(CONFIG, kv_heads=2)
    model.build()
    draw_weights(model)
    return model


@pytest.fixture(scope="module")
def rotary(model, translator):
    config = dataclasses.replace(CONFIG, num_layers=1, vocab_size=translator.tokenizer.vocab_size)
    own = RotaryTransformer(config, kv_heads=3)
    own.build()
    draw_weights(own)
    return tt.Translator(own, translator.tokenizer, beam_size=2, extra_length=4, max_source_length=16)


@pytest.mark.parametrize("positions", [None, [[3, 1, 7, 0, 2]], [[0, 1, 2, 3, 4], [9, 8, 7, 6, 5]]])
def test_rotations_are_complex_products(positions):
    x = np.random.default_rng(1).normal(size=(2, 3, 5, 8)).astype("float32")
    at = np.broadcast_to(np.arange(5) if positions is None else np.array(positions), (2, 5))
    turns = np.exp(1j * at[:, None, :, None] * 10_000.0 ** -(np.arange(4) / 4))
    expected = (x[..., :4] + 1j * x[..., 4:]) * turns
    output = ops.convert_to_numpy(rotated(x, positions and np.array(positions)))
    np.testing.assert_allclose(output, np.concatenate([expected.real, expected.imag], -1), atol=1e-5)


def test_only_distances_count():
    layer = RotaryAttention(6, kv_heads=2)
    x = np.random.default_rng(2).normal(size=(2, 5, 24)).astype("float32")
    layer(x)
    results = []
    for first in (0, 11):
        positions = ops.arange(first, first + 5, dtype="int32")[None]
        results.append(layer.attend(x, layer.project(x, positions), positions=positions)[0])
    np.testing.assert_allclose(*map(ops.convert_to_numpy, results), atol=1e-5)
    shuffled = ops.convert_to_numpy(layer(x[:, ::-1]))[:, ::-1]
    assert np.abs(shuffled - ops.convert_to_numpy(layer(x))).max() > 1e-3


def test_groups_are_heads_with_equal_keys_and_values():
    grouped, whole = GroupedAttention(6, kv_heads=2), tt.layers.MultiHeadAttention(6)
    x = np.random.default_rng(3).normal(size=(2, 5, 24)).astype("float32")
    grouped(x), whole(x)
    for name in ("query", "key", "value", "output"):
        kernel = ops.convert_to_numpy(getattr(grouped, f"{name}_projection").kernel)
        if name in ("key", "value"):
            kernel = np.repeat(kernel.reshape(24, 2, 4), 3, axis=1).reshape(24, 24)
        getattr(whole, f"{name}_projection").kernel.assign(kernel)
    np.testing.assert_allclose(*(ops.convert_to_numpy(layer(x)) for layer in (grouped, whole)), atol=1e-5)


def test_cached_is_the_whole_sequence(model):
    random = np.random.default_rng(4)
    source, target = random.integers(4, 300, (2, 7)), random.integers(4, 300, (2, 5))
    source[1, 4:] = 0
    cache = model.init_cache(model.encode(ops.array(source))[0], 3)
    assert cache[0].target.key.shape[1] == 2 and model.embedding.num_positions is None
    assert_cached_is_whole(model, source, target, lambda step: step)


def test_a_language_model_continues_prompts_of_several_lengths():
    """Each prompt's tokens have positions of their own in a step. The expected tokens come from whole sequences."""
    embedding = tt.layers.PositionalEmbedding(20, 16, positions=NoPositions(), dropout=0.0)
    own = tt.LanguageModel(embedding, [RotaryDecoderLayer(2, 32, kv_heads=1, dropout=0.0) for _ in range(2)])
    own(np.array([[1, 5, 6]]))
    draw_weights(own)
    prompts, options = [[1, 7, 9, 4, 11], [1, 8]], {"beam_size": 1, "end_id": 0, "length_penalty": 0.0}
    for prompt, (continuation,) in zip(prompts, own.search(prompts, 4, **options), strict=True):
        ids, score = list(prompt), 0.0
        for _ in continuation.ids:
            logits = ops.convert_to_numpy(own(np.array([ids])))[0, -1, 1:].astype("float64")  # without padding
            score += logits.max() - np.log(np.exp(logits).sum())
            ids.append(1 + int(logits.argmax()))
        assert list(continuation.ids) == ids[len(prompt) :]
        assert continuation.score == pytest.approx(score, rel=1e-4)


@keras.saving.register_keras_serializable("tests")
class Spaced(tt.layers.Positions):
    """Learned positions that are `step` apart: a kind with an argument, weights and a limit."""

    weight_names = ("position_embeddings",)
    max_length = 5

    def __init__(self, step):
        self.step = step

    def build(self, layer, initializer):
        shape = (self.step * self.max_length, layer.d_model)
        layer.position_embeddings = layer.add_weight(shape, initializer, name="position_embeddings")

    def encoding(self, layer, position):
        return ops.take(layer.position_embeddings, position * self.step, axis=0)

    def get_config(self):
        return {"step": self.step}


@pytest.mark.parametrize("kind", ["embedding", "encoding"])
def test_layers_with_a_kind_of_ones_own_come_back_from_files(kind, tmp_path):
    if kind == "embedding":
        layer, x = tt.layers.PositionalEmbedding(9, 4, positions=Spaced(3), dropout=0.0), np.array([[1, 2, 3]])
        inputs = keras.Input((None,), dtype="int32")
    else:
        layer, x = tt.layers.PositionalEncoding(Spaced(3)), np.ones((1, 3, 4), "float32")
        inputs = keras.Input((None, 4))
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    np.testing.assert_allclose(keras.models.load_model(tmp_path / "model.keras")(x), model(x))
    table = ops.convert_to_numpy(layer.position_embeddings)
    np.testing.assert_allclose(layer.encoding(np.array([0, 2])), table[[0, 6]])
    with pytest.raises(tt.BadInput, match="expected at most max_length=5 spaced positions"):
        layer(np.ones((1, 6, *x.shape[2:]), x.dtype))


def test_it_comes_back_from_files_and_in_another_dtype(model, tmp_path):
    pair = np.array([[5, 6, 7]]), np.array([[1, 8]])
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.kv_heads == 2
    for other in (again, model.astype("float32")):
        np.testing.assert_allclose(other(pair), model(pair), atol=1e-5)


@pytest.mark.parametrize("format", ["savedmodel", "litert", "onnx"])
def test_exports_search_as_python_does(rotary, format, tmp_path):
    if format != "savedmodel":
        pytest.importorskip({"litert": "ai_edge_litert", "onnx": "tf2onnx"}[format])
    rotary.save(tmp_path / "1", format=format)
    engine = tt.load(tmp_path / "1")
    assert engine(TEXTS) == rotary(TEXTS) != [""] * 4


def test_what_a_kind_does_not_read_raises():
    with pytest.raises(tt.BadInput, match="^first_position: expected 0 with positions of a class, got 2$"):
        tt.layers.PositionalEmbedding(9, 4, positions=Spaced(3), first_position=2)
    with pytest.raises(tt.BadInput, match="^positions: expected 'sinusoidal', .* or a Positions, got <class"):
        tt.layers.PositionalEmbedding(9, 4, positions=Spaced)


class Shifted(tt.layers.DecoderLayer):
    """A decoder layer whose keys are others. All else is the package's."""

    def project_itself(self, x, positions):
        return super().project_itself(x + 1, positions)


def test_other_engines_refuse_it(rotary, translator, tmp_path):
    class Other(tt.Transformer):
        def make_decoder_layers(self):
            return [Shifted(**self.decoder_options(), name="decoder_0")]

    config = dataclasses.replace(CONFIG, num_layers=1, vocab_size=translator.tokenizer.vocab_size)
    shifted = tt.Translator(Other(config), translator.tokenizer)
    for own, message in (
        (rotary, "got RotaryAttention, which overrides project"),
        (shifted, "overrides project_itself"),
    ):
        for format in ("ctranslate2", "transformers"):
            pytest.importorskip({"transformers": "safetensors"}.get(format, format))
            with pytest.raises(tt.BadInput, match=message):
                own.save(tmp_path / "1", format=format)


def test_it_learns():
    random = np.random.default_rng(5)
    source = random.integers(4, 30, (64, 6))
    target = np.concatenate([np.ones((64, 1), int), source[:, :-1]], axis=1)  # a copy
    model = RotaryTransformer(dataclasses.replace(CONFIG, num_layers=1, vocab_size=30), kv_heads=2)
    model.compile(keras.optimizers.Adam(0.01), tt.SmoothedCrossEntropy(0.0))
    data = tf.data.Dataset.from_tensors(((source, target), source)).repeat(20)
    first, _, last = model.fit(data, epochs=3, verbose=0).history["loss"]
    assert last < 0.8 * first
