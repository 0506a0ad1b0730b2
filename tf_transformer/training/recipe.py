"""The settings of a training, and the recipe of each preset."""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

from tf_transformer.config import PRESETS, BadInput
from tf_transformer.utils.type_names import VocabularyKind
from tf_transformer.utils.values import Count, Natural, Positive, Rate, Seed, between, check_fields, checked

Microbatches = Annotated[int, between(1, 1_024)]  # The graph of a step has all of them.
PAPER_STEPS = 100_000  # the paper's `base` (section 5.2)
# Options that may change when a run is resumed.
CHANGEABLE = {"steps", "epochs", "eval_every", "early_stopping_patience", "average_last", "dev_sentences"}
CHANGEABLE |= {"num_microbatches", "on_nan", "jit_compile", "metric", "average"}


# Options of the learning rate that are not read beside another setting, by the setting.
UNREAD = {
    "learning_rate": ("learning_rate_factor",),
    "schedule": ("learning_rate", "warmup_steps", "learning_rate_factor"),
    "optimizer": ("learning_rate", "warmup_steps", "learning_rate_factor", "cooldown_steps", "clip_norm"),
}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings of a training (section 5). The defaults train the paper's `base`, unless noted otherwise.

    Attributes:
        steps: number of updates. `None` means the paper's 100,000 for `base`, unless `epochs` is set.
        epochs: number of passes over the training set, instead of `steps`.
        batch_tokens: source tokens per batch, and as many target tokens. Padding counts (section 5.1).
        warmup_steps: steps over which the learning rate grows, equation (3).
        learning_rate_factor: factor of equation (3)'s learning rate.
        learning_rate: constant learning rate after the warm-up, as for fine-tuning. `None` means equation (3).
        cooldown_steps: final steps over which the learning rate falls to 0. They are of Zhai et al. (2022).
        eval_every: approximate number of steps between checkpoints. `None` means 1,500, or a 20th of all steps if less.
        early_stopping_patience: checkpoints without a better dev score before training stops. `None` means never.
        metric: score that chooses checkpoints: BLEU, chrF, chrF++, TER or spBLEU. `None` means the task's score.
        average: checkpoints to average at the end, "last" or, by the metric, "best".
        average_last: number of checkpoints to average at the end (section 6.1). As many are kept, at least 2. `None`
            means 5, or 1 with `ema_momentum`.
        dev_sentences: number of dev sentences to decode at each checkpoint.
        tokenizer: kind of vocabulary to train, "bpe" or "unigram" (section 5.1). It reads texts in a normal form
            (docs/reference/vocabulary.md).
        mixed_precision: compute dtype, "bfloat16" or "float16", with weights in float32. `None` means float32.
        num_microbatches: microbatches per batch, to save memory. The update is the same.
        clip_norm: maximum norm of the gradients, which are scaled down to it. `None` means no limit.
        ema_momentum: momentum of a moving average of the weights. It covers about 1 / (1 - momentum) steps, and
            replaces the weights in scores and checkpoints. `None` means no average.
        on_nan: if a loss or a gradient is not finite, "stop" or "skip" the update.
        jit_compile: compile the training step with XLA, "on", "off" or "auto". It compiles once per batch shape. "auto"
            is Keras's choice, on with one GPU.
        seed: random seed of weights, dropout and data order, any integer.

    Raises:
        BadInput: If a value is out of range.
    """

    steps: Count | None = None
    epochs: Count | None = None
    batch_tokens: Count = 25_000
    warmup_steps: Count = 4_000
    learning_rate_factor: Positive = 1.0
    learning_rate: Positive | None = None
    cooldown_steps: Natural = 0
    eval_every: Count | None = None
    early_stopping_patience: Count | None = None
    metric: str | None = None
    average: Literal["last", "best"] = "last"
    average_last: Count | None = None
    dev_sentences: Count = 500
    tokenizer: VocabularyKind = "bpe"
    mixed_precision: Literal["bfloat16", "float16"] | None = None
    num_microbatches: Microbatches = 1
    clip_norm: Positive | None = None
    ema_momentum: Rate | None = None
    on_nan: Literal["stop", "skip"] = "stop"
    jit_compile: Literal["auto", "on", "off"] = "auto"
    seed: Seed = 1

    # Names of fields in config.json files written before.
    RENAMED: ClassVar = {
        "factor": "learning_rate_factor",
        "parts": "num_microbatches",
        "stop_after": "early_stopping_patience",
    }

    def __post_init__(self) -> None:
        check_fields(self)
        if self.steps and self.epochs:
            raise BadInput(f"expected steps or epochs, got {self.steps:,} steps and {self.epochs:,} epochs")

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain values for JSON. `Recipe(**recipe.to_dict())` equals the recipe."""
        return dataclasses.asdict(self)

    @property
    def averaged(self) -> int:
        """Number of checkpoints to average at the end."""
        return self.average_last or (1 if self.ema_momentum else 5)

    @checked
    def last_step(self, epoch: Count) -> int:
        """Returns the number of updates, if a pass over the training set has `epoch` batches."""
        return self.epochs * epoch if self.epochs else self.steps or PAPER_STEPS

    @checked
    def interval(self, steps: Count) -> int:
        """Returns the steps between checkpoints, about `eval_every`, so that the last one is at the end."""
        # Equal intervals, so that the last checkpoint is at the last step and none is close before it.
        every = self.eval_every or min(1_500, -(-steps // 20))
        return -(-steps // max(1, round(steps / every)))


RECIPES = {
    # To fine-tune a pretrained model.
    "finetune": Recipe(epochs=3, batch_tokens=2_048, warmup_steps=100, learning_rate=5e-5),
    "tiny": Recipe(steps=800, batch_tokens=2_048, warmup_steps=300, eval_every=80),
    "small": Recipe(steps=12_000, batch_tokens=2_048, warmup_steps=800, cooldown_steps=3_000, eval_every=500),
    # The learning rate rises to 0.005 (Wu et al. 2021).
    "multi30k": Recipe(steps=8_000, batch_tokens=4_096, warmup_steps=2_000, learning_rate_factor=2.53, eval_every=250),
    # Ten minutes between checkpoints, as the paper has them on 8 P100.
    "base": Recipe(steps=PAPER_STEPS, eval_every=1_500),
    "big": Recipe(steps=300_000, eval_every=600),
}


@checked
def recipe_of(preset: str) -> Recipe:
    """Returns the recipe of a preset. Rows of Table 3 are trained like `base`.

    Args:
        preset: Name in `PRESETS`.

    Raises:
        BadInput: If the preset does not exist.
    """
    if preset not in PRESETS:
        raise BadInput(f"preset: expected one of {', '.join(PRESETS)}; got {preset!r}")
    return RECIPES.get(preset, RECIPES["base"])
