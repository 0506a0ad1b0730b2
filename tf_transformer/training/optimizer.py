"""The optimizer (section 5.3): equation (3)'s learning rate, and Adam. `Trainer` passes the paper's numbers to both."""

from typing import Any

import keras
from keras import ops

from tf_transformer.utils.reading import with_new_names
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import BadInput, Count, Positive, checked

RENAMED = {"factor": "learning_rate_factor"}  # options of `WarmupSchedule` in files written before


@keras.saving.register_keras_serializable("tf_transformer")
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate of the paper, equation (3): d_model^-0.5 * min(step_num^-0.5, step_num * warmup_steps^-1.5).

    Args:
        d_model: Width of the model.
        warmup_steps: Steps of linear growth.
        learning_rate_factor: Factor of the rate. The paper's is 1.
    """

    @checked
    def __init__(self, d_model: Count, warmup_steps: Count = 4000, learning_rate_factor: Positive = 1.0) -> None:
        self.d_model = d_model
        self.warmup_steps = warmup_steps
        self.learning_rate_factor = learning_rate_factor

    def __call__(self, step: Tensor) -> Any:
        # "increasing the learning rate linearly for the first warmup_steps training steps, and decreasing it thereafter
        # proportionally to the inverse square root of the step number". An optimizer's first step is 0, the paper's 1.
        step_num = ops.cast(step, "float32") + 1.0
        rate = ops.minimum(step_num**-0.5, step_num * self.warmup_steps**-1.5)
        return self.learning_rate_factor * self.d_model**-0.5 * rate

    def get_config(self) -> dict[str, Any]:
        return {
            "d_model": self.d_model,
            "warmup_steps": self.warmup_steps,
            "learning_rate_factor": self.learning_rate_factor,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return cls(**with_new_names(config, RENAMED))


@keras.saving.register_keras_serializable("tf_transformer")
class ConstantSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Constant learning rate after a linear growth, as for fine-tuning.

    Args:
        learning_rate: The constant rate.
        warmup_steps: Steps of linear growth. The last of them has the constant rate.
    """

    @checked
    def __init__(self, learning_rate: Positive, warmup_steps: Count) -> None:
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps

    def __call__(self, step: Tensor) -> Any:
        # From 1, as in `WarmupSchedule`: a step with rate 0 would only fill Adam's moments.
        return self.learning_rate * ops.minimum((ops.cast(step, "float32") + 1.0) / self.warmup_steps, 1.0)

    def get_config(self) -> dict[str, Any]:
        return {"learning_rate": self.learning_rate, "warmup_steps": self.warmup_steps}


@keras.saving.register_keras_serializable("tf_transformer")
class Cooldown(keras.optimizers.schedules.LearningRateSchedule):
    """Schedule whose rate falls linearly to 0 in its last steps (Zhai et al. 2022). The paper has none.

    Args:
        schedule: Any schedule.
        cooldown_steps: Number of steps in which its rate falls.
        train_steps: Total number of steps, including the cooldown.

    Raises:
        BadInput: If cooldown_steps is not between 1 and train_steps.
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
    """`keras.optimizers.Adam` with TensorFlow's fused kernel (section 5.3).

    The paper's settings are `tt.Adam(tt.WarmupSchedule(512), 0.9, 0.98, 1e-9)`. Keras's own update, used on other
    backends and with amsgrad, passes over every weight a dozen times.

    Attributes:
        sums_gradients: Whether to sum gradients over the replicas of a strategy. `Transformer` sums them itself.
    """

    sums_gradients = True

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        import tensorflow as tf

        # TensorFlow registers a gradient of each sum that it traces and never frees it, nor the graph around it.
        sums = self.sums_gradients and tf.distribute.get_strategy().num_replicas_in_sync > 1
        return super()._all_reduce_sum_gradients(grads_and_vars) if sums else grads_and_vars

    def _clip_gradients(self, grads: Any) -> Any:
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            # Of an embedding's sparse gradient, Keras would measure each row by itself, before it sums rows of one id.
            grads = [g if g is None else tf.convert_to_tensor(g) for g in grads]
        return super()._clip_gradients(grads)

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Tensor) -> None:
        if keras.backend.backend() != "tensorflow" or self.amsgrad:
            return super().update_step(gradient, variable, learning_rate)
        import tensorflow as tf

        # m <- beta_1 m + (1 - beta_1) g, v <- beta_2 v + (1 - beta_2) g^2, then a step along m / (sqrt(v) + epsilon),
        # with the usual corrections of both. One kernel reads and writes each of these arrays once.
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
