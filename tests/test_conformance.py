"""One list of layers, one file of promises: every layer meets every promise that a user of Keras takes for granted."""

import functools
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops
from keras.backend import standardize_dtype

import tf_transformer as tt

# Different primes, and a length S that is none of them: a wrong axis shows. V is more than bfloat16 can count to.
B, T, S, D, V = 2, 5, 4, 7, 307
SIZES = {"num_heads": 3, "d_k": 11, "d_v": 13}
RATES = {"dropout": 0.3, "attention_dropout": 0.2}
WINDOW = 3
CONFIG = tt.TransformerConfig(num_layers=2, d_model=D, d_ff=17, vocab_size=V, **SIZES, **RATES)

tensorflow_only = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a feature of TensorFlow alone")


# The list


@dataclass(frozen=True)
class Case:
    """A layer of the list and how to feed it."""

    name: str
    make: Callable[..., keras.layers.Layer]  # of `name`, `dtype` and whatever else every layer of Keras takes
    lengths: tuple[int, ...] = (T,)  # one input a length
    of_ids: bool = False  # inputs are [B, length], not [B, length, D]
    mixes: bool = False  # what stands at one position changes the output at others
    scores: bool = False  # takes return_attention_scores
    slow: bool = False  # like another of the list
    output_shape: tuple[int, ...] = (B, T, D)

    def call(self, layer, inputs, **kwargs):
        """A layer takes its inputs one by one, a model takes a tuple."""
        return layer(tuple(inputs), **kwargs) if isinstance(layer, tt.Transformer) else layer(*inputs, **kwargs)

    def input_shapes(self, batch=B, longer=0):
        shapes = [(batch, length + longer, D) for length in self.lengths]
        return [shape[:2] for shape in shapes] if self.of_ids else shapes

    def arrays(self, *args, **kwargs):
        """One array an input: ids without padding, or normal numbers."""
        random = np.random.default_rng(1)
        shapes = self.input_shapes(*args, **kwargs)
        if self.of_ids:
            return [random.integers(1, V, shape, dtype="int32") for shape in shapes]
        return [random.normal(size=shape).astype("float32") for shape in shapes]

    def symbols(self):
        """One `keras.Input` an input, of unknown batch and length."""
        return [
            keras.Input((None, *shape[2:]), dtype="int32" if self.of_ids else "float32")
            for shape in self.input_shapes()
        ]

    def built(self, **kwargs):
        """The layer, built by a call, with weights that no initializer makes."""
        layer = self.make(**kwargs)
        self.call(layer, self.arrays())
        return randomized(layer)

    def model(self, layer=None):
        """The layer, by default `built`, as a functional model."""
        inputs = self.symbols()
        return keras.Model(inputs, self.call(layer or self.built(), inputs))

    @functools.cache  # noqa: B019 (the list lives as long as the process)
    def answer(self):
        """What the `built` layer says to `arrays`."""
        return array(self.call(self.built(), self.arrays()))

    def __str__(self):
        return self.name


def self_or_cross(**kwargs):
    return tt.layers.MultiHeadAttention(**SIZES, dropout=0.2, **kwargs)


def sinusoidal(**kwargs):
    return tt.layers.PositionalEmbedding(V, D, "sinusoidal", max_length=19, dropout=0.3, **kwargs)


def learned(**kwargs):
    return tt.layers.PositionalEmbedding(V, D, "learned", max_length=19, dropout=0.3, **kwargs)


def feed_forward(**kwargs):
    return tt.layers.FeedForward(d_ff=17, activation="gelu", **kwargs)


def add_and_norm(**kwargs):
    return tt.layers.AddAndNorm(dropout=0.3, epsilon=1e-3, **kwargs)


def encoder(**kwargs):
    return tt.layers.EncoderLayer(d_ff=17, **SIZES, **RATES, **kwargs)


def decoder(**kwargs):
    return tt.layers.DecoderLayer(d_ff=17, **SIZES, **RATES, **kwargs)


def restricted_encoder(**kwargs):
    return encoder(attention_window=WINDOW, **kwargs)


def restricted_decoder(**kwargs):
    return decoder(attention_window=WINDOW, **kwargs)


def transformer(**kwargs):
    return tt.Transformer(CONFIG, **kwargs)


LAYERS = [
    Case("self_attention", self_or_cross, mixes=True, scores=True),
    Case("cross_attention", self_or_cross, (T, S), mixes=True, scores=True),
    Case("sinusoidal", sinusoidal, of_ids=True),
    Case("learned", learned, of_ids=True),
    Case("feed_forward", feed_forward),
    Case("add_and_norm", add_and_norm, (T, T)),
    Case("encoder", encoder, mixes=True, scores=True),
    Case("decoder", decoder, (T, S), mixes=True, scores=True),
    Case("restricted_encoder", restricted_encoder, mixes=True, scores=True, slow=True),
    Case("restricted_decoder", restricted_decoder, (T, S), mixes=True, scores=True),
]
MODELS = [Case("transformer", transformer, (S, T), of_ids=True, mixes=True, scores=True, output_shape=(B, T, V))]


def promise(cases, slow=()):
    """A test of each case; those that are like another, or take long here, are slow."""
    return pytest.mark.parametrize(
        "case", [pytest.param(x, marks=[pytest.mark.slow] * (x.slow or x.name in slow)) for x in cases], ids=str
    )


every_case = promise(LAYERS + MODELS)
every_layer = promise(LAYERS)
every_layer_of_one_input = promise([case for case in LAYERS if len(case.lengths) == 1])


def randomized(layer):
    random = np.random.default_rng(2)
    # Gains of norms, and with them all vectors, stand around 1: around 0 they would let little through.
    layer.set_weights([random.normal(len(weight.shape) == 1, 0.5, weight.shape) for weight in layer.weights])
    return layer


def array(tensor):
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


def assert_close(actual, expected, tolerance=1e-5):
    np.testing.assert_allclose(array(actual), array(expected), atol=tolerance, rtol=tolerance)


def run_python(program, *arguments):
    """Run a program in a fresh process."""
    found = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"KERAS_BACKEND": keras.backend.backend()},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert found.returncode == 0, found.stderr[-5000:]


# Configs


@every_case
def test_every_argument_is_an_attribute_and_in_the_config(case):
    layer = case.make()
    arguments = [p for p in inspect.signature(type(layer).__init__).parameters.values() if p.name != "self"]
    assert arguments.pop().kind == inspect.Parameter.VAR_KEYWORD
    config = layer.get_config()
    for argument in arguments:
        attribute = getattr(layer, argument.name)
        if case.name not in ("sinusoidal", "encoder", "decoder"):  # another value than the default is given elsewhere
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
    assert_close(clone(case.arrays()), case.answer())


# Files

LOAD = """
import pathlib, sys
import keras, numpy, tf_transformer
for path in pathlib.Path(sys.argv[1]).glob("*.keras"):
    given = numpy.load(path.with_suffix(".npz"))
    inputs = [given[name] for name in given.files]
    try:
        numpy.save(path.with_suffix(".npy"), keras.ops.convert_to_numpy(keras.saving.load_model(path)(inputs)))
    except Exception as error:
        path.with_suffix(".error").write_text(str(error))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a model around each layer and that model's inputs."""
    folder = tmp_path_factory.mktemp("models")
    for case in LAYERS + MODELS:
        case.model().save(folder / f"{case.name}.keras")
        np.savez(folder / f"{case.name}.npz", *case.arrays())
    return folder


@pytest.fixture(scope="module")
def answered_files(files):
    """The same folder after a fresh process has loaded each model and left its answer there."""
    run_python(LOAD, files)
    return files


@every_case
def test_load_model(case, files):
    loaded = keras.saving.load_model(files / f"{case.name}.keras")
    assert_close(loaded(case.arrays()), case.answer())


@every_case
def test_load_model_in_a_fresh_process(case, answered_files):
    error = answered_files / f"{case.name}.error"
    assert not error.exists(), error.read_text()
    assert_close(np.load(answered_files / f"{case.name}.npy"), case.answer())


@every_case
def test_load_weights(case, tmp_path):
    case.model().save_weights(tmp_path / "model.weights.h5")
    other = case.model(case.make())
    assert not np.allclose(array(other(case.arrays())), case.answer(), atol=0.01)
    other.load_weights(tmp_path / "model.weights.h5")
    assert_close(other(case.arrays()), case.answer())


EXPORTED = """
import pathlib, sys
import numpy, tensorflow
folder = pathlib.Path(sys.argv[1])
module = tensorflow.saved_model.load(str(folder))
for path in folder.glob("*.npz"):
    given = numpy.load(path)
    inputs = [tensorflow.constant(given[name]) for name in given.files]
    numpy.save(path.with_suffix(".npy"), getattr(module, path.stem)(*inputs))
assert "tf_transformer" not in sys.modules
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The answers of a SavedModel with a function a layer, from a process that knows TensorFlow alone, and ours."""
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("exported")
    # It owns raw variables and reaches the layers by closure, as the one that `Translator.save` writes.
    module = tf.Module()
    module.weights = []
    expected = {}

    def function(case, layer):
        signature = [tf.TensorSpec(symbol.shape, symbol.dtype) for symbol in case.symbols()]
        return tf.function(lambda *inputs: case.call(layer, inputs), input_signature=signature, autograph=False)

    for case in LAYERS + MODELS:
        layer = case.built()
        module.weights += [weight.value for weight in layer.weights]
        setattr(module, case.name, function(case, layer))
        inputs = case.arrays(batch=3, longer=6)  # of other sizes than those that built the layer
        expected[case.name] = case.call(layer, inputs)
        np.savez(folder / f"{case.name}.npz", *inputs)
    tf.saved_model.save(module, str(folder))
    run_python(EXPORTED, folder)
    return {name: (np.load(folder / f"{name}.npy"), answer) for name, answer in expected.items()}


@tensorflow_only
@every_case
def test_saved_model_needs_tensorflow_alone(case, exported):
    assert_close(*exported[case.name])


# Fewer numbers


@promise(
    [case for case in LAYERS + MODELS if case.name not in ("self_attention", "cross_attention", "feed_forward")],
    slow=("decoder", "restricted_decoder", "transformer"),
)
@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
def test_quantized_to_int8(case, tmp_path):
    """Near the layer, and the same once loaded."""
    model = case.model()
    for layer in list(model._flatten_layers()):
        if isinstance(layer, tt.layers.PositionalEmbedding):  # which Keras passes over: it has a layer inside
            layer.quantize("int8")
    model.quantize("int8")
    expected = array(model(case.arrays()))
    assert np.linalg.norm(expected - case.answer()) < 0.05 * np.linalg.norm(case.answer())
    of_integers = [weight for weight in model.weights if weight.dtype == "int8"]
    kernels = [weight for weight in case.built().weights if weight.path.endswith(("kernel", "/embeddings"))]
    assert len(of_integers) == len(kernels)
    for _ in range(2 if case.name == "encoder" else 1):
        model.save(tmp_path / "model.keras")
        model = keras.saving.load_model(tmp_path / "model.keras")
        assert_close(model(case.arrays()), expected)


@every_case
def test_lora(case, tmp_path):
    """Only it learns; what was saved is loaded, added to what it adapts."""
    layer = case.built()
    inside = [each for each in layer._flatten_layers() if hasattr(each, "enable_lora")]
    for weight in layer.weights:
        weight.trainable = False
    for each in inside:
        each.enable_lora(2)
    assert len(layer.trainable_weights) == 2 * len(inside)
    for weight in layer.trainable_weights:
        weight.assign(np.random.default_rng(7).normal(size=weight.shape))
    model = case.model(layer)
    expected = array(model(case.arrays()))
    assert not inside or not np.allclose(expected, case.answer(), atol=0.01)
    model.save(tmp_path / "model.keras")
    assert_close(keras.saving.load_model(tmp_path / "model.keras")(case.arrays()), expected)


# Shapes and models of every kind


@every_case
def test_unknown_batch_and_length(case):
    layer = case.built()
    model = case.model(layer)
    assert model.output_shape == (None, None, case.output_shape[-1])
    assert_close(model(case.arrays()), case.answer())
    other = case.arrays(batch=3, longer=6)
    assert_close(model(other), case.call(layer, other))


@every_case
def test_compute_output_shape(case):
    layer = case.make()

    def computed(shapes):
        return layer.compute_output_shape(tuple(shapes)) if case in MODELS else layer.compute_output_shape(*shapes)

    assert case.answer().shape == case.output_shape
    assert computed(case.input_shapes()) == case.output_shape
    assert computed([symbol.shape for symbol in case.symbols()]) == (None, None, case.output_shape[-1])


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


@every_layer_of_one_input
def test_in_a_sequential_model(case):
    (x,) = case.arrays()
    assert_close(keras.Sequential([case.built()])(x), case.answer())
    assert_close(keras.Sequential([*case.symbols(), case.built()])(x), case.answer())


@every_layer_of_one_input
def test_time_distributed(case):
    layer = case.built()
    several = np.stack([*case.arrays(), *[x[::-1] for x in case.arrays()]], axis=1)  # [B, 2, T, ...]
    inputs = keras.Input((2, None, *several.shape[3:]), dtype=str(several.dtype))
    model = keras.Model(inputs, keras.layers.TimeDistributed(layer)(inputs))
    for i in range(2):
        assert_close(model(several)[:, i], layer(several[:, i]))


@every_case
def test_in_a_subclassed_model(case):
    class Around(keras.Model):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def call(self, inputs):
            return case.call(self.layer, inputs)

    model = Around(case.make())
    model(case.arrays())
    assert_close(randomized(model)(case.arrays()), case.answer())


# Masks


def masked_model(case, *then):
    """ids -> Embedding(mask_zero=True), unless the layer itself takes ids -> the layer -> `then`, stock layers."""
    ids = [keras.Input((None,), dtype="int32") for _ in case.lengths]
    inputs = ids if case.of_ids else [keras.layers.Embedding(V, D, mask_zero=True)(x) for x in ids]
    output = case.call(case.make(), inputs)
    return randomized(keras.Model(ids, [layer(output) for layer in then] or output))


def sentences(case):
    random = np.random.default_rng(3)
    return [random.integers(1, V, (1, length), dtype="int32") for length in case.lengths]


def padded(case, ids, filler=0):
    """The same sentences between padding, or after them where there are positions, which padding before would move."""
    return [np.pad(x, ((0, 0), (0 if case.of_ids else 2, 3)), constant_values=filler) for x in ids]


@promise([case for case in LAYERS + MODELS if case.mixes])
def test_padding_changes_nothing_at_real_positions(case):
    ids = sentences(case)
    model = masked_model(case)
    alone = array(model(ids))
    real = slice(0, T) if case.of_ids else slice(2, 2 + T)
    assert_close(model(padded(case, ids))[:, real], alone)
    assert not np.allclose(array(model(padded(case, ids, filler=1)))[:, real], alone, atol=0.01)


@every_layer
def test_masks_reach_the_stock_layers_after_ours(case):
    ids = sentences(case)
    model = masked_model(case, keras.layers.GlobalAveragePooling1D(), keras.layers.LSTM(3))
    for found, alone, unmasked in zip(
        model(padded(case, ids)), model(ids), model(padded(case, ids, filler=1)), strict=True
    ):
        assert_close(found, alone)
        assert not np.allclose(array(unmasked), array(alone), atol=0.01)


@promise([case for case in LAYERS if "attention_mask" in inspect.signature(case.make().call).parameters])
def test_padding_stays_hidden_under_an_attention_mask(case):
    ids = sentences(case)
    symbols = [keras.Input((None,), dtype="int32") for _ in ids]
    mask = keras.Input((None, None), dtype="bool")
    embedded = [keras.layers.Embedding(V, D, mask_zero=True)(x) for x in symbols]
    model = randomized(keras.Model([*symbols, mask], case.call(case.make(), embedded, attention_mask=mask)))

    def answer(ids):
        of_self = case.name.endswith("decoder")  # whose attention_mask is for its self-attention
        keys = ids[0] if of_self else ids[-1]
        return array(model([*ids, np.ones((1, ids[0].shape[1], keys.shape[1]), "bool")]))

    assert_close(answer(padded(case, ids))[:, 2 : 2 + T], answer(ids))


# Training and dtypes


@every_case
def test_every_weight_gets_a_gradient(case):
    model = case.model()
    before = model.get_weights()
    assert len(model.trainable_weights) == len(before)
    model.compile(keras.optimizers.SGD(1.0), loss="mse", run_eagerly=True)
    target = np.random.default_rng(4).normal(size=case.output_shape)
    model.train_on_batch(case.arrays(), target)
    for weight, old in zip(model.weights, before, strict=True):
        change = array(weight) - old
        assert np.isfinite(change).all(), weight.path
        assert np.abs(change).max() > 0, weight.path


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@every_case
def test_mixed_precision(case, policy):
    layer = case.built(dtype=policy)
    output = case.call(layer, case.arrays())
    expected = "float32" if case in MODELS else policy.removeprefix("mixed_")  # logits are always float32
    assert standardize_dtype(output.dtype) == expected
    assert {standardize_dtype(weight.dtype) for weight in layer.weights} == {"float32"}
    assert {child.dtype_policy.name for child in layer._flatten_layers()} == {policy}
    difference = array(output) - case.answer()
    assert np.linalg.norm(difference) < 0.03 * np.linalg.norm(case.answer())


@promise([case for case in LAYERS + MODELS if case.of_ids])
def test_ids_may_arrive_as_floats(case):
    """As they do from `keras.Input((None,))`, whose dtype is float32, and no policy may round them."""
    layer = case.built(dtype="mixed_bfloat16")
    floats = [ids.astype("float32") for ids in case.arrays()]
    assert_close(case.call(layer, floats), case.call(layer, case.arrays()))


REPLICAS = """
import sys
import keras, numpy
import tensorflow as tf
import tf_transformer as tt

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
random = numpy.random.default_rng(5)
source, target = random.integers(2, 31, (4, 7)), random.integers(2, 31, (4, 12))
target[:, 0] = 1
for row, length in enumerate((2, 4, 9, 11)):  # the first replica gets 6 tokens, the second 20
    source[row, 1 + length // 2 :] = 0
    target[row, 1 + length :] = 0

def train(strategy):
    keras.utils.set_random_seed(6)
    with strategy.scope():
        model = tt.Transformer(tt.TransformerConfig(1, 6, 13, 3, dropout=0.0, vocab_size=31))
        metrics = [tt.TokenAccuracy(), tt.Perplexity(), tt.TokenCount()]
        model.compile(tt.Adam(0.05, epsilon=0.01), loss=tt.SmoothedCrossEntropy(0.1), metrics=metrics)
    data = tf.data.Dataset.from_tensor_slices(((source, target[:, :-1]), target[:, 1:])).batch(4)
    history = model.fit(data, epochs=3, verbose=0).history  # one step an epoch
    names = ("loss", "accuracy", "perplexity", "tokens")
    return [numpy.array([history[name] for name in names]), *model.get_weights()]

two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
assert two.num_replicas_in_sync == 2
numpy.savez(sys.argv[1], *train(two))
numpy.savez(sys.argv[2], *train(tf.distribute.get_strategy()))
"""


@pytest.mark.program
@tensorflow_only
def test_two_replicas_train_as_one(tmp_path):
    run_python(REPLICAS, tmp_path / "two.npz", tmp_path / "one.npz")
    two, one = np.load(tmp_path / "two.npz"), np.load(tmp_path / "one.npz")
    loss, _, _, tokens = one["arr_0"]
    assert (np.diff(loss) < 0).all()
    assert tokens.tolist() == [26, 26, 26]
    assert one.files == two.files
    for name in one.files:
        assert_close(two[name], one[name])
