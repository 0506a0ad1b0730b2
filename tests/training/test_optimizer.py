"""The optimizer and its schedule (section 5.3), and averaged weights (section 6.1)."""

import keras
import numpy as np
import oracle
import pytest
from conftest import close, draw_weights, normal
from keras import ops

from tf_transformer import Adam, BadInput, Cooldown, Transformer, TransformerConfig, WarmupSchedule
from tf_transformer.training.losses import average_weights
from tf_transformer.training.optimizer import ConstantSchedule

# 5.3 The schedule


@pytest.mark.parametrize("d_model, warmup_steps", [(512, 4000), (1024, 4000), (128, 500)])
def test_the_schedule_is_equation_3_and_counts_from_one(d_model, warmup_steps):
    schedule, double = (WarmupSchedule(d_model, warmup_steps, learning_rate_factor=factor) for factor in (1.0, 2.0))
    close(double(7), 2 * schedule(7), atol=0)
    for step_num in (1, 2, 3, 10, warmup_steps - 1, warmup_steps, warmup_steps + 1, 10 * warmup_steps, 300_000):
        close(schedule(step_num - 1), oracle.learning_rate(step_num, d_model, warmup_steps), atol=0)


def test_the_rate_falls_to_0_in_the_last_steps():
    schedule = Cooldown(WarmupSchedule(128, 5), 7, train_steps=23)
    for step_num in range(1, 24):
        left = min(24 - step_num, 7) / 7  # 1 up to step 17, 1 / 7 at the last
        close(schedule(step_num - 1), left * oracle.learning_rate(step_num, 128, 5), atol=0)
    close(schedule(np.arange(23, 29)), np.zeros(6), atol=0)
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    close(again(np.arange(29)), schedule(np.arange(29)), atol=0)


@pytest.mark.parametrize("cooldown_steps, train_steps", [(7, 0), (7, 6), (-1, 23), (0, 23)])
def test_a_cooldown_longer_than_the_training_is_an_error(cooldown_steps, train_steps):
    with pytest.raises(BadInput, match="^(cooldown|train)_steps: expected "):
        Cooldown(WarmupSchedule(128), cooldown_steps, train_steps)


@pytest.mark.parametrize("warmup_steps", [1, 2, 7])
def test_a_constant_rate_has_no_step_of_rate_0(warmup_steps):
    schedule = ConstantSchedule(0.25, warmup_steps)
    expected = [0.25 * min(step_num / warmup_steps, 1) for step_num in range(1, 20)]
    close([schedule(step) for step in range(19)], expected, atol=0)
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(Cooldown(schedule, 3, 9)))
    close(again(8), 0.25 / 3)


def test_an_optimizers_first_update_is_step_one():
    optimizer = keras.optimizers.SGD(WarmupSchedule(16, warmup_steps=4))
    weight, expected = keras.Variable(np.zeros(1, "float32")), 0.0
    for step_num in range(1, 8):
        optimizer.apply([ops.ones(1)], [weight])
        expected -= oracle.learning_rate(step_num, 16, 4)
        close(weight, [expected])


# 5.3 The optimizer

ADAM = {"beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"amsgrad": True},
        {"global_clipnorm": 0.5},
        {"weight_decay": 0.01},
        {"use_ema": True, "ema_momentum": 0.9},
        {"gradient_accumulation_steps": 2},
    ],
    ids=lambda options: "".join(options),
)
def test_adam_is_kerass_adam(options):
    weights = [[keras.Variable(normal(7, 5)), keras.Variable(normal(11))] for _ in range(2)]
    optimizers = [kind(WarmupSchedule(16, 4), **ADAM, **options) for kind in (Adam, keras.optimizers.Adam)]
    for step in range(8):
        for optimizer, variables in zip(optimizers, weights, strict=True):
            optimizer.apply([ops.array(normal(*v.shape, seed=step)) for v in variables], variables)
    for found, expected in zip(optimizers[0].variables, optimizers[1].variables, strict=True):
        close(found, expected)
    for found, expected in zip(*weights, strict=True):
        close(found, expected)


def test_adam_trains_an_embedding_by_itself():
    """Its gradient is sparse. For an id that occurs twice, Keras adds squares of gradients. Ours squares the sum."""
    models = [keras.Sequential([keras.layers.Embedding(17, 3), keras.layers.Dense(1)]) for _ in range(2)]
    ids, values = np.array([[3, 5], [7, 11]]), normal(2, 2, 1)
    for model, kind in zip(models, (Adam, keras.optimizers.Adam), strict=True):
        model.build((None, 2))
        model.set_weights([normal(*weight.shape) for weight in model.weights])
        model.compile(kind(0.1), loss="mse", run_eagerly=True)
        model.fit(ids, values, epochs=3, verbose=0)
    for found, expected in zip(*(model.get_weights() for model in models), strict=True):
        close(found, expected)


@pytest.mark.parametrize("option", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_adam_clips_the_sum_of_an_ids_gradients(option):
    """The table's gradient is sparse. Of an id that occurs 50 times, Keras clips each of 50 rows."""
    optimizer = Adam(1.0, beta_1=0.0, beta_2=0.0, epsilon=1.0, **{option: 0.5})  # a step of g / (|g| + 1)
    model = keras.Sequential([keras.layers.Embedding(7, 1, embeddings_initializer="zeros")])
    model.build((None, 50))
    model.compile(optimizer, loss=lambda y, y_pred: 50 * ops.mean(y_pred), run_eagerly=True)
    model.fit(np.full((1, 50), 3), np.zeros((1, 50)), verbose=0)
    close(model.get_weights()[0][3], [-0.5 / 1.5])


def test_adam_is_serializable():
    optimizer = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(Adam(0.5, **ADAM)))
    assert isinstance(optimizer, Adam) and optimizer.beta_2 == 0.98


# 6.1 Averaged weights


def test_average_weights_is_the_mean_of_each_weight(tmp_path):
    config = TransformerConfig(num_layers=1, d_model=11, d_ff=19, num_heads=3, d_k=13, d_v=17, vocab_size=23)
    model = Transformer(config)
    model.build()
    checkpoints, paths = [], []
    for i in range(3):
        draw_weights(model, seed=i)
        checkpoints.append(model.get_weights())
        paths.append(tmp_path / f"{i}.weights.h5")
        model.save_weights(paths[-1])
    average_weights(model, paths)
    expected = oracle.average(checkpoints)
    assert len(expected) == len(model.weights)
    for weight, expected_weight in zip(model.get_weights(), expected, strict=True):
        close(weight, expected_weight)
    average_weights(model, paths[1:2])
    for weight, expected_weight in zip(model.get_weights(), checkpoints[1], strict=True):
        assert np.array_equal(weight, expected_weight)
    with pytest.raises(ValueError, match="at least one"):
        average_weights(model, [])
    model.weights[4].assign(np.full(model.weights[4].shape, np.inf))
    model.save_weights(paths[1])
    with pytest.raises(BadInput, match=f"1.weights.h5: {model.weights[4].path}: expected finite weights, got NaN or "):
        average_weights(model, paths)
