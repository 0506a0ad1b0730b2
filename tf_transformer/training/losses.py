"""Training (section 5): schedule, optimizer, loss, metrics, and averaged weights (section 6.1)."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tf_transformer.masks import padding_mask
from tf_transformer.models.transformer import check_finite
from tf_transformer.utils.files import user_path
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import BadInput, Count, Positive, Rate, checked


@keras.saving.register_keras_serializable("tf_transformer")
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The paper's learning rate, equation (3): d_model^-0.5 * min(step_num^-0.5, step_num * warmup_steps^-1.5).

    Args:
        d_model: width of the model.
        warmup_steps: steps of linear growth.
        factor: multiplies the rate; the paper's is 1.
    """

    @checked
    def __init__(self, d_model: Count, warmup_steps: Count = 4000, factor: Positive = 1.0) -> None:
        self.d_model = d_model
        self.warmup_steps = warmup_steps
        self.factor = factor

    def __call__(self, step: Tensor) -> Any:
        step_num = ops.cast(step, "float32") + 1.0  # an optimizer's first step is 0, the paper's is 1
        rate = ops.minimum(step_num**-0.5, step_num * self.warmup_steps**-1.5)
        return self.factor * self.d_model**-0.5 * rate

    def get_config(self) -> dict[str, Any]:
        return {"d_model": self.d_model, "warmup_steps": self.warmup_steps, "factor": self.factor}


@keras.saving.register_keras_serializable("tf_transformer")
class Cooldown(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule whose rate falls linearly to 0 in its last steps (Zhai et al. 2022); the paper has none.

    Args:
        schedule: any schedule.
        cooldown_steps: the steps in which its rate falls.
        train_steps: all steps, the cooldown included.

    Raises:
        BadInput: cooldown_steps is not between 1 and train_steps.
    """

    @checked
    def __init__(self, schedule: Any, cooldown_steps: Count, train_steps: Count) -> None:
        if cooldown_steps > train_steps:
            raise BadInput(f"cooldown_steps: expected 1 to train_steps={train_steps}, got {cooldown_steps}")
        self.schedule = schedule
        self.cooldown_steps = cooldown_steps
        self.train_steps = train_steps

    def __call__(self, step: Tensor) -> Any:
        left = self.train_steps - ops.cast(step, "float32")
        return self.schedule(step) * ops.clip(left / self.cooldown_steps, 0.0, 1.0)

    def get_config(self) -> dict[str, Any]:
        schedule = keras.optimizers.schedules.serialize(self.schedule)
        return {"schedule": schedule, "cooldown_steps": self.cooldown_steps, "train_steps": self.train_steps}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Cooldown":
        return cls(**(config | {"schedule": keras.optimizers.schedules.deserialize(config["schedule"])}))


@keras.saving.register_keras_serializable("tf_transformer")
class Adam(keras.optimizers.Adam):
    """`keras.optimizers.Adam` with TensorFlow's fused kernel (section 5.3 has the paper's settings).

    Keras's own update, used on other backends and with amsgrad, passes over every weight a dozen times.

    Attributes:
        sums_gradients: whether to sum gradients over the replicas of a `tf.distribute` strategy; `Transformer` sums
            them itself.
    """

    sums_gradients = True

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return super()._all_reduce_sum_gradients(grads_and_vars) if self.sums_gradients else grads_and_vars

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Tensor) -> None:
        if keras.backend.backend() != "tensorflow" or self.amsgrad:
            return super().update_step(gradient, variable, learning_rate)
        import tensorflow as tf

        index, dtype = self._get_variable_index(variable), variable.dtype
        if isinstance(variable, keras.Variable):
            variable = variable.value
        step = tf.cast(tf.convert_to_tensor(self.iterations) + 1, dtype)
        beta_1, beta_2 = (tf.cast(beta, dtype) for beta in (self.beta_1, self.beta_2))
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=beta_1**step,
            beta2_power=beta_2**step,
            lr=tf.cast(learning_rate, dtype),
            beta1=beta_1,
            beta2=beta_2,
            epsilon=tf.cast(self.epsilon, dtype),
            grad=tf.cast(tf.convert_to_tensor(gradient), dtype),
        )


class _Statistics(NamedTuple):
    """What loss and metrics need of logits [B, T, V]; an optimizing compiler computes it once for all of them."""

    probabilities: Any  # [B, T, V]
    log_denominator: Any  # [B, T], of the softmax
    target: Any  # [B, T], the target's logit


def _statistics(targets: Tensor, logits: Tensor) -> _Statistics:
    probabilities = ops.softmax(logits)
    log_denominator = ops.max(logits, axis=-1) - ops.log(ops.max(probabilities, axis=-1))
    target = ops.squeeze(ops.take_along_axis(logits, ops.expand_dims(targets, -1), axis=-1), -1)
    return _Statistics(probabilities, log_denominator, target)


@checked
def smoothed_cross_entropy(targets: Tensor, logits: Tensor, epsilon: Rate) -> Any:
    """Cross-entropy of each token against (1 - epsilon) on the label plus epsilon / V on every symbol.

    The gradient, softmax(logits) minus that distribution, is written by hand: automatic differentiation passes over
    arrays of the logits' size many more times.

    Args:
        targets: int32 [B, T].
        logits: float32 [B, T, V].
        epsilon: epsilon_ls.

    Returns:
        float32 [B, T], in nats.
    """
    V = logits.shape[-1]

    @ops.custom_gradient
    def losses_of(logits: Tensor) -> Any:
        found = _statistics(targets, logits)
        smoothed = (1.0 - epsilon) * found.target + epsilon * ops.mean(logits, axis=-1)

        def gradient(*args: Any, upstream: Tensor = None) -> Any:
            if upstream is None:  # PyTorch gives the logits as `args` and this by name
                (upstream,) = args
            upstream = ops.expand_dims(upstream, -1)  # [B, T, 1]
            B, T = ops.shape(targets)[0], ops.shape(targets)[1]
            row, column = ops.meshgrid(*(ops.arange(size, dtype="int32") for size in (B, T)), indexing="ij")
            label = ops.reshape(ops.stack([row, column, targets], axis=-1), (-1, 3))  # [B * T, 3]
            by_softmax = (found.probabilities - epsilon / V) * upstream
            at_label = ops.take_along_axis(by_softmax, ops.expand_dims(targets, -1), axis=-1)  # [B, T, 1]
            by_label = ops.reshape(at_label + (epsilon - 1.0) * upstream, (-1,))  # [B * T]
            return ops.scatter_update(by_softmax, label, by_label)  # Keras 3.12 can replace, not add

        return found.log_denominator - smoothed, gradient

    return ops.reshape(losses_of(logits), ops.shape(targets))  # a custom gradient forgets the static shape


@keras.saving.register_keras_serializable("tf_transformer")
class SmoothedCrossEntropy(keras.losses.Loss):
    """Cross-entropy with label smoothing (section 5.4; Szegedy et al. 2015), a mean over real target tokens.

    The target distribution is (1 - epsilon) on the label plus epsilon / V on each of the V symbols. Padding (id 0) does
    not count; under a `tf.distribute` strategy the mean is over the real tokens of all replicas.

    Args:
        epsilon: epsilon_ls.

    Call arguments: int targets [B, T], logits [B, T, V], and optional weights of sentences [B] or of tokens [B, T].
    Weights multiply the losses; the mean is still over the number of real tokens, as in Keras's own losses. The result
    is a scalar in nats.
    """

    @checked
    def __init__(self, epsilon: Rate = 0.1, name: str = "smoothed_cross_entropy", **kwargs: Any) -> None:
        # In any other dtype Keras would round the labels.
        super().__init__(name=name, **({"reduction": "sum"} | kwargs | {"dtype": "float32"}))
        self.epsilon = epsilon

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None) -> Any:
        return super().__call__(_ids(y_true), y_pred, None if sample_weight is None else _of_tokens(sample_weight))

    def call(self, y_true: Tensor, y_pred: Tensor) -> Any:
        targets = ops.cast(y_true, "int32")
        weights = ops.cast(padding_mask(targets), "float32")
        losses = smoothed_cross_entropy(targets, ops.cast(y_pred, "float32"), self.epsilon) * weights
        return losses / ops.maximum(_over_replicas(ops.sum(weights)), 1.0)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"epsilon": self.epsilon}


def _ids(labels: Tensor) -> Any:
    """Labels as int32.

    Raises:
        BadInput: they are of a dtype that has rounded them.
    """
    dtype = keras.backend.standardize_dtype(getattr(labels, "dtype", "int32"))
    if dtype in ("float16", "bfloat16"):
        raise BadInput(f"labels: expected integers, got {dtype}, which lacks most above 256")
    return ops.cast(labels, "int32")


def _of_tokens(sample_weight: Tensor) -> Any:
    """Weights [B] or [B, T], to multiply [B, T]; Keras itself takes only [B, T] for sequences."""
    sample_weight = ops.cast(sample_weight, "float32")
    return sample_weight if len(sample_weight.shape) > 1 else ops.expand_dims(sample_weight, -1)


def _over_replicas(count: Tensor) -> Any:
    """The sum of `count` over all replicas of a `tf.distribute` strategy, if there is one."""
    if keras.backend.backend() != "tensorflow":
        return count
    from tf_transformer.distribution import over_replicas

    return over_replicas(count)


class _TokenMean(keras.metrics.Metric):
    """A mean over real target tokens: targets int [B, T], logits [B, T, V], optional weights [B] or [B, T]."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.total, self.count = (  # in Keras's own default of 16 bits, a count would stop at 256
            self.add_variable((), initializer="zeros", dtype="float32", name=name) for name in ("total", "count")
        )

    def values(self, targets: Tensor, logits: Tensor) -> Any:
        """The values to average, [B, T], which each metric defines."""
        raise NotImplementedError

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None) -> None:
        targets = _ids(y_true)
        weights = ops.cast(padding_mask(targets), "float32")
        if sample_weight is not None:
            weights = weights * _of_tokens(sample_weight)
        self.total.assign_add(ops.sum(weights * self.values(targets, y_pred)))
        self.count.assign_add(ops.sum(weights))

    def result(self) -> Any:
        return ops.divide_no_nan(self.total, self.count)


@keras.saving.register_keras_serializable("tf_transformer")
class TokenAccuracy(_TokenMean):
    """The share of real target tokens that get the highest logit. A tie counts as wrong."""

    def __init__(self, name: str = "accuracy", **kwargs: Any) -> None:
        super().__init__(name, **kwargs)

    def values(self, targets: Tensor, logits: Tensor) -> Any:
        target = ops.take_along_axis(logits, ops.expand_dims(targets, -1), axis=-1)  # [B, T, 1]
        as_high = ops.cast(ops.greater_equal(logits, target), "float32")  # faster than argmax, which settles ties
        return ops.cast(ops.sum(as_high, axis=-1) == 1.0, "float32")


@keras.saving.register_keras_serializable("tf_transformer")
class Perplexity(_TokenMean):
    """exp of the mean cross-entropy of a real target token, without label smoothing (Table 3's PPL)."""

    def __init__(self, name: str = "perplexity", **kwargs: Any) -> None:
        super().__init__(name, **kwargs)

    def values(self, targets: Tensor, logits: Tensor) -> Any:
        found = _statistics(targets, ops.cast(logits, "float32"))
        return found.log_denominator - found.target

    def result(self) -> Any:
        return ops.exp(super().result())


@keras.saving.register_keras_serializable("tf_transformer")
class TokenCount(_TokenMean):
    """The number of real target tokens since the last reset, for a rate in tokens/s."""

    def __init__(self, name: str = "tokens", **kwargs: Any) -> None:
        super().__init__(name, **kwargs)

    def values(self, targets: Tensor, logits: Tensor) -> Any:
        return 0.0

    def result(self) -> Any:
        return self.count + 0.0  # the value, not the variable


def average_weights(model: keras.Model, paths: Sequence[str | os.PathLike[str]]) -> None:
    """Load the mean weights of several checkpoints into `model` (section 6.1).

    Args:
        model: a built model.
        paths: `.weights.h5` files of models of this shape, at least one.

    Raises:
        BadInput: a weight of one is not finite.
    """
    if not paths:
        raise BadInput("paths: expected at least one file of weights to average, got none")
    sums = [np.zeros(weight.shape, "float64") for weight in model.weights]
    for path in paths:
        model.load_weights(user_path(path))
        check_finite(model.weights, f"{path}: ")
        for total, weight in zip(sums, model.get_weights(), strict=True):
            total += weight
    model.set_weights([total / len(paths) for total in sums])
