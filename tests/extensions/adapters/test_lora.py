"""LoRA adapters: trained alone, stored in a small file, loaded onto a fresh model, and merged without a change."""

import keras
import numpy as np
import pytest

import tf_transformer as tt

IDS = np.random.default_rng(3).integers(3, 97, (11, 7)), np.random.default_rng(5).integers(3, 97, (11, 5))


def transformer():
    config = tt.TransformerConfig(vocab_size=97, num_layers=1, d_model=24, d_ff=101, num_heads=3, dropout=0.0)
    model = tt.Transformer(config)
    model(IDS)
    return model


def keras_own():
    x = keras.Input((5, 24))
    attended = keras.layers.MultiHeadAttention(3, 8, name="attention")(x, x)
    return keras.Model(x, keras.layers.Dense(7, name="value")(attended))


def outputs(model):
    inputs = IDS if isinstance(model, tt.Transformer) else np.random.default_rng(7).normal(size=(3, 5, 24))
    return keras.ops.convert_to_numpy(model(inputs))


@pytest.mark.parametrize("make", [transformer, keras_own])
def test_an_adapter_is_loaded_onto_a_fresh_model_and_merged(make, tmp_path):
    model = make()
    before, weights = outputs(model), model.get_weights()
    tt.enable_lora(model, rank=2)
    np.testing.assert_allclose(outputs(model), before, atol=1e-6)
    random = np.random.default_rng(11)
    assert {weight.name[-1] for weight in model.trainable_weights} == {"a", "b"}
    for weight in model.trainable_weights:
        weight.assign(random.normal(size=weight.shape))
    tuned = outputs(model)
    assert np.abs(tuned - before).max() > 0.01

    tt.save_adapter(model, tmp_path / "adapter.npz")
    fresh = make()
    fresh.set_weights(weights)
    tt.load_adapter(fresh, tmp_path / "adapter.npz")
    np.testing.assert_allclose(outputs(fresh), tuned, atol=1e-6)
    tt.merge_lora(fresh)
    np.testing.assert_allclose(outputs(fresh), tuned, atol=1e-4)


def test_integers_are_not_merged():
    """Rounded to integers, the adapters would vanish."""
    model = keras_own()
    model.quantize("int8")
    tt.enable_lora(model, rank=2)
    for weight in model.trainable_weights:
        weight.assign(keras.ops.ones(weight.shape))
    before = outputs(model)
    with pytest.raises(tt.BadInput, match="^model: expected matrices of floats, got int8 in .* Merge before"):
        tt.merge_lora(model)
    np.testing.assert_array_equal(outputs(model), before)


def test_only_adapters_are_trained():
    model = transformer()
    tt.enable_lora(model, rank=2, layers=("query", "hidden"))
    frozen = [weight for weight in model.weights if "lora" not in weight.name]
    before = [keras.ops.convert_to_numpy(weight) for weight in frozen]
    model.compile(tt.Adam(0.01), tt.SmoothedCrossEntropy(0.0))
    model.fit(IDS, IDS[1], verbose=0)
    assert all(map(np.array_equal, before, map(keras.ops.convert_to_numpy, frozen)))
    assert any(keras.ops.convert_to_numpy(weight).any() for weight in model.trainable_weights if weight.name[-1] == "b")


def test_wrong_layers_are_refused(tmp_path):
    model = transformer()
    with pytest.raises(tt.BadInput, match="enable_lora"):
        tt.save_adapter(model, tmp_path / "adapter.npz")
    for layers in ((), ("nothing",), ("query", "nothing")):
        with pytest.raises(tt.BadInput, match="^layers: expected names among"):
            tt.enable_lora(model, layers=layers)
    with pytest.raises(tt.BadInput, match="^model: expected a built model, got one without weights. Call it first$"):
        tt.enable_lora(keras.Sequential([tt.layers.EncoderLayer(1, 4)]))
    tt.enable_lora(model)
    with pytest.raises(tt.BadInput, match="merge_lora"):
        tt.enable_lora(model)


def test_wrong_files_are_refused_and_change_nothing(tmp_path):
    source, file = transformer(), tmp_path / "adapter.npz"
    tt.enable_lora(source, rank=2)
    tt.save_adapter(source, file)
    arrays = dict(np.load(file))
    of = min(arrays).partition(".")[0]
    changes = [
        {f"{of}.a": np.float32(1), f"{of}.b": np.ones((2, 24, 24), "float32")},
        {f"{of}.b": np.ones((5, 24), "float32")},
        {f"{of}.a": np.full((24, 2), np.nan, "float32")},
        {f"{of}.a": np.full((24, 2), "x")},
        {f"{of}.alpha": np.ones(2, "float32")},
        {f"{of}.a": np.ones((23, 2), "float32")},
        {"x": np.ones(3)},
    ]
    model, other = transformer(), transformer()
    tt.enable_lora(other, rank=3)
    for change in changes:
        np.savez(file, **(arrays | change))
        with pytest.raises(tt.BadInput, match="expected"):
            tt.load_adapter(model, file)
    assert all(weight.trainable for weight in model.weights)
    np.savez(file, **arrays)
    for wrong in (other, keras_own()):
        with pytest.raises(tt.BadInput, match="expected a matrix of shape"):
            tt.load_adapter(wrong, file)


def stack(*between, count=2, **options):
    """A classifier with unnamed layers, and maybe others behind the table."""
    layers = [tt.layers.PositionalEmbedding(97, 24, **options), *between]
    layers += [tt.layers.EncoderLayer(num_heads=3, d_ff=24, **options) for _ in range(count)]
    model = keras.Sequential([*layers, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(3)])
    model(IDS[0])
    return model


def tuned_stack(file, layers=("query", "value")):
    base = stack()
    weights = base.get_weights()
    tt.enable_lora(base, rank=2, layers=layers)
    random = np.random.default_rng(11)
    for weight in base.trainable_weights:
        weight.assign(random.normal(size=weight.shape))
    tt.save_adapter(base, file)
    return base, weights, keras.ops.convert_to_numpy(base(IDS[0]))


@pytest.mark.parametrize(
    "make",
    [
        stack,
        lambda: stack(dropout=0.0),
        lambda: stack(keras.layers.Dropout(0.3)),
        lambda: stack(keras.layers.Dropout(0.3), keras.layers.Activation("linear")),
        lambda: keras.models.clone_model(stack()),
    ],
)
def test_adapters_find_their_matrices_in_a_model_with_other_layers(make, tmp_path):
    _, weights, tuned = tuned_stack(tmp_path / "a.npz", ("query", "key", "hidden", "output"))
    model = make()
    model.set_weights(weights)
    tt.load_adapter(model, tmp_path / "a.npz")
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model(IDS[0])), tuned, atol=1e-5)


@pytest.mark.parametrize("count", [1, 3])
def test_adapters_of_another_number_of_layers_are_refused(count, tmp_path):
    tuned_stack(tmp_path / "a.npz")
    with pytest.raises(tt.BadInput, match="in layer encoder_layer#1of2/self_attention/.*, got none$"):
        tt.load_adapter(stack(count=count), tmp_path / "a.npz")


def test_layers_that_are_named_are_found_by_name(tmp_path):
    def make(*names):
        x = keras.Input((5, 24))
        y = x
        for name in names:
            y = keras.layers.Dense(24, name=name)(y)
        return keras.Model(x, y)

    model = make("lower_0", "lower_1")
    tt.enable_lora(model, rank=2, layers=("lower_0",))
    model.trainable_weights[1].assign(np.ones((2, 24)))
    tt.save_adapter(model, tmp_path / "a.npz")
    other = make("lower_1", "lower_0")
    tt.load_adapter(other, tmp_path / "a.npz")
    assert [layer.lora_enabled for layer in other.layers[1:]] == [False, True]
    with pytest.raises(tt.BadInput, match="in layer lower_0, got none"):
        tt.load_adapter(make("lower_1", "lower_2"), tmp_path / "a.npz")


def former(file, model):
    """Writes a file as earlier versions did: by the numbers of layers."""
    arrays = {}
    for i, layer in enumerate(model._flatten_layers()):
        if getattr(layer, "lora_enabled", False):
            name = "kernel" if hasattr(layer, "lora_kernel_a") else "embeddings"
            arrays |= {f"{i}.{side}": np.array(getattr(layer, f"lora_{name}_{side}")) for side in "ab"}
            arrays[f"{i}.alpha"] = np.float32(layer.lora_alpha)
    np.savez(file, **arrays)


def test_files_of_earlier_versions_are_loaded_or_refused(tmp_path):
    base, weights, tuned = tuned_stack(tmp_path / "a.npz")
    former(tmp_path / "former.npz", base)
    model = stack()
    model.set_weights(weights)
    tt.load_adapter(model, tmp_path / "former.npz")
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model(IDS[0])), tuned, atol=1e-5)
    for other in (stack(keras.layers.Dropout(0.3)), stack(count=1), stack(count=3)):
        with pytest.raises(tt.BadInput, match="expected the layers of a file of an earlier version"):
            tt.load_adapter(other, tmp_path / "former.npz")
        assert all(weight.trainable for weight in other.weights)
