"""What every layer promises a user of Keras: it trains as the stock layers do."""

import keras
import numpy as np
import pytest
from promises import array, assert_close, every_case, run_python, tensorflow_only


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
