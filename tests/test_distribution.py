"""Any number of devices, machines and microbatches has the same update and history."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

import keras
import numpy as np
import pytest
import replicas
import tensorflow as tf
from programs import run_python

import tf_transformer as tt
from tf_transformer import distribution
from trainers.command import run_program

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def trained():
    """Returns the model and its history on one device."""
    return replicas.train()


@pytest.fixture(scope="module")
def one_device(trained, tmp_path_factory):
    path = tmp_path_factory.mktemp("one") / "trained.npz"
    replicas.save(path, *trained)
    return np.load(path)


def start(path, *devices, program="replicas.py", **environment):
    command = [sys.executable, str(HERE / program), str(path), *devices]
    return subprocess.Popen(command, cwd=HERE, env=os.environ | environment, stderr=subprocess.PIPE, text=True)


def cluster(workers=2, chief=False):
    """Returns TF_CONFIG of each worker on this machine. The first may be the chief."""
    sockets = [socket.socket() for _ in range(workers)]
    for free in sockets:
        free.bind(("localhost", 0))
    names = [f"localhost:{free.getsockname()[1]}" for free in sockets]
    for free in sockets:
        free.close()
    machines = {"chief": names[:1], "worker": names[1:]} if chief else {"worker": names}
    tasks = [{"type": job, "index": i} for job, hosts in machines.items() for i in range(len(hosts))]
    return [json.dumps({"cluster": machines, "task": task}) for task in tasks]


def same(path, one_device, tolerance=1e-5):
    arrays = np.load(path)
    assert set(arrays) == set(one_device)
    for name in arrays:
        np.testing.assert_allclose(arrays[name], one_device[name], rtol=tolerance, atol=tolerance, err_msg=name)


TWO_REPLICAS = """
import sys
import keras, numpy, replicas, tensorflow as tf
import tf_transformer as tt
from tf_transformer.layers.sublayers import Dropout

replicas.save(sys.argv[1] + "/trained.npz", *replicas.train("cpu:2"))
strategy, arrays = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), {}
for width in (64, 63):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        layer = Dropout(0.5)
    x = tf.ones((32, width))
    outputs = [tf.function(lambda: strategy.run(lambda: layer(x, training=True)))() for _ in range(2)]
    arrays[f"outputs_{width}"] = [part for output in outputs for part in strategy.experimental_local_results(output)]
    arrays[f"states_{width}"] = strategy.experimental_local_results(layer.seed_generator.state.value)
numpy.savez(sys.argv[1] + "/dropped.npz", **arrays)

ids = numpy.random.default_rng(0).integers(1, 19, (4, 5)).astype("int32")
for name, strategy in {"one": tf.distribute.get_strategy(), "two": strategy}.items():
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = tt.Transformer(replicas.CONFIG)
        model.build()
        model.compile(keras.optimizers.SGD(0.5, global_clipnorm=0.2), tt.SmoothedCrossEntropy(0.0))
    model.fit(tf.data.Dataset.from_tensor_slices(((ids, ids), ids)).batch(4), epochs=2, verbose=0)
    numpy.savez(f"{sys.argv[1]}/{name}.npz", model.gradient_norm.numpy(), *model.get_weights())
"""


@pytest.fixture(scope="module")
def two_replicas(tmp_path_factory):
    """Returns a folder with arrays of a process with two replicas."""
    folder = tmp_path_factory.mktemp("two")
    run_python(TWO_REPLICAS, folder, PYTHONPATH=os.pathsep.join([str(HERE), str(HERE.parent)]))
    return folder


@pytest.mark.program
def test_two_replicas_are_one(one_device, two_replicas):
    """Weights, metrics and the clipped gradient's norm, of batches that two does not divide."""
    same(two_replicas / "trained.npz", one_device)


@pytest.mark.slow
def test_two_replicas_are_one_in_float16(tmp_path):
    """Replicas share the scale of the loss and the check of gradients."""
    replicas.save(tmp_path / "one.npz", *replicas.train(dtype="mixed_float16"))
    process = start(tmp_path / "two.npz", "cpu:2", "mixed_float16")
    assert process.wait() == 0, process.stderr.read()
    same(tmp_path / "two.npz", np.load(tmp_path / "one.npz"), 2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("chief", [False, True])
def test_two_workers_are_one(one_device, tmp_path, chief):
    """Two processes, as on two machines, each train on half of every batch. One of them may be the chief."""
    paths = [tmp_path / f"{i}.npz" for i in range(2)]
    workers = [start(path, TF_CONFIG=config) for path, config in zip(paths, cluster(chief=chief), strict=True)]
    for worker, path in zip(workers, paths, strict=True):
        assert worker.wait() == 0, worker.stderr.read()
        same(path, one_device)


@pytest.mark.program
def test_microbatches_train_like_the_batch(one_device, tmp_path):
    """Microbatches have unequal numbers of rows and tokens, some none."""
    replicas.save(tmp_path / "parts.npz", *replicas.train(num_microbatches=3))
    same(tmp_path / "parts.npz", one_device)


def test_a_step_is_that_of_keras(one_device, monkeypatch):
    """It is traced once per shape, since the optimizer's variables exist. Keras 3.16 traces a batch, then any."""
    traced = []

    def train_step(model, data):
        traced.append(str([x.shape for x in tf.nest.flatten(data)]))
        return keras.Model.train_step(model, data)

    monkeypatch.setattr(tt.Transformer, "train_step", train_step)
    model, history = replicas.train()
    assert len(set(traced)) == len(traced)
    for i, weight in enumerate(model.weights):
        np.testing.assert_allclose(weight, one_device[f"weight_{i}"], rtol=1e-5, atol=1e-5, err_msg=weight.path)
    np.testing.assert_allclose(history["perplexity"], one_device["perplexity"], rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "jit_compile"),
    [
        pytest.param(tt.Adam, False, marks=pytest.mark.program),
        pytest.param(tt.Adam, True, marks=pytest.mark.slow),
        pytest.param(keras.optimizers.Adam, False, marks=pytest.mark.slow),
    ],
)
def test_a_non_finite_update_can_be_skipped(kind, jit_compile):
    model = replicas.skip_update(kind, jit_compile=jit_compile)
    model.skip_not_finite = False
    model.make_train_function(force=True)
    model.fit(replicas.batch(broken=True), verbose=0)
    assert model.not_finite.numpy() == 1  # counted by this function
    assert not np.isfinite(model.get_weights()[1]).any()


@pytest.mark.slow
def test_two_replicas_skip_an_update_together():
    """Only one has the non-finite token. Some optimizers sum the gradients themselves."""
    program = """
import keras, replicas, tf_transformer as tt
strategy = tt.distribution.strategy("cpu:2")
for kind in (tt.Adam, keras.optimizers.SGD, keras.optimizers.Adam):
    with strategy.scope():
        replicas.skip_update(kind)
"""
    run_python(program, PYTHONPATH=os.pathsep.join([str(HERE), str(HERE.parent)]))


@pytest.mark.program
def test_any_optimizer_measures_and_clips_the_whole_gradient(two_replicas):
    """Keras's optimizers clip before they sum over replicas."""
    one, two = (np.load(two_replicas / f"{name}.npz") for name in ("one", "two"))
    assert one["arr_0"] > 0.2  # clipped
    for name in one:
        np.testing.assert_allclose(one[name], two[name], atol=1e-5)


@pytest.mark.program
def test_two_replicas_drop_other_components(two_replicas):
    """Replicas share one random state. An odd width takes another path."""
    arrays = np.load(two_replicas / "dropped.npz")
    for width in (64, 63):
        is_kept, states = arrays[f"outputs_{width}"] > 0, arrays[f"states_{width}"]
        shares = [(is_kept[i] == is_kept[j]).mean() for i in range(4) for j in range(i)]
        assert all(abs(share - 0.5) < 5 * (0.25 / is_kept[0].size) ** 0.5 for share in shares), shares
        np.testing.assert_array_equal(*states)


def test_no_variable_is_int32(trained):
    """TensorFlow has none on a GPU, and a function that XLA compiles for one may not touch the CPU's."""
    model, _ = trained
    attributes = [value for value in vars(model).values() if isinstance(value, tf.Variable)]
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables, *attributes]
    assert model.not_finite in attributes
    assert [variable.name for variable in variables if variable.dtype == "int32"] == []


@pytest.mark.program
def test_an_overflow_in_float16_halves_the_scale_and_updates_nothing():
    model = tt.Transformer(replicas.CONFIG, dtype="mixed_float16")
    model.build()
    model.compile(tt.Adam(0.01, global_clipnorm=0.5), tt.SmoothedCrossEntropy(0.1))
    model.optimizer.build(model.trainable_variables)
    data = replicas.batches().take(1)
    model.fit(data, verbose=0)
    norm, before = model.gradient_norm.numpy(), model.get_weights()
    assert 0.1 < norm < 100  # without the scale, 2 ** 15
    model.optimizer.dynamic_scale.assign(2.0**120)
    model.fit(data, verbose=0)
    assert model.optimizer.dynamic_scale == 2.0**119
    assert model.not_finite.numpy() == 0 and int(model.optimizer.iterations) == 1
    for weight, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, expected)
    model.optimizer.dynamic_scale.assign(2.0**10)
    model.fit(data, verbose=0)
    assert int(model.optimizer.iterations) == 2
    assert "int32" not in {variable.dtype for variable in model.optimizer.variables}
    assert any(np.any(weight != expected) for weight, expected in zip(model.get_weights(), before, strict=True))


def test_missing_devices():
    for devices in (
        "gpu:7",
        "all",
        "cpu:0",
        "tpu",
        "cpu:1000",
        "cpu:9999999999",
        "cpu:٣",
        "cpu:2,cpu:3",
        "cpu:0,cpu:0",
        "",
        " ",
        "cpu",
    ):
        if not (devices == "all" and tf.config.list_physical_devices("GPU")):
            with pytest.raises(tt.BadInput, match=f"^devices: expected .*cpu:N for N replicas .*, got '{devices}'"):
                distribution.strategy(devices)
    for wrong in (2, True, ["cpu:2"], b"cpu:2"):
        with pytest.raises(tt.BadInput, match=f"^devices: expected .*, got {re.escape(repr(wrong))}"):
            distribution.strategy(wrong)


def test_a_device_is_named_once(monkeypatch):
    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{number}", "GPU") for number in range(2)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    for devices in ("gpu:0,GPU:0", "gpu:2", "cpu:2,gpu:0", "gpu"):
        expected = "^devices: expected all, or some of gpu:0, gpu:1, each once, or cpu:N for N replicas .*, got "
        with pytest.raises(tt.BadInput, match=f"{expected}'{devices}'"):
            distribution.strategy(devices)
    gpus.clear()
    with pytest.raises(tt.BadInput, match="cpu:N for .*, got 'all'. TensorFlow finds no GPU"):
        distribution.strategy("all")


def test_devices_come_before_any_computation(monkeypatch):
    tf.constant(1.0) + 1
    there = len(tf.config.list_logical_devices("CPU"))
    with pytest.raises(tt.BadInput, match=f"^devices: expected a call before TensorFlow is used, got cpu:{there + 1} "):
        distribution.strategy(f"cpu:{there + 1}")
    monkeypatch.setenv("TF_CONFIG", cluster()[0])
    with pytest.raises(tt.BadInput, match="^TF_CONFIG: expected a call before TensorFlow is used"):
        distribution.strategy()


def test_devices_and_a_cluster(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", cluster()[0])
    with pytest.raises(tt.BadInput, match="expected none with TF_CONFIG"):
        distribution.strategy("cpu:2")


HOSTS = ["one:2222", "two:2222"]
NO_CLUSTERS = {
    "{cluster:": "expected JSON like",
    "[" * 10**5: "expected JSON like",
    json.dumps({"cluster": HOSTS}): "expected JSON like",
    json.dumps({"cluster": {"worker": 2}}): "expected JSON like",
    json.dumps({"cluster": {"worker": HOSTS}, "task": {"type": "worker", "index": "first"}}): "expected JSON like",
    json.dumps({"cluster": {"worker": HOSTS}}): "expected a task that is one of the cluster's machines, got none 0",
    json.dumps({"cluster": {"worker": HOSTS}, "task": {"type": "worker", "index": 2}}): "a task .*, got worker 2",
    json.dumps({"cluster": {"worker": "one:2222"}}): "expected machines as host:port",
    json.dumps({"cluster": {"chief": HOSTS}}): "at most one chief",
    json.dumps({"cluster": {"worker": HOSTS, "ps": HOSTS}}): "only a chief and workers, got worker, ps",
}


@pytest.mark.parametrize("text", NO_CLUSTERS)
def test_other_clusters_raise_bad_input(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(tt.BadInput, match=f"^TF_CONFIG: .*{NO_CLUSTERS[text]}") as error:
        distribution.strategy()
    assert len(str(error.value)) < 300


def test_a_cluster_of_one_machine_trains_alone(monkeypatch):
    for machines in ({}, {"chief": HOSTS[:1]}, {"worker": HOSTS[:1], "chief": [], "ps": []}):
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": machines, "task": {"type": "chief", "index": 0}}))
        assert distribution.strategy() is tf.distribute.get_strategy()


def test_one_worker_writes(monkeypatch):
    """It is the chief or, without one, the first worker."""
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", lambda: "several")
    for chief, machines in ((False, 3), (True, 3), (True, 2)):
        writes = []
        for config in cluster(machines, chief):
            monkeypatch.setenv("TF_CONFIG", config)
            assert distribution.strategy() == "several"
            resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
            writes.append(distribution.is_chief(types.SimpleNamespace(cluster_resolver=resolver)))
        assert writes == [True] + [False] * (machines - 1)


def test_a_worker_that_lost_another_prints_what_to_do(monkeypatch, capsys):
    """It ends at once, without TensorFlow's threads, which wait for the other."""
    ended = []
    monkeypatch.setenv("TF_CONFIG", cluster()[0])
    monkeypatch.setattr(os, "_exit", lambda status: ended.append(status) or sys.exit())

    def lose(error):
        raise error(None, None, "worker 1 is silent")

    for error in (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError):
        with pytest.raises(SystemExit):
            run_program(lambda error=error: lose(error))
        output = capsys.readouterr().err
        assert "worker 1 is silent" in output and "start all workers again" in output
    assert ended == [3, 3, 3]
    monkeypatch.delenv("TF_CONFIG")
    with pytest.raises(tf.errors.UnavailableError):  # not in a cluster
        run_program(lambda: lose(tf.errors.UnavailableError))


@pytest.mark.slow
def test_workers_stop_if_one_dies_and_resume_together(tmp_path):
    """The survivor stops with a message. Both resume from the checkpoint."""
    run = tmp_path / "run"
    tt.toy_corpus.write_corpus(tmp_path, train=300, dev=7, test=7)
    sides = [str(tmp_path / f"{split}.{side}") for split in ("train", "dev") for side in ("en", "de")]
    argv = ["--train", *sides[:2], "--dev", *sides[2:], "--run", str(run), "--base", str(tmp_path), "--name", "export"]
    argv += ["--vocab-size", "350", "--batch-tokens", "512", "--eval-every", "3", "--average-last", "2"]

    def launch(steps):
        command = [sys.executable, "-m", "trainers.translation", *argv, "--steps", str(steps)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environments = [os.environ | {"TF_CONFIG": config} for config in cluster()]
        return [subprocess.Popen(command, cwd=HERE.parent, env=environment, **pipes) for environment in environments]

    chief, other = workers = launch(3000)
    try:
        deadline = time.monotonic() + 240
        while not list(run.glob("checkpoints/step-*")) and chief.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        other.send_signal(signal.SIGKILL)
        assert chief.wait(120) == 3
    finally:
        for worker in workers:
            worker.kill()
    error = chief.communicate()[1]
    assert "another worker has gone, or cannot be reached" in error and "start all workers again" in error

    step = int(sorted(run.glob("checkpoints/step-*"))[-1].name.removeprefix("step-"))
    workers = launch(step + 3)
    for worker in workers:
        output, error = worker.communicate()
        assert worker.returncode == 0, error
        assert f"going on from the checkpoint at step {step:,} of {step + 3:,}" in output
    steps = [int(row.split(",")[0]) for row in (run / "history.csv").read_text().splitlines()[1:]]
    assert steps == list(range(3, step + 4, 3))
