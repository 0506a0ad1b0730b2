"""Embeddings (section 3.4) and positions (section 3.5)."""

import keras
import numpy as np
import oracle
import pytest
from conftest import COMPILERS, array, close, normal, weights_of
from keras import ops
from promises import tensorflow_only

import tf_transformer as tt
from tf_transformer.layers import PositionalEmbedding, sinusoids

B, T, d, V = 2, 5, 11, 23
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
IDS = np.array([[3, 22, 7, 1, 9], [4, 4, 19, 0, 0]])


def built(positions="sinusoidal", **options):
    layer = PositionalEmbedding(V, d, positions, max_length=7, **options)
    layer.build((B, T))
    return layer


@pytest.mark.parametrize("d_model, every", [(2, 1), (11, 1), (512, 61)])
@pytest.mark.parametrize("mode", COMPILERS)
def test_sinusoids_far_out(d_model, every, mode):
    """At position 4,095 an angle in float32 has an error of 2e-4."""
    positions = np.arange(0, 4096, every)
    output = COMPILERS[mode](lambda positions: sinusoids(positions, d_model))(ops.array(positions))
    assert ops.dtype(output) == "float32"
    close(output, [oracle.position_encoding(position, d_model) for position in positions])


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_embedding_is_scaled_and_the_position_is_added(positions):
    layer = built(positions)
    weights = weights_of(layer)
    output = layer(IDS)
    for b in range(B):
        close(output[b], oracle.embed(IDS[b], weights["embeddings"], weights.get("position_embeddings")))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_a_token_may_have_any_position(positions):
    layer, order = built(positions), [4, 0, 2]
    close(layer(IDS[:, order], position=ops.array(order)), array(layer(IDS))[:, order])


def test_the_softmax_shares_the_embeddings_without_their_scale():
    layer, x = built(), normal(B, T, d)
    close(layer.logits(x), x.astype("float64") @ weights_of(layer)["embeddings"].T)
    assert [weight.path.split("/")[-1] for weight in layer.weights] == ["embeddings"]


@pytest.mark.parametrize("shape", [(None, None), (B, None)], ids=str)
def test_logits_in_a_functional_model_share_the_table(shape, tmp_path):
    """Also with the model that a file has, and that `clone_model` makes."""
    layer = built(use_bias=True)
    layer.logits_bias.assign(normal(V))
    ids = keras.Input(batch_shape=shape, dtype="int32")
    model = keras.Model(ids, layer.logits(keras.layers.Dense(d, "tanh")(layer(ids))))
    model.save(tmp_path / "model.keras")
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    for again in (model, clone, keras.models.load_model(tmp_path / "model.keras")):
        (table,) = (weight for weight in again.weights if weight.name == "embeddings")
        (bias,) = (weight for weight in again.weights if weight.name == "logits_bias")
        assert len(again.weights) == 4 and again.output_shape == (*shape, V)
        hidden = np.tanh(array(again.layers[1](IDS)) @ array(again.weights[2]) + array(again.weights[3]))
        close(again(IDS), hidden @ array(table).T + array(bias), atol=1e-5)
        table.assign(table * 0)
        close(again(IDS), np.broadcast_to(array(bias), (B, T, V)))


def test_a_call_in_reverse_is_that_of_keras():
    """It may precede the first call with ids. The vectors' mask is passed on to the logits."""
    layer, kerass, x = PositionalEmbedding(V, d), keras.layers.ReversibleEmbedding(V, d), normal(B, T, d)
    output = layer(x, reverse=True)
    kerass.build()
    kerass.embeddings.assign(layer.embeddings)
    close(output, kerass(x, reverse=True))
    ids = keras.Input((None,), dtype="int32")
    logits = keras.layers.Activation("linear")(layer(keras.layers.Activation("linear")(layer(ids)), reverse=True))
    mask = keras.layers.Lambda(lambda x, mask=None: ops.cast(mask, "int32"), output_shape=(None,))
    mask.supports_masking = True
    assert np.array_equal(array(keras.Model(ids, mask(logits))(IDS)), IDS != 0)


@pytest.mark.parametrize("method", ["embed", "rows"])
def test_other_methods_take_no_symbolic_ids(method):
    with pytest.raises(tt.BadInput, match="^it: expected ids with values, got a symbolic tensor. Call "):
        getattr(built(name="it"), method)(keras.Input((T,), B, dtype="int32"))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_embeddings_have_deviation_one_over_root_d_model(positions):
    layer = PositionalEmbedding(997, 101, positions, max_length=499)
    layer.build((None, None))
    for path, table in weights_of(layer).items():
        assert table.std() == pytest.approx(101**-0.5, rel=0.02), path
        assert abs(table.mean()) < 0.02 * 101**-0.5, path
        assert np.abs(table).max() > 3.5 * 101**-0.5, path  # normal: neither uniform nor truncated


def test_more_than_the_learned_positions_is_an_error():
    layer = built("learned")
    assert layer(np.ones((1, 7), "int32")).shape == (1, 7, d)
    with pytest.raises(ValueError, match=r"max_length=7.*\(1, 8\)"):
        layer(np.ones((1, 8), "int32"))
    with pytest.raises(ValueError, match="relative"):
        PositionalEmbedding(V, d, "relative")


@tensorflow_only
def test_more_than_the_learned_positions_is_an_error_where_the_number_is_not_known():
    """A GPU returns zeros for missing rows, so this does not look any up."""
    import tensorflow as tf

    layer, shapes = built("learned"), []
    with pytest.MonkeyPatch.context() as patch:
        take = keras.ops.take
        patch.setattr(
            keras.ops, "take", lambda x, *args, **options: shapes.append(x.shape) or take(x, *args, **options)
        )
        embed = tf.function(layer, input_signature=[tf.TensorSpec((None, None), tf.int32)])
        close(embed(np.ones((1, 7), "int32")), layer(np.ones((1, 7), "int32")))
        assert (7, d) not in shapes
        with pytest.raises(tf.errors.InvalidArgumentError):
            embed(np.ones((1, 8), "int32"))


def test_dropout_is_on_the_sum_and_for_training_only():
    layer = built(dropout=0.25)
    ids = np.ones((31, T), "int32")
    whole = array(layer(ids))
    close(whole[0], oracle.embed(ids[0], weights_of(layer)["embeddings"]))
    dropped = array(layer(ids, training=True))
    is_kept = dropped != 0
    close(dropped[is_kept], whole[is_kept] / 0.75)
    assert 0.7 < is_kept.mean() < 0.8


@pytest.mark.parametrize("policy", POLICIES)
def test_positions_and_logits_are_float32_whatever_the_policy(policy):
    """At position 4,001, which bfloat16 rounds to 4,000, components are correct up to their last bits."""
    layer = built(dtype=policy)
    layer.set_weights([np.zeros((V, d))])
    position = 4001
    output = layer(np.ones((1, 1), "int32"), position=ops.array([position]))
    assert ops.dtype(output) == layer.compute_dtype
    close(output[0, 0], oracle.position_encoding(position, d), rtol=2**-8, atol=2e-6)
    assert ops.dtype(layer.logits(output)) == "float32"


# What Keras's own layer can do


def beside_keras(positions="sinusoidal", **options):
    """A layer, and Keras's own with the same embeddings."""
    layer, kerass = built(positions, **options), keras.layers.ReversibleEmbedding(V, d, **options)
    kerass.build()
    kerass.embeddings.assign(layer.embeddings)
    return layer, kerass


def assert_same(layer, kerass, rtol=1e-5):
    x, position = normal(B, T, d), array(layer.encoding(ops.arange(T)))
    close(array(layer(IDS)) - position, array(kerass(IDS)) * d**0.5, rtol, 1e-5)
    close(layer.logits(x), kerass(x, reverse=True), rtol, 1e-5)
    weights = layer.softmax_weights()
    close(layer.logits(x, weights), kerass(x, reverse=True), rtol, 1e-5)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_lora_is_that_of_keras(positions, tmp_path):
    """Rows and logits use the same adapted matrix. Files hold the sum, which a layer without LoRA can load."""
    layer, kerass = beside_keras(positions)
    for each in (layer, kerass):
        each.enable_lora(3, lora_alpha=5)
        assert [weight.name for weight in each.trainable_weights if weight.name != "position_embeddings"] == [
            "lora_embeddings_a",
            "lora_embeddings_b",
        ]
        each.lora_embeddings_a.assign(normal(V, 3))
        each.lora_embeddings_b.assign(normal(3, d))
    assert_same(layer, kerass)
    close(layer.embeddings, kerass.embeddings)
    with pytest.raises(ValueError, match="lora is already enabled"):
        layer.enable_lora(3)

    model = keras.Sequential([keras.Input((None,), dtype="int32"), layer])
    model.save_weights(tmp_path / "model.weights.h5")
    plain = keras.Sequential([keras.Input((None,), dtype="int32"), built(positions)])
    plain.load_weights(tmp_path / "model.weights.h5")
    close(plain(IDS), model(IDS), atol=1e-5)


@pytest.mark.parametrize(("mode", "tolerance"), [("int8", 0.03), ("int4", 0.4)])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
def test_integers_are_those_of_keras(positions, mode, tolerance, tmp_path):
    """`quantize` of a model reaches the table."""
    layer, kerass = beside_keras(positions)
    before = array(layer(IDS))
    model = keras.Sequential([keras.Input((None,), dtype="int32"), layer])
    model.quantize(mode)
    kerass.quantize(mode)
    counts = [[weight.dtype for weight in model_layer.weights].count("int8") for model_layer in (layer, kerass)]
    assert counts[0] == counts[1] > 0
    assert 0 < np.abs(array(layer(IDS)) - before).max() < tolerance
    assert_same(layer, kerass)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    close(loaded(IDS), model(IDS))
    assert_same(loaded.layers[0], kerass)


def test_vectors_get_the_positions_of_ids():
    x = normal(B, T, d)
    layer, embedding = tt.layers.PositionalEncoding(), tt.layers.PositionalEmbedding(V, d)
    close(layer(x) - x, np.stack([array(embedding.encoding(ops.arange(T)))] * B), atol=1e-5)
    assert not layer.weights
    with pytest.raises(ValueError, match="max_length=3"):
        tt.layers.PositionalEncoding("learned", max_length=3)(x)


TABLE = normal(13, 6)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize(
    "options",
    [{"weights": [TABLE]}, {"weights": TABLE}, {"embeddings_initializer": keras.initializers.Constant(TABLE)}],
    ids=["list", "array", "initializer"],
)
def test_embeddings_may_begin_with_trained_ones(options, positions):
    layer = PositionalEmbedding(13, 6, positions, max_length=5, **options)
    layer(np.array([[1, 2]]))
    close(layer.embeddings, TABLE, atol=0)
    again = PositionalEmbedding.from_config(layer.get_config())
    again(np.array([[1, 2]]))
    assert np.allclose(array(again.embeddings), TABLE) == ("embeddings_initializer" in options)


def test_arguments_of_keras_work_or_raise():
    layer = PositionalEmbedding(13, 6, embeddings_regularizer=keras.regularizers.L2(0.3))
    layer(np.array([[1, 2]]))
    (loss,) = layer.losses
    close(loss, 0.3 * (array(layer.embeddings) ** 2).sum())
    layer = PositionalEmbedding(13, 6, embeddings_regularizer="l2", lora_rank=2)
    layer(np.array([[1, 2]]))
    peer = keras.layers.Embedding(13, 6, embeddings_regularizer="l2", lora_rank=2)
    peer(np.array([[1, 2]]))
    assert layer.lora_enabled
    assert len(layer.losses) == len(peer.losses)  # Keras regularizes what LoRA trains.
    layer = PositionalEmbedding(13, 6, lora_rank=2, lora_alpha=7)
    layer(np.array([[1, 2]]))
    assert (layer.lora_rank, layer.lora_alpha) == (2, 7)
    layer = PositionalEmbedding(13, 6, embeddings_constraint="non_neg")
    layer(np.array([[1, 2]]))
    assert layer.embeddings.constraint is not None
    PositionalEmbedding(13, 6, tie_weights=True, logit_soft_cap=None, reverse_dtype=None)  # as always
    for name, value in (
        ("tie_weights", False),
        ("logit_soft_cap", 1.0),
        ("reverse_dtype", "float32"),
        ("input_length", 7),
        ("input_dim", 13),
        ("output_dim", 6),
        ("weights", TABLE[:5]),
        ("weights", [TABLE, TABLE]),
        ("padding_id", 3),
    ):
        with pytest.raises(ValueError, match=name) as error:
            PositionalEmbedding(13, 6, **{name: value})
        assert name == "padding_id" or isinstance(error.value, tt.BadInput)


def test_every_id_may_be_a_token():
    """Without padding, no position is masked, in a model and in its file."""
    ids = np.array([[0, 5, 0, 7], [3, 0, 0, 0]])
    layer = PositionalEmbedding(13, 6, mask_zero=False, dropout=0.0)
    x = keras.Input((None,), dtype="int32")
    y = tt.layers.EncoderLayer(num_heads=2, d_ff=7, dropout=0.0)(layer(x))
    model = keras.Model(x, keras.layers.GlobalAveragePooling1D()(y))
    plain = keras.Model(x, y)
    close(model(ids), array(plain(ids)).mean(axis=1))
    assert layer.compute_mask(ids) is None
    assert PositionalEmbedding.from_config(layer.get_config()).compute_mask(ids) is None
    assert PositionalEmbedding(13, 6).compute_mask(ids) is not None


@tensorflow_only  # elsewhere Keras multiplies in float32
def test_float64_is_float64():
    """Sums, positions and logits: with any of them in float32 the difference would be 1e-8 and more."""
    for kind in ("sinusoidal", "halves", "fairseq", "learned"):
        layer = PositionalEmbedding(13, 6, kind, max_length=40, dropout=0.0, dtype="float64")
        got = array(layer(np.arange(40)[None] % 13))[0]
        table, i = np.asarray(layer.embeddings), np.arange(40)[:, None]
        if kind == "learned":
            positions = np.asarray(layer.position_embeddings)
        else:
            rates = 10_000.0 ** -(np.arange(3) / (2 if kind == "fairseq" else 3))
            pairs = np.sin(i * rates), np.cos(i * rates)
            joined = np.concatenate(pairs, axis=1)
            positions = np.stack(pairs, axis=2).reshape(40, 6) if kind == "sinusoidal" else joined
        np.testing.assert_allclose(got, table[np.arange(40) % 13] * 6**0.5 + positions, atol=1e-13)
        x = np.random.default_rng(0).normal(size=(1, 3, 6))
        np.testing.assert_allclose(array(layer(x, reverse=True)), x @ table.T, atol=1e-13)
    x = np.random.default_rng(0).normal(size=(1, 9, 6))
    encoded = tt.layers.PositionalEncoding(dtype="float64")(x)
    np.testing.assert_allclose(array(encoded)[..., 0], x[..., 0] + np.sin(np.arange(9)), atol=1e-13)
