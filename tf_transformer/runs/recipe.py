"""How a run is trained: all settings in one place, and the recipe of each preset."""

import dataclasses
import math
from typing import Any

from tf_transformer.config import PRESETS, BadInput

PAPER_STEPS = 100_000  # of base (section 5.2)
CHANGEABLE = (
    "steps",
    "epochs",
    "eval_every",
    "average_last",
    "dev_sentences",
    "parts",
    "on_nan",
    "jit_compile",
)  # may change as a run goes on


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to train a Transformer (section 5). The defaults train the paper's `base`, unless noted otherwise.

    Attributes:
        steps: updates to make; `None` means the paper's 100,000 for `base`, unless `epochs` is set.
        epochs: passes over the training text to make, instead of `steps`.
        batch_tokens: source tokens, and target tokens, in a batch, padding included (section 5.1).
        warmup_steps: steps in which the learning rate grows, equation (3).
        factor: multiplies equation (3)'s learning rate.
        learning_rate: a constant rate after the warm-up, as for fine-tuning; `None` means equation (3).
        cooldown_steps: last steps, in which the learning rate falls to 0 (Zhai et al. 2022); the paper has none.
        eval_every: steps between checkpoints; `None` means a twentieth of all steps, and at most 1,500.
        average_last: checkpoints to average at the end (section 6.1), and to keep, two at least.
        dev_sentences: sentences of the dev text to decode at each checkpoint.
        tokenizer: kind of vocabulary to learn, "bpe" or "unigram" (section 5.1), which reads texts in a normal form
            (docs/reference/vocabulary.md).
        mixed_precision: "bfloat16" or "float16" to compute in, with weights in float32; `None` means float32.
        parts: compute a batch in this many parts, one after the other: the same update, less memory.
        clip_norm: the largest norm of a gradient; larger ones are scaled down to it; `None` means no limit.
        on_nan: what to do when a loss or a gradient is not finite: "stop", or "skip" the update.
        jit_compile: whether XLA compiles the training step, once for each shape of batches: "on", "off", or "auto" for
            Keras's choice, which is on with one GPU.
        seed: of weights, dropout and the order of the text.

    Raises:
        BadInput: a value is out of range.
    """

    steps: int | None = None
    epochs: int | None = None
    batch_tokens: int = 25_000
    warmup_steps: int = 4_000
    factor: float = 1.0
    learning_rate: float | None = None
    cooldown_steps: int = 0
    eval_every: int | None = None
    average_last: int = 5
    dev_sentences: int = 500
    tokenizer: str = "bpe"
    mixed_precision: str | None = None
    parts: int = 1
    clip_norm: float | None = None
    on_nan: str = "stop"
    jit_compile: str = "auto"
    seed: int = 1

    def __post_init__(self) -> None:
        counts = ("steps", "epochs", "batch_tokens", "warmup_steps", "eval_every", "average_last", "dev_sentences")
        for name in (*counts, "parts", "factor", "learning_rate", "clip_norm"):
            value = getattr(self, name)
            self._require(name, value is None or 0 < value < math.inf, "a positive number")
        self._require("cooldown_steps", self.cooldown_steps >= 0, "0 or more")
        self._require("tokenizer", self.tokenizer in ("bpe", "unigram"), "bpe or unigram")
        self._require("mixed_precision", self.mixed_precision in (None, "bfloat16", "float16"), "bfloat16 or float16")
        self._require("on_nan", self.on_nan in ("stop", "skip"), "stop or skip")
        self._require("jit_compile", self.jit_compile in ("auto", "on", "off"), "auto, on or off")
        self._require("seed", 0 <= self.seed < 2**32, f"0 to {2**32 - 1}")
        if self.steps and self.epochs:
            raise BadInput(f"expected steps or epochs, got {self.steps:,} steps and {self.epochs:,} epochs")

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise BadInput(f"{name}: expected {expected}, got {getattr(self, name)}")

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, for JSON; `Recipe(**recipe.to_dict()) == recipe`."""
        return dataclasses.asdict(self)

    def interval(self, steps: int) -> int:
        """Steps from one checkpoint to the next, about `eval_every`, so that the last one is at the end."""
        every = self.eval_every or min(1_500, -(-steps // 20))
        return -(-steps // max(1, round(steps / every)))


RECIPES = {
    # To fine-tune a pretrained model.
    "finetune": Recipe(epochs=3, batch_tokens=2_048, warmup_steps=100, learning_rate=5e-5),
    "tiny": Recipe(steps=800, batch_tokens=2_048, warmup_steps=300, eval_every=80),
    "small": Recipe(steps=12_000, batch_tokens=2_048, warmup_steps=800, cooldown_steps=3_000, eval_every=500),
    # The learning rate rises to 0.005 (Wu et al. 2021).
    "multi30k": Recipe(steps=8_000, batch_tokens=4_096, warmup_steps=2_000, factor=2.53, eval_every=250),
    # Ten minutes between checkpoints, as the paper has them on 8 P100.
    "base": Recipe(steps=PAPER_STEPS, eval_every=1_500),
    "big": Recipe(steps=300_000, eval_every=600),
    "parsing_small": Recipe(steps=14_000, batch_tokens=2_048, warmup_steps=600, factor=1.5, eval_every=1_000),
    "parsing_wsj": Recipe(steps=300_000, eval_every=1_000),
    "parsing_semi": Recipe(steps=300_000, eval_every=1_000),
}


def recipe_of(preset: str, kind: str) -> Recipe:
    """The recipe of a preset, to translate or to parse. Rows of Table 3 are trained as `base`.

    Args:
        preset: a name in `PRESETS`.
        kind: "translation" or "parsing".

    Raises:
        BadInput: there is no such preset, or it is one for parsing and not for translation.
    """
    names = [name for name in PRESETS if kind == "parsing" or not name.startswith("parsing")]
    if preset not in names:
        raise BadInput(f"preset: expected one of {', '.join(names)} for {kind}; got {preset!r}")
    recipe = RECIPES.get(preset, RECIPES["base"])
    if kind == "parsing" and not preset.startswith("parsing"):
        return dataclasses.replace(RECIPES["parsing_wsj"], steps=recipe.steps)
    return recipe
