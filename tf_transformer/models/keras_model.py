"""How `fit` trains a model of token ids: checks, and the step, which is the same on any number of devices."""

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from tf_transformer.config import BadInput, TransformerConfig
from tf_transformer.distribution import is_a_worker, over_replicas
from tf_transformer.masks import PAD_ID
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.type_names import Tensor

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazily("tensorflow", "the training step")


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
            # `train_step` sums before clipping and before the test for finite numbers. Keras's optimizers would sum
            # afterwards, and TensorFlow registers a gradient of each sum and never frees it, nor the graph around it.
            if hasattr(inner, "sums_gradients"):
                inner.sums_gradients = False
            else:
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
        # Keras finds the end of a dataset of unknown size by a step that has no batch. In it, TensorFlow would run what
        # needs no batch: count an update, and decay the weights once more.
        arrays = [array for array in tf.nest.flatten(data, expand_composites=True) if array is not None]
        with tf.control_dependencies(arrays):
            return self._train_step(data)

    def _train_step(self, data: Tensor) -> dict[str, Any]:
        before = self._metrics_now()
        # Every N-th row, not N blocks of rows: batches end in rows of padding, which would fill the last part.
        N = self.num_microbatches
        parts = [tf.nest.map_structure(lambda ids, i=i: ids[i::N], data) if N > 1 else data for i in range(N)]
        parts = [keras.utils.unpack_x_y_sample_weight(part) for part in parts]
        # The loss divides each part's sum by that part's tokens (over all replicas), so a part's share turns its mean
        # into its part of the batch's mean. A mean of means would weigh tokens of short parts more.
        tokens = over_replicas(tf.stack([self._count(y) for _, y, _ in parts]))  # [N]
        shares = tokens / tf.maximum(tf.reduce_sum(tokens), 1.0)
        loss: tf.Tensor | float = 0.0
        gradients: list[tf.Tensor] = []
        for (x, y, sample_weight), share in zip(parts, tf.unstack(shares), strict=True):
            # A part waits for the previous one. TensorFlow would run both at once, and memory would not be saved.
            with tf.control_dependencies(gradients), tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                part_loss = share * tf.cast(self.compute_loss(x, y, y_pred, sample_weight), tf.float32)
                scaled = self.optimizer.scale_loss(part_loss)  # float16's gradients would round to 0
            part_gradients = tape.gradient(scaled, self.trainable_variables, unconnected_gradients="zero")
            gradients = [tf.add_n(pair) for pair in zip(*filter(None, (gradients, part_gradients)), strict=True)]
            loss += part_loss
            self.compute_metrics(x, y, y_pred, sample_weight)
        finite = self._update(loss, over_replicas(gradients))
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
        if labels is None:
            raise BadInput("labels: expected ids [B, T], got none. Pass batches of ((source, target_in), target_out).")
        if isinstance(labels, tf.RaggedTensor):
            raise BadInput("labels: expected an array of ids [B, T], got a ragged tensor; write labels.to_tensor()")
        ignored = getattr(self.loss, "ignore_class", PAD_ID)
        return tf.cast(tf.size(labels) if ignored is None else tf.math.count_nonzero(labels != ignored), tf.float32)

    def _metrics_now(self) -> list[tuple[keras.Variable, Any]]:
        """Returns the metrics' variables with copies of their values, if a batch may be skipped."""
        variables = self.metrics_variables if self.skip_not_finite else []
        return [(variable, tf.identity(tf.convert_to_tensor(variable.value))) for variable in variables]

    def _update(self, loss: Tensor, gradients: Tensor) -> Any:
        """Makes an update, or skips it, and returns whether it was finite."""
        norm = tf.cast(tf.linalg.global_norm(gradients), tf.float32) / self.optimizer.scale_loss(1.0)
        # That of float16 looks for overflows, which are normal for it, and skips them itself.
        scales = isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)
        finite = tf.math.is_finite(over_replicas(loss if scales else loss + norm))
        self.gradient_norm.assign(norm)
        # Callbacks read these variables only once in a while, since each look at the device waits for it.
        size, step = self.not_finite_steps.shape[0], self.steps_made + 1
        is_next = tf.range(size, dtype=tf.int64) == self.not_finite % size
        self.not_finite_steps.assign(tf.where(~finite & is_next, step, self.not_finite_steps))
        self.not_finite.assign_add(tf.cast(~finite, tf.int64))
        self.steps_made.assign(step)
        if not self.skip_not_finite or scales:
            self.optimizer.apply(gradients, self.trainable_variables)
            return finite
        variables = self.trainable_variables

        def apply_if(strategy: Any, finite: Tensor, gradients: Tensor) -> None:
            def apply() -> None:
                strategy.extended.call_for_each_replica(self.optimizer.apply, args=(gradients, variables))

            tf.cond(strategy.experimental_local_results(finite)[0], apply, lambda: None)

        # Once for all replicas: an optimizer joins the replicas, and a branch within one of them must not.
        tf.distribute.get_replica_context().merge_call(apply_if, args=(finite, gradients))
        return finite

    def _logs(self, loss: Tensor, tokens: Tensor, finite: Tensor, before: Tensor) -> dict[str, Any]:
        """Returns metrics, given all replicas' `tokens` and this one's share of the loss, or those `before` a skip."""
        replicas = self.distribute_strategy.num_replicas_in_sync
        counts = finite | (not self.skip_not_finite)
        for variable, value in before:
            variable.assign(tf.where(counts, variable.value, value))
        # Keras's tracker is a weighted mean over batches, summed over replicas. With a batch's tokens as its weight, an
        # epoch's loss is a mean over tokens, which does not depend on how they were batched.
        tokens = tf.where(counts, tokens, 0)
        self._loss_tracker.update_state(tf.where(counts, loss, 0) * replicas, sample_weight=tokens / replicas)
        logs = self.get_metrics_result()
        if is_a_worker(self.distribute_strategy):  # then Keras averages over the first axis
            logs = {name: tf.reshape(value, (1,)) for name, value in logs.items()}
        return logs


if keras.backend.backend() != "tensorflow":  # Keras's own step, on one device
    Model = keras.Model  # type: ignore[misc]


MAKE_IDS = "Make ids of texts with tt.data.token_batches, and pad lists of ids with keras.utils.pad_sequences."


class KerasModel(Model):
    """Base of `Transformer`: methods of `keras.Model` that differ for a model of token ids.

    Its inputs are source and target ids of shapes `(B, S)` and `(B, T)`. Its labels are ids of shape `(B, T)`.

    Attributes:
        after_fit: Callbacks to run when `fit` ends, also after an exception, which Keras does not report to callbacks.
    """

    config: TransformerConfig
    after_fit: contextlib.ExitStack

    def __call__(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
        # Checked here, since Keras adds lines to an error from `call`.
        check_pair(inputs)
        with self._short_errors():
            return super().__call__(inputs, *args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Configures the training as `keras.Model.compile` does.

        Raises:
            BadInput: If a loss or a metric takes probabilities. The model's outputs are logits.
        """
        arguments = dict(zip(("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics"), args, strict=False))
        for name in ("loss", "metrics", "weighted_metrics"):
            for one in keras.tree.flatten((arguments | kwargs).get(name)):
                if takes_probabilities(one):
                    got = one if isinstance(one, str) else getattr(one, "__name__", type(one).__name__)
                    action = "Give tt.SmoothedCrossEntropy(0.0), or from_logits=True."
                    raise BadInput(f"{name}: expected one of logits, got {got}, which takes probabilities. {action}")
        super().compile(*args, **kwargs)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        # Keras does not compile a loaded model whose `compile` is overridden. This one only checks its arguments.
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer and self.built:
            self.optimizer.build(self.trainable_variables)

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """Trains the model as `keras.Model.fit` does, with short errors.

        Args:
            args: Source and target ids, and labels, or batches of both, as Keras takes them.
            kwargs: Arguments of `keras.Model.fit`. To weigh tokens, pass `sample_weight` of shape `(B, T)`.

        Raises:
            BadInput: If all weights are frozen, `class_weight` is passed, or an id is out of range. Ids in arrays are
                checked before the first step. Others are checked in the step, if TensorFlow can raise there, on a CPU.
        """
        # On a GPU, TensorFlow's gather returns zeros for ids beyond the table, and training would continue. So ids in
        # arrays are checked before the first step.
        self._check_training(kwargs)
        arguments = dict(zip(("x", "y"), args, strict=False)) | kwargs
        x, labels = arguments.get("x"), arguments.get("y")
        if isinstance(labels, np.ndarray):
            labels = labels[labels != getattr(self.loss, "ignore_class", None)]
        for ids in (*(x if isinstance(x, tuple | list) else (x,)), labels):
            if isinstance(ids, list | str) or _holds_text(ids):  # Keras's error would contain all of it.
                got = "strings" if _holds_text(ids) else f"a {type(ids).__name__}"
                raise BadInput(f"x, y: expected arrays of ids, got {got}. {MAKE_IDS}")
            if isinstance(ids, np.ndarray) and ids.size:
                self._check_range(ids.max() if ids.max() >= self.config.vocab_size else ids.min())
        with contextlib.ExitStack() as self.after_fit, self._short_errors():
            return super().fit(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with self._short_errors():
            return super().evaluate(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        with self._short_errors():
            return super().predict(*args, **kwargs)

    @contextlib.contextmanager
    def _short_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # TensorFlow's InvalidArgumentError has sixty lines.
            if type(error).__name__ == "InvalidArgumentError":
                for id, size in re.findall(r"= (-?\d+) is not in \[0, (\d+)\)", str(error)):
                    if int(size) == self.config.vocab_size:
                        self._check_range(int(id))
            raise

    def _check_range(self, id: int) -> None:
        V = self.config.vocab_size
        if not 0 <= id < V:
            action = f". Pass ignore_class={id} to loss and metrics if such labels do not count." if id < 0 else ""
            raise BadInput(f"expected ids from 0 to below vocab_size={V}, got {id}{action}") from None

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        self._check_training(kwargs)
        return super().train_on_batch(*args, **kwargs)

    def _check_training(self, options: dict[str, Any]) -> None:
        if options.get("class_weight") is not None:
            raise BadInput("class_weight: expected none for token ids. Pass sample_weight=table[labels] instead.")
        if self.built and not self.trainable_weights:
            raise BadInput("expected trainable weights, got a model whose weights are all frozen")
        if getattr(self.loss, "reduction", "mean") in ("none", None):
            raise BadInput('loss: expected one number per batch, got reduction="none". Compile a loss that is a mean.')

    def export(
        self,
        filepath: Any,
        format: str = "tf_saved_model",
        verbose: Any = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> None:
        """`keras.Model.export`. The default signature takes source and target ids of any number and length."""
        if not self._called:  # Keras exports only a model that was called
            self((ops.ones((1, 1), "int32"), ops.ones((1, 1), "int32")))
        names = ("source", "target")
        ids = tuple(keras.InputSpec(dtype="int32", shape=(None, None), name=name) for name in names)
        super().export(filepath, format, verbose, input_signature or [ids], **kwargs)

    def rematerialized_call(self, layer_call: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        # Its layers are rematerialized one by one. The whole model at once would save no memory.
        return layer_call

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # Traces the call, since outputs and dtypes depend on its options.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


def takes_probabilities(measure: Any) -> bool:
    """Returns whether a loss or a metric of Keras, or its name, takes probabilities and not logits."""
    if isinstance(measure, str):
        try:
            measure = keras.losses.get(measure)
        except ValueError:  # Keras raises if there is no metric of this name either
            return False
    # Keras's own wrap a function, with its options.
    function = getattr(measure, "fn", getattr(measure, "_fn", measure))
    options = getattr(measure, "_fn_kwargs", {})
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    if "from_logits" in parameters:
        return not options.get("from_logits", parameters["from_logits"].default)
    return function in (keras.losses.kl_divergence, keras.losses.poisson)


def check_pair(inputs: Any) -> None:
    """Raises BadInput unless a model's inputs are source and target ids of shapes [B, S] and [B, T]."""
    if not isinstance(inputs, tuple | list) or len(inputs) != 2:
        got = f"{len(inputs)} parts" if isinstance(inputs, tuple | list) else f"one {type(inputs).__name__}"
    elif any(hasattr(ids, "row_splits") for ids in inputs):
        got = "a ragged tensor, for which write ids.to_tensor(); it pads with 0"
    elif any(map(_holds_text, inputs)):
        got = f"strings. {MAKE_IDS}"
    elif any(getattr(getattr(ids, "shape", None), "rank", 2) is None for ids in inputs):  # known later
        return
    else:
        source, target = (tuple(getattr(ids, "shape", ())) for ids in inputs)
        if len(source) == len(target) == 2 and (None in (source[0], target[0]) or source[0] == target[0]):
            return
        got = f"shapes {source} and {target}"
    raise BadInput(f"inputs: expected (source, target), arrays of ids [B, S] and [B, T]; got {got}")


def _holds_text(ids: Any) -> bool:
    return getattr(getattr(ids, "dtype", None), "name", "").startswith(("str", "bytes", "object"))
