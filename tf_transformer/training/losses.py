"""Training (section 5): schedule, optimizer, loss, metrics, and averaged weights (section 6.1)."""

import os
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import keras
import numpy as np
from keras import ops

from tf_transformer.layers.gradients import traced_once
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
        import tensorflow as tf

        # TensorFlow registers a gradient of each sum that it traces and never frees it, nor the graph around it.
        alone = tf.distribute.get_strategy().num_replicas_in_sync == 1
        sums = self.sums_gradients and not alone
        return super()._all_reduce_sum_gradients(grads_and_vars) if sums else grads_and_vars

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
    """What loss and metrics need of logits [N, V]; an optimizing compiler computes it once for all of them."""

    probabilities: Any  # [N, V]
    log_denominator: Any  # [N], of the softmax
    target: Any  # [N], the target's logit


def _statistics(targets: Tensor, logits: Tensor) -> _Statistics:
    probabilities = ops.softmax(logits)
    log_denominator = ops.max(logits, axis=-1) - ops.log(ops.max(probabilities, axis=-1))
    target = ops.squeeze(ops.take_along_axis(logits, ops.expand_dims(targets, -1), axis=-1), -1)
    return _Statistics(probabilities, log_denominator, target)


def _flat(targets: Tensor, logits: Tensor) -> tuple[Any, Any]:
    """Targets [N] and logits float32 [N, V] of all tokens."""
    return ops.reshape(targets, (-1,)), ops.reshape(ops.cast(logits, "float32"), (-1, logits.shape[-1]))


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
    losses = _smoothed_cross_entropy(*_flat(targets, logits), ops.convert_to_tensor(epsilon, "float32"))
    return ops.reshape(losses, ops.shape(targets))


@traced_once
def _smoothed_cross_entropy(targets: Tensor, logits: Tensor, epsilon: Tensor) -> Any:  # [N], [N, V], []
    @ops.custom_gradient
    def losses_of(logits: Tensor) -> Any:
        found = _statistics(targets, logits)
        smoothed = (1.0 - epsilon) * found.target + epsilon * ops.mean(logits, axis=-1)

        def gradient(*args: Any, upstream: Tensor = None) -> Any:
            if upstream is None:  # PyTorch gives the logits as `args` and this by name
                (upstream,) = args
            # Sizes from the forward pass would make XLA compile each step anew.
            N, V = ops.shape(found.probabilities)
            upstream = ops.expand_dims(upstream, -1)  # [N, 1]
            label = ops.stack([ops.arange(N, dtype="int32"), targets], axis=-1)  # [N, 2]
            by_softmax = (found.probabilities - epsilon / ops.cast(V, "float32")) * upstream
            at_label = ops.take_along_axis(by_softmax, ops.expand_dims(targets, -1), axis=-1)  # [N, 1]
            by_label = ops.squeeze(at_label + (epsilon - 1.0) * upstream, -1)  # [N]
            return ops.scatter_update(by_softmax, label, by_label)  # Keras 3.12 can replace, not add

        return found.log_denominator - smoothed, gradient

    return losses_of(logits)


class _Tokens(NamedTuple):
    """Checked input of a loss or metric. Where a token does not count, its label is 0."""

    labels: Any  # int32 [B, T]
    logits: Any  # [B, T, V]
    weights: Any  # float32 [B, T]: 0 or 1, or NaN if the label is not a class


class _Counted(keras.losses.Loss):
    """1 for each token that counts, 0 for others. A `Loss`, because Keras shows the mask of logits only to losses."""

    def __init__(self, ignore_class: int | None) -> None:
        super().__init__("counted", "none", "float32")
        self.ignore_class = ignore_class

    def call(self, y_true: Tensor, y_pred: Tensor) -> Any:
        return ops.ones_like(y_true) if self.ignore_class is None else ops.cast(y_true != self.ignore_class, "float32")


def _tokens(y_true: Tensor, y_pred: Tensor, ignore_class: int | None) -> _Tokens:
    """Checks labels and logits.

    Raises:
        BadInput: If the shapes differ, the labels' dtype rounds them, or a label that counts is seen not to be a class.
    """
    labels, logits = _of_one_shape(y_true, y_pred)
    V, nothing = ops.shape(logits)[-1], ops.zeros_like(labels)
    counted = _Counted(ignore_class)(labels, y_pred)
    labels = ops.where(counted > 0, labels, nothing)
    is_class = ops.logical_and(ops.greater_equal(labels, 0), ops.less(labels, V))
    if (wrong := _wrong_label(y_true, counted, V)) is not None:
        action = f". Pass ignore_class={wrong} to loss and metrics if such tokens do not count." if wrong < 0 else ""
        raise BadInput(f"labels: expected classes from 0 to below {V}, got {wrong}{action}")
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # Keras does not convert a `tf.Variable`.
        logits = tf.convert_to_tensor(logits)
        # On a CPU this raises in graphs. Keras's own operations would count negative indices from the end.
        counted *= tf.gather(tf.ones([V]), tf.cast(labels, "int64"))
    # Compiled steps and accelerators cannot raise. There NaN keeps a wrong label from passing for a class.
    weights = ops.where(is_class, counted, float("nan"))
    return _Tokens(ops.cast(ops.where(is_class, labels, nothing), "int32"), logits, weights)


def _of_one_shape(labels: Tensor, logits: Tensor) -> tuple[Any, Any]:
    dtype = keras.backend.standardize_dtype(getattr(labels, "dtype", "int32"))
    if dtype in ("float16", "bfloat16"):
        raise BadInput(f"labels: expected integers, got {dtype}, which lacks most above 256")
    labels, logits = ops.convert_to_tensor(labels), ops.convert_to_tensor(logits)
    shape, expected = tuple(labels.shape), tuple(logits.shape)[:-1]
    if len(shape) == len(expected) + 1 and shape[-1] == 1:
        labels, shape = ops.squeeze(labels, -1), shape[:-1]
    if len(shape) != len(expected) or any(a != b for a, b in zip(shape, expected, strict=True) if None not in (a, b)):
        raise BadInput(
            f"labels: expected shape {expected} for logits of shape {tuple(logits.shape)}, got {shape}. "
            "Pass one class id per token."
        )
    return labels, logits


def _wrong_label(y_true: Tensor, counted: Tensor, V: Any) -> int | None:
    """Returns a label that counts but is not a class. `None` if there is none, or if the values are not known yet."""
    try:
        labels = ops.convert_to_numpy(y_true)
        wrong = ~((labels >= 0) & (labels < V))
        if wrong.any():
            # Reading this waits for an accelerator.
            wrong &= np.reshape(ops.convert_to_numpy(counted) > 0, wrong.shape)
    except (NotImplementedError, TypeError, ValueError):
        return None
    return int(labels[wrong][0]) if wrong.any() else None


@keras.saving.register_keras_serializable("tf_transformer")
class SmoothedCrossEntropy(keras.losses.Loss):
    """Cross-entropy with label smoothing (section 5.4; Szegedy et al. 2015), a mean over the tokens that count.

    The target distribution is (1 - epsilon) on the label plus epsilon / V on each of the V classes. Under a
    `tf.distribute` strategy the mean is over the tokens of all replicas.

    Args:
        epsilon: Label smoothing, from 0 to below 1.
        ignore_class: Label of tokens that do not count, such as -100. Defaults to 0, which is padding. If `None`, every
            label is a class. Tokens that the Keras mask of the logits excludes never count.
        reduction: `"sum_over_batch_size"` or `"mean"` for the mean, `"none"` or `None` for the loss of each token.

    Call arguments:
        y_true: Integer labels of shape `(B, T)` or `(B, T, 1)`.
        y_pred: Logits of shape `(B, T, V)`.
        sample_weight: Weights w of shape `(B,)` or `(B, T)`. As in Keras's losses, the mean is sum(w * loss) / N, with
            N the number of tokens that count.

    Returns:
        The mean in nats, a float32 scalar; or the losses of shape `(B, T)`, 0 for a token that does not count.

    Raises:
        BadInput: If a label is neither `ignore_class` nor from 0 to below V. On an accelerator or in a compiled step on
            JAX, where values cannot be checked, the loss is NaN instead.
    """

    @checked
    def __init__(
        self,
        epsilon: Rate = 0.1,
        name: str = "smoothed_cross_entropy",
        ignore_class: int | None = 0,
        reduction: Literal["sum_over_batch_size", "mean", "none"] | None = "sum_over_batch_size",
        **kwargs: Any,
    ) -> None:
        if unknown := ", ".join(sorted(kwargs.keys() - {"dtype"})):
            raise BadInput(
                f"SmoothedCrossEntropy: expected epsilon, name, ignore_class or reduction, got {unknown}. "
                "epsilon is the label smoothing, and predictions are logits."
            )
        super().__init__(name, reduction, "float32")
        self.epsilon = epsilon
        self.ignore_class = ignore_class

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None) -> Any:
        labels, logits, counted = _tokens(y_true, y_pred, self.ignore_class)
        losses = self.call(labels, logits) * _weighted(counted, sample_weight)
        if self.reduction in ("none", None):
            return losses
        return ops.sum(losses / ops.maximum(_over_replicas(ops.sum(counted)), 1.0))

    def call(self, y_true: Tensor, y_pred: Tensor) -> Any:
        return smoothed_cross_entropy(y_true, y_pred, self.epsilon)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"epsilon": self.epsilon, "ignore_class": self.ignore_class}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "SmoothedCrossEntropy":
        # Configs without ignore_class call the mean "sum".
        return cls(**{name: value for name, value in config.items() if (name, value) != ("reduction", "sum")})


def _weighted(counted: Tensor, sample_weight: Tensor) -> Any:
    """The product of weights of tokens [B, T] and of sentences [B] or tokens; Keras itself takes only [B, T]."""
    if sample_weight is None:
        return counted
    sample_weight = ops.cast(sample_weight, "float32")
    if len(sample_weight.shape) > len(counted.shape):
        sample_weight = ops.squeeze(sample_weight, -1)
    elif len(sample_weight.shape) < len(counted.shape):
        sample_weight = ops.expand_dims(sample_weight, -1)
    return counted * sample_weight


def _over_replicas(count: Tensor) -> Any:
    """The sum of `count` over all replicas of a `tf.distribute` strategy, if there is one."""
    if keras.backend.backend() != "tensorflow":
        return count
    from tf_transformer.distribution import over_replicas

    return over_replicas(count)


class _TokenMean(keras.metrics.Metric):
    """A mean over the tokens that count: labels [B, T], logits [B, T, V], optional weights [B] or [B, T].

    Args:
        ignore_class: As in `SmoothedCrossEntropy`. A wrong label that cannot be checked makes the metric NaN.
    """

    @checked
    def __init__(self, name: str, ignore_class: int | None = 0, **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.ignore_class = ignore_class
        self.total, self.count = (  # in Keras's own default of 16 bits, a count would stop at 256
            self.add_variable((), initializer="zeros", dtype="float32", name=name) for name in ("total", "count")
        )

    def values(self, targets: Tensor, logits: Tensor) -> Any:
        """The values to average, [B, T], which each metric defines."""
        raise NotImplementedError

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None) -> None:
        labels, logits, counted = _tokens(y_true, y_pred, self.ignore_class)
        weights = _weighted(counted, sample_weight)
        self.total.assign_add(ops.sum(weights * self.values(labels, logits)))
        self.count.assign_add(ops.sum(weights))

    def result(self) -> Any:
        return ops.divide_no_nan(self.total, self.count)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"ignore_class": self.ignore_class}


@keras.saving.register_keras_serializable("tf_transformer")
class TokenAccuracy(_TokenMean):
    """The share of tokens that count whose label has the highest logit. A tie counts as wrong.

    Args:
        ignore_class: As in `SmoothedCrossEntropy`.
    """

    def __init__(self, name: str = "accuracy", **kwargs: Any) -> None:
        super().__init__(name, **kwargs)

    def values(self, targets: Tensor, logits: Tensor) -> Any:
        target = ops.take_along_axis(logits, ops.expand_dims(targets, -1), axis=-1)  # [B, T, 1]
        as_high = ops.cast(ops.greater_equal(logits, target), "float32")  # faster than argmax, which settles ties
        return ops.cast(ops.sum(as_high, axis=-1) == 1.0, "float32")


@keras.saving.register_keras_serializable("tf_transformer")
class Perplexity(_TokenMean):
    """exp of the mean cross-entropy of the tokens that count, without label smoothing (Table 3's PPL).

    Args:
        ignore_class: As in `SmoothedCrossEntropy`.
    """

    def __init__(self, name: str = "perplexity", **kwargs: Any) -> None:
        super().__init__(name, **kwargs)

    def values(self, targets: Tensor, logits: Tensor) -> Any:
        found = _statistics(*_flat(targets, logits))
        return ops.reshape(found.log_denominator - found.target, ops.shape(targets))

    def result(self) -> Any:
        return ops.exp(super().result())


@keras.saving.register_keras_serializable("tf_transformer")
class TokenCount(_TokenMean):
    """The number of tokens that count since the last reset, for a rate in tokens/s.

    Args:
        ignore_class: As in `SmoothedCrossEntropy`.
    """

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
