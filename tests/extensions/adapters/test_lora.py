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
