"""Which arguments of a `Trainer` go together. Each function raises `BadInput` if some do not."""

from collections.abc import Sequence
from typing import Any

import keras

from tf_transformer import distribution
from tf_transformer.config import BadInput, TransformerConfig
from tf_transformer.decoding.primitives import ON_TENSORFLOW
from tf_transformer.inference.translator import Translator
from tf_transformer.masks import PAD_ID
from tf_transformer.models.families import build_model, check_weights, family_of_config
from tf_transformer.training.callbacks import RATE_CALLBACKS
from tf_transformer.training.recipe import UNREAD, Recipe
from tf_transformer.training.settings import inner

# Settings that may differ from those of the model that a run starts from.
TRAINING_ONLY_FIELDS = ("dropout", "attention_dropout", "label_smoothing")


def check_optimizer(
    recipe: Recipe, optimizer: Any, schedule: Any, callbacks: Sequence[keras.callbacks.Callback]
) -> None:
    """Checks an optimizer and a schedule with the recipe, and callbacks with all three."""
    optimizer = inner(optimizer)
    if optimizer and schedule:
        raise BadInput("optimizer: cannot be combined with schedule, since it has one")
    given = {"learning_rate": recipe.learning_rate, "schedule": schedule, "optimizer": optimizer}
    for owner, name in ((owner, name) for owner, names in UNREAD.items() if given[owner] for name in names):
        if (value := getattr(recipe, name)) != (default := getattr(Recipe, name)):
            action = f"Give dataclasses.replace(recipe, {name}={default})."
            raise BadInput(f"{owner}: cannot be combined with {name}={value}, which is not read then. {action}")
    if optimizer and (recipe.ema_momentum or getattr(optimizer, "use_ema", False)):
        got = "got use_ema or ema_momentum. Give Recipe(ema_momentum=...) and no optimizer"
        raise BadInput(f"optimizer: expected one without moving averages, {got}")
    # The public property returns the schedule's current value.
    scheduled = not optimizer or isinstance(optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule)
    for callback in callbacks:
        if getattr(callback, "restore_best_weights", False):
            raise BadInput("callbacks: cannot use restore_best_weights, since checkpoints are averaged at the end")
        if isinstance(callback, keras.callbacks.SwapEMAWeights):
            raise BadInput("callbacks: cannot use SwapEMAWeights. Pass Recipe(ema_momentum=...) instead.")
        if scheduled and isinstance(callback, RATE_CALLBACKS):
            got = f"{type(callback).__name__}. Pass an optimizer with a constant learning rate"
            raise BadInput(f"callbacks: cannot change the rate of a schedule, got {got}")


def check_unused(optimizer: Any) -> None:
    """Checks that an optimizer has trained no model."""
    if optimizer and inner(optimizer).built:
        raise BadInput("optimizer: expected a new one, got one that trained another model. Create it again.")


def check_loss(loss: keras.losses.Loss | None, config: TransformerConfig) -> None:
    """Checks that a loss ignores padding, and replaces no setting of the configuration."""
    if loss is None:
        return
    if (got := getattr(loss, "ignore_class", None)) != PAD_ID:
        raise BadInput(f"loss: expected one with ignore_class={PAD_ID}, the padding of batches, got {got}")
    if (smoothing := config.label_smoothing) != (default := type(config).label_smoothing):
        action = f"which is not read then. Give dataclasses.replace(config, label_smoothing={default})."
        raise BadInput(f"loss: cannot be combined with label_smoothing={smoothing}, {action}")


def check_start(start: Translator | None, config: TransformerConfig) -> None:
    """Checks that the model to start from is one model of this configuration, with weights to train."""
    if start is None:
        return
    if hasattr(start.model, "models"):
        raise BadInput(f"start: expected one model, got an ensemble of {len(start.model.models)}")
    if not getattr(start.model, "trainable_weights", True):
        raise BadInput("start: expected trainable weights, got a model whose weights are all frozen")
    rates = {name: getattr(config, name) for name in TRAINING_ONLY_FIELDS}
    sizes, start_sizes = config.to_dict(), start.model.config.to_dict() | rates
    if differing := [name for name in start_sizes if sizes.get(name) != start_sizes[name]]:
        expected = ", ".join(f"{name}={start_sizes[name]}" for name in differing)
        got = ", ".join(f"{name}={sizes.get(name)}" for name in differing)
        raise BadInput(f"config: expected the sizes of the model to start from, {expected}; got {got}")
    if type(start.model) is not family_of_config(config).model:
        check_weights("start", build_model(config, "float32"), start.astype("float32").model.weights)


def check_backend(recipe: Recipe) -> None:
    """Checks that Keras's backend trains as the recipe demands."""
    if not ON_TENSORFLOW and (recipe.num_microbatches > 1 or recipe.on_nan != "stop"):
        got = f"num_microbatches={recipe.num_microbatches} and on_nan={recipe.on_nan}"
        raise BadInput(
            f"expected num_microbatches=1 and on_nan=stop on the backend {keras.backend.backend()}, got {got}"
        )


def check_devices(recipe: Recipe, strategy: Any) -> None:
    """Checks that the devices of a `tf.distribute.Strategy` train as the recipe demands."""
    if recipe.early_stopping_patience and distribution.is_a_worker(strategy):
        raise BadInput(
            f"early_stopping_patience: expected None on several machines, got {recipe.early_stopping_patience}"
        )
    if recipe.jit_compile == "on" and (replicas := distribution.replicas(strategy)) > 1:
        raise BadInput(f"jit_compile: expected auto or off on {replicas} devices, got on, which is for one")
