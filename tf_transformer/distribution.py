"""Devices and machines to train on, with `tf.distribute`."""

import json
import os
from typing import Any

import tensorflow as tf

from tf_transformer.config import BadInput
from tf_transformer.type_names import Tensor


def strategy(devices: str | None = None) -> tf.distribute.Strategy:
    """A strategy for `fit`. Call this before TensorFlow computes anything.

    Args:
        devices: "all" for every GPU; names, such as "gpu:0,gpu:1"; or "cpu:N" for N logical devices on the CPU, to try
            things. `None` means one device. If the environment has TF_CONFIG, `None` means that this worker trains
            together with the others that TF_CONFIG names, each on all of its GPUs.
    """
    if len(json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {}).get("worker", [])) > 1:
        if devices:
            raise BadInput(f"devices: expected none with TF_CONFIG, where each worker takes its own; got {devices!r}")
        return tf.distribute.MultiWorkerMirroredStrategy()
    if not devices:
        return tf.distribute.get_strategy()
    there = [device.name.removeprefix("/physical_device:") for device in tf.config.list_physical_devices("GPU")]
    kind, _, number = devices.lower().partition(":")
    if kind == "cpu" and number.isdecimal() and int(number) > 0:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * int(number))
        names = [f"CPU:{i}" for i in range(int(number))]
    else:
        names = there if kind == "all" else devices.upper().split(",")
        if not names or not set(names) <= set(there):
            expected = ", ".join(["cpu:N", *(name.lower() for name in there)]) + (" or all" if there else "")
            raise BadInput(f"devices: expected some of {expected}; got {devices!r}")
    return tf.distribute.MirroredStrategy(names)


def is_a_worker(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process trains together with others."""
    resolver = strategy.cluster_resolver
    return resolver is not None and bool(resolver.task_type)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes the files: true, except in workers after the first."""
    return not is_a_worker(strategy) or strategy.cluster_resolver.task_id == 0


def wait_for_all(strategy: tf.distribute.Strategy) -> None:
    """Wait until every worker has called this. It raises if one of them has died."""
    if is_a_worker(strategy):
        with strategy.scope():
            strategy.run(_meet)


@tf.function
def _meet() -> Any:
    return over_replicas(tf.constant(0.0))


def replica() -> Any:
    """The number of the replica that calls this, from 0 to those of all machines less 1; 0 where there is only one."""
    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group


def over_replicas(values: Tensor) -> Any:
    """Sum a tensor, or each tensor of a list, over all replicas."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return values
    return context.all_reduce(tf.distribute.ReduceOp.SUM, values)
