"""Devices and machines to train on, with `tf.distribute`. On other backends than TensorFlow, one device."""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import keras

from tf_transformer.config import BadInput
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import checked

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazily("tensorflow", "training on several devices")

Strategy = Any  # a tf.distribute.Strategy, or `None` on another backend


@checked
def strategy(devices: str | None = None) -> Strategy:
    """Returns a strategy for `fit`, or `None` on other backends than TensorFlow.

    Call this before TensorFlow computes anything.

    Args:
        devices: "all" for every GPU; names, such as "gpu:0,gpu:1"; or "cpu:N" for N logical devices on the CPU, 1 to
            999, for tests. Defaults to one device. If the environment has TF_CONFIG, this worker trains together with
            the others in it, each on all of its GPUs.

    Raises:
        BadInput: If a device does not exist, TensorFlow was used before, or TF_CONFIG is not JSON or another kind of
            cluster.
    """
    if keras.backend.backend() != "tensorflow":
        if devices is not None:
            raise BadInput(f"devices: expected none on the backend {keras.backend.backend()}, got {devices!r}")
        return None
    if _machines() > 1:
        if devices is not None:
            raise BadInput(f"devices: expected none with TF_CONFIG, where each worker takes its own; got {devices!r}")
        with _before_use("TF_CONFIG", "several machines"):
            return tf.distribute.MultiWorkerMirroredStrategy()
    if devices is None:
        return tf.distribute.get_strategy()
    gpus = [device.name.removeprefix("/physical_device:") for device in tf.config.list_physical_devices("GPU")]
    # Logical devices split one CPU, so that tests and examples run several replicas on any machine.
    if match := re.fullmatch("cpu:0*([1-9][0-9]{0,2})", devices.lower()):
        number = int(match[1])
        cpu = tf.config.list_physical_devices("CPU")[0]
        with _before_use("devices", devices):
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * number)
        names = [f"CPU:{i}" for i in range(number)]
    else:
        names = gpus if devices.lower() == "all" else devices.upper().split(",")
        if not names or not set(names) <= set(gpus) or len(names) > len(set(names)):
            cpu = "cpu:N for N replicas on the CPU, 1 to 999"
            if not gpus:
                raise BadInput(f"devices: expected {cpu}, got {devices!r}. TensorFlow finds no GPU.")
            listed = ", ".join(name.lower() for name in gpus)
            raise BadInput(f"devices: expected all, or some of {listed}, each once, or {cpu}, got {devices!r}")
    return tf.distribute.MirroredStrategy(names)


@contextlib.contextmanager
def _before_use(name: str, value: str) -> Iterator[None]:
    """Turns TensorFlow's error, if it has computed something already, into `BadInput`."""
    try:
        yield
    except RuntimeError as error:
        action = "Restart the process or notebook, and make the strategy first."
        raise BadInput(f"{name}: expected a call before TensorFlow is used, got {value} after it. {action}") from error


def _machines() -> int:
    """Returns the number of machines in TF_CONFIG, 1 without it."""
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        settings = json.loads(text)
        machines = {job: list(hosts) for job, hosts in dict(settings.get("cluster", {})).items() if hosts}
        task = dict(settings.get("task", {}))
        job, index = task.get("type", "none"), int(task.get("index", 0))
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        form = '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'
        raise BadInput(f"TF_CONFIG: expected JSON like {form}, got {text[:99]!r}") from error
    if set(machines) - {"chief", "worker"}:
        raise BadInput(f"TF_CONFIG: expected a cluster of only a chief and workers, got {', '.join(machines)}")
    names = [host for hosts in machines.values() for host in hosts]
    if not all(isinstance(name, str) and ":" in name for name in names) or len(machines.get("chief", ())) > 1:
        raise BadInput(f"TF_CONFIG: expected machines as host:port, and at most one chief, got {text[:99]!r}")
    if len(names) > 1 and not (job in machines and 0 <= index < len(machines[job])):
        raise BadInput(f"TF_CONFIG: expected a task that is one of the cluster's machines, got {job} {index}")
    return max(1, len(names))


def current() -> Strategy:
    """Returns TensorFlow's current strategy, or `None` on other backends."""
    return tf.distribute.get_strategy() if keras.backend.backend() == "tensorflow" else None


def replicas(strategy: Strategy) -> int:
    """Returns the number of devices that train together."""
    return strategy.num_replicas_in_sync if strategy else 1


def scope(strategy: Strategy) -> contextlib.AbstractContextManager[Any]:
    """Returns the scope in which to create variables for these devices."""
    return strategy.scope() if strategy else contextlib.nullcontext()


def is_a_worker(strategy: Strategy) -> bool:
    """Returns whether this process trains together with others."""
    resolver = strategy and strategy.cluster_resolver
    return bool(resolver and resolver.task_type)


def is_chief(strategy: Strategy) -> bool:
    """Returns whether this process writes the files: the chief does or, in a cluster without one, the first worker."""
    # Every worker trains the same weights, and two that write one directory would damage it.
    if not is_a_worker(strategy):
        return True
    resolver = strategy.cluster_resolver
    if "chief" in resolver.cluster_spec().jobs:
        return resolver.task_type == "chief"
    return resolver.task_id == 0


def wait_for_all(strategy: Strategy) -> None:
    """Waits until every worker has called this, or raises if one of them died."""
    # TensorFlow has no public barrier. A sum over all replicas ends only when each has given its part.
    if is_a_worker(strategy):
        with strategy.scope():
            strategy.run(tf.function(lambda: over_replicas(tf.constant(0.0))))


def replica() -> Any:
    """Returns the calling replica's index over all machines, from 0."""
    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group


def over_replicas(values: Tensor) -> Any:
    """Sums a tensor, or each tensor of a list, over all replicas."""
    # Without replicas, an all-reduce would be one more operation, and TensorFlow keeps a gradient of each (see `Adam`).
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return values
    return context.all_reduce(tf.distribute.ReduceOp.SUM, values)
