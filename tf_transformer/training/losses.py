"""Loss (section 5.4), metrics (Table 3), and averaged weights (section 6.1).

`smoothed_cross_entropy` is each token's loss, `SmoothedCrossEntropy` its mean for `compile`. Padding counts nowhere.
"""

import os
from collections.abc import Sequence
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from tf_transformer.layers.layer import traced_once
from tf_transformer.models.weights import check_finite
from tf_transformer.utils.files import user_path
from tf_transformer.utils.reading import with_new_names
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import BadInput, Rate, checked, shown

RENAMED = {"epsilon": "label_smoothing"}  # options of `SmoothedCrossEntropy` in files written before


def _statistics(targets: Tensor, logits: Tensor) -> tuple[Any, Any, Any]:
    """Returns probabilities [N, V], the softmax's log-denominators [N] and the targets' logits [N].

    Loss and metrics share them: an optimizing compiler computes them once.
    """
    # log(sum(exp(x))) = max(x) - log(max(softmax(x))), since the gradient needs the softmax anyway. The highest
    # probability is at least 1 / V, so its logarithm is safe.
    probabilities = ops.softmax(logits)
    log_denominator = ops.max(logits, axis=-1) - ops.log(ops.max(probabilities, axis=-1))
    target_logits = ops.squeeze(ops.take_along_axis(logits, ops.expand_dims(targets, -1), axis=-1), -1)
    return probabilities, log_denominator, target_logits


def _flat(targets: Tensor, logits: Tensor) -> tuple[Any, Any]:
    """Returns targets [N] and logits float32 [N, V] of all tokens."""
    return ops.reshape(targets, (-1,)), ops.reshape(ops.cast(logits, "float32"), (-1, logits.shape[-1]))


@checked
def smoothed_cross_entropy(targets: Tensor, logits: Tensor, label_smoothing: Rate) -> Any:
    """Returns each token's cross-entropy against the label, smoothed by label_smoothing / V on every class.

    The gradient, softmax(logits) minus that distribution, is written by hand: autodiff takes many more passes.

    Args:
        targets: Labels, int32 of shape `(B, T)`.
        logits: Logits, float32 of shape `(B, T, V)`.
        label_smoothing: The paper's epsilon_ls.

    Returns:
        Losses in nats, float32 of shape `(B, T)`.
    """
    losses = _smoothed_cross_entropy(*_flat(targets, logits), ops.convert_to_tensor(label_smoothing, "float32"))
    return ops.reshape(losses, ops.shape(targets))


@traced_once
def _smoothed_cross_entropy(targets: Tensor, logits: Tensor, epsilon: Tensor) -> Any:  # [N], [N, V], []
    @ops.custom_gradient
    def losses_of(logits: Tensor) -> Any:
        probabilities, log_denominator, target_logits = _statistics(targets, logits)
        # "This hurts perplexity, as the model learns to be more unsure, but improves accuracy and BLEU score." The loss
        # is -sum(q log p) with log p = logits - log_denominator and q = (1 - epsilon) [is the label] + epsilon / V.
        smoothed = (1.0 - epsilon) * target_logits + epsilon * ops.mean(logits, axis=-1)  # [N]

        def gradient(*args: Any, upstream: Tensor = None) -> Any:
            if upstream is None:  # PyTorch passes the logits as `args` and this by name
                (upstream,) = args
            # Sizes from the forward pass would make XLA compile each step again.
            N, V = ops.shape(probabilities)
            upstream = ops.expand_dims(upstream, -1)  # [N, 1]
            # p - q, whose second part differs from epsilon / V only at the label.
            by_softmax = (probabilities - epsilon / ops.cast(V, "float32")) * upstream  # [N, V]
            at_label = ops.take_along_axis(by_softmax, ops.expand_dims(targets, -1), axis=-1)  # [N, 1]
            by_label = ops.squeeze(at_label + (epsilon - 1.0) * upstream, -1)  # [N]
            # Keras 3.12 has an operation that replaces elements, but none that adds to them.
            label = ops.stack([ops.arange(N, dtype="int32"), targets], axis=-1)  # [N, 2]
            return ops.scatter_update(by_softmax, label, by_label)

        return log_denominator - smoothed, gradient

    return losses_of(logits)


class _Counted(keras.losses.Loss):
    """1 for each token that counts, 0 for others. A `Loss`, because Keras shows the mask of logits only to losses."""

    def __init__(self, ignore_class: int | None) -> None:
        super().__init__("counted", "none", "float32")
        self.ignore_class = ignore_class

    def call(self, y_true: Tensor, y_pred: Tensor) -> Any:
        return ops.ones_like(y_true) if self.ignore_class is None else ops.cast(y_true != self.ignore_class, "float32")


def _tokens(y_true: Tensor, y_pred: Tensor, ignore_class: int | None) -> tuple[Any, Any, Any]:
    """Checks labels and logits.

    Returns:
        A tuple of labels, logits and weights. Labels are int32 [B, T], 0 for tokens that don't count. Logits are
        [B, T, V]. Weights are float32 [B, T], 0 or 1, or NaN if a label that counts is not a class.

    Raises:
        BadInput: If the shapes differ, the labels' dtype rounds them, or a label's value is known and not a class.
    """
    dtype = keras.backend.standardize_dtype(getattr(y_true, "dtype", "int32"))
    if dtype in ("float16", "bfloat16"):
        raise BadInput(f"labels: expected integers, got {dtype}, which rounds ids above 256. Pass int32 labels.")
    # Labels of another shape could broadcast against the losses, and the mean would be wrong without an error.
    labels, logits = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
    shape, expected = tuple(labels.shape), tuple(logits.shape)[:-1]
    if len(shape) == len(expected) + 1 and shape[-1] == 1:
        labels, shape = ops.squeeze(labels, -1), shape[:-1]
    if len(shape) != len(expected) or any(a != b for a, b in zip(shape, expected, strict=True) if None not in (a, b)):
        raise BadInput(
            f"labels: expected shape {expected} for logits of shape {tuple(logits.shape)}, got {shape}. "
            "Pass one class id per token."
        )
    # Labels that do not count may be anything, such as -100. As 0, they index no class that does not exist.
    V, zeros = ops.shape(logits)[-1], ops.zeros_like(labels)
    counted = _Counted(ignore_class)(labels, y_pred)
    labels = ops.where(counted > 0, labels, zeros)
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
    return ops.cast(ops.where(is_class, labels, zeros), "int32"), logits, weights


def _wrong_label(y_true: Tensor, counted: Tensor, V: Any) -> int | None:
    """Returns a label that counts but is not a class, or `None` if all are classes or the values are unknown yet."""
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

    The target distribution is 1 - label_smoothing on the label plus label_smoothing / V on each of the V classes. Under
    a `tf.distribute` strategy the mean is over the tokens of all replicas.

        model.compile(tt.Adam(0.001), tt.SmoothedCrossEntropy(0.1), metrics=[tt.TokenAccuracy(), tt.Perplexity()])

    Args:
        label_smoothing: The paper's epsilon_ls, from 0 to below 1.
        ignore_class: Label of tokens that do not count, such as -100. Defaults to 0, which is padding. If `None`, every
            label is a class. Tokens that the Keras mask of the logits excludes never count.
        reduction: `"sum_over_batch_size"` or `"mean"` for the mean, `"none"` or `None` for the loss of each token.

    Call arguments:
        y_true: Integer labels of shape `(B, T)` or `(B, T, 1)`.
        y_pred: Logits of shape `(B, T, V)`.
        sample_weight: Weights w of shape `(B,)` or `(B, T)`. The mean is sum(w * loss) / N for N tokens that count.

    Returns:
        The mean in nats, a float32 scalar, or the losses of shape `(B, T)`, 0 for a token that does not count.

    Raises:
        BadInput: If a label is neither `ignore_class` nor from 0 to below V. On an accelerator or in a compiled step on
            JAX, where values cannot be checked, the loss is NaN instead.
    """

    @checked
    def __init__(
        self,
        label_smoothing: Rate = 0.1,
        name: str = "smoothed_cross_entropy",
        ignore_class: int | None = 0,
        reduction: Literal["sum_over_batch_size", "mean", "none"] | None = "sum_over_batch_size",
        **kwargs: Any,
    ) -> None:
        if unknown := ", ".join(sorted(kwargs.keys() - {"dtype"})):
            raise BadInput(
                f"SmoothedCrossEntropy: expected label_smoothing, name, ignore_class or reduction, got {unknown}. "
                "Predictions are logits."
            )
        if (dtype := kwargs.get("dtype")) == "float64":  # 16 bits mean float32
            raise BadInput(f"dtype: expected float32, as always in a SmoothedCrossEntropy, got {shown(dtype)}")
        super().__init__(name, reduction, "float32")
        self.label_smoothing = label_smoothing
        self.ignore_class = ignore_class

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None) -> Any:
        # Not Keras's `__call__`: its mean is over one replica's tokens, and over padding if the logits have no mask.
        labels, logits, counted = _tokens(y_true, y_pred, self.ignore_class)
        losses = self.call(labels, logits) * _weighted(counted, sample_weight)
        if self.reduction in ("none", None):
            return losses
        # The tokens of all replicas, so that the sum of the replicas' losses is the mean of the whole batch.
        count = ops.sum(counted)
        if keras.backend.backend() == "tensorflow":
            from tf_transformer.distribution import over_replicas

            count = over_replicas(count)
        return ops.sum(losses / ops.maximum(count, 1.0))

    def call(self, y_true: Tensor, y_pred: Tensor) -> Any:
        return smoothed_cross_entropy(y_true, y_pred, self.label_smoothing)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"label_smoothing": self.label_smoothing, "ignore_class": self.ignore_class}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "SmoothedCrossEntropy":
        config = with_new_names(config, RENAMED)
        # Configs without ignore_class call the mean "sum".
        return cls(**{name: value for name, value in config.items() if (name, value) != ("reduction", "sum")})


def _weighted(counted: Tensor, sample_weight: Tensor) -> Any:
    """Returns the product of token weights [B, T] and `sample_weight` [B] or [B, T]; Keras supports only the latter."""
    if sample_weight is None:
        return counted
    sample_weight = ops.cast(sample_weight, "float32")
    shape, expected = tuple(sample_weight.shape), (*counted.shape, 1)
    if any(None not in sizes and sizes[0] not in (1, sizes[1]) for sizes in zip(shape, expected, strict=False)):
        raise BadInput(f"sample_weight: expected shape {expected[:1]} or {expected[:-1]}, got {shape}")
    return counted * ops.reshape(sample_weight, (*ops.shape(sample_weight), 1)[: len(counted.shape)])


class _TokenMean(keras.metrics.Metric):
    """A mean over the tokens that count: labels [B, T], logits [B, T, V], optional weights [B] or [B, T].

    Args:
        ignore_class: As in `SmoothedCrossEntropy`. A wrong label that cannot be checked makes the metric NaN.
    """

    @checked
    def __init__(self, name: str, ignore_class: int | None = 0, **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.ignore_class = ignore_class
        # In 16 bits, if that is Keras's default, a count would stop at 256.
        self.total, self.count = (
            self.add_variable((), initializer="zeros", dtype="float32", name=name) for name in ("total", "count")
        )

    def values(self, targets: Tensor, logits: Tensor) -> Any:
        """Returns the values to average, [B, T]."""
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
    """Share of tokens that count whose label has the highest logit. A tie counts as wrong.

    Args:
        ignore_class: As in `SmoothedCrossEntropy`.
    """

    def __init__(self, name: str = "accuracy", **kwargs: Any) -> None:
        super().__init__(name, **kwargs)

    def values(self, targets: Tensor, logits: Tensor) -> Any:
        target = ops.take_along_axis(logits, ops.expand_dims(targets, -1), axis=-1)  # [B, T, 1]
        # Faster than argmax, which also breaks ties.
        as_high = ops.cast(ops.greater_equal(logits, target), "float32")
        return ops.cast(ops.sum(as_high, axis=-1) == 1.0, "float32")


@keras.saving.register_keras_serializable("tf_transformer")
class Perplexity(_TokenMean):
    """Exponential of the mean cross-entropy of the tokens that count, without label smoothing (Table 3's PPL).

    Args:
        ignore_class: As in `SmoothedCrossEntropy`.
    """

    def __init__(self, name: str = "perplexity", **kwargs: Any) -> None:
        super().__init__(name, **kwargs)

    def values(self, targets: Tensor, logits: Tensor) -> Any:
        _, log_denominator, target_logits = _statistics(*_flat(targets, logits))
        return ops.reshape(log_denominator - target_logits, ops.shape(targets))

    def result(self) -> Any:
        return ops.exp(super().result())


@keras.saving.register_keras_serializable("tf_transformer")
class TokenCount(_TokenMean):
    """Number of tokens that count since the last reset, for a rate in tokens/s, whatever their weights.

    Args:
        ignore_class: As in `SmoothedCrossEntropy`.
    """

    def __init__(self, name: str = "tokens", **kwargs: Any) -> None:
        super().__init__(name, **kwargs)

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None) -> None:
        _, _, counted = _tokens(y_true, y_pred, self.ignore_class)
        self.count.assign_add(ops.sum(counted))

    def result(self) -> Any:
        return self.count + 0.0  # the value, not the variable


def average_weights(model: keras.Model, paths: Sequence[str | os.PathLike[str]]) -> None:
    """Averages checkpoint weights and loads them into `model` (section 6.1).

    Args:
        model: Built model. Its weights are overwritten.
        paths: `.weights.h5` files of models with the same architecture.

    Raises:
        BadInput: If `paths` is empty or a weight is not finite.
    """
    if not paths:
        raise BadInput("paths: expected at least one file of weights to average, got none")
    # "averaging the last 5 checkpoints", one file at a time, in float64.
    sums = [np.zeros(weight.shape, "float64") for weight in model.weights]
    for path in paths:
        model.load_weights(user_path(path))
        check_finite(model.weights, f"{path}: ")
        for total, weight in zip(sums, model.get_weights(), strict=True):
            total += weight
    model.set_weights([total / len(paths) for total in sums])
