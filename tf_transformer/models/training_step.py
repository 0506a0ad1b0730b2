"""The training step of `fit` on TensorFlow: the same update on any number of devices and machines."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_transformer.config import BadInput
from tf_transformer.distribution import is_a_worker, over_replicas
from tf_transformer.masks import PAD_ID
from tf_transformer.utils.type_names import Tensor


class Model(keras.Model):
    """A `keras.Model` of token ids, ((source, target), labels [B, T]), that `fit` trains under any strategy.

    The update does not depend on the number of replicas and parts. The loss is a mean over all real tokens of the
    batch. Gradients are summed first, then measured, clipped and applied.

    Attributes:
        num_microbatches: Number of parts of a replica's rows, computed one after the other to save memory.
        skip_not_finite: Whether to skip an update with a NaN or an infinity, which then changes neither weights nor
            moments, the optimizer's step or metrics.
        steps_made: Variable, the number of steps since `compile`.
        not_finite: Variable, the number of updates with a NaN or an infinity since `compile`.
        not_finite_steps: Variable of shape `(50,)`, the numbers of their steps, from 1. The newest replace the oldest.
        gradient_norm: Variable, the norm of the last gradient before clipping.
    """

    num_microbatches = 1
    skip_not_finite = False

    def make_train_function(self, force: bool = False) -> Any:
        if self.train_function is None or force:
            inner: Any = getattr(self.optimizer, "inner_optimizer", self.optimizer)
            self._sums_gradients = hasattr(inner, "sums_gradients")
            if self._sums_gradients:
                # `train_step` sums before clipping and before the test for finite numbers. Others sum afterwards.
                inner.sums_gradients = False
            elif self.distribute_strategy.num_replicas_in_sync == 1:
                # TensorFlow would register a gradient of the sum for each model, and never free the model's graph.
                inner._all_reduce_sum_gradients = list
            first = {"trainable": False, "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}
            with self.distribute_strategy.scope():
                # int64, since TensorFlow has no variables of int32 on a GPU.
                self.steps_made, self.not_finite, self.not_finite_steps = (
                    tf.Variable(np.zeros(shape, "int64"), **first) for shape in ((), (), 50)
                )
                self.gradient_norm = tf.Variable(0.0, **first)
        return super().make_train_function(force)

    def _maybe_symbolic_build(self, iterator: Tensor = None, data_batch: Tensor = None) -> None:
        # Keras infers sizes from the mean of the first batch over replicas. That fails if their shapes differ, and with
        # several machines. Without a strategy, Keras creates the optimizer's variables while it traces a step, and must
        # trace the step again. Our sizes do not depend on the input.
        ids = tf.ones((1, 2), tf.int32)
        containers = [one for one in (self._compile_metrics, self._compile_loss) if one is not None and not one.built]
        with self.distribute_strategy.scope():
            if containers:
                # Otherwise Keras traces model, loss and metrics to infer the structure of the logits.
                logits = self((ids, ids))
                for container in containers:
                    container.build(ids, logits)
            self._symbolic_build(data_batch=((ids, ids), ids))

    def train_step(self, data: Tensor) -> dict[str, Any]:
        before = self._metrics_now()
        N = self.num_microbatches
        parts = [tf.nest.map_structure(lambda ids, i=i: ids[i::N], data) if N > 1 else data for i in range(N)]
        parts = [keras.utils.unpack_x_y_sample_weight(part) for part in parts]
        tokens = over_replicas(tf.stack([self._count(y) for _, y, _ in parts]))
        shares = tokens / tf.maximum(tf.reduce_sum(tokens), 1.0)
        loss: tf.Tensor | float = 0.0
        gradients: list[tf.Tensor] = []
        for (x, y, sample_weight), share in zip(parts, tf.unstack(shares), strict=True):
            with tf.control_dependencies(gradients), tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                part_loss = share * tf.cast(self.compute_loss(x, y, y_pred, sample_weight), tf.float32)
                scaled = self.optimizer.scale_loss(part_loss)
            part_gradients = tape.gradient(scaled, self.trainable_variables, unconnected_gradients="zero")
            gradients = [tf.add_n(pair) for pair in zip(*filter(None, (gradients, part_gradients)), strict=True)]
            loss += part_loss
            self.compute_metrics(x, y, y_pred, sample_weight)
        finite = self._update(loss, over_replicas(gradients) if self._sums_gradients else gradients)
        return self._logs(loss, tf.reduce_sum(tokens), finite, before)

    def test_step(self, data: Tensor) -> dict[str, Any]:
        before = self._metrics_now()
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        y_pred = self(x, training=False)
        loss = tf.cast(self.compute_loss(x, y, y_pred, sample_weight, training=False), tf.float32)
        self.compute_metrics(x, y, y_pred, sample_weight)
        return self._logs(loss, over_replicas(self._count(y)), tf.math.is_finite(over_replicas(loss)), before)

    def _count(self, labels: Tensor) -> Any:
        """Returns the number of tokens that count in the loss."""
        if isinstance(labels, tf.RaggedTensor):
            raise BadInput("labels: expected an array of ids [B, T], got a ragged tensor; write labels.to_tensor()")
        ignored = getattr(self.loss, "ignore_class", PAD_ID)
        return tf.cast(tf.size(labels) if ignored is None else tf.math.count_nonzero(labels != ignored), tf.float32)

    def _metrics_now(self) -> list[tuple[keras.Variable, Any]]:
        """Returns the metrics' variables with copies of their values, if a batch may be skipped."""
        variables = self.metrics_variables if self.skip_not_finite else []
        return [(variable, tf.identity(tf.convert_to_tensor(variable.value))) for variable in variables]

    def _update(self, loss: Tensor, gradients: Tensor) -> tf.Tensor:
        """Makes an update, or skips it, and returns whether it was finite."""
        norm = tf.cast(tf.linalg.global_norm(gradients), tf.float32) / self.optimizer.scale_loss(1.0)
        # That of float16 looks for overflows, which are normal for it, and skips them itself.
        scales = isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)
        finite = tf.math.is_finite(over_replicas(loss if scales else loss + norm))
        self.gradient_norm.assign(norm)
        # These variables are read once in a while, since each look at the device waits for it.
        size, step = self.not_finite_steps.shape[0], self.steps_made + 1
        is_next = tf.range(size, dtype=tf.int64) == self.not_finite % size
        self.not_finite_steps.assign(tf.where(~finite & is_next, step, self.not_finite_steps))
        self.not_finite.assign_add(tf.cast(~finite, tf.int64))
        self.steps_made.assign(step)
        if self.skip_not_finite and not scales:
            tf.distribute.get_replica_context().merge_call(self._apply_if, args=(finite, gradients))
        else:
            self.optimizer.apply(gradients, self.trainable_variables)
        return finite

    def _apply_if(self, strategy: tf.distribute.Strategy, finite: Tensor, gradients: Tensor) -> None:
        """Runs once for all replicas, since an optimizer joins them and a branch within a replica must not."""
        variables = self.trainable_variables

        def apply() -> None:
            strategy.extended.call_for_each_replica(self.optimizer.apply, args=(gradients, variables))

        tf.cond(strategy.experimental_local_results(finite)[0], apply, lambda: None)

    def _logs(self, loss: Tensor, tokens: Tensor, finite: Tensor, before: Tensor) -> dict[str, Any]:
        """Returns metrics, given all replicas' `tokens` and this one's share of the loss, or those `before` a skip."""
        replicas = self.distribute_strategy.num_replicas_in_sync
        counts = finite | (not self.skip_not_finite)
        for variable, value in before:
            variable.assign(tf.where(counts, variable.value, value))
        tokens = tf.where(counts, tokens, 0)
        self._loss_tracker.update_state(tf.where(counts, loss, 0) * replicas, sample_weight=tokens / replicas)
        logs = self.get_metrics_result()
        if is_a_worker(self.distribute_strategy):  # then Keras averages over the first axis
            logs = {name: tf.reshape(value, (1,)) for name, value in logs.items()}
        return logs
