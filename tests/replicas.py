"""Trains a small model for 20 steps on given devices and machines: `python replicas.py OUT [DEVICES [DTYPE]]`."""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tf_transformer as tt
from tf_transformer import distribution
from tf_transformer.data.datasets import for_replicas

CONFIG = tt.TransformerConfig(1, 12, 17, 3, dropout=0.0, vocab_size=19)


def batches():
    """Batches of several shapes, with rows of one and three tokens, so that microbatches differ in tokens."""
    rng, made = np.random.default_rng(2), []
    for rows, S, T in zip([5, 2, 3, 7, 1, 4, 3], [3, 4, 5, 2, 7, 3, 6], [5, 3, 4, 6, 3, 2, 5], strict=True):
        source, target = rng.integers(3, 19, (rows, S), "int32"), rng.integers(3, 19, (rows, T + 1), "int32")
        for row in range(rows):
            target[row, rng.integers(2, T + 2) :] = 0
        made.append(((source, target[:, :-1]), target[:, 1:]))
    ids = tf.TensorSpec((None, None), tf.int32)
    return tf.data.Dataset.from_generator(lambda: iter(made), output_signature=((ids, ids), ids))


def train(devices=None, dtype="float32", **options):
    """Returns the trained model and its history. `options` are attributes of the model."""
    strategy = distribution.strategy(devices)
    # In 16 bits Adam would turn rounding errors of a gradient near zero into full steps.
    epsilon = 1e-9 if dtype == "float32" else 1e-2
    with strategy.scope():
        keras.utils.set_random_seed(5)
        model = tt.Transformer(CONFIG, dtype=dtype)
        model.build()
        model.compile(
            tt.Adam(tt.WarmupSchedule(12, 20, learning_rate_factor=0.1), 0.9, 0.98, epsilon, global_clipnorm=0.5),
            tt.SmoothedCrossEntropy(0.1),
            metrics=[tt.TokenAccuracy(), tt.Perplexity(), tt.TokenCount()],
        )
        for name, value in options.items():
            setattr(model, name, value)
        data = for_replicas(batches(), strategy.num_replicas_in_sync)
        options = {"steps_per_epoch": 10, "epochs": 2, "shuffle": False, "verbose": 0, "validation_data": data}
        history = model.fit(data.repeat(), **options).history
    return model, {name: [float(value) for value in values] for name, values in history.items()}


def batch(broken=False):
    """Returns a dataset of one batch. In a broken one, a token's weight makes loss and gradients NaN."""
    x, y = next(iter(batches()))
    weights = np.ones(y.shape, "float32")
    if broken:
        weights[0, 0] = np.nan
    strategy = tf.distribute.get_strategy()
    data = for_replicas(tf.data.Dataset.from_tensors((x, y)), strategy.num_replicas_in_sync)
    return data.map(lambda x, y: (x, y, tf.pad(weights, [[0, tf.shape(y)[0] - len(weights)], [0, 0]])))


def skip_update(optimizer, **options):
    """Returns a model after an update, one that it skips, and another. `options` are those of `compile`."""
    model = tt.Transformer(CONFIG)
    model.build()
    model.skip_not_finite = True
    measures = {"metrics": [tt.TokenAccuracy()], "weighted_metrics": [tt.Perplexity(), tt.TokenCount()]}
    model.compile(optimizer(0.1), tt.SmoothedCrossEntropy(0.1), **measures, **options)
    model.fit(batch(), verbose=0)
    variables = [*model.variables, *model.optimizer.variables]
    before = [keras.ops.convert_to_numpy(variable) for variable in variables]
    if not options.get("jit_compile"):  # It takes long to compile.
        two = batch().concatenate(batch(broken=True))
        of_one = model.evaluate(batch(), verbose=0, return_dict=True)
        assert model.evaluate(two, verbose=0, return_dict=True) == of_one and np.isfinite(of_one["perplexity"])
    history = model.fit(batch(broken=True), verbose=0).history
    assert (history["accuracy"], history["perplexity"], history["tokens"]) == ([0], [1], [0])
    assert model.not_finite.numpy() == 1 and np.isnan(model.gradient_norm.numpy())
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), value, err_msg=variable.path)
    model.fit(batch(), verbose=0)
    assert model.not_finite.numpy() == 1 and keras.ops.convert_to_numpy(model.optimizer.iterations) == 2
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    return model


def save(path, model, history):
    weights = {f"weight_{i}": np.asarray(keras.ops.convert_to_numpy(v)) for i, v in enumerate(model.weights)}
    np.savez(path, gradient_norm=model.gradient_norm.numpy(), **weights, **history)


if __name__ == "__main__":
    save(sys.argv[1], *train(*sys.argv[2:]))
