"""Keras's contract of every layer: configs, shapes, models of every kind, masks and dtypes."""

import doctest
import functools
import inspect
import json
import re
import shutil

import keras
import numpy as np
import pytest
from conftest import array, draw_weights
from keras.backend import standardize_dtype
from keras.src.testing import TestCase
from promises import (
    LAYERS,
    MODELS,
    B,
    D,
    S,
    T,
    V,
    assert_close,
    every_case,
    every_layer,
    every_layer_of_one_input,
    promise,
)

import tf_transformer as tt

# Configs


@every_case
def test_every_argument_is_an_attribute_and_in_the_config(case):
    layer = case.make()
    arguments = [p for p in inspect.signature(type(layer).__init__).parameters.values() if p.name != "self"]
    assert arguments.pop().kind == inspect.Parameter.VAR_KEYWORD
    config = layer.get_config()
    for argument in arguments:
        attribute = getattr(layer, argument.name)
        # Other cases pass these layers non-default values.
        if case.name not in ("sinusoidal", "learned", "add_and_norm", "encoder", "decoder", "decoder_only"):
            assert attribute != argument.default, argument.name
        plain = attribute.to_dict() if isinstance(attribute, tt.TransformerConfig) else attribute
        assert config[argument.name] == plain, argument.name


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@every_case
def test_config_round_trip(case, dtype):
    layer = case.make(name="some_name", dtype=keras.DTypePolicy(dtype), trainable=False)
    config = layer.get_config()
    again = type(layer).from_config(config)
    assert again.get_config() == config
    assert (again.name, again.dtype_policy.name, again.trainable) == ("some_name", dtype, False)

    text = json.dumps(keras.saving.serialize_keras_object(layer))
    reread = keras.saving.deserialize_keras_object(json.loads(text))  # found by its registered name
    assert type(reread) is type(layer)
    assert reread.get_config() == config


@every_case
def test_clone_model(case):
    model = case.model()
    clone = keras.models.clone_model(model)
    assert not {id(weight) for weight in clone.weights} & {id(weight) for weight in model.weights}
    clone.set_weights(model.get_weights())
    assert_close(clone(case.arrays()), case.output())


# Shapes and models of every kind


@every_case
def test_unknown_batch_and_length(case):
    layer = case.built()
    model = case.model(layer)
    assert model.output_shape == (None, None, case.output_shape[-1])
    assert_close(model(case.arrays()), case.output())
    other = case.arrays(batch=3, longer=6)
    assert_close(model(other), case.call(layer, other))


@every_case
def test_compute_output_shape(case):
    layer = case.make()

    def computed(shapes):
        return layer.compute_output_shape(tuple(shapes)) if case in MODELS else layer.compute_output_shape(*shapes)

    assert case.output().shape == case.output_shape
    assert computed(case.input_shapes()) == case.output_shape
    assert computed([x.shape for x in case.symbolic_inputs()]) == (None, None, case.output_shape[-1])


@every_case
def test_symbolic_outputs_are_like_the_real_ones(case):
    # Attention weights and logits are float32 all the same. Keras on PyTorch forgets the policy when it traces a layer.
    layer = case.make(dtype="float32" if keras.backend.backend() == "torch" else "mixed_bfloat16")
    real = case.arrays()
    symbolic = [keras.Input(batch_shape=x.shape, dtype=str(x.dtype)) for x in real]

    def described(inputs, **kwargs):
        outputs = case.call(layer, inputs, **kwargs)
        return keras.tree.map_structure(lambda x: f"{standardize_dtype(x.dtype)}{list(x.shape)}", outputs)

    assert described(symbolic) == described(real)
    if case.scores:
        assert described(symbolic, return_attention_scores=True) == described(real, return_attention_scores=True)


# Arguments of calls that are not tensors.
OPTIONS = {"cache", "slot", "return_attention_scores", "training", "reverse", "use_causal_mask"}


@pytest.mark.parametrize("symbolic", [False, True])
@every_layer
def test_a_wrong_number_of_axes_raises_bad_input(case, symbolic):
    """Each tensor of a call is checked. A mask of floats is rejected too, since it may be vectors passed as a mask."""
    layer, inputs = case.make(name="it"), case.symbolic_inputs() if symbolic else case.arrays()
    names = [name for name in inspect.signature(layer.call).parameters if name not in OPTIONS]
    axes = {"ids": 2, "position": 1, "positions": 2, "attention_mask": 3}
    for name in names:
        is_mask = name.endswith("mask")
        right = axes.get(name, 2 if is_mask else 3)
        dtype = "int32" if case.of_ids else "bool" if is_mask else "float32"
        for rank in {right - 1, right + 1} | ({right} if is_mask else set()):
            shape, kind = (B, T, D, 3)[:rank], "float32" if rank == right else dtype
            value = keras.KerasTensor(shape, kind) if symbolic else np.ones(shape, kind)
            arguments = dict(zip(names, inputs, strict=False)) | {name: value}
            with pytest.raises(tt.BadInput, match=rf"^it: expected {name} \[.*, got {kind} {re.escape(str(shape))}.*$"):
                layer(**arguments)
    assert not layer.built


@every_layer
def test_sizes_that_do_not_fit_raise_bad_input(case):
    """Backends would broadcast a size of 1, and name a product's sizes, not the argument."""
    layer, inputs = case.make(name="it"), case.arrays()
    names = [name for name in inspect.signature(layer.call).parameters if name not in OPTIONS]
    arguments = dict(zip(names, inputs, strict=False))
    keys = S if "value" in arguments else T
    right = {"sublayer_output": (B, T, D), "value": (B,), "memory": (B,), "position": (T,), "positions": (B, T)}
    right |= {"mask": (B, T), "query_mask": (B, T), "x_mask": (B, T), "attention_mask": (B, T, keys)}
    right |= {"value_mask": (B, S)} if "value" in arguments else {}
    right |= {"memory_mask": (B, S)} if "memory" in arguments else {}
    for name in right.keys() & {*names[1:]}:
        if name not in arguments and name in ("value", "memory", "sublayer_output"):
            continue
        for axis, size in enumerate(right[name]):
            for wrong in {1, size + 1} - ({1} if axis == 0 and name in ("attention_mask", "positions") else set()):
                shape = [*(arguments[name].shape if name in arguments else right[name])]
                shape[axis] = wrong
                value = np.ones(shape, "bool" if name.endswith("mask") else "int32" if "pos" in name else "float32")
                letter = {B: "B", T: "T", S: "S", D: "d"}[size]
                got = re.escape(str(tuple(shape)))
                with pytest.raises(tt.BadInput, match=rf"^it: expected {name} .* {letter} = {size} as in .*{got}$"):
                    layer(**arguments | {name: value})
    assert not layer.built
    layer(*inputs)
    if not case.of_ids:
        with pytest.raises(tt.BadInput, match=rf"^it: expected {names[0]} .* d = {D} as in .*, 8\)$"):
            layer(np.ones((B, T, D + 1), "float32"), *inputs[1:])


@promise([case for case in LAYERS if case.name in ("learned", "learned_positions")])
def test_a_model_of_too_long_sequences_raises_bad_input(case):
    """In one line, before anything is built."""
    x = keras.Input((20, D)) if case.name == "learned_positions" else keras.Input((20,), dtype="int32")
    with pytest.raises(tt.BadInput, match=r"^it: expected at most max_length=19 learned positions, got a sequence .*$"):
        case.make(name="it")(x)


def test_arguments_that_nothing_reads_raise_bad_input():
    x, mask, layers = np.ones((B, T, D), "float32"), np.ones((B, S), bool), tt.layers
    with pytest.raises(tt.BadInput, match="^it: expected value with a value_mask, got none"):
        layers.MultiHeadAttention(1, name="it")(x, value_mask=mask)
    with pytest.raises(tt.BadInput, match="^it: expected memory with a memory_mask, got none$"):
        layers.DecoderLayer(1, D, name="it")(x, memory_mask=mask)
    with pytest.raises(tt.BadInput, match="^it: expected a cache with slot=3, got none$"):
        layers.DecoderLayer(1, D, name="it")(x, slot=3)
    with pytest.raises(tt.BadInput, match="^it: expected no position with reverse=True, got one"):
        layers.PositionalEmbedding(V, D, name="it")(x, position=np.arange(T), reverse=True)
    with pytest.raises(tt.BadInput, match="^first_position: expected 0 with learned positions, got 2$"):
        layers.PositionalEmbedding(V, D, "learned", first_position=2)


@promise([case for case in LAYERS if case.name in ("self_attention", "decoder")])
def test_an_explicit_mask_replaces_the_one_of_the_input(case):
    """Under both of its names. Keras fills in the other name with the mask that the input carries."""
    layer, (x, *memory) = case.built(), case.arrays()
    mask, carried = np.arange(T) > [[1], [2]], np.arange(T) < [[3], [4]]
    expected = array(layer(x, *memory, mask=mask))
    for name in ("mask", "query_mask" if case.name == "self_attention" else "x_mask"):
        masked = keras.ops.convert_to_tensor(x)
        keras.src.backend.set_keras_mask(masked, keras.ops.convert_to_tensor(carried))
        np.testing.assert_array_equal(array(layer(masked, *memory, **{name: mask})), expected)
    assert np.abs(array(layer(masked, *memory)) - expected).max() > 1e-3


def test_keys_as_a_mask_lists_ragged_tensors_and_an_unknown_width_raise_bad_input():
    """Keras's order is query, value, key, so keys can arrive as the mask."""
    attention, x = tt.layers.MultiHeadAttention(1, name="it"), np.random.default_rng(1).normal(size=(B, T, D))
    expected = r"^it: expected mask \[B, T\] of bools, got .* \(2, 5, 7\). The arguments are query, value, mask$"
    with pytest.raises(tt.BadInput, match=expected):
        attention(x, x, x)
    with pytest.raises(tt.BadInput, match=r"^it: expected query \[B, T, d\], got a list$"):
        attention([x, x])
    with pytest.raises(tt.BadInput, match=r"^it: expected query \[B, T, d\], got float32 \(None, 5, None\)$"):
        attention(keras.Input((5, None)))
    tf = pytest.importorskip("tensorflow")
    with pytest.raises(tt.BadInput, match=r"^it: expected ids \[B, T\], got a ragged tensor, for which write ids"):
        tt.layers.PositionalEmbedding(V, D, name="it")(tf.ragged.constant([[5, 6], [7]]))


@every_case
def test_a_frozen_layer_has_no_trainable_weight(case):
    """Nor have the layers that it makes when it is built, which a model around asks by themselves."""
    model = case.model(case.make(trainable=False))
    assert model.weights and not model.trainable_weights


@every_layer_of_one_input
def test_in_a_sequential_model(case):
    (x,) = case.arrays()
    assert_close(keras.Sequential([case.built()])(x), case.output())
    assert_close(keras.Sequential([*case.symbolic_inputs(), case.built()])(x), case.output())


@every_layer_of_one_input
def test_time_distributed(case):
    layer = case.built()
    several = np.stack([*case.arrays(), *[x[::-1] for x in case.arrays()]], axis=1)  # [B, 2, T, ...]
    inputs = keras.Input((2, None, *several.shape[3:]), dtype=str(several.dtype))
    model = keras.Model(inputs, keras.layers.TimeDistributed(layer)(inputs))
    for i in range(2):
        assert_close(model(several)[:, i], layer(several[:, i]))


class Around(keras.Model):
    def __init__(self, layer, case):
        super().__init__()
        self.layer, self.case = layer, case

    def call(self, inputs):
        return self.case.call(self.layer, inputs)


@promise([case for case in LAYERS if case.name in ("learned", "learned_positions")])
def test_in_a_custom_layer(case):
    """Keras traces it for shapes, with symbols as lengths on JAX and with a length of 83 on PyTorch."""
    layer = case.built()
    around = keras.layers.Lambda(lambda inputs: case.call(layer, inputs))
    inputs = case.symbolic_inputs()
    assert_close(keras.Model(inputs, around(inputs))(case.arrays()), case.output())


@every_case
def test_in_a_subclassed_model(case):
    model = Around(case.make(), case)
    model(case.arrays())
    assert_close(draw_weights(model)(case.arrays()), case.output())


@every_case
def test_summary(case):
    model, lines = case.model(case.make(name="it")), []
    model.summary(print_fn=lines.append)
    table = "\n".join(lines)
    (row,) = (line for line in table.splitlines() if line.startswith("│ it "))
    assert f"(None, None, {case.output_shape[-1]})" in row
    assert f"Total params: {sum(weight.size for weight in model.get_weights()):,} " in table


@every_case
def test_summary_of_a_subclassed_model(case):
    model, lines = Around(case.make(name="it"), case), []
    model(case.arrays())
    model.summary(print_fn=lines.append)
    (row,) = (line for line in "\n".join(lines).splitlines() if line.startswith("│ it "))
    assert str(case.output_shape) in row


def test_summary_of_a_built_transformer():
    model = MODELS[0].make()
    model.build()
    model.summary(print_fn=lambda line: None)


def test_plot_model(tmp_path):
    pytest.importorskip("pydot")
    for case in (LAYERS[0], *MODELS):
        model = case.model(case.make())
        dot = keras.utils.model_to_dot(model, show_shapes=True).to_string()
        (box,) = (line for line in dot.splitlines() if f"<b>{model.layers[-1].name}</b>" in line)
        assert f"Output shape: <b>(None, None, {case.output_shape[-1]})</b>" in box
    if shutil.which("dot") is None:
        pytest.skip("no graphviz to draw it with")
    keras.utils.plot_model(model, tmp_path / "model.png", show_shapes=True, expand_nested=True)
    assert (tmp_path / "model.png").read_bytes().startswith(b"\x89PNG")


def test_the_examples_of_docstrings():
    for kind in {type(case.make()) for case in LAYERS + MODELS} | {tt.Ensemble, tt.Tokenizer}:
        (example,) = doctest.DocTestFinder(recurse=False).find(kind, globs={"keras": keras, "tt": tt})
        done = doctest.DocTestRunner().run(example)
        assert done.attempted and not done.failed, kind


@pytest.mark.slow
@every_case
def test_keras_tests_of_its_own_layers(case):
    """A layer of several inputs takes them by name there, which `fit` cannot."""
    shapes, dtypes = case.input_shapes(), ["int32" if case.of_ids else "float32" for _ in case.lengths]
    by_name = len(shapes) > 1 and case not in MODELS
    if by_name:
        names = list(inspect.signature(case.make().build).parameters)
        shapes, dtypes = (dict(zip(names, values, strict=True)) for values in (shapes, dtypes))
    elif case in MODELS:
        shapes, dtypes = tuple(shapes), tuple(dtypes)
    else:
        (shapes,), (dtypes,) = shapes, dtypes
    TestCase().run_layer_test(
        case.make,
        {},
        input_shape=shapes,
        input_dtype=dtypes,
        expected_output_shape=case.output_shape,
        supports_masking=case not in MODELS,
        run_training_check=not by_name,
    )


# Masks


def masked_model(case, *then):
    """ids -> Embedding(mask_zero=True), unless the layer itself takes ids -> the layer -> `then`, stock layers."""
    ids = [keras.Input((None,), dtype="int32") for _ in case.lengths]
    inputs = ids if case.of_ids else [keras.layers.Embedding(V, D, mask_zero=True)(x) for x in ids]
    output = case.call(case.make(), inputs)
    return draw_weights(keras.Model(ids, [layer(output) for layer in then] or output))


def sentences(case):
    random = np.random.default_rng(3)
    return [random.integers(1, V, (1, length), dtype="int32") for length in case.lengths]


def padded(case, ids, filler=0):
    """Pads sentences on both sides, or only at the end if the layer has positions, which padding before would shift."""
    return [np.pad(x, ((0, 0), (0 if case.has_positions else 2, 3)), constant_values=filler) for x in ids]


@promise([case for case in LAYERS + MODELS if case.mixes])
def test_padding_changes_nothing_at_real_positions(case):
    ids = sentences(case)
    model = masked_model(case)
    unpadded = array(model(ids))
    real = slice(0, T) if case.has_positions else slice(2, 2 + T)
    assert_close(model(padded(case, ids))[:, real], unpadded)
    assert not np.allclose(array(model(padded(case, ids, filler=1)))[:, real], unpadded, atol=0.01)


@every_layer
def test_masks_reach_the_stock_layers_after_ours(case):
    ids = sentences(case)
    model = masked_model(case, keras.layers.GlobalAveragePooling1D(), keras.layers.LSTM(3))
    for output, unpadded, unmasked in zip(
        model(padded(case, ids)), model(ids), model(padded(case, ids, filler=1)), strict=True
    ):
        assert_close(output, unpadded)
        assert not np.allclose(array(unmasked), array(unpadded), atol=0.01)


@promise([case for case in LAYERS if "attention_mask" in inspect.signature(case.make().call).parameters])
def test_padding_stays_hidden_under_an_attention_mask(case):
    ids = sentences(case)
    inputs = [keras.Input((None,), dtype="int32") for _ in ids]
    mask = keras.Input((None, None), dtype="bool")
    embedded = [keras.layers.Embedding(V, D, mask_zero=True)(x) for x in inputs]
    model = draw_weights(keras.Model([*inputs, mask], case.call(case.make(), embedded, attention_mask=mask)))

    def output(ids):
        # The decoder's attention_mask is that of its self-attention.
        keys = ids[0 if case.name.endswith("decoder") else -1]
        return array(model([*ids, np.ones((1, ids[0].shape[1], keys.shape[1]), "bool")]))

    assert_close(output(padded(case, ids))[:, 2 : 2 + T], output(ids))


# Dropout


def rates_of(case):
    """Returns a config without dropout, the dictionary of its rates, and their names."""
    config = case.make().get_config()
    rates = config["config"] if case in MODELS else config
    names = [name for name in ("dropout", "attention_dropout") if name in rates]
    rates |= dict.fromkeys(names, 0.0)
    return config, rates, names


@promise([case for case in LAYERS + MODELS if rates_of(case)[2]])
def test_each_dropout_works_alone_and_only_in_training(case):
    config, rates, names = rates_of(case)
    for name in names:
        rates[name] = 0.5
        layer = type(case.make()).from_config(config)
        case.call(layer, case.arrays())
        layer.set_weights(case.weights())
        for inference in ({}, {"training": False}):
            assert_close(case.call(layer, case.arrays(), **inference), case.output())
        assert np.abs(array(case.call(layer, case.arrays(), training=True)) - case.output()).max() > 0.1, name
        variables = layer.trainable_variables, layer.non_trainable_variables
        state = [[variable.value for variable in group] for group in variables]
        for training in (True, False):  # Keras's step on JAX calls it without a call context
            stateless = functools.partial(layer.stateless_call, *state, training=training)
            output, _ = stateless(tuple(case.arrays())) if case in MODELS else stateless(*case.arrays())
            assert (np.abs(array(output) - case.output()).max() > 0.1) == training, name
        rates[name] = 0.0


# Dtypes


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@every_case
def test_mixed_precision(case, policy):
    layer = case.built(dtype=policy)
    output = case.call(layer, case.arrays())
    expected = "float32" if case in MODELS else policy.removeprefix("mixed_")  # logits are always float32
    assert standardize_dtype(output.dtype) == expected
    assert {standardize_dtype(weight.dtype) for weight in layer.weights} == {"float32"}
    assert {child.dtype_policy.name for child in layer._flatten_layers()} == {policy}
    difference = array(output) - case.output()
    assert np.linalg.norm(difference) < 0.03 * np.linalg.norm(case.output())


@promise([case for case in LAYERS + MODELS if case.of_ids])
def test_ids_may_arrive_as_floats(case):
    """`keras.Input((None,))` has the dtype float32. No policy may round its ids."""
    layer = case.built(dtype="mixed_bfloat16")
    floats = [ids.astype("float32") for ids in case.arrays()]
    assert_close(case.call(layer, floats), case.call(layer, case.arrays()))
