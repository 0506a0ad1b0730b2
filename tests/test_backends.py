"""Code that uses only Keras works on JAX and PyTorch: the same tests, training, and exchange of weights.

Keras chooses its backend on import, so each test starts a process.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from answers import close, outputs_of
from matrix import FAMILIES
from test_lazy import MISSING

import tf_transformer as tt
from tf_transformer.inference.translator import trained

NAMES = ["masks", "attention", "embedding", "dropout", "sublayers", "encoder", "decoder", "model", "ensemble"]
NAMES += ["optimizer", "training", "conformance", "conformance_files", "conformance_training", "search"]
NAMES += ["search_rules", "sampling", "shortlist"]
ONE_CPU = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def if_installed(name):
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("backend", [pytest.param(name, marks=if_installed(name)) for name in ("jax", "torch")]),
]


def run(backend, *command):
    """Runs Python in a fresh process with a backend, on one thread of the CPU, which suffices for small models."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"KERAS_BACKEND": backend, "PYTHONPATH": ".", **ONE_CPU},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-5000:]}"
    return done.stdout


def test_suite(backend):
    paths = [path for name in NAMES for path in Path(__file__).parent.rglob(f"test_{name}.py")]
    run(backend, "-m", "pytest", "-p", "no:cacheprovider", *paths)


TRAIN = """
import sys
import keras, numpy
import tf_transformer as tt
import tensorflow as tf

random = numpy.random.default_rng(1)
source = random.integers(3, 31, (48, 7))
source[::3, 5:] = 0
target = numpy.pad(source, ((0, 0), (1, 0)), constant_values=1)  # the task is to copy
data = tf.data.Dataset.from_tensor_slices(((source, target[:, :-1]), target[:, 1:])).batch(16)

keras.utils.set_random_seed(2)
model = tt.Transformer(tt.TransformerConfig(1, 32, 64, 4, dropout=0.1, vocab_size=31))
model.compile(
    keras.optimizers.Adam(tt.WarmupSchedule(32, warmup_steps=20), beta_2=0.98, epsilon=1e-9),
    loss=tt.SmoothedCrossEntropy(0.1),
    metrics=[tt.TokenAccuracy(), tt.Perplexity(), tt.TokenCount()],
)
history = model.fit(data, epochs=20, verbose=0).history
assert keras.backend.backend() == sys.argv[1]
assert set(history["tokens"]) == {48 * 7 - 16 * 2}
assert history["loss"][-1] < 0.7 * history["loss"][0]
assert history["perplexity"][-1] < 0.5 * history["perplexity"][0]
assert history["accuracy"][-1] > history["accuracy"][0]
result = model.evaluate(data, verbose=0, return_dict=True)
assert result["loss"] < history["loss"][0]
"""


@if_installed("tensorflow")
def test_fit_on_a_tf_data_pipeline(backend):
    run(backend, "-c", TRAIN, backend)


RESUME = """
import pathlib, sys
import numpy
import tf_transformer as tt
from benchmarks.backends import Compilations
from tf_transformer.training.run import Run

text, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
corpus = tt.TextCorpus(*((text / f"{name}.en", text / f"{name}.de") for name in ("train", "dev")))
config = tt.TransformerConfig(1, 16, 8, 2, vocab_size=350)
recipe = tt.Recipe(steps=7, batch_tokens=512, warmup_steps=3, eval_every=3, seed=5)


def trained(name, *stops):
    for until in (*stops, None):
        rows = tt.Trainer(folder / name, config, corpus, recipe).fit(until)
    return rows, Run(folder / name).weights(1)[0]


def weights(file):
    model = tt.Transformer(config)
    model.build()
    model.load_weights(file)
    return model.get_weights()


rows, last = trained("whole")
other_rows, other_last = trained("stopped", 2, 5)
for mine, other in zip(weights(last), weights(other_last), strict=True):
    numpy.testing.assert_array_equal(mine, other)
columns = [name for name in rows[0] if name not in ("seconds", "tokens/s")]
for row, other_row in zip(rows, other_rows, strict=True):
    assert [row[name] for name in columns] == [other_row[name] for name in columns]
translator, compiled = tt.load(folder / "whole", beam_size=2), Compilations()
lines = (text / "train.en").read_text().splitlines()[:150]
counts = []
for first in (0, 10, 22):  # two batches each, of alike lengths
    assert len(translator(lines[first : first + 128])) == 128
    counts.append(compiled.count)
assert counts[0] <= 2 and counts == counts[:1] * 3 and bool(counts[0]) == (sys.argv[3] == "jax"), counts
try:
    translator.save(folder / "model" / "1")
except ValueError as error:
    assert "expected KERAS_BACKEND=tensorflow, since a SavedModel needs it" in str(error)
else:
    raise AssertionError("a SavedModel was written")
"""


@if_installed("tensorflow")
def test_a_stopped_run_resumes_as_if_uninterrupted(backend, text, tmp_path):
    run(backend, "-c", RESUME, text, tmp_path, backend)


WITHOUT = """
from trainers import prepare, translation
from trainers.command import run_program

run_program(lambda: {"prepare": prepare, "translation": translation}[sys.argv[2]].main(sys.argv[3:]))
"""


def test_the_program_where_tensorflow_is_not_installed(backend, tmp_path):
    """It trains to the end after it was killed, and also on text and records. TensorFlow loads the run."""

    def program(*argv):
        command = [sys.executable, "-c", MISSING + WITHOUT, "tensorflow tensorflow_text tensorflow_datasets", *argv]
        environment = os.environ | {"KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
        options = {"cwd": Path(__file__).parents[1], "env": environment, "text": True}
        return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)

    demo = "translation", "--run", tmp_path / "demo"
    killed = program(*demo)
    while killed.poll() is None and not list(tmp_path.glob("demo/checkpoints/step-*/state.json")):
        time.sleep(0.2)
    killed.kill()
    killed.communicate()
    resumed = program(*demo)
    printed = resumed.communicate()[0]
    assert resumed.returncode == 0, printed[-5000:]
    assert "going on from the checkpoint at step" in printed and "An export takes the TensorFlow backend" in printed
    assert "dev BLEU" in printed and json.loads((tmp_path / "demo/metrics.json").read_text())["test_bleu"] >= 90
    assert any(file.stat().st_size for file in (tmp_path / "demo/logs").rglob("events*"))

    tt.toy_corpus.write_corpus(tmp_path, train=300, dev=7, test=7)
    train, dev = ([tmp_path / f"{part}.{side}" for side in ("en", "de")] for part in ("train", "dev"))
    runs = [["translation", "--dev", *dev, "--run", tmp_path / name] for name in ("prepared", "tuned")]
    few = "--steps", 2, "--batch-tokens", 512
    for argv in (
        ["prepare", "--train", *train, "--to", tmp_path / "records", "--vocab-size", 400],
        [*runs[0], "--prepared", tmp_path / "records", *few],
        [*runs[1], "--train", *train, "--from", tmp_path / "demo", *few],
    ):
        last = program(*argv)
        assert last.communicate()[0] and last.returncode == 0, argv

    corpus = tt.ToyCorpus()
    outputs = tt.load(tmp_path / "demo")(corpus.test[0])
    assert tt.bleu.bleu(outputs, corpus.test[1]).value >= 90


@pytest.fixture(scope="module", params=[*FAMILIES])
def saved(request, translator, tmp_path_factory):
    """Returns a folder with a model's SavedModel and texts, and TensorFlow's outputs for them."""
    folder = tmp_path_factory.mktemp(request.param)
    model = FAMILIES[request.param](translator, folder / "checkpoint")
    vocabulary = ["the", "old", "woman", "red", "door", "sees", "two", "dogs", "here", "today"]
    random = np.random.default_rng(7)
    texts = ["Two", *(" ".join(random.choice(vocabulary, random.integers(1, 9))) for _ in range(47)), "", "  "]
    if request.param.startswith("marian"):
        texts = [f">>deu<< {text}" if text.strip() else text for text in texts]
    model.save(folder / "1")
    (folder / "texts.json").write_text(json.dumps(texts))
    return folder, outputs_of(trained(folder / "1"), texts)


def test_outputs_are_those_of_tensorflow(backend, saved):
    """Every family, with every option of a call, has the same texts, and scores that differ by rounding."""
    folder, expected = saved
    outputs = json.loads(run(backend, "tests/answers.py", folder / "1", folder / "texts.json").splitlines()[-1])
    assert outputs.keys() == expected.keys()
    for name, values in json.loads(json.dumps(expected)).items():
        assert close(outputs[name], values), name
