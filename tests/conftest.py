"""Fixtures and helpers of all tests: quiet TensorFlow, fixed seeds, conversion of arrays."""

import collections
import contextlib
import dataclasses
import functools
import gc
import importlib.util
import os
import random
import signal
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
if "PYTEST_XDIST_WORKER" in os.environ:  # A worker has one core. More threads would wait for each other.
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")

import hypothesis
import keras
import numpy as np
import portalocker
import pytest
import sixteen_bits
from hostile import TEXTS  # noqa: F401 (tests take it from here)

# Tracing makes many objects and frees few, so collecting them took a tenth of the time.
gc.set_threshold(100_000, 50, 1_000)
BACKEND = keras.backend.backend()
HAS_EXTENSIONS = importlib.util.find_spec("tf_transformer.extensions") is not None  # not in .ci/core_alone
EXAMPLES = 8 if BACKEND == "tensorflow" else 3  # JAX compiles for every shape
hypothesis.settings.register_profile("few", max_examples=EXAMPLES, deadline=None, derandomize=True)
hypothesis.settings.load_profile("few")


def _cheaper():
    """Leaves out what only a user reads, which took a third of the time: see each line."""
    import tensorflow as tf
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import gen_resource_variable_ops as raw

    # Deleting a data iterator waits seconds for the thread that tunes it. The package's own datasets have none.
    iterate, options = tf.data.Dataset.__iter__, tf.data.Options()
    options.autotune.enabled = False
    tf.data.Dataset.__iter__ = lambda self: iterate(self.with_options(options))
    # Each operation of a graph keeps Python's stack for messages.
    ops._create_c_op = functools.partial(ops._create_c_op, extract_traceback=False)
    # A kernel is made for each name of a variable, which is in messages too.
    make = raw.var_handle_op
    raw.var_handle_op = lambda *args, debug_name="", **options: make(*args, **options)


if BACKEND == "tensorflow":
    _cheaper()


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "ignore:You are using a softmax over axis")  # sequences of one token


def pytest_collection_modifyitems(items):
    """Runs files with program tests first: the last ones are short, so that two processes end together.

    Where extensions are missing, skips what needs them."""
    for item in items:
        if not HAS_EXTENSIONS and item.get_closest_marker("extensions"):
            item.add_marker(pytest.mark.skip(reason="needs tf_transformer.extensions"))
    long = collections.Counter(item.path for item in items if item.get_closest_marker("program"))
    items.sort(key=lambda item: -long[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Disables rewriting of graphs, which took a sixth of the fast tests' time. Slow tests, the README's program test,
    and other processes, such as servers of exports, run as for a user."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        program = item.get_closest_marker("program") and item.path.name == "test_readme.py"
        traced = not (program or item.get_closest_marker("slow"))
        if tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False) != traced:
            tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": traced})


@pytest.fixture(autouse=True, scope="session")
def skip_16_bits():
    """See `sixteen_bits`. Without the variable, TensorFlow multiplies in 16 bits on every processor."""
    dtypes = set()
    if BACKEND == "tensorflow" and sixteen_bits.VARIABLE in os.environ:
        dtypes = sixteen_bits.missing()
    with sixteen_bits.skipping(dtypes) if dtypes else contextlib.nullcontext():
        yield


@pytest.fixture(autouse=True, scope="module")
def freeze_what_is_old():
    """Collects garbage among a file's own objects only: Keras's `quantize` does so at each weight it replaces."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seed():
    """Resets all seeds before each test."""
    if BACKEND != "tensorflow":
        keras.utils.set_random_seed(7)
        return
    import tensorflow as tf
    from tensorflow.python.eager.context import context

    def restart_seeds(seed):
        context()._seed, context()._rng = seed, random.Random(seed)

    # `tf.random.set_seed` would also clear TensorFlow's cache of kernels.
    with mock.patch.object(tf.random, "set_seed", restart_seeds):
        keras.utils.set_random_seed(7)


@pytest.fixture(autouse=True)
def one_process_of_checks(request, monkeypatch):
    """Starts Python for the check of an export, which takes seconds, only in slow tests and with `whole_checks`."""
    if not HAS_EXTENSIONS:
        return
    from tf_transformer.extensions.conformance import check

    run = check._run

    def without_python(kind, *arguments):
        return () if kind == "python" else run(kind, *arguments)

    if "whole_checks" not in request.fixturenames and not request.node.get_closest_marker("slow"):
        monkeypatch.setattr(check, "_run", without_python)


@pytest.fixture
def ctrl_c():
    """Python handles Ctrl-C like in a terminal. Programs that a script starts with & ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def whole_checks():
    """See `one_process_of_checks`."""


@pytest.fixture(scope="session")
def needs_int8():
    """Skips a test if TensorFlow cannot multiply 8-bit integers, as on macOS."""
    from tf_transformer.config import BadInput
    from tf_transformer.layers.int8 import check_kernel

    try:
        check_kernel()
    except BadInput as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A directory with some of the toy corpus: train, dev and test, in .en and .de."""
    from tf_transformer.data import toy_corpus

    folder = tmp_path_factory.mktemp("text")
    toy_corpus.write_corpus(folder, train=900, dev=23, test=19)
    return folder


@pytest.fixture(scope="module")
def corpus(text):
    """Returns the corpus of `text`."""
    import tf_transformer as tt

    return tt.TextCorpus((text / "train.en", text / "train.de"), (text / "dev.en", text / "dev.de"))


@pytest.fixture(scope="session")
def translator():
    """A small translator whose outputs differ between rows."""
    import tf_transformer as tt

    pairs = tt.toy_corpus.corpus(train=20_600)["train"][20_000:]  # outputs for these differ the most
    tokenizer = tt.Tokenizer.train_from_iterator([text for pair in pairs for text in pair], 350)
    model = noisy_model(num_layers=1)
    return tt.Translator(model, tokenizer, beam_size=3, extra_length=7, max_source_length=41, batch_size=4)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """Makes a directory once for all processes of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def made(name, make):
        with portalocker.Lock(base / f"{name}.lock", timeout=600):
            if not (base / name).exists():
                make(base / f"{name}.new")
                (base / f"{name}.new").rename(base / name)
        return base / name

    return made


@pytest.fixture(scope="session")
def saved(translator, made_once):
    """The translator's SavedModel, moved after it was written."""
    metadata = {"source_language": "en", "target_language": "de", "step": 29}
    return made_once("savedmodels", lambda folder: translator.save(folder / "name/1", **metadata)) / "name/1"


@pytest.fixture(scope="session")
def loaded(saved):
    """The SavedModel, loaded in this process."""
    import tf_transformer as tt

    return tt.load(saved)


@pytest.fixture(scope="session")
def lite(translator, made_once):
    """The translator's LiteRT export, with two signatures, since each takes seconds to convert."""
    pytest.importorskip("tf_transformer.extensions")
    pytest.importorskip("ai_edge_litert")
    from tf_transformer.extensions.interop.formats import litert

    metadata = {"source_language": "en", "languages": "en, de", "license": "apache-2.0", "max_length": 97}
    save = lambda folder: translator.save(folder / "name/1", format="litert", **metadata)  # noqa: E731
    with mock.patch.object(litert, "LENGTHS", (16,)):
        return made_once("litert", save) / "name/1"


@pytest.fixture(scope="session")
def served(saved):
    """The SavedModel, loaded by TensorFlow's C++ in another process."""
    from served import Served

    process = Served(saved)
    yield process
    process.close()


@pytest.fixture
def unscored(monkeypatch):
    """Replaces a run's search, whose tracing takes seconds: the outputs are the dev set's sources."""
    from tf_transformer.training import tasks

    task = dataclasses.replace(tasks.TRANSLATION, decoder=lambda *_: list)
    monkeypatch.setattr(tasks, "TRANSLATION", task)


def normal(*shape, seed=0):
    """Returns float32 random numbers."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype("float32")


def array(x):
    """Converts a tensor or variable to a NumPy array."""
    return np.asarray(keras.ops.convert_to_numpy(x))


def close(found, expected, rtol=1e-5, atol=2e-6):
    found, expected = (array(x).astype("float64") for x in (found, expected))
    np.testing.assert_allclose(found, expected, rtol, atol)


def weights_of(layer):
    """Returns a layer's weights by path below it: {"query/kernel": float64 array}."""
    return {weight.path.split("/", 1)[1]: array(weight).astype("float64") for weight in layer.weights}


def draw_weights(layer, seed=0):
    """Gives every weight random numbers, so that no bias is zero and no norm's gain is one. Returns the layer."""
    random, values = np.random.default_rng(seed), []
    for weight in layer.weights:
        noise, name = random.standard_normal(weight.shape), weight.path.split("/")[-1]
        size = {"kernel": weight.shape[0] ** -0.5, "bias": 0.3, "gamma": 0.3, "beta": 0.3}
        values.append((name == "gamma") + size.get(name, weight.shape[-1] ** -0.5) * noise)
    layer.set_weights(values)
    return layer


def noisy_model(num_layers):
    """Returns the model of `translator`. Each layer makes exports slower."""
    import tf_transformer as tt

    keras.utils.set_random_seed(11)
    model = tt.Transformer(tt.TransformerConfig(num_layers, 24, 31, 3, d_k=5, d_v=7, vocab_size=350))
    model.build()
    random = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(variable + 0.3 * random.normal(size=variable.shape))
    return model


def random_model(vocab_size, seed, end, sizes, kind=None):
    """Returns a model whose random weights make sharp choices, and whose outputs end after few and after many tokens.
    `end` is added to the logit of EOS."""
    import tf_transformer as tt
    from tf_transformer.tokenizers.tokenizer import EOS_ID

    config = tt.TransformerConfig(2, 14, 23, 2, dropout=0.0, vocab_size=vocab_size, **sizes)
    model = (kind or tt.Transformer)(config)
    model.build()
    draw_weights(model, seed)
    factors = {"bias": 0.3, "beta": 0.3, "query/kernel": 3, "output/kernel": 4, "position_embeddings": 4}
    for weight in model.weights:
        weight.assign(weight * next((factor for end, factor in factors.items() if weight.path.endswith(end)), 1))
    norm = model.decoder_layers[-1].feed_forward_norm.norm
    norm.gamma.assign(norm.gamma * 2)
    norm.beta.assign(norm.beta * 4)
    embeddings, beta = array(model.embedding.embeddings).copy(), array(norm.beta)
    embeddings[EOS_ID] += end * beta / np.sum(beta**2)
    model.embedding.embeddings.assign(embeddings)
    return model


def _compilers():
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return {"eager": lambda f: f, "graph": tf.function, "jit": tf.function(jit_compile=True)}
    if BACKEND == "jax":
        import jax

        return {"eager": lambda f: f, "jit": jax.jit}
    return {"eager": lambda f: f}


COMPILERS = _compilers()


def value_and_gradients(function, variables):
    """Returns a scalar computed from Keras variables, and its gradient by each of them."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = function()
        gradients = tape.gradient(value, [variable.value for variable in variables])
        return value, [tf.convert_to_tensor(gradient) for gradient in gradients]
    if BACKEND == "jax":
        import jax

        def of(values):
            with keras.StatelessScope(zip(variables, values, strict=True)):
                return function()

        return jax.value_and_grad(of)([variable.value for variable in variables])
    import torch

    value = function()
    return value, torch.autograd.grad(value, [variable.value for variable in variables])
