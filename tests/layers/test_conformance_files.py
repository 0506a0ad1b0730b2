"""Keras's contract of every layer: saved, exported, quantized and adapted models load."""

import keras
import numpy as np
import pytest
from conftest import array
from programs import run_python
from promises import LAYERS, MODELS, B, D, T, assert_close, every_case, promise, tensorflow_only

import tf_transformer as tt

# Files

LOAD = """
import pathlib, sys
import keras, numpy, tf_transformer
for path in pathlib.Path(sys.argv[1]).glob("*.keras"):
    arrays = numpy.load(path.with_suffix(".npz"))
    inputs = [arrays[name] for name in arrays.files]
    try:
        numpy.save(path.with_suffix(".npy"), keras.ops.convert_to_numpy(keras.saving.load_model(path)(inputs)))
    except Exception as error:
        path.with_suffix(".error").write_text(str(error))
"""


@pytest.fixture(scope="module")
def cases(request):
    """Returns the cases of the tests that run: some are slow."""
    tests = [item for item in request.session.items if "cases" in item.fixturenames]
    return list(dict.fromkeys(item.callspec.params["case"] for item in tests))


@pytest.fixture(scope="module")
def files(cases, tmp_path_factory):
    """Returns a folder with a model around each layer and that model's inputs."""
    folder = tmp_path_factory.mktemp("models")
    for case in cases:
        case.model().save(folder / f"{case.name}.keras")
        np.savez(folder / f"{case.name}.npz", *case.arrays())
    return folder


@pytest.fixture(scope="module")
def reloaded_files(files, cases, tmp_path_factory):
    """Returns `files` after a fresh process has added each model's output, and the value of `exported`.

    The process begins with the SavedModel, before it imports the package.
    """
    if keras.backend.backend() != "tensorflow":
        run_python(LOAD, files)
        return files, {}
    folder = tmp_path_factory.mktemp("exported")
    expected = export_layers(folder, cases)
    run_python(EXPORTED + LOAD, files, folder)
    return files, {name: (np.load(folder / f"{name}.npy"), output) for name, output in expected.items()}


@pytest.mark.program
@every_case
def test_load_model_in_a_fresh_process(case, reloaded_files):
    reloaded_files, _ = reloaded_files
    error = reloaded_files / f"{case.name}.error"
    assert not error.exists(), error.read_text()
    assert_close(np.load(reloaded_files / f"{case.name}.npy"), case.output())


@every_case
def test_load_weights(case, tmp_path):
    case.model().save_weights(tmp_path / "model.weights.h5")
    other = case.model(case.make())
    assert not np.allclose(array(other(case.arrays())), case.output(), atol=0.01)
    other.load_weights(tmp_path / "model.weights.h5")
    assert_close(other(case.arrays()), case.output())


@pytest.mark.parametrize("name", ["encoder", "feed_forward"])
def test_an_activation_with_weights_is_saved_and_cloned(name, tmp_path):
    kinds = {"encoder": tt.layers.EncoderLayer, "feed_forward": tt.layers.FeedForward}
    inputs, x = keras.Input((None, D)), np.random.default_rng(1).normal(size=(B, T, D)).astype("float32")
    sizes = {"d_ff": 17} | ({"num_heads": 1} if name == "encoder" else {})
    activation = keras.layers.PReLU("random_normal")
    model = keras.Model(inputs, kinds[name](**sizes, activation=activation)(inputs))
    model.save(tmp_path / "model.keras")
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    for other in (keras.models.load_model(tmp_path / "model.keras"), clone):
        assert_close(other(x), model(x))
        assert not {id(weight) for weight in other.weights} & {id(weight) for weight in model.weights}


EXPORTED = """
import pathlib, sys
import numpy, tensorflow
folder = pathlib.Path(sys.argv[2])
module = tensorflow.saved_model.load(str(folder))
for path in folder.glob("*.npz"):
    arrays = numpy.load(path)
    inputs = [tensorflow.constant(arrays[name]) for name in arrays.files]
    numpy.save(path.with_suffix(".npy"), getattr(module, path.stem)(*inputs))
assert "tf_transformer" not in sys.modules
"""


def export_layers(folder, cases):
    """Writes a SavedModel with one function per layer, and their inputs. Returns the layers' outputs."""
    import tensorflow as tf

    # Like that of `Translator.save`, it owns raw variables and reaches the layers by closure.
    module = tf.Module()
    module.weights = []
    expected = {}

    def function(case, layer):
        signature = [tf.TensorSpec(x.shape, x.dtype) for x in case.symbolic_inputs()]
        return tf.function(lambda *inputs: case.call(layer, inputs), input_signature=signature, autograph=False)

    for case in cases:
        layer = case.built()
        module.weights += [weight.value for weight in layer.weights]
        setattr(module, case.name, function(case, layer))
        inputs = case.arrays(batch=3, longer=6)  # not the sizes that built the layer
        expected[case.name] = case.call(layer, inputs)
        np.savez(folder / f"{case.name}.npz", *inputs)
    tf.saved_model.save(module, str(folder))
    return expected


@pytest.fixture(scope="module")
def exported(reloaded_files):
    """Returns outputs of that SavedModel, from a process that imports only TensorFlow, and those of the layers."""
    return reloaded_files[1]


@pytest.mark.program
@tensorflow_only
@every_case
def test_saved_model_needs_only_tensorflow(case, exported):
    assert_close(*exported[case.name])


# Quantization and LoRA


@promise(LAYERS + MODELS, slow=("cross_attention", "decoder", "transformer"))
@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
def test_quantized_to_int8(case, tmp_path):
    """Outputs are near those of the layer. The model can be saved and loaded, twice."""
    model = case.model()
    model.quantize("int8")
    output = array(model(case.arrays()))
    assert np.linalg.norm(output - case.output()) < 0.05 * np.linalg.norm(case.output())
    kernels = [weight for weight in case.built().weights if weight.path.endswith(("kernel", "/embeddings"))]
    for path in (tmp_path / "model.keras", tmp_path / "again.keras"):
        assert [weight.dtype for weight in model.weights].count("int8") == len(kernels)
        model.save(path)
        model = keras.models.load_model(path)
        assert_close(model(case.arrays()), output)


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
def test_int8_layers_inside_other_models(tmp_path):
    """In a file or a clone, the layers have other paths than in the model."""
    feed_forward, encoder = tt.layers.FeedForward(17), tt.layers.EncoderLayer(1, 17)
    around = keras.Sequential([keras.Input((T, D)), feed_forward])
    model = keras.Sequential([keras.Input((T, D)), around, encoder])
    for dense in (feed_forward.output_projection, encoder.self_attention.query_projection):
        dense.quantize("int8")
    model.save(tmp_path / "model.keras")
    clone, x = keras.models.clone_model(model), np.random.default_rng(2).normal(size=(B, T, D))
    clone.set_weights(model.get_weights())
    for again in (clone, keras.models.load_model(tmp_path / "model.keras")):
        assert [weight.dtype for weight in again.weights] == [weight.dtype for weight in model.weights]
        assert [weight.dtype for weight in again.weights].count("int8") == 2
        assert_close(again(x), model(x))


@every_case
def test_lora(case, tmp_path):
    """Only adapters are trainable. A saved model loads with adapters merged."""
    layer = case.built()
    adapted = [inner for inner in layer._flatten_layers() if hasattr(inner, "enable_lora")]
    for weight in layer.weights:
        weight.trainable = False
    for inner in adapted:
        inner.enable_lora(2)
    assert len(layer.trainable_weights) == 2 * len(adapted)
    for weight in layer.trainable_weights:
        weight.assign(np.random.default_rng(7).normal(size=weight.shape))
    model = case.model(layer)
    expected = array(model(case.arrays()))
    assert not adapted or not np.allclose(expected, case.output(), atol=0.01)
    model.save(tmp_path / "model.keras")
    assert_close(keras.saving.load_model(tmp_path / "model.keras")(case.arrays()), expected)
